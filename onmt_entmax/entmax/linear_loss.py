r"""A linear layer and its entmax loss in one: the logits live for one block of rows only, the backward pass is sparse.

The gradient of the logits is p* - y, with |support| + 1 non-zeros per row, so the products that give the gradients of
the weight and of the hidden states are products with a sparse matrix. Rows are taken in blocks; each block's logits
are computed, solved, reduced to their non-zeros and dropped. Rows with many non-zeros are multiplied densely. The
reference keeps the logits of all rows and leaves the gradients to autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional, Union

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from onmt_entmax.entmax.engine import autocast_dtype, engine_for, free_to_read, is_reference, without_autocast
from onmt_entmax.entmax.functional import (
    check_alpha,
    check_mask,
    check_scores,
    entmax_forward,
    solve_rows,
    solving_dtype,
    working_dtype,
)
from onmt_entmax.entmax.losses import check_reduction, check_smoothing, conjugate, entmax_loss, smoothed_entropy

LOGITS = 1 << 23  # entries of a block of logits: smaller blocks make the products with them slower
NO_CLASS = -(1 << 62)  # where ignored rows have been dealt with already


class LinearEntmaxLossOutput(NamedTuple):
    """What :func:`linear_entmax_loss` returns; everything but ``loss`` is detached."""

    loss: Tensor  # scalar: the one to differentiate
    n_correct: Tensor  # scalar, int64: rows whose largest logit is the target's
    support_size: Tensor  # (n,) int64: non-zero probabilities per row, 0 for ignored rows
    gold_prob: Optional[Tensor]  # (n,): probability of the target; None unless statistics are asked for
    sum_of_squares: Optional[Tensor]  # (n,): of the probabilities; None unless statistics are asked for
    plain_loss: Tensor  # scalar: the summed loss without label smoothing


# the same, before rows that were left out are put back
_Found = tuple[Tensor, Tensor, Tensor, Optional[Tensor], Optional[Tensor], Tensor]


class Gradient(NamedTuple):
    """The gradient of a block of logits: some rows sparse, the others dense.

    Attributes:
        support: the sparse rows' non-zeros ``(rows, cols, values)``, each ``(m,)``, ordered by row, rows numbered over
            all blocks; smoothing's rank-one part left out. None if all rows are dense.
        rows: the dense rows, numbered over all blocks: a slice, or a tensor ``(m,)``.
        residual: their gradient, ``(m, V)``; m may be 0.
    """

    support: Optional[tuple[Tensor, Tensor, Tensor]]
    rows: Union[slice, Tensor]
    residual: Tensor


class Totals:
    """Sums and per-row statistics of rows with targets ``(n,)``, filled in block by block."""

    def __init__(self, target: Tensor, dtype: torch.dtype, smoothing: float, entropy: float, statistics: bool) -> None:
        self.smoothing, self.entropy = smoothing, entropy
        self.loss = torch.zeros((), dtype=dtype, device=target.device)
        self.plain = self.loss.clone()
        self.correct = torch.zeros((), dtype=torch.int64, device=target.device)
        self.size = torch.zeros_like(target)
        self.gold = torch.zeros(target.shape, dtype=dtype, device=target.device) if statistics else None
        self.squares = None if self.gold is None else torch.zeros_like(self.gold)

    def add(self, plain: Tensor, spread: Optional[Tensor], counted: Optional[Tensor] = None) -> None:
        """Add the losses of rows, all ``(n, 1)``.

        Args:
            plain: without smoothing.
            spread: the target's logit minus the mean of all; None without smoothing.
            counted: which rows count; all if None.
        """
        smoothed = plain if spread is None else plain + self.smoothing * spread - self.entropy
        if counted is not None:
            plain, smoothed = torch.where(counted, plain, 0), torch.where(counted, smoothed, 0)
        summed = plain.sum()
        self.plain += summed
        self.loss += summed if spread is None else smoothed.sum()


def solve_at_once(
    logits: Tensor,
    target: Tensor,
    counted: Optional[Tensor],
    alpha: float,
    smoothing: float,
    totals: Totals,
    start: int,
    differentiate: bool,
) -> Optional[Gradient]:
    """Solve a block of logits on any device, and put their gradient in their place.

    Args:
        logits: float32 or float64, ``(n, V)``.
        target: ``(n,)``.
        counted: which rows count, ``(n, 1)``; all if None.
        alpha: a number of at least 1.
        smoothing: of the labels.
        totals: what to add to.
        start: the number of the block's first row.
        differentiate: whether a gradient is wanted, else None is returned.
    """
    n, vocab = logits.shape
    z = logits.to(solving_dtype(logits.dtype, alpha))
    top, best = z.max(-1, True)
    check_mask(top)
    x = z - top
    probs, total = solve_rows(x, alpha)
    gold = target.unsqueeze(-1)
    x_gold = x.gather(-1, gold)
    mean = torch.where(probs > 0, probs * x, 0).sum(-1, True)
    totals.add(
        plain=conjugate(mean, total, alpha - 1) - x_gold,
        spread=x_gold - x.mean(-1, True) if smoothing > 0 else None,
        counted=counted,
    )
    correct, size = best == gold, _support_size(probs, alpha)
    if counted is not None:
        correct, size = correct & counted, size * counted
    rows = slice(start, start + n)
    totals.correct += correct.sum()
    totals.size[rows] = size.squeeze(-1)
    if totals.gold is not None and totals.squares is not None:
        gold_prob, squares = probs.gather(-1, gold), probs.square().sum(-1, True)
        if counted is not None:
            gold_prob, squares = gold_prob * counted, squares * counted
        totals.gold[rows] = gold_prob.squeeze(-1).to(totals.gold.dtype)
        totals.squares[rows] = squares.squeeze(-1).to(totals.squares.dtype)
    if not differentiate:
        return None
    probs = probs - smoothing / vocab if smoothing > 0 else probs
    residual = probs.scatter_add(-1, gold, torch.full_like(total, smoothing - 1))
    logits.copy_(residual if counted is None else torch.where(counted, residual, 0))
    return Gradient(None, rows, logits)


def _support_size(probs: Tensor, alpha: float) -> Tensor:
    """Non-zero probabilities, ``(n, 1)`` int64; of softmax all, although small ones may be rounded to zero."""
    return (probs > 0).sum(-1, True) if alpha > 1 else torch.full_like(probs[:, :1], probs.shape[1], dtype=torch.int64)


class _InBlocks(torch.autograd.Function):
    """The summed loss and the statistics of :class:`LinearEntmaxLossOutput`, the logits block by block."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Optional[Tensor],
        target: Tensor,
        counted: Optional[Tensor],
        alpha: float,
        smoothing: float,
        statistics: bool,
        engine: Any,
    ) -> _Found:
        n, vocab = hidden.shape[0], weight.shape[0]
        dtype = working_dtype(hidden.dtype)
        wanted = ctx.needs_input_grad[:3]
        entropy = float(smoothed_entropy(vocab, alpha, smoothing)) if smoothing > 0 else 0.0
        totals = Totals(target, dtype, smoothing, entropy, statistics)
        dense: list[Optional[Tensor]] = [torch.zeros_like(hidden) if wanted[0] else None, None, None]
        sparse = []  # (rows, cols, values) of the blocks that are multiplied sparsely, in backward
        solve = (engine and engine.logits_solver(n, hidden, weight, alpha)) or solve_at_once
        as_given = getattr(solve, "of_layer", False)  # logits in the layer's dtype
        size = max(1, (engine.logits if engine else LOGITS) // max(vocab, 1))
        buffer = hidden.new_empty(min(n, size), vocab) if hidden.device.type == "cpu" else None
        for start in range(0, n, size):
            rows = slice(start, min(start + size, n))
            out = None if buffer is None else buffer[: rows.stop - start]
            if as_given and bias is not None:
                logits = torch.addmm(bias.to(hidden.dtype), hidden[rows], weight.t())
            else:
                logits = torch.mm(hidden[rows], weight.t(), out=out)
            if not as_given:
                logits = logits.to(dtype)
                if bias is not None:
                    logits += bias
            counting = None if counted is None else counted[rows]
            found = solve(logits, target[rows], counting, alpha, smoothing, totals, start, any(wanted))
            if found is None:
                continue
            if found.support is not None:
                sparse.append(found.support)
            if len(found.residual) > 0:
                residual = found.residual.to(hidden.dtype)
                _multiply_densely(dense, wanted, residual, hidden, weight, found.rows, dtype)
                if wanted[2]:
                    summed = found.residual.sum(0, dtype=dtype)
                    dense[2] = summed if dense[2] is None else dense[2].add_(summed)
        ctx.smoothing = smoothing
        saved = [torch.cat(parts) for parts in zip(*sparse)] if sparse else []
        ctx.save_for_backward(hidden, weight, bias, *dense, *saved)
        extras = (totals.correct, totals.size, totals.gold, totals.squares, totals.plain)
        ctx.mark_non_differentiable(*[extra for extra in extras if extra is not None])
        return totals.loss, *extras

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *unused: Any) -> tuple[Optional[Tensor], ...]:
        hidden, weight, bias, *rest = ctx.saved_tensors
        dense, sparse = rest[:3], rest[3:]
        wanted = ctx.needs_input_grad[:3]
        grads: list[Optional[Tensor]] = [None] * 3
        if sparse:
            grads = _multiply_sparsely(wanted, sparse, hidden, weight, grad, ctx.smoothing)
        for i, (like, want) in enumerate(zip((hidden, weight, bias), wanted)):
            found = grads[i] if dense[i] is None else _scaled(dense[i], grad, grads[i])
            if want:
                found = torch.zeros_like(like) if found is None else found.to(like.dtype)
            grads[i] = found
        return (*grads, None, None, None, None, None, None)


