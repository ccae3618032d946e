"""Sentences of different lengths: how they share the columns of a buffer, and which source positions are padding.

Columns go step after step, and in each step there is one for each sentence that has not ended.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from onmt_entmax.entmax.engine import on_host


class Ragged(NamedTuple):
    """Sentences, longest first, of a batch of B padded to T steps; N tokens in all.

    A token's column is counted step by step: first the first tokens of all sentences, then the second ones of those
    that have two, and so on. So a step's columns lie side by side, a sentence has the same place within each step, and
    products over all steps touch no padding.

    Attributes:
        batch, steps: B and T.
        rows: how many sentences take part in each step, T numbers that do not rise.
        index: row of each column's token among the B * T rows of a padded batch, ``(N,)``; None where no sentence is
            shorter than T.
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
        """Build it from lengths ``(B,)`` in descending order, on the CPU, at least 1 and at most ``steps``."""
        step, sentence = torch.arange(steps).unsqueeze(1), torch.arange(lengths.numel())
        inside = step < lengths  # (T, B)
        rows = inside.sum(1).tolist()
        return cls(lengths.numel(), steps, rows, (sentence * steps + step)[inside])

    def split(self, columns: Tensor) -> tuple[Tensor, ...]:
        """Split ``(..., N)`` into each step's part; views."""
        return columns.split(self.rows, -1)

    def blocks(self, flat: Tensor) -> list[Tensor]:
        """Split ``(F * N,)`` into each step's ``(F, n)``, which lie one behind the other; views."""
        size = flat.numel() // sum(self.rows)
        return [part.view(size, n) for part, n in zip(flat.split([size * n for n in self.rows]), self.rows)]

    def every_index(self) -> Tensor:
        """``index``, also where no sentence is shorter than T."""
        if self.index is not None:
            return self.index
        return torch.arange(self.batch * self.steps).view(self.batch, self.steps).t().reshape(-1)

    def pack(self, padded: Tensor) -> Tensor:
        """Copy ``(B, T, F)`` to ``(N, F)``; may be a view where T or B is 1."""
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
        """Column index after reversing each sentence, ``(N,)``.

        Args:
            lengths: as in :meth:`from_lengths`.
        """
        step, sentence = self.index % self.steps, self.index // self.steps
        rows = torch.tensor(self.rows)
        starts = rows.cumsum(0) - rows
        return starts[lengths[sentence] - 1 - step] + sentence


def shortest_source(src_len: Tensor | None, width: int) -> int:
    """The least of the lengths ``(B,)``, at most ``width``; 0 where only the device knows them."""
    if src_len is None or src_len.numel() == 0:
        return width
    lengths = on_host(src_len, wait=False)
    return 0 if lengths is None else int(lengths.min())


def source_padding(src_len: Tensor | None, width: int, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """What to add to scores and what to multiply attention with, so that padding gets none.

    Args:
        src_len: ``(B,)``; None: every source has ``width`` positions.
        width: S.
        dtype: of scores and attention.

    Returns:
        0, or minus infinity at padding, ``(B, S)``, and None where nothing is padding; a source without tokens has no
        padding here, as no row of scores may be minus infinity as a whole. And 0 for a source without tokens, else 1,
        ``(B, 1)``, and None where every source has tokens. Where only the device knows the lengths, none is None.
    """
    shortest = shortest_source(src_len, width)
    if shortest >= width:
        return None, None
    padding = torch.arange(width, device=src_len.device) >= src_len.unsqueeze(1)
    not_empty = None
    if shortest == 0:
        not_empty = (src_len > 0).unsqueeze(1)
        padding, not_empty = padding & not_empty, not_empty.to(dtype)
    hide = torch.zeros(padding.shape, dtype=dtype, device=src_len.device).masked_fill_(padding, -float("inf"))
    return hide, not_empty
