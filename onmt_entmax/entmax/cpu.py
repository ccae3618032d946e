"""The engine for the CPU: mapping, losses and output layer by the solver in cpu_blocks.py.

Narrow rows, of attention, take as few operations as possible instead: there each costs its overhead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from onmt_entmax.entmax import solvers
from onmt_entmax.entmax.cpu_blocks import Blocks, Solution, Support, rows_of
from onmt_entmax.entmax.engine import free_to_read
from onmt_entmax.entmax.functional import Alpha, as_rows, solving_dtype
from onmt_entmax.entmax.linear_loss import Gradient, Totals
from onmt_entmax.entmax.losses import conjugate, entropy_slope, entropy_slopes, smoothed_entropy, smoothed_entropy_slope

LOGITS_SHARE = 0.5  # of a usual block: beside the logits, memory counts
SPARSE_SHARE = 0.03  # of the vocabulary: rows with more non-zeros than this are multiplied densely
ALL = 0.9  # of a block's rows to be multiplied densely: then all are


@dataclass(frozen=True)
class Cpu(Blocks):
    """See :class:`~onmt_entmax.entmax.engine.Engine`, which documents the methods."""

    logits: int = 1 << 23  # entries of a block of logits: smaller blocks make the products with them slower
    name = "cpu"

    def serves(self, x: Tensor) -> bool:
        return free_to_read(x)

    def entmax(self, scores: Tensor, alpha: Alpha) -> Optional[Tensor]:
        if not isinstance(alpha, Tensor) and is_narrow(scores, alpha):
            return narrow(scores, alpha)
        if not self._is_worth_it(scores, alpha):
            return None
        rows, alpha = as_rows(scores, alpha)
        rows = rows.contiguous()
        out = torch.zeros_like(rows)
        n, d = rows.shape
        work = self.workspace(n, d, rows.dtype)
        for part in self.parts(n, d):
            epsilon = rows_of(alpha, part) - 1
            self.fill(rows[part], epsilon, self.solve(rows[part], epsilon, work), out[part])
        return out.view(scores.shape).to(scores.dtype)

    def gradients(self, probs: Tensor, grad: Tensor, alpha: Alpha) -> None:
        return None  # the reference is as fast

    def losses(
        self, scores: Tensor, target: Tensor, alpha: Alpha, ignore_index: int, smoothing: float
    ) -> Optional[Tensor]:
        if not self._is_worth_it(scores, alpha):
            return None
        losses: Tensor = _Losses.apply(scores, target, alpha, ignore_index, smoothing, self)
        return losses

    def logits_solver(self, rows: int, hidden: Tensor, weight: Tensor, alpha: float) -> Optional[LogitsSolver]:
        if weight.shape[0] < self.wide:
            return None
        return LogitsSolver(self, rows, hidden.dtype, weight.shape[0], alpha)

    def _is_worth_it(self, scores: Tensor, alpha: Alpha) -> bool:
        if scores.shape[-1] < self.wide or scores.numel() == 0:
            return False
        return not isinstance(alpha, Tensor) or bool((alpha > 1).all())


def is_narrow(scores: Tensor, alpha: Alpha) -> bool:
    """Whether :func:`narrow` knows this alpha and is the fastest for the last dimension of ``scores``."""
    if scores.dtype not in (torch.float32, torch.float64) or scores.shape[-1] > solvers.NARROW:
        return False
    return not isinstance(alpha, Tensor) and 1 + solvers.NEAR_ONE <= alpha <= 2


def narrow(scores: Tensor, alpha: float) -> Tensor:
    """alpha-entmax of the last dimension where :func:`is_narrow` says so; shape and dtype of ``scores``."""
    s = torch.sub(scores, scores.amax(-1, True))
    if alpha == 2:
        return s.add_(solvers.sort(s, 1.0)).relu_()
    s.mul_(alpha - 1)
    return s.add_(solvers.newton(s, alpha - 1, powers=True)).relu_().pow_(1 / (alpha - 1))


def _entropy_slope(engine: Cpu, z: Tensor, epsilon: Tensor, solution: Solution, out: Tensor, other: Tensor) -> Tensor:
    """:func:`entropy_slope` of a block of solved rows, on its non-zeros where they are known; shape ``(n, 1)``."""
    if solution.support is not None:
        rows, _, values = solution.support
        terms = values * entropy_slopes(values, 1 + epsilon.squeeze(-1).index_select(0, rows))
        return torch.zeros_like(solution.top).squeeze(-1).index_add_(0, rows, terms).unsqueeze(-1)
    probs = engine.fill(z, epsilon, solution, out)
    if bool((epsilon < 0.25).any()):
        return entropy_slope(probs, 1 + epsilon)
    # far from alpha = 1 nothing cancels, and two sums do: p^alpha and p^alpha log p
    logs = torch.clamp(probs, min=torch.finfo(probs.dtype).tiny, out=other).log_()
    powers = probs.mul_(torch.exp(logs * epsilon))
    missing = 1 - powers.sum(-1, True)
    weighted = powers.mul_(logs).sum(-1, True)
    return -(epsilon * weighted + missing) / (epsilon**2 * (1 + epsilon)) - missing / (epsilon * (1 + epsilon) ** 2)


class _Losses(torch.autograd.Function):
    """Losses ``(n,)`` of wide rows: nothing of the size of the scores is kept besides the scores."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, target: Tensor, alpha: Alpha, ignore_index: int, smoothing: float, engine: Cpu
    ) -> Tensor:
        n, d = scores.shape
        learned = alpha if isinstance(alpha, Tensor) else None
        dtype = solving_dtype(scores.dtype, alpha)
        losses = scores.new_zeros(n, 1)
        grad_alpha = torch.zeros_like(learned) if learned is not None and ctx.needs_input_grad[2] else None
        work = engine.workspace(n, d, dtype)
        ctx.blocks = []
        saved: list[Optional[Tensor]] = []
        for rows in engine.parts(n, d):
            index = _counted(target, rows, ignore_index)
            if index.numel() == 0:
                continue
            z = scores[rows] if index.numel() == rows.stop - rows.start else scores[index]
            z = z.to(dtype).contiguous()
            epsilon = alpha - 1 if learned is None else learned[index].to(dtype) - 1
            solution = engine.solve(z, epsilon, work)
            gold = z.gather(-1, target[index].unsqueeze(-1)) - solution.top
            loss = conjugate(solution.mean, solution.total, epsilon) - (1 - smoothing) * gold
            if smoothing > 0:
                loss -= smoothing * (z.mean(-1, True) - solution.top) + smoothed_entropy(d, 1 + epsilon, smoothing)
            losses[index] = loss.to(losses.dtype)
            if grad_alpha is not None and isinstance(epsilon, Tensor):
                slope = _entropy_slope(engine, z, epsilon, solution, work[0, : len(z)], work[1, : len(z)])
                if smoothing > 0:
                    slope = slope - smoothed_entropy_slope(d, 1 + epsilon, smoothing)
                grad_alpha[index] = slope.to(grad_alpha.dtype)
            ctx.blocks.append((index, epsilon if learned is None else None, solution.support is not None))
            saved += [solution.top, solution.width, solution.total]
            saved.extend(solution.support or (None, None, None))
        ctx.engine, ctx.dtype, ctx.smoothing, ctx.ignore_index = engine, dtype, smoothing, ignore_index
        ctx.save_for_backward(scores, target, learned, grad_alpha, *saved)
        return losses.squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Optional[Tensor], ...]:
        scores, target, alpha, grad_alpha, *saved = ctx.saved_tensors
        grad = grad.unsqueeze(-1)
        grad_alpha = None if grad_alpha is None else (grad_alpha * grad).to(grad_alpha.dtype)
        if not ctx.needs_input_grad[0]:
            return None, None, grad_alpha, None, None, None
        d = scores.shape[1]
        whole = all(not sparse for *_, sparse in ctx.blocks) and bool((target != ctx.ignore_index).all())
        make = torch.empty_like if whole else torch.zeros_like
        out = make(scores, memory_format=torch.contiguous_format)
        for i, (index, epsilon, sparse) in enumerate(ctx.blocks):
            top, width, total, *support = saved[6 * i : 6 * i + 6]
            solution = Solution(top, width, total, total, Support(*support) if sparse else None)
            whole = index[-1] - index[0] + 1 == index.numel()
            rows = slice(int(index[0]), int(index[-1]) + 1) if whole else index
            if epsilon is None:
                epsilon = alpha[index].to(ctx.dtype) - 1
            scale = grad[index].to(ctx.dtype)
            in_place = whole and out.dtype == ctx.dtype
            part = out[rows] if in_place else torch.zeros(index.numel(), d, dtype=ctx.dtype)
            ctx.engine.fill(scores[rows].to(ctx.dtype) if not sparse else part, epsilon, solution, part, scale)
            if ctx.smoothing > 0:
                part.sub_(scale * (ctx.smoothing / d))
            part.scatter_add_(-1, target[index].unsqueeze(-1), (ctx.smoothing - 1) * scale)
            if not in_place:
                out[rows] = part.to(out.dtype)
        return out, None, grad_alpha, None, None, None