def _multiply_densely(
    dense: list[Optional[Tensor]],
    wanted: Sequence[bool],
    residual: Tensor,
    hidden: Tensor,
    weight: Tensor,
    rows: Union[slice, Tensor],
    dtype: torch.dtype,
) -> None:
    """Add a block's part to the gradients of hidden states and weight, from that of the logits ``(n, V)``."""
    hidden = hidden[rows]
    of_hidden, of_weight, _ = dense
    if of_hidden is not None:
        if isinstance(rows, slice):
            torch.mm(residual, weight, out=of_hidden[rows])
        else:
            of_hidden[rows] = torch.mm(residual, weight)
    if wanted[1]:
        if of_weight is None:
            dense[1] = of_weight = torch.zeros(weight.shape, dtype=dtype, device=weight.device)
        if dtype == residual.dtype:
            of_weight.addmm_(residual.t(), hidden)
        else:
            of_weight += residual.t() @ hidden


def _multiply_sparsely(
    wanted: Sequence[bool], sparse: Sequence[Tensor], hidden: Tensor, weight: Tensor, grad: Tensor, smoothing: float
) -> list[Optional[Tensor]]:
    """Gradients of hidden states, weight and bias by the blocks kept as non-zeros ``(rows, cols, values)``, by row."""
    rows, cols, values = sparse
    n, vocab = hidden.shape[0], weight.shape[0]
    values = values * grad
    mine = values.new_zeros(n, 1).index_fill_(0, rows, 1).mul_(grad * (smoothing / vocab))  # (n, 1)
    grads: list[Optional[Tensor]] = [None] * 3
    if wanted[0]:
        grads[0] = bags = _bags(rows, cols, values, weight, n)
        if smoothing > 0:
            bags.addmm_(mine, weight.sum(0, keepdim=True), alpha=-1)
    if wanted[1]:
        cols, order = cols.sort()
        rows, values = rows[order], values[order]
        grads[1] = bags = _bags(cols, rows, values, hidden, vocab)
        if smoothing > 0:
            bags.sub_(mine.t() @ hidden)
    if wanted[2]:
        grads[2] = sums = values.new_zeros(vocab).index_add_(0, cols, values)
        if smoothing > 0:
            sums.sub_(mine.sum())
    return grads


