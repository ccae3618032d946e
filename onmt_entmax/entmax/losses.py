r"""Fenchel-Young losses of alpha-entmax (Eq. 11 and Definition 2 of the paper).

.. math:: L_\alpha(z; y) = (p^\star - y)^\top z + H_\alpha(p^\star) - H_\alpha(y)

with :math:`p^\star = \mathrm{entmax}_\alpha(z)`. Convex, non-negative, zero only at y = p*, with gradient p* - y.
alpha = 1 is the cross-entropy.
"""

from __future__ import annotations

import math
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from onmt_entmax.entmax.engine import engine_for, free_to_read
from onmt_entmax.entmax.functional import (
    Alpha,
    broadcast_alpha,
    check_alpha,
    check_mask,
    check_scores,
    solve_rows,
    solving_dtype,
    working_dtype,
)
from onmt_entmax.entmax.solvers import Epsilon

REDUCTIONS = ("mean", "sum", "none")


def check_reduction(reduction: str, allowed: tuple[str, ...] = REDUCTIONS) -> None:
    """Raise ValueError for an unknown reduction."""
    if reduction not in allowed:
        raise ValueError(f"Invalid setting for `reduction`: {reduction}. Valid choices: {', '.join(allowed)}.")


def check_smoothing(label_smoothing: float) -> None:
    """Raise ValueError for a smoothing outside [0, 1]."""
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"Invalid setting for `label_smoothing`: {label_smoothing}. It must lie in [0, 1].")


def smoothed_entropy(d: int, alpha: Alpha, smoothing: float) -> Alpha:
    """Tsallis entropy of the target (1 - smoothing) e_y + smoothing / d; 0 for the number 1 (torch's cross-entropy)."""
    if not isinstance(alpha, Tensor):
        if alpha == 1:
            return 0.0
        rest = smoothing / d
        gold = 1 - smoothing + rest
        powers: float = gold * (1 - gold ** (alpha - 1)) + (d - 1) * rest * (1 - rest ** (alpha - 1))
        return powers / (alpha * (alpha - 1))
    target, count = _smoothed_target(d, alpha, smoothing)
    u, epsilon = -target.log(), alpha - 1
    safe = torch.where(epsilon > 0, epsilon, 1)
    value = torch.where(epsilon > 0, -torch.expm1(-epsilon * u) / safe, u)
    return (count * target * value).sum(-1, True) / alpha


def smoothed_entropy_slope(d: int, alpha: Tensor, smoothing: float) -> Tensor:
    """Derivative of :func:`smoothed_entropy` with respect to alpha, shape ``(n, 1)``."""
    target, count = _smoothed_target(d, alpha, smoothing)
    return entropy_slope(target, alpha, count)