def _counted(target: Tensor, rows: slice, ignore_index: int) -> Tensor:
    """Positions of the targets in ``rows`` that count."""
    counted = target[rows] != ignore_index
    return counted.nonzero().squeeze(-1) + int(rows.start)


class LogitsSolver:
    """Solves blocks of logits of wide rows, a small block at a time."""

    def __init__(self, engine: Cpu, rows: int, dtype: torch.dtype, vocab: int, alpha: float) -> None:
        self.engine = engine
        self.work = engine.workspace(rows, vocab, solving_dtype(dtype, alpha), LOGITS_SHARE)
        self.sparse = dtype == self.work.dtype  # torch's products with few rows want one dtype

    def __call__(
        self,
        logits: Tensor,
        target: Tensor,
        counted: Optional[Tensor],
        alpha: float,
        smoothing: float,
        totals: Totals,
        start: int,
        differentiate: bool,
    ) -> Optional[Gradient]:
        """See :func:`~onmt_entmax.entmax.linear_loss.solve_at_once`; all rows count here.

        The logits are used up: what is dense of the gradient takes their place.
        """
        engine, work = self.engine, self.work
        n, vocab = logits.shape
        epsilon = alpha - 1
        parts, solutions = list(engine.parts(n, vocab, LOGITS_SHARE)), []
        for part in parts:
            z = logits[part].to(work.dtype)
            solution = engine.solve(z, epsilon, work)
            gold = target[part].unsqueeze(-1)
            gold_score = z.gather(-1, gold) - solution.top
            plain = conjugate(solution.mean, solution.total, epsilon) - gold_score
            spread = gold_score - z.mean(-1, True) + solution.top if smoothing > 0 else None
            totals.add(plain, spread)
            hit = (gold_score == 0).squeeze(-1).nonzero().squeeze(-1)  # the target is a maximum: the first one?
            rows = slice(start + part.start, start + part.stop)
            if solution.support is None:
                if hit.numel() > 0:
                    totals.correct += (z[hit].argmax(-1) == gold[hit, 0]).sum()
                probs = engine.fill(z, epsilon, solution, work[0, : z.shape[0]])
                if totals.gold is not None and totals.squares is not None:
                    totals.gold[rows] = probs.gather(-1, gold).squeeze(-1).to(totals.gold.dtype)
                    totals.squares[rows] = torch.linalg.vector_norm(probs, 2, -1).square().to(totals.squares.dtype)
                totals.size[rows] = torch.sign(probs, out=probs).sum(-1).long() if epsilon > 0 else vocab
            else:
                _count_sparse(solution.support, gold.squeeze(-1), hit, 1 / solution.total.squeeze(-1), totals, rows)
            solutions.append(solution)
        if not differentiate:
            return None
        many = totals.size[start : start + n] > SPARSE_SHARE * vocab
        if not self.sparse or int(many.sum()) > ALL * n:
            many = torch.ones_like(many)
        return self._gradient(logits, target, parts, solutions, many, epsilon, smoothing, start)

    def _gradient(
        self,
        logits: Tensor,
        target: Tensor,
        parts: list[slice],
        solutions: list[Solution],
        many: Tensor,
        epsilon: float,
        smoothing: float,
        start: int,
    ) -> Gradient:
        """The gradient of solved logits ``(n, V)``; ``many`` ``(n,)`` says which rows are to be dense."""
        n, vocab = logits.shape
        supports, count = [], 0
        for part, solution in zip(parts, solutions):
            # dense rows move up, over logits that have been read
            into = logits[count : count + int(many[part].sum())]
            count += len(into)
            supports.append(self._take_apart(logits[part], many[part], into, epsilon, solution))
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
        values = torch.cat([*[s.values for s in supports], self.work.new_full(few.shape, smoothing - 1)])[order]
        return Gradient(Support(rows, cols, values), dense + start, residual)

    def _take_apart(self, logits: Tensor, many: Tensor, into: Tensor, epsilon: float, solution: Solution) -> Support:
        """Write the dense rows' probabilities of a solved block into ``into``, and return the other rows' non-zeros."""
        n, support, work, engine = logits.shape[0], solution.support, self.work, self.engine
        if len(into) == n:
            in_place = into.dtype == work.dtype and (support is not None or into.data_ptr() == logits.data_ptr())
            out = into if in_place else work[0, :n]
            if support is not None:
                out.zero_()
            filled = engine.fill(logits.to(work.dtype), epsilon, solution, out)
            if not in_place:
                into.copy_(filled)
            none = torch.empty(0, dtype=torch.int64)
            return Support(none, none, work.new_empty(0))
        if support is None:
            probs = engine.fill(logits, epsilon, solution, work[0, :n])
            few = (~many).nonzero().squeeze(-1)
            into.copy_(probs[many])
            probs = probs.index_select(0, few)
            rows, cols = probs.nonzero().unbind(1)
            return Support(few.index_select(0, rows), cols, probs[rows, cols])
        if len(into) == 0:
            return support
        chosen = many.index_select(0, support.rows)
        number = many.cumsum(0) - 1
        at = number.index_select(0, support.rows[chosen]) * logits.shape[1] + support.cols[chosen]
        into.zero_().view(-1)[at] = support.values[chosen]
        chosen = ~chosen
        return Support(*(part[chosen] for part in support))


def _count_sparse(support: Support, gold: Tensor, hit: Tensor, largest: Tensor, totals: Totals, rows: slice) -> None:
    """Statistics of a block from its support: sizes, correct predictions, and what validation asks for."""
    sizes = torch.bincount(support.rows, minlength=gold.shape[0])
    totals.size[rows] = sizes
    if hit.numel() > 0:
        # the first column with the largest probability, columns not being in order
        best = torch.where(support.values >= largest.index_select(0, support.rows), support.cols, 1 << 62)
        first = torch.full_like(gold, 1 << 62).scatter_reduce_(0, support.rows, best, "amin")
        totals.correct += (first[hit] == gold[hit]).sum()
    if totals.gold is not None and totals.squares is not None:
        n = gold.shape[0]
        match = torch.where(support.cols == gold.index_select(0, support.rows), support.values, 0)
        totals.gold[rows] = match.new_zeros(n).index_add_(0, support.rows, match).to(totals.gold.dtype)
        squares = match.new_zeros(n).index_add_(0, support.rows, support.values.square())
        totals.squares[rows] = squares.to(totals.squares.dtype)
