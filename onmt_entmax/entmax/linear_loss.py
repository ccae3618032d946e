r"""A linear layer and its entmax loss in one: the logits live for one block of rows only, the backward pass is sparse.

The gradient of the logits is p* - y, with |support| + 1 non-zeros per row, so the products that give the gradients of
the weight and of the hidden states are products with a sparse matrix. Rows are taken in blocks; each block's logits
are computed, solved, reduced to their non-zeros and dropped. Rows with many non-zeros are multiplied densely.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from onmt_entmax.entmax import blocks
from onmt_entmax.entmax.functional import check_alpha, solving_dtype, working_dtype
from onmt_entmax.entmax.losses import check_reduction, check_smoothing
from onmt_entmax.entmax.output_blocks import (
    BLOCK_SHARE,
    Gradient,
    Totals,
    multiply_densely,
    solve_at_once,
    solve_in_blocks,
    sparse_products,
)
from onmt_entmax.entmax.solvers import may_look


class LinearEntmaxLoss(NamedTuple):
    """What :func:`linear_entmax_loss` returns; everything but ``loss`` is detached."""

    loss: Tensor  # scalar: the one to differentiate
    n_correct: Tensor  # scalar, int64: rows whose largest logit is the target's
    support_size: Tensor  # (n,) int64: non-zero probabilities per row, 0 for ignored rows
    gold_prob: Optional[Tensor]  # (n,): probability of the target; None unless statistics are asked for
    sum_of_squares: Optional[Tensor]  # (n,): of the probabilities; None unless statistics are asked for
    plain_loss: Tensor  # scalar: the summed loss without label smoothing


LOGITS = 1 << 23  # entries of a block of logits: smaller blocks make the products with them slower


class _LinearEntmaxLoss(torch.autograd.Function):
    """Takes the rows that count only; ``scale`` None sums, else the losses' sum is multiplied by it."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, target, alpha, smoothing, scale, statistics):
        n, vocab = hidden.shape[0], weight.shape[0]
        dtype = working_dtype(hidden.dtype)
        wanted = ctx.needs_input_grad[:3]
        totals = Totals(target, dtype, statistics)
        dense = [torch.zeros_like(hidden) if wanted[0] else None, None, None]
        cpu = may_look(hidden) and vocab >= blocks.WIDE
        sparse = []  # (rows, cols, values) of the blocks that are multiplied sparsely, in backward
        size = max(1, LOGITS // max(vocab, 1))
        buffer = hidden.new_empty(min(n, size), vocab) if hidden.device.type == "cpu" else None
        work = blocks.workspace(n, vocab, hidden, solving_dtype(hidden, alpha), BLOCK_SHARE) if cpu else None
        for start in range(0, n, size):
            rows = slice(start, min(start + size, n))
            out = None if buffer is None else buffer[: rows.stop - start]
            logits = torch.mm(hidden[rows], weight.t(), out=out)
            if bias is not None:
                logits += bias
            if cpu:
                found = solve_in_blocks(logits, target[rows], alpha, smoothing, totals, start, work, any(wanted))
            else:
                solve_at_once(logits, target[rows], alpha, smoothing, totals, start)
                found = Gradient(None, rows, logits)  # which the block of logits now holds
            if not any(wanted):
                continue
            if found.support is not None:
                sparse.append(found.support)
            if len(found.residual) > 0:
                multiply_densely(dense, wanted, found.residual, hidden, weight, bias, found.rows, dtype)
        saved = [torch.cat(parts) for parts in zip(*sparse)] if sparse else []
        ctx.scale, ctx.smoothing = scale, smoothing
        ctx.save_for_backward(hidden, weight, bias, *dense, *saved)
        loss = totals.loss if scale is None else totals.loss * scale
        extras = (totals.correct, totals.size, totals.gold, totals.squares, totals.plain)
        ctx.mark_non_differentiable(*[extra for extra in extras if extra is not None])
        return (loss, *extras)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, *unused):
        hidden, weight, bias, *rest = ctx.saved_tensors
        if ctx.scale is not None:
            grad = grad * ctx.scale
        dense, sparse = rest[:3], rest[3:]
        wanted = ctx.needs_input_grad[:3]
        grads = [None] * 3
        if sparse:
            grads = sparse_products(wanted, sparse, hidden, weight, grad, ctx.smoothing)
        for i, (like, want) in enumerate(zip((hidden, weight, bias), wanted)):
            if dense[i] is not None:
                grads[i] = _scaled(dense[i], grad, grads[i])
            if want:
                grads[i] = torch.zeros_like(like) if grads[i] is None else grads[i].to(like.dtype)
        return (*grads, None, None, None, None, None)


