r"""Wide rows on the CPU, a block that fits in the cache at a time: few of a row's entries can be in its support.

Three facts make it fast. Solving a row on any part of its entries gives a width that is at least the row's, so the
maxima of groups of 16 entries, which the search for the maximum yields for little more, give a bound below which all
entries can be left out. For a number alpha <= 2 the root of a tangent at *any* point is a width that is at least the
solution, so Newton may start from a guess, here the solution of a sample of the row. And the few entries left over are
padded into a small matrix, on which the steps cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Optional, Union

import torch
from torch import Tensor

from onmt_entmax.entmax import solvers
from onmt_entmax.entmax.solvers import Epsilon, is_convex

GROUP = 16  # entries per group
COARSER = 4  # groups whose maximum stands for all of them in the first steps
DENSE_SHARE = 0.25  # of a block, taken at a time where all entries are visited in every step: it stays in the cache
GROUPED_SHARE = 0.08  # of the entries, in groups that reach the bound: above it the whole block is scanned
# Shares of the groups that reach the bound, above which a block stays dense; 1 - (1 - share) ** (1 / 16) of the entries
# is what one expects to find.
CHEAP_SHARE = 0.6  # where a dense step is cheap
EXPENSIVE_SHARE = 0.99  # elsewhere
HALVINGS = 3


class Support(NamedTuple):
    """The non-zeros of some rows, ordered by row; all of shape ``(m,)``."""

    rows: Tensor
    cols: Tensor
    values: Tensor  # probabilities


class Solution(NamedTuple):
    """A block of solved rows. Shapes ``(n, 1)`` but for the support."""

    top: Tensor  # the row's maximum
    width: Tensor  # see solvers.py; 1 for alpha = 1
    total: Tensor  # 1 / the largest probability
    mean: Tensor  # sum p_j (z_j - top)
    support: Optional[Support]  # None: the block was solved densely, see :meth:`Blocks.fill`


@dataclass(frozen=True)
class Blocks:
    """How rows are taken apart into blocks, and what is solved in them."""

    wide: int = 512  # rows with fewer entries are not worth the effort
    block_entries: int = 1 << 22  # smaller blocks pay each operation's overhead more often
    few_entries: int = 1 << 16  # of the matrix of gathered entries: below, padding costs less than taking rows apart

    def block_rows(self, d: int, share: float = 1.0) -> int:
        """Rows of ``d`` entries in a block, or in a ``share`` of one."""
        return max(1, int(self.block_entries * share) // max(d, 1))

    def parts(self, n: int, d: int, share: float = 1.0) -> Iterator[slice]:
        """Slices of ``n`` rows of ``d`` entries, a block each."""
        size = self.block_rows(d, share)
        for start in range(0, n, size):
            yield slice(start, min(n, start + size))

    def workspace(self, n: int, d: int, dtype: torch.dtype, share: float = 1.0) -> Tensor:
        """Two scratch buffers for :meth:`solve`: fresh memory is expensive on a CPU; shape ``(2, rows, d)``."""
        return torch.empty(2, min(n, self.block_rows(d, share)), d, dtype=dtype)

    def solve(self, z: Tensor, epsilon: Epsilon, work: Tensor) -> Solution:
        """Solve a block of rows.

        Args:
            z: scores, contiguous, float32 or float64, shape ``(n, d)``.
            epsilon: alpha - 1, at least 0, or a positive tensor of shape ``(n, 1)``.
            work: from :meth:`workspace`, for at least n rows.

        Raises:
            ValueError: a row of nothing but ``-inf``.
        """
        n, d = z.shape
        groups = d // GROUP
        coarse = z.new_empty(n, groups + (d % GROUP > 0))
        torch.amax(z[:, : groups * GROUP].unflatten(1, (GROUP, groups)), 1, out=coarse[:, :groups])
        if d % GROUP:
            coarse[:, groups] = z[:, groups * GROUP :].amax(-1)
        top = coarse.amax(-1, True)
        finite = bool(torch.isfinite(top).all())
        if not finite and bool((top == float("-inf")).any()):
            raise ValueError("Every score of a slice is -inf: there is nothing to give probability to.")
        number = isinstance(epsilon, float)
        start = None
        if finite and not (number and epsilon == 0):
            start = _bound((coarse - top).mul_(epsilon), epsilon)
            # one step below, as the difference is rounded: where scores are large, to the maximum itself
            floor = torch.nextafter(top - start / epsilon, torch.full_like(top, float("-inf")))
            found = _gather(z, coarse, floor, number and epsilon in (0.5, 1.0))
            if found is not None:
                return _solve_gathered(z, found, top, epsilon, start, self.few_entries)
        solved = [
            _solve_densely(
                z[part],
                top[part],
                rows_of(epsilon, part),
                start if start is None else start[part],
                work[:, : part.stop - part.start],
            )
            for part in self.parts(n, d, DENSE_SHARE)
        ]
        width, total, mean = (torch.cat(parts) for parts in zip(*solved))
        return Solution(top, width, total, mean, None)

    def fill(
        self, z: Tensor, epsilon: Epsilon, solution: Solution, out: Tensor, scale: Optional[Tensor] = None
    ) -> Tensor:
        """Write the probabilities of a block, times ``scale`` ``(n, 1)``, into ``out``.

        Args:
            z: the scores that were solved, shape ``(n, d)``.
            epsilon: as given to :meth:`solve`.
            solution: what it returned.
            out: contiguous, shape and dtype of ``z``; zeros if the solution has a support.
            scale: 1 if None.
        """
        if solution.support is not None:
            rows, cols, values = solution.support
            if scale is not None:
                values = values * scale.squeeze(-1).index_select(0, rows)
            out.view(-1)[rows * out.shape[1] + cols] = values
            return out
        factor = solution.total.reciprocal() if scale is None else scale / solution.total
        for part in self.parts(z.shape[0], z.shape[1], DENSE_SHARE):
            _fill_densely(
                z[part],
                rows_of(epsilon, part),
                solution.top[part],
                solution.width[part],
                factor[part],
                out[part],
            )
        return out


def _solve_densely(
    z: Tensor, top: Tensor, epsilon: Epsilon, start: Optional[Tensor], work: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """``width``, ``total`` and ``mean`` of a :class:`Solution`, each ``(n, 1)``."""
    scaled, other = work
    torch.sub(z, top, out=scaled)
    number = isinstance(epsilon, float)
    if number and epsilon == 0:
        total = torch.exp(scaled, out=other).sum(-1, True)
        return torch.ones_like(top), total, torch.zeros_like(top)
    scaled.mul_(epsilon)
    if start is not None and is_convex(epsilon):
        start = _sampled(scaled, epsilon, start)
    # Newton stops one step early: the last evaluation, which is needed anyway, says whether that was right
    width = solvers.newton(scaled, epsilon, start, other, early=True)
    total, mean = _evaluate(scaled, epsilon, width, other)
    if bool(((width * total**epsilon - 1).abs_() > solvers.tolerance(scaled)).any()):
        width = solvers.newton(scaled, epsilon, width, other)
        total, mean = _evaluate(scaled, epsilon, width, other)
    return width, total, mean


def _bound(maxima: Tensor, epsilon: Epsilon) -> Tensor:
    """A width that is at least the row's, from its groups' maxima ``(n, groups)``, scaled as scores are; ``(n, 1)``."""
    few = maxima.shape[1] // COARSER
    if not is_convex(epsilon) or few < COARSER or (isinstance(epsilon, float) and epsilon in (0.5, 1.0)):
        return _upper_width(maxima, epsilon)
    # where a step is expensive, most are taken on a quarter of the maxima and the rest: the largest must be among them
    coarser = maxima[:, : few * COARSER].unflatten(1, (COARSER, few)).amax(1)
    start = _upper_width(torch.cat([coarser, maxima[:, few * COARSER :]], 1), epsilon)
    return _upper_width(maxima, epsilon, 1, start)


def _upper_width(s: Tensor, epsilon: Epsilon, steps: int = 5, start: Optional[Tensor] = None) -> Tensor:
    """A width that is at least the solution's, from part of the rows' entries; shape ``(n, 1)``.

    ``start`` is where Newton's steps begin for alpha <= 2, 1 if None.
    """
    width = solvers.newton(s, epsilon, start, steps=steps) if is_convex(epsilon) else solvers.newton(s, epsilon)
    return width.mul(1 + 1e-5).clamp_(max=1)  # rounding must not take it below


def _evaluate(scaled: Tensor, epsilon: Epsilon, width: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """``total`` and ``mean`` of a :class:`Solution`, both ``(n, 1)``."""
    if isinstance(epsilon, float) and epsilon == 0.5:  # with u = s + w on the support: sum u^2 s = sum u^3 - w sum u^2
        u = torch.add(scaled, width, out=out).relu_()
        norm = torch.linalg.vector_norm(u, 2, -1, True)
        squares = norm * norm
        cubes = u.mul_(u.square()).sum(-1, True)
        return squares / (width * width), 2 * (cubes / squares - width)
    r = solvers.ratios(scaled, epsilon, width, out)
    total = r.sum(-1, True)
    return total, r.mul_(scaled.clamp_(min=-1)).sum(-1, True) / (total * epsilon)


def _sampled(scaled: Tensor, epsilon: Epsilon, bound: Tensor) -> Tensor:
    """The width that gives every 16th entry a 16th of the mass, where it is below ``bound``; shape ``(n, 1)``."""
    factor = GROUP**epsilon
    sample = scaled[:, ::GROUP] * factor
    guess = solvers.newton(sample, epsilon, bound * factor, steps=4) / factor
    return torch.where((guess > 0) & (guess < bound), guess, bound)


def _gather(z: Tensor, coarse: Tensor, floor: Tensor, cheap: bool) -> Optional[tuple[Tensor, Tensor]]:
    """Flat positions and scores of the entries above ``floor`` ``(n, 1)``, ordered by row; None where they are many.

    ``cheap`` says that a dense step costs little (alpha 1.5 and 2).
    """
    d = z.shape[1]
    groups = d // GROUP
    reaching = coarse > floor
    share = float(reaching.sum()) / reaching.numel()
    flat_z = z.view(-1)
    if share <= GROUPED_SHARE:
        picked = reaching.view(-1).nonzero().squeeze(-1)  # (groups picked,)
        row = picked.div(coarse.shape[1], rounding_mode="floor")
        group = picked - row * coarse.shape[1]
        offset = torch.arange(GROUP, device=z.device)
        flat = (row * d + group).unsqueeze(-1) + offset * groups  # (groups picked, GROUP)
        if d % GROUP:
            # the last group is the rest of the row, next to each other and fewer
            rest = (row * d + groups * GROUP).unsqueeze(-1) + offset.clamp(max=d % GROUP - 1)
            flat = torch.where((group == groups).unsqueeze(-1), rest, flat)
        values = flat_z.index_select(0, flat.view(-1)).view_as(flat)
        keep = values > floor.squeeze(-1).index_select(0, row).unsqueeze(-1)
        if d % GROUP:
            keep &= (group != groups).unsqueeze(-1) | (offset < d % GROUP)
        chosen = keep.view(-1).nonzero().squeeze(-1)
        return flat.view(-1).index_select(0, chosen), values.view(-1).index_select(0, chosen)
    if share > (CHEAP_SHARE if cheap else EXPENSIVE_SHARE):
        return None
    flat = (z > floor).view(-1).nonzero().squeeze(-1)
    return flat, flat_z.index_select(0, flat)


def _solve_gathered(
    z: Tensor, found: tuple[Tensor, Tensor], top: Tensor, epsilon: Epsilon, start: Tensor, few_entries: int
) -> Solution:
    """Solve on the entries found, padded to a matrix of shape (n, largest number of entries in a row)."""
    n, d = z.shape
    flat, values = found
    rows = flat.div(d, rounding_mode="floor")
    counts = torch.bincount(rows, minlength=n)
    place = torch.arange(flat.numel(), device=z.device) - (counts.cumsum(0) - counts).index_select(0, rows)
    values = values - top.squeeze(-1).index_select(0, rows)
    kinds = _of_similar_length(counts, few_entries)
    if len(kinds) == 1:
        width, total, mean, p = _solve_padded(values, rows, place, counts, epsilon, start)
    else:
        width, total, mean, p = (*torch.empty(3, n, 1, dtype=z.dtype), torch.empty_like(values))
        for members in kinds:
            number = torch.full_like(counts, -1).index_copy_(0, members, torch.arange(members.numel()))
            row = number.index_select(0, rows)
            entries = (row >= 0).nonzero().squeeze(-1)
            *solved, found_p = _solve_padded(
                values.index_select(0, entries),
                row.index_select(0, entries),
                place.index_select(0, entries),
                counts.index_select(0, members),
                rows_of(epsilon, members),
                start.index_select(0, members),
            )
            p.index_copy_(0, entries, found_p)
            for whole, part in zip((width, total, mean), solved):
                whole.index_copy_(0, members, part)
    inside = p.nonzero().squeeze(-1)
    rows = rows.index_select(0, inside)
    support = Support(rows, flat.index_select(0, inside) - rows * d, p.index_select(0, inside))
    return Solution(top, width, total, mean, support)


def rows_of(value: Epsilon, rows: Union[slice, Tensor]) -> Epsilon:
    return value if isinstance(value, float) else value[rows]


def _of_similar_length(counts: Tensor, few_entries: int) -> list[Tensor]:
    """Rows by how many entries were found in them, halving: one flat row must not fill up all others with padding."""
    most = int(counts.max())
    if counts.numel() * most <= max(2 * int(counts.sum()), few_entries):
        return [torch.arange(counts.numel())]
    kind = (most // counts.clamp(min=1)).float().log2().long().clamp_(max=HALVINGS)
    kinds = [(kind == k).nonzero().squeeze(-1) for k in range(HALVINGS + 1)]
    return [rows for rows in kinds if rows.numel() > 0]


def _solve_padded(
    values: Tensor, rows: Tensor, places: Tensor, counts: Tensor, epsilon: Epsilon, start: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Solve rows given by some of their entries.

    Args:
        values: scores minus their row's maximum, ``(m,)``.
        rows: of the entries, ``(m,)``.
        places: of the entries in their row, ``(m,)``.
        counts: entries of each row, ``(n,)``.
        epsilon: as in :func:`solve`.
        start: where Newton begins, ``(n, 1)``.

    Returns:
        ``width``, ``total`` and ``mean`` of a :class:`Solution`, each ``(n, 1)``, and the entries' probabilities.
    """
    k = int(counts.max())
    at = rows * k + places
    s = values.new_full((counts.numel(), k), float("-inf"))
    s.view(-1)[at] = values
    s.mul_(epsilon)
    width = solvers.newton(s, epsilon, start)
    r = solvers.ratios(s, epsilon, width)
    total = r.sum(-1, True)
    mean = (r * s.clamp_(min=-1)).sum(-1, True) / (total * epsilon)
    return width, total, mean, r.div_(total).view(-1).index_select(0, at)


def _fill_densely(z: Tensor, epsilon: Epsilon, top: Tensor, width: Tensor, factor: Tensor, out: Tensor) -> None:
    torch.sub(z, top, out=out)
    if isinstance(epsilon, float):
        if epsilon == 0:
            out.exp_().mul_(factor)
            return
        if epsilon in (0.5, 1.0):  # the same as below in fewer passes
            out.add_(width / epsilon).relu_()
            if epsilon == 0.5:
                out.mul_(out)
            out.mul_(factor * (epsilon / width) ** (1 / epsilon))
            return
    # copied only for alpha > 2, elsewhere it is `out` already
    out.copy_(solvers.ratios(out.mul_(epsilon), epsilon, width, out).mul_(factor))
