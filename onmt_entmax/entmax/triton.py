r"""The engine for GPUs: mappings of rows up to 1,024 entries (attention) by Triton kernels, one launch each way.

One program solves a row: norm-Newton as in solvers.py, the row and its threshold in registers, nothing asked of the
device by the host. Logarithms and exponentials are those of ``tl.math``, mended near 0, so that Triton's interpreter
(``TRITON_INTERPRET=1``) runs the same kernels on a CPU; nothing here has run on a GPU so far.
"""

from __future__ import annotations

import os
from typing import Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

from onmt_entmax.entmax.engine import VARIABLE, asked_engine, say_once
from onmt_entmax.entmax.functional import Alpha
from onmt_entmax.entmax.linear_loss import LOGITS

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 1024  # entries of a row that fits in registers
HIGHEST = 3.0  # alpha, above which entries next to the threshold jump from one width to the next
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # as Triton reads it, when kernels are declared

MOST_STEPS = tl.constexpr(64)  # of Newton, every third of which halves the bracket


@triton.jit
def _log1p(x):
    # by the series of atanh near 0, where a GPU's logarithm is only right to 2^-22 of 1
    z = x / (2 + x)
    q = z * z
    series = 2 * z * (1 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q * (1 / 9 + q / 11)))))
    return tl.where(tl.abs(x) < 0.25, series, tl.math.log(1 + x))


@triton.jit
def _phi(x):
    # (exp(x) - 1 - x) / x^2, see functional.py
    series = 1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * (1 / 720 + x * (1 / 5040 + x / 40320)))))
    far = tl.abs(x) > 0.3
    safe = tl.where(far, x, 1.0)
    return tl.where(far, (tl.math.exp(safe) - 1 - safe) / (safe * safe), series)


@triton.jit
def _ratios(s, width, epsilon, kind: tl.constexpr):
    # [1 + s / w]_+ and its power 1 / epsilon; exact zeros outside the support
    base = tl.maximum((s + width) / width, 0.0)
    if kind == 2:
        ratios = base
    elif kind == 1:
        ratios = base * base
    else:
        inside = base > 0
        logs = _log1p(tl.where(inside, s / width, 0.0))
        ratios = tl.where(inside, tl.math.exp(logs / epsilon), 0.0)
    return base, ratios