def _bags(bags: Tensor, index: Tensor, values: Tensor, matrix: Tensor, count: int) -> Tensor:
    """Row i is the sum of ``values * matrix[index]`` where ``bags`` (ascending) is i; shape ``(count, columns)``."""
    offsets = torch.searchsorted(bags, torch.arange(count, device=bags.device))
    return F.embedding_bag(index, matrix, offsets, mode="sum", per_sample_weights=values)


def _scaled(dense: Tensor, grad: Tensor, sparse: Tensor | None) -> Tensor:
    """``dense * grad + sparse``, in the place of ``sparse`` where it can be: for a weight each is large."""
    if sparse is None:
        return dense * grad
    if dense.dtype == grad.dtype == sparse.dtype:
        return sparse.addcmul_(dense, grad)
    return (dense * grad).add_(sparse)


def _at_once(
    hidden: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    target: Tensor,
    counted: Optional[Tensor],
    alpha: float,
    smoothing: float,
    statistics: bool,
) -> _Found:
    """What :class:`_InBlocks` returns, from the logits of all rows: the reference."""
    z = F.linear(hidden, weight, bias).to(working_dtype(hidden.dtype))  # (n, V)
    losses = entmax_loss(z, target, alpha, "none", NO_CLASS, smoothing)
    with torch.no_grad():
        plain = losses if smoothing == 0 else entmax_loss(z, target, alpha, "none", NO_CLASS)
        probs, gold = entmax_forward(z, alpha), target.unsqueeze(-1)
        correct = z.argmax(-1) == target
        size = _support_size(probs, alpha).squeeze(-1)
        gold_prob = probs.gather(-1, gold).squeeze(-1) if statistics else None
        squares = probs.square().sum(-1) if statistics else None
        if counted is not None:
            kept = counted.squeeze(-1)
            correct, plain, size = correct & kept, torch.where(kept, plain, 0), size * kept
            gold_prob, squares = (None if value is None else value * kept for value in (gold_prob, squares))
    if counted is not None:
        losses = torch.where(counted.squeeze(-1), losses, 0)
    return losses.sum(), correct.sum(), size, gold_prob, squares, plain.detach().sum()


