"""The pieces of the output layer: blocks of logits are solved, counted, and multiplied densely or sparsely."""

from __future__ import annotations

from typing import NamedTuple, Optional, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from onmt_entmax.entmax import blocks
from onmt_entmax.entmax.functional import solve_rows, solving_dtype
from onmt_entmax.entmax.losses import conjugate, smoothed_entropy

BLOCK_SHARE = 0.5  # of a usual block: beside the logits, memory counts
SPARSE_SHARE = 0.03  # of the vocabulary: rows with more non-zeros than this are multiplied densely
ALL = 0.9  # of a block's rows to be multiplied densely: then all are


class Gradient(NamedTuple):
    """The gradient of a block of logits: some rows sparse, the others dense.

    Attributes:
        support: the sparse rows' non-zeros, numbered over all blocks; smoothing's rank-one part left out. None if all
            rows are dense.
        rows: the dense rows, numbered over all blocks: a slice, or a tensor ``(m,)``.
        residual: their gradient, ``(m, V)``; m may be 0.
    """

    support: Optional[blocks.Support]
    rows: Union[slice, Tensor]
    residual: Tensor


class Totals:
    """Sums and per-row statistics, filled in block by block."""

    def __init__(self, target: Tensor, dtype: torch.dtype, statistics: bool):
        self.loss = torch.zeros((), dtype=dtype, device=target.device)
        self.plain = self.loss.clone()
        self.correct = torch.zeros((), dtype=torch.int64, device=target.device)
        self.size = torch.zeros_like(target)
        self.gold = torch.zeros(target.shape, dtype=dtype, device=target.device) if statistics else None
        self.squares = torch.zeros_like(self.gold) if statistics else None


def solve_at_once(logits, target, alpha, smoothing, totals, start) -> None:
    """Solve logits ``(n, V)``, add to ``totals``, and put their gradient in their place."""
    vocab = logits.shape[1]
    z = logits.to(solving_dtype(logits, alpha))
    top, best = z.max(-1, True)
    x = z - top
    probs, total = solve_rows(x, alpha)
    gold = target.unsqueeze(-1)
    mean = torch.where(probs > 0, probs * x, 0).sum(-1, True)
    plain = conjugate(mean, total, alpha - 1) - x.gather(-1, gold)
    spread = x.gather(-1, gold) - x.mean(-1, True) if smoothing > 0 else None
    _count(totals, plain, spread, smoothing, vocab, alpha)
    rows = slice(start, start + logits.shape[0])
    totals.correct += (best == gold).sum()
    totals.size[rows] = (probs > 0).sum(-1)
    if totals.gold is not None:
        totals.gold[rows] = probs.gather(-1, gold).squeeze(-1).to(totals.gold.dtype)
        totals.squares[rows] = probs.square().sum(-1).to(totals.squares.dtype)
    probs = probs - smoothing / vocab if smoothing > 0 else probs
    logits.copy_(probs.scatter_add(-1, gold, torch.full_like(total, smoothing - 1)))


def _count(totals, plain, spread, smoothing, vocab, alpha) -> None:
    """Add the losses of rows: without smoothing, and with it."""
    summed = plain.sum()
    totals.plain += summed
    if smoothing > 0:
        summed = summed + smoothing * spread.sum() - plain.shape[0] * smoothed_entropy(vocab, alpha, smoothing)
    totals.loss += summed