@triton.jit
def _forward(scores, alphas, probs, d, alpha, kind: tl.constexpr, double: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    inside = columns < d
    z = tl.load(scores + row * d + columns, mask=inside, other=-float("inf"))
    z = z.to(tl.float64 if double else tl.float32)
    x = z - tl.max(z, 0)
    if kind == 3:  # one alpha per row
        epsilon = tl.load(alphas + row).to(z.dtype) - 1
    else:
        epsilon = tl.max(tl.where(columns == 0, alpha, 0.0).to(z.dtype), 0) - 1
    dense = epsilon <= 0
    epsilon = tl.where(dense, 1.0, epsilon).to(z.dtype)
    s = x * epsilon
    convex = epsilon <= 1
    slack = 1e-12 if double else 1e-6
    limit = slack * (1 + 0.03 * tl.math.sqrt(d * 1.0))
    high = tl.max(tl.where(columns == 0, 1.0, 0.0).to(z.dtype), 0)
    low = high * tl.math.exp(-epsilon * tl.math.log(d * high)) * (1 - slack)
    width = high
    moving = ~dense
    step = 0
    while moving & (step < MOST_STEPS):
        base, ratios = _ratios(s, width, epsilon, kind)
        total = tl.sum(ratios, 0)
        slope = tl.sum(tl.where(base > 0, ratios / tl.where(base > 0, base, 1.0), 0.0), 0)
        power = tl.math.exp(epsilon * tl.math.log(total))
        norm = width * power
        tangent = width - (width * total - total / power) / slope
        high = tl.where(norm >= 1, width, high)
        low = tl.where(norm < 1, width, low)
        high = tl.where(convex, tl.minimum(high, tangent), high)
        moving = (tl.abs(norm - 1) > limit) & (high - low > slack * 0.25 * high)
        moving = moving & ((tl.abs(tangent - width) > slack * 0.1 * width) | (convex == 0))
        middle = tl.math.sqrt(low * high)
        halves = tl.where(convex, (step >= 5) & (step % 3 == 2), step % 2 == 1)
        otherwise = tl.where(convex, high, middle)
        following = tl.where((tangent > low) & (tangent <= high), tangent, otherwise)
        width = tl.where(moving, tl.where(halves, middle, following), width)
        step += 1
    base, ratios = _ratios(s, width, epsilon, kind)
    ratios = tl.where(dense, tl.math.exp(x), ratios)
    tl.store(probs + row * d + columns, (ratios / tl.sum(ratios, 0)).to(tl.float32), mask=inside)


@triton.jit
def _backward(probs, grads, alphas, d_scores, d_alphas, d, alpha, kind: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    valid = columns < d
    p = tl.load(probs + row * d + columns, mask=valid, other=0.0).to(tl.float32)
    g = tl.load(grads + row * d + columns, mask=valid, other=0.0).to(tl.float32)
    inside = p > 0
    epsilon = tl.load(alphas + row).to(tl.float32) - 1 if kind == 3 else alpha - 1
    u = tl.where(inside, -tl.math.log(tl.where(inside, p, 1.0)), 0.0)
    if kind == 2:
        s = tl.where(inside, 1.0, 0.0)
    elif kind == 1:
        s = tl.math.sqrt(p)
    else:
        s = tl.where(inside, tl.math.exp((epsilon - 1) * u), 0.0)
    d_z = s * (g - tl.sum(s * g, 0) / tl.sum(s, 0))
    tl.store(d_scores + row * d + columns, d_z, mask=valid)
    if kind == 3:  # see functional.alpha_gradient
        x = epsilon * u
        r = u * u * _phi(x)
        entropy = tl.sum(p * u, 0)
        mean = tl.sum(p * r, 0)
        scale = 1 + tl.sum(p * (x + x * x * _phi(x)), 0)
        slope = p * (mean * (1 + x) - r * (1 + epsilon * entropy)) / scale
        tl.store(d_alphas + row, tl.sum(g * slope, 0))


class Gpu:
    """See :class:`~onmt_entmax.entmax.engine.Engine`, which documents the methods."""

    name = "gpu"
    logits = LOGITS

    def serves(self, x: Tensor) -> bool:
        return (x.is_cuda or (INTERPRETED and x.device.type == "cpu")) and x.dtype in DTYPES

    def entmax(self, scores: Tensor, alpha: Alpha) -> Optional[Tensor]:
        d = scores.shape[-1]
        if not self._knows(d, alpha) or scores.numel() == 0:
            return None
        z = scores.contiguous()
        probs = torch.empty_like(z)
        number, alphas, kind = _alphas(alpha)
        with torch.cuda.device_of(z):
            _forward[(z.numel() // d,)](
                z, z if alphas is None else alphas, probs, d, number, kind, number > 2, **_sizes(d)
            )
        return probs

    def gradients(self, probs: Tensor, grad: Tensor, alpha: Alpha) -> Optional[tuple[Tensor, Optional[Tensor]]]:
        d = probs.shape[-1]
        if not self._knows(d, alpha) or probs.numel() == 0 or grad.dtype not in DTYPES:
            return None
        probs, grad = probs.contiguous(), grad.contiguous()
        d_scores = torch.empty_like(grad)
        number, alphas, kind = _alphas(alpha)
        d_alphas = None if alphas is None else torch.empty_like(alphas)
        unused = d_scores
        with torch.cuda.device_of(probs):
            _backward[(probs.numel() // d,)](
                *(probs, grad, unused if alphas is None else alphas, d_scores),
                *(unused if d_alphas is None else d_alphas, d, number, kind),
                **_sizes(d),
            )
        return d_scores, None if d_alphas is None else d_alphas.view(*probs.shape[:-1], 1)

    def losses(self, scores, target, alpha, ignore_index, smoothing) -> None:
        return None  # no kernel

    def logits_solver(self, rows, hidden, weight, alpha) -> None:
        return None  # no kernel

    def _knows(self, d: int, alpha: Alpha) -> bool:
        """Whether there is a kernel for rows of d entries; an alpha that it does not know is an error if asked for."""
        if d > WIDEST:
            return False
        if isinstance(alpha, Tensor) or alpha <= HIGHEST:
            return True
        reason = f"its kernels know alphas up to {HIGHEST}, and this one is {alpha:g}"
        if asked_engine() != "auto":
            raise ValueError(f"Invalid setting for `{VARIABLE}`: {self.name}. It cannot compute this: {reason}.")
        say_once(f"The reference computes entmax, not Triton: {reason}.")
        return False


def _alphas(alpha: Alpha) -> tuple[float, Optional[Tensor], int]:
    """A number (0 for a tensor), alphas by row (None for a number), and which kernel: 1.5, 2, by row, or any."""
    if isinstance(alpha, Tensor):
        return 0.0, alpha.detach().to(torch.float32).reshape(-1).contiguous(), 3
    return float(alpha), None, {1.5: 1, 2.0: 2}.get(alpha, 0)


def _sizes(d: int) -> dict[str, int]:
    block = triton.next_power_of_2(d)
    return {"block": block, "num_warps": 4 if block > 256 else 1}
