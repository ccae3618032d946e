"""Where the numbers of a step lie in memory, and how they come there."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numba import types
from torch import Tensor

from onmt_entmax.engines.cpu.loops import INDEX, INT, ONE_D, TWO_D, Shared, bounds, jit, this_thread
from onmt_entmax.engines.ragged import Ragged


class Blocks(NamedTuple):
    """A number of features for every token of a ragged batch: of each step a block ``(features, n)``, in one piece.

    The columns of a buffer ``(features, N)`` lie in as many pages of memory as there are features, and to look those up
    takes longer than to compute.
    """

    flat: Tensor
    tensors: list[Tensor]
    arrays: list[np.ndarray]

    @classmethod
    def of(cls, flat: Tensor, ragged: Ragged) -> Blocks:
        """Views of ``(features * N,)``."""
        tensors = ragged.blocks(flat)
        return cls(flat, tensors, [part.numpy() for part in tensors])

    @classmethod
    def empty(cls, features: int, ragged: Ragged, like: Tensor) -> Blocks:
        """New ones, of no values yet."""
        return cls.of(like.new_empty(features * sum(ragged.rows)), ragged)

    def columns(self, threads: int, start: int = 0, stop: int | None = None) -> Tensor:
        """A copy ``(features, N)``, of the features from ``start`` to ``stop``."""
        rows = np.array([part.size(1) for part in self.tensors])
        features = self.tensors[0].size(0)
        found = self.flat.new_empty((features if stop is None else stop) - start, int(rows.sum()))
        join(threads, self.flat.numpy(), rows, features, start, found.numpy())
        return found


def scratch(features: int, batch: int, like: Tensor) -> Callable[[int], tuple[Tensor, np.ndarray]]:
    """A scratch buffer: gives its first ``(features, n)`` numbers for n up to ``batch``, in one piece."""
    flat = like.new_empty(features * batch)

    def first(n: int) -> tuple[Tensor, np.ndarray]:
        found = flat[: features * n].view(features, n)
        return found, found.numpy()

    return first


def transposed(*matrices: Tensor) -> Tensor:
    """A contiguous transpose of the matrices, side by side; always a copy."""
    return torch.cat([matrix.detach().t() for matrix in matrices])


@jit
def _join(share, shares, flat, rows, features, skip, columns):
    """From the blocks of all steps, of so many features, to ``(F, N)``: F of them, without the first ones."""
    first, stop = bounds(columns.shape[0], share, shares)
    for r in range(first, stop):
        begin = at = 0
        for n in rows:
            here = flat[begin + (skip + r) * n : begin + (skip + r + 1) * n]
            there = columns[r, at : at + n]
            for j in range(n):
                there[j] = here[j]
            begin, at = begin + features * n, at + n


_JOIN = types.Tuple((ONE_D, INDEX, INT, INT, TWO_D))
join = Shared(_join, lambda at: _join(*this_thread(at, _JOIN)), _JOIN)


@jit
def _to_rows(share, shares, columns, index, start, n, rows, skip):
    """The first n columns of ``(H, B)`` go to rows of ``(N, F)``, from their column ``skip``.

    Column j goes to row ``index[start + j]``.
    """
    first, stop = bounds(columns.shape[0], share, shares)
    for top in range(first, stop, 16):
        bottom = min(top + 16, stop)
        for j in range(n):
            row = rows[index[start + j]]
            for r in range(top, bottom):
                row[skip + r] = columns[r, j]


_TO_ROWS = types.Tuple((TWO_D, INDEX, INT, INT, TWO_D, INT))
to_rows = Shared(_to_rows, lambda at: _to_rows(*this_thread(at, _TO_ROWS)), _TO_ROWS)


@jit
def _to_columns(share, shares, rows, skip, index, start, n, columns, units):
    """The other way: so many units of the first n columns of ``(F, B)`` are filled from the rows."""
    first, stop = bounds(units, share, shares)
    for top in range(first, stop, 16):
        bottom = min(top + 16, stop)
        for left in range(0, n, 16):
            right = min(left + 16, n)
            for r in range(top, bottom):
                column = columns[r]
                for j in range(left, right):
                    column[j] = rows[index[start + j], skip + r]


_TO_COLUMNS = types.Tuple((TWO_D, INT, INDEX, INT, INT, TWO_D, INT))
to_columns = Shared(_to_columns, lambda at: _to_columns(*this_thread(at, _TO_COLUMNS)), _TO_COLUMNS)
