"""Storage for the decoder states of prefixes that wait in a queue: one row each, shared by siblings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import torch
from torch import Tensor

from onmt_entmax.search.scorer import States, select_rows, share


class StatePool:
    """Rows of states in slots, each held by the number of prefixes that continue it, and reused once nobody does."""

    def __init__(self) -> None:
        self._parts: States = ()
        self._free: list[int] = []
        self._holders: list[int] = []

    def __len__(self) -> int:
        """Slots in use."""
        return len(self._holders) - len(self._free)

    def add(self, states: States, rows: Sequence[int]) -> list[int]:
        """Copy rows of ``states`` into slots, which nobody holds yet."""
        if not states:
            return [0] * len(rows)
        short = len(rows) - len(self._free)
        if short > 0:
            self._grow(states, max(short, len(self._holders)))
        slots = [self._free.pop() for _ in rows]
        source = torch.tensor(rows, device=states[0].device)
        target = torch.tensor(slots, device=states[0].device)
        for part, new in zip(self._parts, states):
            part.index_copy_(0, target, new.index_select(0, source))
        return slots

    def take(self, slots: Sequence[int]) -> tuple[States, Optional[Tensor]]:
        """The states in these slots, each once, and the place of each slot's among them (None: all distinct)."""
        if not self._parts:
            return (), None
        device = self._parts[0].device
        distinct, places = share(slots)
        states = select_rows(self._parts, torch.tensor(distinct, device=device))
        return states, None if places is None else torch.tensor(places, device=device)

    def hold(self, slot: int, change: int) -> None:
        """Change the number of holders; at zero the slot is free. Stateless models have no slots."""
        if not self._parts:
            return
        self._holders[slot] += change
        if self._holders[slot] == 0:
            self._free.append(slot)

    def _grow(self, states: States, more: int) -> None:
        size = len(self._holders)
        blank = tuple(part.new_empty((more, *part.shape[1:])) for part in states)
        self._parts = tuple(torch.cat(pair) for pair in zip(self._parts, blank)) if self._parts else blank
        self._holders += [0] * more
        self._free += range(size + more - 1, size - 1, -1)
