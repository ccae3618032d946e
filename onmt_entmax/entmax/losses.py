r"""Fenchel-Young losses of alpha-entmax (Eq. 11 and Definition 2 of the paper).

.. math:: L_\alpha(z; y) = (p^\star - y)^\top z + H_\alpha(p^\star) - H_\alpha(y), \quad p^\star = \mathrm{entmax}_\alpha(z)

Convex, non-negative, zero only at y = p*, with gradient p* - y. alpha = 1 is the cross-entropy.
"""

from __future__ import annotations

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from onmt_entmax.entmax.mappings import Alpha, check_alpha, check_mask, solve_rows, working_dtype

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
    """Tsallis entropy of the target (1 - smoothing) e_y + smoothing / d."""
    rest = smoothing / d
    gold = 1 - smoothing + rest
    return (1 - gold**alpha - (d - 1) * rest**alpha) / (alpha * (alpha - 1))


def conjugate(x: Tensor, probs: Tensor, total: Tensor, alpha: Alpha) -> Tensor:
    """``p . x + H(p)`` at p = entmax(x), shape ``(n, 1)``, from what :func:`solve_rows` returned (alpha > 1 or 1).

    On the support p^(alpha-1) = 1 + (alpha-1)(x - c), hence the value is (c + (alpha-1) p.x) / alpha.
    """
    mean = torch.where(probs > 0, probs * x, 0).sum(-1, keepdim=True)
    log_total = total.log()
    if isinstance(alpha, Tensor):
        epsilon = alpha - 1
        safe = torch.where(epsilon > 0, epsilon, 1)
        c = torch.where(epsilon > 0, -torch.expm1(-safe * log_total) / safe, log_total)
    elif alpha == 1:
        return log_total
    else:
        epsilon = alpha - 1
        c = -torch.expm1(-epsilon * log_total) / epsilon
    return (c + epsilon * mean) / alpha


def _psi(x: Tensor) -> Tensor:
    """``((1 + x) exp(-x) - 1) / x**2``, by its series near 0."""
    series = -1 / 2 + x * (1 / 3 + x * (-1 / 8 + x * (1 / 30 + x * (-1 / 144 + x * (1 / 840 - x / 5760)))))
    far = x.abs() > 0.1
    safe = torch.where(far, x, 1)
    return torch.where(far, ((1 + safe) * torch.exp(-safe) - 1) / (safe * safe), series)


def entropy_slope(probs: Tensor, alpha: Tensor) -> Tensor:
    """Derivative of the Tsallis entropy of rows with respect to alpha, shape ``(n, 1)``; right at alpha = 1 too."""
    epsilon = alpha - 1
    u = torch.where(probs > 0, -probs.log(), 0)
    x = epsilon * u
    safe = torch.where(epsilon > 0, epsilon, 1)
    value = torch.where(epsilon > 0, -torch.expm1(-x) / safe, u)
    return (probs * (u * u * _psi(x) / alpha - value / (alpha * alpha))).sum(-1, keepdim=True)


class _EntmaxLoss(torch.autograd.Function):
    """Losses of rows, shape (n,); 0 where the target is ignored."""

    @staticmethod
    def forward(ctx, scores, target, alpha, ignore_index, smoothing):
        n, d = scores.shape
        z = scores.to(working_dtype(scores.dtype))
        x = z - z.amax(-1, keepdim=True)
        learned = isinstance(alpha, Tensor)
        a = alpha.to(z.dtype) if learned else alpha
        probs, total = solve_rows(x, a)
        kept = (target != ignore_index).unsqueeze(-1)
        gold = torch.where(kept, target.unsqueeze(-1), 0)
        loss = conjugate(x, probs, total, a) - (1 - smoothing) * x.gather(-1, gold)
        grad_alpha = entropy_slope(probs, a) if learned and ctx.needs_input_grad[2] else None
        residual = probs
        if smoothing > 0:
            loss = loss - smoothing / d * x.sum(-1, keepdim=True) - smoothed_entropy(d, a, smoothing)
            residual = residual - smoothing / d
            if grad_alpha is not None:
                y = torch.full_like(probs, smoothing / d).scatter_(-1, gold, 1 - smoothing + smoothing / d)
                grad_alpha = grad_alpha - entropy_slope(y, a)
        residual = residual.scatter_add(-1, gold, torch.full_like(total, smoothing - 1))
        residual = torch.where(kept, residual, 0).to(scores.dtype)
        if grad_alpha is not None:
            grad_alpha = torch.where(kept, grad_alpha, 0).to(alpha.dtype)
        ctx.save_for_backward(residual, grad_alpha)
        return torch.where(kept, loss, 0).squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        residual, grad_alpha = ctx.saved_tensors
        grad = grad.unsqueeze(-1)
        grad_scores = residual * grad.to(residual.dtype) if ctx.needs_input_grad[0] else None
        return grad_scores, None, None if grad_alpha is None else grad_alpha * grad, None, None


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
        ValueError: alpha below 1, an unknown reduction, shapes that do not fit, or a row of nothing but -inf.
    """
    alpha = check_alpha(alpha)
    check_reduction(reduction)
    check_smoothing(label_smoothing)
    if scores.shape[:-1] != target.shape:
        raise ValueError(f"Scores of shape {tuple(scores.shape)} need targets of shape {tuple(scores.shape[:-1])}.")
    rows = scores.reshape(-1, scores.shape[-1])
    check_mask(rows, -1)
    if not isinstance(alpha, Tensor) and alpha == 1:
        losses = F.cross_entropy(
            rows.to(working_dtype(rows.dtype)),
            target.reshape(-1),
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            reduction="none",
        )
    else:
        if isinstance(alpha, Tensor):
            alpha = alpha.expand(scores.shape[:-1] + (1,)).reshape(-1, 1)
        losses = _EntmaxLoss.apply(rows, target.reshape(-1), alpha, ignore_index, label_smoothing)
    if reduction == "none":
        return losses.reshape(target.shape)
    if reduction == "sum":
        return losses.sum()
    return losses.sum() / (target != ignore_index).sum()


class EntmaxLoss(nn.Module):
    """:func:`entmax_loss` as a Module."""

    def __init__(
        self,
        alpha: float = 1.5,
        reduction: str = "mean",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ):
        super().__init__()
        check_reduction(reduction)
        check_smoothing(label_smoothing)
        self.alpha = check_alpha(alpha)
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, scores: Tensor, target: Tensor, alpha: Optional[Alpha] = None) -> Tensor:
        """Loss of ``scores`` ``(..., d)`` for classes ``target`` ``(...)``; ``alpha`` replaces the Module's."""
        alpha = self.alpha if alpha is None else alpha
        return entmax_loss(scores, target, alpha, self.reduction, self.ignore_index, self.label_smoothing)