def solve_in_blocks(logits, target, alpha, smoothing, totals, start, work, differentiate) -> Optional[Gradient]:
    """The same for wide rows on the CPU, a small block at a time. Returns the gradient, if it is asked for.

    The logits are used up: what is dense of the gradient takes their place.
    """
    n, vocab = logits.shape
    epsilon = alpha - 1
    parts, solutions = list(blocks.blocks(n, vocab, BLOCK_SHARE)), []
    for part in parts:
        z = logits[part].to(work.dtype)
        solution = blocks.solve(z, epsilon, work)
        gold = target[part].unsqueeze(-1)
        gold_score = z.gather(-1, gold) - solution.top
        plain = conjugate(solution.mean, solution.total, epsilon) - gold_score
        spread = gold_score - z.mean(-1, True) + solution.top if smoothing > 0 else None
        _count(totals, plain, spread, smoothing, vocab, alpha)
        hit = (gold_score == 0).squeeze(-1).nonzero().squeeze(-1)  # the target is a maximum: the first one?
        rows = slice(start + part.start, start + part.stop)
        if solution.support is None:
            if hit.numel() > 0:
                totals.correct += (z[hit].argmax(-1) == gold[hit, 0]).sum()
            probs = blocks.fill(z, epsilon, solution, work[0, : z.shape[0]])
            if totals.gold is not None:
                totals.gold[rows] = probs.gather(-1, gold).squeeze(-1).to(totals.gold.dtype)
                totals.squares[rows] = torch.linalg.vector_norm(probs, 2, -1).square().to(totals.squares.dtype)
            totals.size[rows] = (
                torch.sign(probs, out=probs).sum(-1) if epsilon > 0 else vocab + 0 * solution.top[:, 0]
            ).long()
        else:
            _count_sparse(solution.support, gold.squeeze(-1), hit, 1 / solution.total.squeeze(-1), totals, rows)
        solutions.append(solution)
    if not differentiate:
        return None
    many = totals.size[start : start + n] > SPARSE_SHARE * vocab
    if logits.dtype != work.dtype or int(many.sum()) > ALL * n:
        many = torch.ones_like(many)
    return _gradient(logits, target, parts, solutions, many, epsilon, smoothing, start, work)


def _gradient(logits, target, parts, solutions, many, epsilon, smoothing, start, work) -> Gradient:
    """The gradient of solved logits ``(n, V)``; ``many`` ``(n,)`` says which rows are to be dense."""
    n, vocab = logits.shape
    supports, count = [], 0
    for part, solution in zip(parts, solutions):
        # dense rows move up, over logits that have been read
        into = logits[count : count + int(many[part].sum())]
        count += len(into)
        supports.append(_take_apart(logits[part], many[part], into, epsilon, solution, work))
    residual, dense = logits[:count], many.nonzero().squeeze(-1)
    if count > 0:
        if smoothing > 0:
            residual -= smoothing / vocab
        gold = target.index_select(0, dense).unsqueeze(-1)
        residual.scatter_add_(-1, gold, torch.full_like(gold, smoothing - 1, dtype=logits.dtype))
    if count == n:
        return Gradient(None, slice(start, start + n), residual)
    rows = torch.cat([support.rows + start + part.start for part, support in zip(parts, supports)])
    # the target's -1 goes in as an entry of its own at the end of its row's
    few = (~many).nonzero().squeeze(-1)
    rows, order = torch.cat([rows, few + start]).sort(stable=True)
    cols = torch.cat([*[s.cols for s in supports], target.index_select(0, few)])[order]
    values = torch.cat([*[s.values for s in supports], work.new_full(few.shape, smoothing - 1)])[order]
    return Gradient(blocks.Support(rows, cols, values), dense + start, residual)


def _take_apart(logits, many, into, epsilon, solution, work) -> blocks.Support:
    """Write the dense rows' probabilities of a solved block into ``into``, and return the other rows' non-zeros."""
    n, support = logits.shape[0], solution.support
    if len(into) == n:
        in_place = into.dtype == work.dtype and (support is not None or into.data_ptr() == logits.data_ptr())
        out = into if in_place else work[0, :n]
        if support is not None:
            out.zero_()
        filled = blocks.fill(logits.to(work.dtype), epsilon, solution, out)
        if not in_place:
            into.copy_(filled)
        none = torch.empty(0, dtype=torch.int64)
        return blocks.Support(none, none, work.new_empty(0))
    if support is None:
        probs = blocks.fill(logits, epsilon, solution, work[0, :n])
        few = (~many).nonzero().squeeze(-1)
        into.copy_(probs[many])
        probs = probs.index_select(0, few)
        rows, cols = probs.nonzero().unbind(1)
        return blocks.Support(few.index_select(0, rows), cols, probs[rows, cols])
    if len(into) == 0:
        return support
    chosen = many.index_select(0, support.rows)
    number = many.cumsum(0) - 1
    at = number.index_select(0, support.rows[chosen]) * logits.shape[1] + support.cols[chosen]
    into.zero_().view(-1)[at] = support.values[chosen]
    chosen = ~chosen
    return blocks.Support(*(part[chosen] for part in support))


