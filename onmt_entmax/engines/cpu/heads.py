"""The mapping of a Transformer's attention scores on a CPU: each row once, forwards and back.

Rows are short (5 to 200 entries) and many, B sentences times H heads times Q queries of them, each of K entries; only
what can have a probability is looked at more than once.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import types
from torch import Tensor
from torch.autograd.function import once_differentiable

from onmt_entmax.engines.cpu.attention import map_row
from onmt_entmax.engines.cpu.loops import (
    INT,
    ONE_D,
    TWO_D,
    ZERO,
    Shared,
    bounds,
    inlined,
    jit,
    this_thread,
    threads_for,
)

_MASKED = np.float32(-5e17)  # see model.heads


@jit
def _map_forward(share, shares, scores, alphas, queries, probs):
    """Rows of probabilities.

    Args:
        scores: ``(B * H * Q, K)``; at most ``_MASKED``: left out.
        alphas: of each head, ``(H,)``, above 1 and at most 2.
        queries: Q.
        probs: receives the probabilities, same shape as ``scores``; a row that is left out as a whole is zero.
    """
    first, stop = bounds(scores.shape[0], share, shares)
    width = scores.shape[1]
    near, found, places = np.empty(width, np.float32), np.empty(width, np.float32), np.empty(width, np.int64)
    for row in range(first, stop):
        here, out = scores[row], probs[row]
        alpha = np.float64(alphas[row // queries % alphas.size])
        top = -np.float32(np.inf)
        for k in range(width):
            out[k] = ZERO
            # written so that NaN stays
            if not here[k] <= _MASKED and not here[k] <= top:
                top = here[k]
        # what is further below the largest score than this has no probability
        lowest = -1.0 / (alpha - 1.0)  # compared with differences: their sum with a large score is that score
        count = 0
        for k in range(width):
            if not (here[k] <= _MASKED or here[k] - top <= lowest):
                near[count] = here[k]
                places[count] = k
                count += 1
        if count == 0:
            continue
        map_row(near[:count], alpha, found[:count])
        for j in range(count):
            out[places[j]] = found[j]


_MAP_FORWARD = types.Tuple((TWO_D, ONE_D, INT, TWO_D))
map_forward = Shared(_map_forward, lambda at: _map_forward(*this_thread(at, _MAP_FORWARD)), _MAP_FORWARD)


@inlined
def _phi(x):
    """``(exp(x) - 1 - x) / x**2``, by its series near 0."""
    if x < 0.1:
        return 1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * (1 / 720 + x / 5040))))
    return (math.expm1(x) - x) / (x * x)


@jit
def _map_backward(share, shares, probs, gradients, alphas, queries, learned, d_scores, d_alphas):
    """Gradients of scores and alphas in one pass; what has no probability has no part in them (Prop. 1 of the paper).

    See ``entmax.functional.alpha_gradient`` for the second: its H, R and Z are ``entropy``, ``mean`` and ``total``.

    Args:
        probs, gradients: ``(B * H * Q, K)``.
        learned: whether ``d_alphas`` is wanted, not zero.
        d_scores: receives the gradient of the scores, same shape.
        d_alphas: receives that of alpha for each row, ``(B * H * Q,)``.
    """
    first, stop = bounds(probs.shape[0], share, shares)
    for row in range(first, stop):
        here, gradient, out = probs[row], gradients[row], d_scores[row]
        alpha = np.float64(alphas[row // queries % alphas.size])
        epsilon, power = alpha - 1.0, 2.0 - alpha
        total = weighted = entropy = mean = plain = by_u = by_r = 0.0
        for k in range(here.size):
            out[k] = ZERO
            if here[k] == ZERO:
                continue
            p, g = np.float64(here[k]), np.float64(gradient[k])
            if learned:
                u = -math.log(p)
                x = epsilon * u
                r = u * u * _phi(x)
                s = p * math.exp(x)
                entropy += p * u
                mean += p * r
                plain += g * p
                by_u += g * p * u
                by_r += g * p * r
            elif alpha == 1.5:
                s = math.sqrt(p)
            elif alpha == 2.0:
                s = 1.0
            else:
                s = math.exp(power * math.log(p))
            out[k] = np.float32(s)
            total += s
            weighted += s * g
        if total == 0.0:
            d_alphas[row] = ZERO
            continue
        average = weighted / total
        for k in range(here.size):
            if here[k] != ZERO:
                out[k] = np.float32(out[k] * (gradient[k] - average))
        change = mean * (plain + epsilon * by_u) - by_r * (1.0 + epsilon * entropy)
        d_alphas[row] = np.float32(change / total)


_MAP_BACKWARD = types.Tuple((TWO_D, TWO_D, ONE_D, INT, INT, TWO_D, ONE_D))
map_backward = Shared(_map_backward, lambda at: _map_backward(*this_thread(at, _MAP_BACKWARD)), _MAP_BACKWARD)


class MapHeads(torch.autograd.Function):
    """See ``engines.Engine.map_heads``."""

    @staticmethod
    def forward(ctx, scores: Tensor, alpha: float | Tensor, threads: int | None) -> Tensor:
        *_, queries, width = scores.shape
        learned = isinstance(alpha, Tensor)
        alphas = alpha.detach().reshape(-1) if learned else scores.new_tensor([alpha])
        probs = torch.empty_like(scores, memory_format=torch.contiguous_format)
        ctx.queries, ctx.threads, ctx.shape = queries, threads or threads_for(scores.numel()), None
        if scores.numel():
            rows, out = (x.detach().contiguous().view(-1, width).numpy() for x in (scores, probs))
            map_forward(ctx.threads, rows, alphas.numpy(), queries, out)
        if learned:
            ctx.shape = alpha.shape
        ctx.save_for_backward(probs, alphas)
        return probs

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        probs, alphas = ctx.saved_tensors
        d_scores = torch.empty_like(probs)
        d_alphas = probs.new_zeros(probs.shape[:-1])  # (B, H, Q)
        wanted = ctx.shape is not None and ctx.needs_input_grad[1]
        if probs.numel():
            rows = [x.contiguous().view(-1, probs.size(-1)).numpy() for x in (probs, gradient)]
            out = d_scores.view(-1, probs.size(-1)).numpy()
            map_backward(
                *(ctx.threads, *rows, alphas.numpy(), ctx.queries, int(wanted), out, d_alphas.view(-1).numpy())
            )
        return d_scores, d_alphas.sum((0, 2)).view(ctx.shape) if wanted else None, None
