"""Rows of states, and where each came from: backpointers, the record of a whole search, storage for waiting prefixes.

Dimension letters: see ``scorer.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Optional

import torch
from torch import Tensor

from onmt_entmax.search.result import Account, TreeNode
from onmt_entmax.search.scorer import States, StepOutput

# Continuations recorded per prefix: a dense distribution has thousands, and no picture shows them.
TREE_WIDTH = 64


def distinct_parents(parents: Sequence[int]) -> tuple[list[int], Optional[list[int]]]:
    """The distinct parents, in order of appearance, and each row's place among them (None where all are distinct)."""
    places: dict[int, int] = {}
    rows = [places.setdefault(parent, len(places)) for parent in parents]
    return list(places), rows if len(places) < len(rows) else None


def rows_to_continue(states: States, parents: Optional[Tensor], part: slice) -> tuple[States, Optional[Tensor]]:
    """The states that a part of the rows continues, and the rows' places among these, as ``step`` wants them."""
    if parents is None:
        return tuple(state[part] for state in states), None
    if part.start == 0 and part.stop >= len(parents):  # all rows: no need to synchronise with the device
        return states, parents
    # numbered by first appearance and never shared between sentences: neighbours, but for a few
    first, last = (int(end) for end in parents[part].aminmax())
    return tuple(state[first : last + 1] for state in states), parents[part] - first


def join_outputs(parts: Sequence[StepOutput]) -> StepOutput:
    """The outputs of parts of the rows as one."""
    if len(parts) == 1:
        return parts[0]
    states = tuple(torch.cat(pieces) for pieces in zip(*(part.states for part in parts)))
    attention = [part.attention for part in parts if part.attention is not None]
    tokens = [part.tokens for part in parts if part.tokens is not None]
    joined = (torch.cat(found) if found else None for found in (attention, tokens))
    return StepOutput(torch.cat([part.log_probs for part in parts]), states, *joined)


def select_rows(states: States, rows: Tensor) -> States:
    """Reorder, repeat or drop rows: ``rows`` is ``(new rows,)`` long."""
    return tuple(part.index_select(0, rows) for part in states)


class Found(NamedTuple):
    """A hypothesis as a running search stores it: where its backpointers start."""

    score: float
    log_prob: float
    step: int  # steps of its last row
    row: int  # row in that step
    last: int | None = None  # token after that row; None for EOS or for nothing
    stage: int = 0


class SentenceState:
    """Everything a search knows of one sentence while it runs."""

    __slots__ = ("account", "best_ratio", "fallback", "finished", "limit", "ranking", "settled", "stage")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.account = Account()
        self.finished: list[Found] = []
        self.stage = 0  # with penalties; see beam.py
        self.ranking: list[float] = []  # negative scores of those finished in this stage, ascending
        self.fallback: Found | None = None
        self.settled = 0  # step at which the n-best list could not change any more
        self.best_ratio = -1e10  # as in OpenNMT-py


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
        self._attention: list[Tensor] = []
        self._joined: Tensor | None = None
        self._offsets: list[int] = []

    def extend(self, parents: list[int], tokens: list[int], totals: list[float]) -> None:
        """Add the rows of the next step: the rows that they continue, their last tokens, their log-probabilities."""
        self._parents.append(parents)
        self._tokens.append(tokens)
        self.totals = totals

    def attend(self, attention: Tensor | None) -> None:
        """Record the attention ``(R, S)`` of the current step (None: a model without)."""
        if attention is not None:
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
        """Attention along a path, ``(steps, S)``; None where none was recorded."""
        if not self._attention:
            return None
        if self._joined is None:
            self._offsets = [0]
            for part in self._attention:
                self._offsets.append(self._offsets[-1] + len(part))
            self._joined = torch.cat(self._attention)
        where = [offset + row for offset, row in zip(self._offsets, path.rows)]
        return self._joined[torch.tensor(where, dtype=torch.long, device=self._joined.device)]


class TreeRecorder:
    """Records the trees of a batch, one step at a time."""

    def __init__(self, batch_size: int, start: int) -> None:
        self.trees = [[TreeNode(None, start, 0.0, "live")] for _ in range(batch_size)]
        self._rows = [0] * batch_size  # node of each row fed in the coming step
        self._children: dict[tuple[int, int], int] = {}
        self._sentences: list[int] = []

    def expand(self, sentences: list[int], scores: Tensor, tokens: Tensor) -> None:
        """Add the continuations of every row, as dropped until :meth:`mark` says otherwise.

        Args:
            sentences: of each row.
            scores: log-probabilities of the continued prefixes, ``(R, k)``.
            tokens: their last tokens, ``(R, k)``.
        """
        self._children = {}
        self._sentences = sentences
        for row, (row_scores, row_tokens) in enumerate(zip(scores.tolist(), tokens.tolist())):
            tree = self.trees[sentences[row]]
            for score, token in zip(row_scores, row_tokens):
                if score > -math.inf:
                    self._children[row, token] = len(tree)
                    tree.append(TreeNode(self._rows[row], token, score, "dropped"))

    def mark(self, row: int, token: int, status: str) -> None:
        """Set what became of the continuation of a row by a token."""
        self.trees[self._sentences[row]][self._children[row, token]].status = status

    def advance(self, parents: list[int], tokens: list[int]) -> None:
        """Name the rows of the next step by the row and token they come from."""
        self._rows = [self._children[pair] for pair in zip(parents, tokens)]
        for row, parent in zip(self._rows, parents):
            self.trees[self._sentences[parent]][row].status = "live"


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
        distinct, places = distinct_parents(slots)
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
