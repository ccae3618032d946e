"""The rows of all steps of a search and where each came from: hypotheses are read off backwards."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Path(NamedTuple):
    """One prefix or hypothesis.

    Attributes:
        rows: its row in each step.
        tokens: its tokens, without EOS.
    """

    rows: list[int]
    tokens: list[int]


class Paths:
    """Backpointers of a batch; entry t describes the rows fed in step t + 1.

    Attributes:
        totals: log-probability of each row of the current step.
    """

    def __init__(self, batch_size: int, start: int) -> None:
        self._parents: list[list[int]] = [list(range(batch_size))]
        self._tokens: list[list[int]] = [[start] * batch_size]
        self.totals = [0.0] * batch_size
        self._attention: list[Tensor | None] = []
        self._joined: Tensor | None = None
        self._offsets: list[int] = []

    def extend(self, parents: list[int], tokens: list[int], totals: list[float]) -> None:
        """Add the rows of the next step: the rows that they continue, their last tokens, their log-probabilities."""
        self._parents.append(parents)
        self._tokens.append(tokens)
        self.totals = totals

    def attend(self, attention: Tensor | None) -> None:
        """Keep the attention ``(rows, src_len)`` of the current step (None: a model without)."""
        self._attention.append(attention)

    def before(self, step: int, row: int) -> tuple[int, int]:
        """The row of the step before that this row continues, and the token fed to it."""
        return self._parents[step - 1][row], self._tokens[step - 1][row]

    def follow(self, step: int, row: int, last: int | None) -> Path:
        """The path that ends with ``row`` of ``step`` (0: nothing was fed) and the token ``last``, if any."""
        rows, tokens = [], [] if last is None else [last]
        for index in range(step - 1, -1, -1):
            rows.append(row)
            if index:
                tokens.append(self._tokens[index][row])
            row = self._parents[index][row]
        return Path(rows[::-1], tokens[::-1])

    def weights(self, path: Path) -> Tensor | None:
        """Attention along a path, ``(steps, src_len)``; None where none was kept."""
        if not self._attention or self._attention[0] is None:
            return None
        if self._joined is None:
            self._offsets = [0]
            for part in self._attention:
                self._offsets.append(self._offsets[-1] + len(part))
            self._joined = torch.cat(self._attention)
        where = [offset + row for offset, row in zip(self._offsets, path.rows)]
        return self._joined[torch.tensor(where, dtype=torch.long, device=self._joined.device)]