def _count_sparse(support, gold, hit, largest, totals, rows) -> None:
    """Statistics of a block from its support: sizes, correct predictions, and what validation asks for."""
    sizes = torch.bincount(support.rows, minlength=gold.shape[0])
    totals.size[rows] = sizes
    if hit.numel() > 0:
        # the first column with the largest probability, columns not being in order
        best = torch.where(support.values >= largest.index_select(0, support.rows), support.cols, 1 << 62)
        first = torch.full_like(gold, 1 << 62).scatter_reduce_(0, support.rows, best, "amin")
        totals.correct += (first[hit] == gold[hit]).sum()
    if totals.gold is not None:
        n = gold.shape[0]
        match = torch.where(support.cols == gold.index_select(0, support.rows), support.values, 0)
        totals.gold[rows] = match.new_zeros(n).index_add_(0, support.rows, match).to(totals.gold.dtype)
        squares = match.new_zeros(n).index_add_(0, support.rows, support.values.square())
        totals.squares[rows] = squares.to(totals.squares.dtype)


def multiply_densely(dense, wanted, residual, hidden, weight, bias, rows, dtype) -> None:
    """Add a block's part to the gradients of hidden states, weight and bias, from the logits' ``(n, V)``."""
    hidden = hidden[rows]
    if wanted[0]:
        if isinstance(rows, slice):
            torch.mm(residual, weight, out=dense[0][rows])
        else:
            dense[0][rows] = torch.mm(residual, weight)
    if wanted[1]:
        if dense[1] is None:
            dense[1] = torch.zeros(weight.shape, dtype=dtype, device=weight.device)
        if dtype == residual.dtype:
            dense[1].addmm_(residual.t(), hidden)
        else:
            dense[1] += residual.t() @ hidden
    if wanted[2]:
        summed = residual.sum(0, dtype=dtype)
        dense[2] = summed if dense[2] is None else dense[2].add_(summed)


def sparse_products(wanted, sparse, hidden, weight, grad, smoothing) -> list[Optional[Tensor]]:
    """Gradients of hidden states, weight and bias by the blocks kept as non-zeros ``(rows, cols, values)``, by row."""
    rows, cols, values = sparse
    n, vocab = hidden.shape[0], weight.shape[0]
    values = values * grad
    mine = torch.zeros(n, 1, dtype=values.dtype).index_fill_(0, rows, 1).mul_(grad * (smoothing / vocab))  # (n, 1)
    grads: list[Optional[Tensor]] = [None] * 3
    if wanted[0]:
        grads[0] = _bags(rows, cols, values, weight, n)
        if smoothing > 0:
            grads[0].addmm_(mine, weight.sum(0, keepdim=True), alpha=-1)
    if wanted[1]:
        cols, order = cols.sort()
        rows, values = rows[order], values[order]
        grads[1] = _bags(cols, rows, values, hidden, vocab)
        if smoothing > 0:
            grads[1].sub_(mine.t() @ hidden)
    if wanted[2]:
        grads[2] = values.new_zeros(vocab).index_add_(0, cols, values)
        if smoothing > 0:
            grads[2].sub_(mine.sum())
    return grads


def _bags(bags: Tensor, index: Tensor, values: Tensor, matrix: Tensor, count: int) -> Tensor:
    """Row i is the sum of ``values * matrix[index]`` where ``bags`` (ascending) is i; shape ``(count, columns)``."""
    offsets = torch.searchsorted(bags, torch.arange(count))
    return F.embedding_bag(index, matrix, offsets, mode="sum", per_sample_weights=values)
