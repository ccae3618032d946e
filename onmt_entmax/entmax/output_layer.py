r"""A linear layer and its entmax loss in one: the logits live for one block of rows only, the backward pass is sparse.

The gradient of the logits is p* - y, with |support| + 1 non-zeros per row, so the products that give the gradients of
the weight and of the hidden states are products with a sparse matrix. Rows are taken in blocks; each block's logits
are computed, solved, reduced to their non-zeros and dropped. Blocks with many non-zeros are multiplied densely.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from onmt_entmax.entmax.losses import check_reduction, check_smoothing, conjugate, smoothed_entropy
from onmt_entmax.entmax.mappings import check_alpha, solve_rows, working_dtype


class LinearEntmaxLoss(NamedTuple):
    """What :func:`linear_entmax_loss` returns; everything but ``loss`` is detached."""

    loss: Tensor  # scalar: the one to differentiate
    n_correct: Tensor  # scalar, int64: rows whose largest logit is the target's
    support_size: Tensor  # (n,) int64: non-zero probabilities per row, 0 for ignored rows
    gold_prob: Optional[Tensor]  # (n,): probability of the target; None unless statistics are asked for
    sum_of_squares: Optional[Tensor]  # (n,): of the probabilities; None unless statistics are asked for
    plain_loss: Tensor  # scalar: the summed loss without label smoothing


BLOCK = 128


class _LinearEntmaxLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, target, alpha, ignore_index, smoothing, mean, statistics):
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        n, vocab = hidden.shape[0], weight.shape[0]
        dtype = working_dtype(hidden.dtype)
        kept = target != ignore_index
        count = kept.sum()
        losses = hidden.new_zeros(n, dtype=dtype)
        plain = torch.zeros_like(losses)
        correct = torch.zeros_like(count)
        support_size = torch.zeros_like(target)
        gold_prob = torch.zeros_like(losses) if statistics else None
        squares = torch.zeros_like(losses) if statistics else None
        grad_hidden = torch.zeros_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=dtype) if needs_weight else None
        grad_bias = torch.zeros_like(bias, dtype=dtype) if needs_bias else None
        for start in range(0, n, BLOCK):
            rows = slice(start, min(start + BLOCK, n))
            logits = torch.nn.functional.linear(hidden[rows], weight, bias).to(dtype)
            use = kept[rows].unsqueeze(-1)
            gold = torch.where(use, target[rows].unsqueeze(-1), 0)
            top, best = logits.max(-1, keepdim=True)
            x = logits - top
            probs, total = solve_rows(x, alpha)
            plain_rows = conjugate(x, probs, total, alpha) - x.gather(-1, gold)
            loss_rows = plain_rows
            if smoothing > 0:
                loss_rows = plain_rows + smoothing * (x.gather(-1, gold) - x.mean(-1, keepdim=True))
                if alpha > 1:
                    loss_rows = loss_rows - smoothed_entropy(vocab, alpha, smoothing)
            plain[rows] = torch.where(use, plain_rows, 0).squeeze(-1)
            losses[rows] = torch.where(use, loss_rows, 0).squeeze(-1)
            correct += ((best == gold) & use).sum()
            support_size[rows] = torch.where(use, (probs > 0).sum(-1, keepdim=True), 0).squeeze(-1)
            if statistics:
                gold_prob[rows] = torch.where(use, probs.gather(-1, gold), 0).squeeze(-1)
                squares[rows] = torch.where(use, probs.square().sum(-1, keepdim=True), 0).squeeze(-1)
            if needs_hidden or needs_weight or needs_bias:
                residual = probs - smoothing / vocab
                residual.scatter_add_(-1, gold, torch.full_like(total, smoothing - 1))
                residual = torch.where(use, residual, 0)
                if needs_bias:
                    grad_bias += residual.sum(0)
                residual = residual.to(hidden.dtype)
                if needs_hidden:
                    grad_hidden[rows] = residual @ weight
                if needs_weight:
                    grad_weight += residual.t() @ hidden[rows]
        scale = 1 / count if mean else None
        ctx.scale = scale
        ctx.dtypes = hidden.dtype, weight.dtype
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        loss = losses.sum() if scale is None else losses.sum() * scale
        extras = (correct, support_size, gold_prob, squares, plain.sum())
        ctx.mark_non_differentiable(*[extra for extra in extras if extra is not None])
        return (loss, *extras)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, *unused):
        if ctx.scale is not None:
            grad = grad * ctx.scale
        grads = [None if g is None else g * grad for g in ctx.saved_tensors]
        for i, dtype in enumerate((ctx.dtypes[0], ctx.dtypes[1], ctx.dtypes[1])):
            grads[i] = None if grads[i] is None else grads[i].to(dtype)
        return (*grads, None, None, None, None, None, None)


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
    with torch.autocast(device, enabled=False):
        outputs = _LinearEntmaxLoss.apply(
            hidden, weight, bias, target, alpha, ignore_index, label_smoothing, reduction == "mean", statistics
        )
    return LinearEntmaxLoss(*outputs)


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