def linear_entmax_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    alpha: float = 1.5,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    statistics: bool = False,
) -> LinearEntmaxLossOutput:
    r"""``entmax_loss(linear(hidden, weight, bias), target)`` without keeping logits, with a sparse backward pass.

    Args:
        hidden: decoder outputs, shape ``(n, d)``.
        weight: shape ``(V, d)``; may be shared with other parts of the graph.
        bias: shape ``(V,)`` or None.
        target: classes, shape ``(n,)``.
        alpha: a number, at least 1; 1 is the cross-entropy.
        reduction: ``mean`` over the rows that count, or ``sum``.
        ignore_index: rows with this target count for nothing.
        label_smoothing: as in :func:`entmax_loss`.
        statistics: whether to fill ``gold_prob`` and ``sum_of_squares``.

    Returns:
        :class:`LinearEntmaxLossOutput`. Logits of half precision are those of the layer; all that follows is computed
        in float32, and gradients are rounded when they are multiplied with the layer.

    Raises:
        ValueError: alpha below 1, an unknown reduction, shapes that do not fit, or a row of logits with nothing but
            -inf (on the CPU only: reading values would make the host wait for any other device).
    """
    alpha = check_alpha(alpha)
    check_scores(hidden, "hidden")
    check_reduction(reduction, ("mean", "sum"))
    check_smoothing(label_smoothing)
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(
            f"Hidden states {tuple(hidden.shape)} and weight {tuple(weight.shape)} must be (n, d) and (V, d)."
        )
    if target.shape != hidden.shape[:1]:
        raise ValueError(f"Target of shape {tuple(target.shape)} must have shape {tuple(hidden.shape[:1])}.")
    device = hidden.device.type
    low = autocast_dtype(device)
    if low is not None:
        hidden, weight = hidden.to(low), weight.to(low)
        bias = None if bias is None else bias.to(low)
    n, counts = target.shape[0], target != ignore_index
    index: Optional[Tensor] = None
    counted: Optional[Tensor] = None
    count: Union[int, Tensor] = n
    if free_to_read(target):  # ignored rows are left out
        index = counts.nonzero().squeeze(-1)
        count = index.numel()
        if count == n:
            index = None
        else:
            hidden, target = hidden.index_select(0, index), target.index_select(0, index)
    else:  # the host would have to wait to know which: they are computed, as rows of zeros, and then left out
        count, counted = counts.sum(), counts.unsqueeze(-1)
        hidden, target = torch.where(counted, hidden, 0), torch.where(counts, target, 0)
    engine = engine_for(hidden)
    with without_autocast(device):
        if is_reference():
            found = _at_once(hidden, weight, bias, target, counted, alpha, label_smoothing, statistics)
        else:
            found = _InBlocks.apply(hidden, weight, bias, target, counted, alpha, label_smoothing, statistics, engine)
    loss, correct, size, gold, squares, plain = found
    if index is not None:
        size = size.new_zeros(n).index_copy_(0, index, size)
        gold, squares = (None if v is None else v.new_zeros(n).index_copy_(0, index, v) for v in (gold, squares))
    return LinearEntmaxLossOutput(loss if reduction == "sum" else loss / count, correct, size, gold, squares, plain)