def _scaled(dense: Tensor, grad: Tensor, sparse: Tensor | None) -> Tensor:
    """``dense * grad + sparse``, in the place of ``sparse`` where it can be: for a weight each is large."""
    if sparse is None:
        return dense * grad
    if dense.dtype == grad.dtype == sparse.dtype:
        return sparse.addcmul_(dense, grad)
    return (dense * grad).add_(sparse)


def _autocast_dtype(device: str) -> torch.dtype | None:
    """The dtype that autocast asks for on this kind of device, None where it is off."""
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cuda":
        return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
    return torch.get_autocast_cpu_dtype() if device == "cpu" and torch.is_autocast_cpu_enabled() else None


def linear_entmax_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    alpha: float = 1.5,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "sum",
    statistics: bool = False,
) -> LinearEntmaxLoss:
    r"""``entmax_loss(linear(hidden, weight, bias), target)`` without keeping logits, with a sparse backward pass.

    Args:
        hidden: decoder outputs, shape ``(n, d)``.
        weight: shape ``(V, d)``; may be shared with other parts of the graph.
        bias: shape ``(V,)`` or None.
        target: classes, shape ``(n,)``.
        alpha: a number, at least 1; 1 is the cross-entropy.
        ignore_index: rows with this target count for nothing.
        label_smoothing: as in :func:`entmax_loss`.
        reduction: ``sum``, or ``mean`` over the rows that count.
        statistics: whether to fill ``gold_prob`` and ``sum_of_squares``.

    Returns:
        :class:`LinearEntmaxLoss`.

    Raises:
        ValueError: alpha below 1, an unknown reduction, or shapes that do not fit.
    """
    alpha = check_alpha(alpha)
    check_reduction(reduction, ("sum", "mean"))
    check_smoothing(label_smoothing)
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(
            f"Hidden states {tuple(hidden.shape)} and weight {tuple(weight.shape)} must be (n, d) and (V, d)."
        )
    if target.shape != hidden.shape[:1]:
        raise ValueError(f"Target of shape {tuple(target.shape)} must have shape {tuple(hidden.shape[:1])}.")
    device = hidden.device.type
    low = _autocast_dtype(device)
    if low is not None:
        hidden, weight = hidden.to(low), weight.to(low)
        bias = None if bias is None else bias.to(low)
    # ignored rows are left out, for which a GPU waits once per call
    n, kept = target.shape[0], (target != ignore_index).nonzero().squeeze(-1)
    whole = kept.numel() == n
    if not whole:
        hidden, target = hidden.index_select(0, kept), target.index_select(0, kept)
    scale = None if reduction == "sum" else 1 / kept.numel() if kept.numel() > 0 else float("nan")
    with torch.autocast(device, enabled=False):
        loss, correct, *per_row, plain = _LinearEntmaxLoss.apply(
            hidden, weight, bias, target, alpha, label_smoothing, scale, statistics
        )
    if not whole:
        per_row = [None if v is None else v.new_zeros(n).index_copy_(0, kept, v) for v in per_row]
    return LinearEntmaxLoss(loss, correct, *per_row, plain)


class OutputLayerLoss(nn.Module):
    """A linear layer (``(V, d)`` weight and bias) with :func:`linear_entmax_loss` on top.

    Args:
        linear: the layer, e.g. a generator whose weight is shared with the decoder's embeddings.
        alpha: at least 1.
        ignore_index: rows with this target count for nothing.
        label_smoothing: as in :func:`linear_entmax_loss`.
        reduction: ``sum`` or ``mean``.
    """

    def __init__(
        self,
        linear: nn.Linear,
        alpha: float = 1.5,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "sum",
    ):
        super().__init__()
        check_reduction(reduction, ("sum", "mean"))
        check_smoothing(label_smoothing)
        self.linear = linear
        self.alpha = check_alpha(alpha)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        self.reduction = reduction

    def forward(self, hidden: Tensor, target: Tensor, statistics: bool = False) -> LinearEntmaxLoss:
        """Loss and counts of ``hidden`` ``(n, d)`` for ``target`` ``(n,)``."""
        return linear_entmax_loss(
            hidden,
            self.linear.weight,
            self.linear.bias,
            target,
            self.alpha,
            self.ignore_index,
            self.label_smoothing,
            self.reduction,
            statistics,
        )
