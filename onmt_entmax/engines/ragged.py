"""How the sentences of a batch share the columns of a buffer: step after step, and in each step those not yet ended."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Ragged(NamedTuple):
    """Sentences, longest first, of a batch of B padded to T steps; N tokens in all.

    A token's column is counted step by step: first the first tokens of all sentences, then the second ones of those
    that have two, and so on. So a step's columns lie side by side, a sentence has the same place within each step, and
    products over all steps touch no padding.

    Attributes:
        batch, steps: B and T.
        rows: how many sentences take part in each step, T numbers that do not rise.
        index: of each column the row of its token among the B * T rows of a padded batch, ``(N,)``; None where no
            sentence is shorter than T.
    """

    batch: int
    steps: int
    rows: list[int]
    index: Tensor | None

    @classmethod
    def full(cls, batch: int, steps: int) -> Ragged:
        """Every sentence has all steps."""
        return cls(batch, steps, [batch] * steps, None)

    @classmethod
    def from_lengths(cls, lengths: Tensor, steps: int) -> Ragged:
        """Of lengths ``(B,)`` in descending order, on the CPU, at least 1 and at most ``steps``."""
        step, sentence = torch.arange(steps).unsqueeze(1), torch.arange(lengths.numel())
        inside = step < lengths  # (T, B)
        rows = inside.sum(1).tolist()
        return cls(lengths.numel(), steps, rows, (sentence * steps + step)[inside])

    def split(self, columns: Tensor) -> tuple[Tensor, ...]:
        """Each step's part of ``(..., N)``."""
        return columns.split(self.rows, -1)

    def blocks(self, flat: Tensor) -> list[Tensor]:
        """Each step's ``(F, n)`` of ``(F * N,)``, where they lie one behind the other."""
        size = flat.numel() // sum(self.rows)
        return [part.view(size, n) for part, n in zip(flat.split([size * n for n in self.rows]), self.rows)]

    def every_index(self) -> Tensor:
        """``index``, also where no sentence is shorter than T."""
        if self.index is not None:
            return self.index
        return torch.arange(self.batch * self.steps).view(self.batch, self.steps).t().reshape(-1)

    def pack(self, padded: Tensor) -> Tensor:
        """From ``(B, T, F)`` to ``(N, F)``."""
        if self.index is None:
            return padded.transpose(0, 1).reshape(-1, padded.size(2))
        return padded.reshape(-1, padded.size(2)).index_select(0, self.index)

    def unpack(self, packed: Tensor) -> Tensor:
        """From ``(N, F)`` to ``(B, T, F)``, zero at padding."""
        size = packed.size(1)
        if self.index is None:
            return packed.view(self.steps, self.batch, size).transpose(0, 1)
        padded = packed.new_zeros(self.batch * self.steps, size).index_copy_(0, self.index, packed)
        return padded.view(self.batch, self.steps, size)

    def mirrored(self, lengths: Tensor) -> Tensor:
        """Of each column the one that takes its place when every sentence is read from its end, ``(N,)``.

        Args:
            lengths: as in :meth:`from_lengths`.
        """
        step, sentence = self.index % self.steps, self.index // self.steps
        rows = torch.tensor(self.rows)
        starts = rows.cumsum(0) - rows
        return starts[lengths[sentence] - 1 - step] + sentence
