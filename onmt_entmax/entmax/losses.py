r"""Fenchel-Young losses of alpha-entmax (Eq. 11 and Definition 2 of the paper).

.. math:: L_\alpha(z; y) = (p^\star - y)^\top z + H_\alpha(p^\star) - H_\alpha(y)

with :math:`p^\star = \mathrm{entmax}_\alpha(z)`. Convex, non-negative, zero only at y = p*, with gradient p* - y.
alpha = 1 is the cross-entropy.
"""

from __future__ import annotations

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from onmt_entmax.entmax import blocks
from onmt_entmax.entmax.functional import (
    Alpha,
    check_alpha,
    check_mask,
    solve_rows,
    solving_dtype,
    takes_blocks,
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
        return (gold * (1 - gold ** (alpha - 1)) + (d - 1) * rest * (1 - rest ** (alpha - 1))) / (alpha * (alpha - 1))
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
    terms = probs * _entropy_slopes(probs, alpha)
    return (terms if count is None else terms * count).sum(-1, True)


def _entropy_slopes(probs: Tensor, alpha: Tensor) -> Tensor:
    """What each probability adds to the slope of the entropy, over the probability; shape of ``probs``."""
    epsilon = alpha - 1
    u = torch.where(probs > 0, -probs.log(), 0)
    x = epsilon * u
    safe = torch.where(epsilon > 0, epsilon, 1)
    value = torch.where(epsilon > 0, -torch.expm1(-x) / safe, u)
    return u * u * _psi(x) / alpha - value / (alpha * alpha)


def _wide_entropy_slope(z: Tensor, epsilon: Tensor, solution: blocks.Solution, out: Tensor, other: Tensor) -> Tensor:
    """:func:`entropy_slope` of a block of solved rows, on its non-zeros where they are known; shape ``(n, 1)``."""
    if solution.support is not None:
        rows, _, values = solution.support
        terms = values * _entropy_slopes(values, 1 + epsilon.squeeze(-1).index_select(0, rows))
        return torch.zeros_like(solution.top).squeeze(-1).index_add_(0, rows, terms).unsqueeze(-1)
    probs = blocks.fill(z, epsilon, solution, out)
    if bool((epsilon < 0.25).any()):
        return entropy_slope(probs, 1 + epsilon)
    # far from alpha = 1 nothing cancels, and two sums do: p^alpha and p^alpha log p
    logs = torch.clamp(probs, min=torch.finfo(probs.dtype).tiny, out=other).log_()
    powers = probs.mul_(torch.exp(logs * epsilon))
    missing = 1 - powers.sum(-1, True)
    weighted = powers.mul_(logs).sum(-1, True)
    return -(epsilon * weighted + missing) / (epsilon**2 * (1 + epsilon)) - missing / (epsilon * (1 + epsilon) ** 2)


class _EntmaxLoss(torch.autograd.Function):
    """Losses of rows, shape (n,); 0 where the target is ignored. Narrow rows, and any rows on other devices."""

    @staticmethod
    def forward(ctx, scores, target, alpha, ignore_index, smoothing):
        d = scores.shape[1]
        learned = isinstance(alpha, Tensor)
        z = scores.to(solving_dtype(scores, alpha))
        x = z - z.amax(-1, True)
        a = alpha.to(z.dtype) if learned else alpha
        probs, total = solve_rows(x, a)
        kept = (target != ignore_index).unsqueeze(-1)
        gold = torch.where(kept, target.unsqueeze(-1), 0)
        mean = torch.where(probs > 0, probs * x, 0).sum(-1, True)
        loss = conjugate(mean, total, a - 1) - (1 - smoothing) * x.gather(-1, gold)
        grad_alpha = entropy_slope(probs, a) if learned and ctx.needs_input_grad[2] else None
        if smoothing > 0:
            loss = loss - smoothing / d * x.sum(-1, True) - smoothed_entropy(d, a, smoothing)
            if grad_alpha is not None:
                grad_alpha = grad_alpha - smoothed_entropy_slope(d, a, smoothing)
            probs = probs - smoothing / d
        if ctx.needs_input_grad[0]:
            residual = probs.scatter_add(-1, gold, torch.full_like(total, smoothing - 1))
            residual = torch.where(kept, residual, 0).to(scores.dtype)
        else:
            residual = None
        if grad_alpha is not None:
            grad_alpha = torch.where(kept, grad_alpha, 0).to(alpha.dtype)
        ctx.save_for_backward(residual, grad_alpha)
        return torch.where(kept, loss, 0).squeeze(-1).to(working_dtype(scores.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        residual, grad_alpha = ctx.saved_tensors
        grad = grad.unsqueeze(-1)
        grad_scores = None if residual is None else (residual * grad).to(residual.dtype)
        return grad_scores, None, None if grad_alpha is None else (grad_alpha * grad).to(grad_alpha.dtype), None, None


class _WideEntmaxLoss(torch.autograd.Function):
    """The same for wide rows on the CPU: nothing of the size of the scores is kept besides the scores."""

    @staticmethod
    def forward(ctx, scores, target, alpha, ignore_index, smoothing):
        n, d = scores.shape
        learned = isinstance(alpha, Tensor)
        dtype = solving_dtype(scores, alpha)
        losses = scores.new_zeros(n, 1, dtype=working_dtype(scores.dtype))
        want_alpha = learned and ctx.needs_input_grad[2]
        grad_alpha = torch.zeros_like(alpha) if want_alpha else None
        work = blocks.workspace(n, d, scores, dtype)
        ctx.blocks, saved = [], []
        for rows in blocks.blocks(n, d):
            index = _kept(target, rows, ignore_index)
            if index.numel() == 0:
                continue
            z = scores[rows] if index.numel() == rows.stop - rows.start else scores[index]
            z = z.to(dtype).contiguous()
            epsilon = alpha[index].to(dtype) - 1 if learned else alpha - 1
            solution = blocks.solve(z, epsilon, work)
            gold = z.gather(-1, target[index].unsqueeze(-1)) - solution.top
            loss = conjugate(solution.mean, solution.total, epsilon) - (1 - smoothing) * gold
            if smoothing > 0:
                loss -= smoothing * (z.mean(-1, True) - solution.top) + smoothed_entropy(d, 1 + epsilon, smoothing)
            losses[index] = loss.to(losses.dtype)
            if want_alpha:
                slope = _wide_entropy_slope(z, epsilon, solution, work[0, : len(z)], work[1, : len(z)])
                if smoothing > 0:
                    slope = slope - smoothed_entropy_slope(d, 1 + epsilon, smoothing)
                grad_alpha[index] = slope.to(alpha.dtype)
            ctx.blocks.append((index, epsilon if not learned else None, solution.support is not None))
            saved += [solution.top, solution.width, solution.total]
            saved += list(solution.support or (None, None, None))
        ctx.dtype, ctx.smoothing, ctx.ignore_index = dtype, smoothing, ignore_index
        ctx.save_for_backward(scores, target, alpha if learned else None, grad_alpha, *saved)
        return losses.squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        scores, target, alpha, grad_alpha, *saved = ctx.saved_tensors
        grad = grad.unsqueeze(-1)
        grad_alpha = None if grad_alpha is None else (grad_alpha * grad).to(grad_alpha.dtype)
        if not ctx.needs_input_grad[0]:
            return None, None, grad_alpha, None, None
        d = scores.shape[1]
        whole = all(not sparse for *_, sparse in ctx.blocks) and bool((target != ctx.ignore_index).all())
        make = torch.empty_like if whole else torch.zeros_like
        out = make(scores, memory_format=torch.contiguous_format)
        for i, (index, epsilon, sparse) in enumerate(ctx.blocks):
            top, width, total, *support = saved[6 * i : 6 * i + 6]
            solution = blocks.Solution(top, width, total, total, blocks.Support(*support) if sparse else None)
            whole = index[-1] - index[0] + 1 == index.numel()
            rows = slice(int(index[0]), int(index[-1]) + 1) if whole else index
            if epsilon is None:
                epsilon = alpha[index].to(ctx.dtype) - 1
            scale = grad[index].to(ctx.dtype)
            in_place = whole and out.dtype == ctx.dtype
            part = out[rows] if in_place else torch.zeros(index.numel(), d, dtype=ctx.dtype)
            blocks.fill(scores[rows].to(ctx.dtype) if not sparse else part, epsilon, solution, part, scale)
            if ctx.smoothing > 0:
                part.sub_(scale * (ctx.smoothing / d))
            part.scatter_add_(-1, target[index].unsqueeze(-1), (ctx.smoothing - 1) * scale)
            if not in_place:
                out[rows] = part.to(out.dtype)
        return out, None, grad_alpha, None, None


def _kept(target: Tensor, rows: slice, ignore_index: int) -> Tensor:
    """Positions of the targets in ``rows`` that count."""
    return (target[rows] != ignore_index).nonzero().squeeze(-1) + rows.start


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
    if not takes_blocks(rows, alpha):  # blocks.solve checks for itself
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
            alpha = alpha.expand(*scores.shape[:-1], 1).reshape(-1, 1)
        function = _WideEntmaxLoss if takes_blocks(rows, alpha) else _EntmaxLoss
        losses = function.apply(rows, target.reshape(-1), alpha, ignore_index, label_smoothing)
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