def _smoothed_target(d: int, alpha: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The target's two different probabilities, and how often each occurs; both ``(2,)``."""
    rest = smoothing / d
    return alpha.new_tensor([1 - smoothing + rest, rest]), alpha.new_tensor([1.0, d - 1.0])


def conjugate(mean: Tensor, total: Tensor, epsilon: Epsilon) -> Tensor:
    """``p . x + H(p)`` at p = entmax(x), for scores x whose maximum is 0, shape ``(n, 1)``.

    On the support p^(alpha-1) = 1 + (alpha-1)(x - c), hence the value is (c + (alpha-1) p.x) / alpha; for alpha = 1
    it is c, the log-sum-exp.

    Args:
        mean: p.x, shape ``(n, 1)``.
        total: 1 / max p, shape ``(n, 1)``.
        epsilon: alpha - 1; a tensor has shape ``(n, 1)``.
    """
    log_total = total.log()
    if isinstance(epsilon, Tensor):
        safe = torch.where(epsilon > 0, epsilon, 1)
        c = torch.where(epsilon > 0, -torch.expm1(-safe * log_total) / safe, log_total)
    elif epsilon == 0:
        return log_total
    else:
        c = -torch.expm1(-epsilon * log_total) / epsilon
    return (c + epsilon * mean) / (1 + epsilon)


def _psi(x: Tensor) -> Tensor:
    """``((1 + x) exp(-x) - 1) / x**2``, by its series near 0."""
    series = -1 / 2 + x * (1 / 3 + x * (-1 / 8 + x * (1 / 30 + x * (-1 / 144 + x * (1 / 840 - x / 5760)))))
    far = x.abs() > 0.1
    safe = torch.where(far, x, 1)
    return torch.where(far, ((1 + safe) * torch.exp(-safe) - 1) / (safe * safe), series)


def entropy_slope(probs: Tensor, alpha: Tensor, count: Optional[Tensor] = None) -> Tensor:
    """Derivative of the Tsallis entropy of rows with respect to alpha, shape ``(n, 1)``; right at alpha = 1 too.

    ``count`` says how often each probability occurs, once if None.
    """
    terms = probs * entropy_slopes(probs, alpha)
    return (terms if count is None else terms * count).sum(-1, True)


def entropy_slopes(probs: Tensor, alpha: Tensor) -> Tensor:
    """What each probability adds to the slope of the entropy, over the probability; shape of ``probs``."""
    epsilon = alpha - 1
    u = torch.where(probs > 0, -probs.log(), 0)
    x = epsilon * u
    safe = torch.where(epsilon > 0, epsilon, 1)
    value = torch.where(epsilon > 0, -torch.expm1(-x) / safe, u)
    return u * u * _psi(x) / alpha - value / (alpha * alpha)


class _EntmaxLoss(torch.autograd.Function):
    """Losses of rows, shape (n,), 0 where the target is ignored: the reference. Scores in float32 or float64."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, target: Tensor, alpha: Alpha, ignore_index: int, smoothing: float) -> Tensor:
        d = scores.shape[1]
        z = scores.to(solving_dtype(scores.dtype, alpha))
        x = z - z.amax(-1, True)
        a = alpha.to(z.dtype) if isinstance(alpha, Tensor) else alpha
        probs, total = solve_rows(x, a)
        counted = (target != ignore_index).unsqueeze(-1)
        gold = torch.where(counted, target.unsqueeze(-1), 0)
        mean = torch.where(probs > 0, probs * x, 0).sum(-1, True)
        loss = conjugate(mean, total, a - 1) - (1 - smoothing) * x.gather(-1, gold)
        learned = a if isinstance(a, Tensor) and ctx.needs_input_grad[2] else None
        grad_alpha = None if learned is None else entropy_slope(probs, learned)
        if smoothing > 0:
            loss = loss - smoothing / d * x.sum(-1, True) - smoothed_entropy(d, a, smoothing)
            if grad_alpha is not None and learned is not None:
                grad_alpha = grad_alpha - smoothed_entropy_slope(d, learned, smoothing)
            probs = probs - smoothing / d
        residual = None
        if ctx.needs_input_grad[0]:
            residual = probs.scatter_add(-1, gold, torch.full_like(total, smoothing - 1))
            residual = torch.where(counted, residual, 0).to(scores.dtype)
        if grad_alpha is not None and isinstance(alpha, Tensor):
            grad_alpha = torch.where(counted, grad_alpha, 0).to(alpha.dtype)
        ctx.save_for_backward(residual, grad_alpha)
        return torch.where(counted, loss, 0).squeeze(-1).to(scores.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Optional[Tensor], None, Optional[Tensor], None, None]:
        residual, grad_alpha = ctx.saved_tensors
        grad = grad.unsqueeze(-1)
        grad_scores = None if residual is None else residual * grad
        return grad_scores, None, None if grad_alpha is None else (grad_alpha * grad).to(grad_alpha.dtype), None, None


def entmax_loss(
    scores: Tensor,
    target: Tensor,
    alpha: Alpha = 1.5,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""The Fenchel-Young loss of alpha-entmax (Eq. 11); the cross-entropy for alpha = 1.

    With smoothing the target is :math:`(1-\epsilon) e_y + \epsilon / d`, the gradient p* - target, and for alpha > 1
    the loss is zero only there; alpha = 1 keeps torch's cross-entropy, a constant above.

    Args:
        scores: shape ``(..., d)``; -inf masks a class (not the target's, and not together with smoothing).
        target: classes, shape ``(...)``.
        alpha: at least 1; a tensor broadcasts to shape ``(..., 1)`` and is differentiated too.
        reduction: ``mean`` (over the targets that count), ``sum`` or ``none``.
        ignore_index: targets that count for nothing.
        label_smoothing: :math:`\epsilon` in [0, 1].

    Returns:
        A scalar, or shape ``(...)`` with ``none``; float32 for half-precision scores.

    Raises:
        ValueError: scores that are no floating-point numbers, alpha below 1 or NaN, an unknown reduction, shapes that
            do not fit, or a row that counts with nothing but -inf (values of tensors are checked on the CPU only).
    """
    alpha = check_alpha(alpha)
    check_scores(scores)
    check_reduction(reduction)
    check_smoothing(label_smoothing)
    if scores.dim() == 0 or scores.shape[:-1] != target.shape:
        raise ValueError(
            f"Scores of shape {tuple(scores.shape)} and targets of shape {tuple(target.shape)} must be (..., d) and "
            "(...)."
        )
    rows = scores.reshape(-1, scores.shape[-1]).to(working_dtype(scores.dtype))
    classes = target.reshape(-1)
    if isinstance(alpha, Tensor):
        alpha = broadcast_alpha(alpha, scores.shape, -1).reshape(-1, 1)
    losses = None
    if not isinstance(alpha, Tensor) and alpha == 1:
        losses = F.cross_entropy(
            rows, classes, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="none"
        )
    else:
        engine = engine_for(rows)
        if engine is not None:
            losses = engine.losses(rows, classes, alpha, ignore_index, label_smoothing)
        if losses is None:
            losses = _EntmaxLoss.apply(rows, classes, alpha, ignore_index, label_smoothing)
    if free_to_read(losses) and math.isnan(losses.detach().sum().item()):  # the one sign of a row with nothing but -inf
        check_mask(rows[classes != ignore_index])
    if reduction == "none":
        return losses.reshape(target.shape)
    if reduction == "sum":
        return losses.sum()
    return losses.sum() / (target != ignore_index).sum()
