"""What search asks of a model: one distribution over the next token per live prefix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional, Protocol

import torch
from torch import Tensor

# One entry per part of the decoder's state, each with one row per prefix in dimension 0. Search copies,
# reorders and joins rows; it never looks inside.
States = tuple[Tensor, ...]


class StepOutput(NamedTuple):
    """One decoding step of some rows.

    Attributes:
        log_probs: log-probabilities of the next token, ``(rows, vocab_size)``; ``-inf`` is a probability of zero.
            Search may overwrite it.
        states: the states after this step, in dimension 0 ``rows``.
        attention: attention over the source, ``(rows, src_len)``, or None.
        tokens: if given, ``log_probs`` is ``(rows, best)``, descending, and these are its tokens, same shape.
    """

    log_probs: Tensor
    states: States
    attention: Optional[Tensor] = None
    tokens: Optional[Tensor] = None


class Scorer(Protocol):
    """A model bound to a batch of inputs (encoded already).

    Attributes:
        vocab_size: number of target types.
        batch_size: number of sentences.
        device: where the rows live.
        dtype: name of the dtype in which the distribution is computed, such as ``"float32"``.
        mixed_lengths: whether the rows of one step may have prefixes of different lengths. True for recurrent
            models; otherwise exact search groups rows by length.
    """

    vocab_size: int
    batch_size: int
    device: torch.device
    dtype: str
    mixed_lengths: bool

    def start(self) -> States:
        """The states before the first token, one row per sentence, in order. May be called more than once."""
        ...

    def narrow(self, sentences: Sequence[int]) -> None:
        """Until the next ``start`` only these sentences, ascending, have rows: what others need may go."""
        ...

    def step(
        self,
        tokens: Tensor,
        states: States,
        sentences: Tensor,
        parents: Optional[Tensor] = None,
        best: Optional[int] = None,
    ) -> StepOutput:
        """Feed one token to each row.

        Args:
            tokens: the last token of each prefix, ``(rows,)`` long.
            states: the states that the rows continue.
            sentences: the sentence to which each row belongs, ``(rows,)`` long, ascending. The number of rows per
                sentence varies from step to step, and may be zero.
            parents: which of the states each row continues, ``(rows,)`` long; None: one state per row, in order. Rows
                that continue the same prefix share what depends on it alone.
            best: that no more than so many of each row's best continuations are wanted; the scorer may then leave out
                the others.
        """
        ...


def share(parents: Sequence[int]) -> tuple[list[int], Optional[list[int]]]:
    """The distinct parents, in order of appearance, and each row's place among them (None where all are distinct)."""
    places: dict[int, int] = {}
    rows = [places.setdefault(parent, len(places)) for parent in parents]
    return list(places), rows if len(places) < len(rows) else None


def rows_to_continue(states: States, parents: Optional[Tensor], part: slice) -> tuple[States, Optional[Tensor]]:
    """The states that a part of the rows continues, and the rows' places among these, as ``step`` wants them."""
    if parents is None:
        return tuple(state[part] for state in states), None
    if part.start == 0 and part.stop >= len(parents):  # all rows: on a GPU the host need not wait for the numbers
        return states, parents
    # numbered by first appearance and never shared between sentences: neighbours, but for a few
    first, last = (int(end) for end in parents[part].aminmax())
    return tuple(state[first : last + 1] for state in states), parents[part] - first


def join_outputs(parts: Sequence[StepOutput]) -> StepOutput:
    """The outputs of parts of the rows as one."""
    if len(parts) == 1:
        return parts[0]
    states = tuple(torch.cat(pieces) for pieces in zip(*(part.states for part in parts)))
    attention = None if parts[0].attention is None else torch.cat([part.attention for part in parts])
    tokens = None if parts[0].tokens is None else torch.cat([part.tokens for part in parts])
    return StepOutput(torch.cat([part.log_probs for part in parts]), states, attention, tokens)


def select_rows(states: States, rows: Tensor) -> States:
    """Reorder, repeat or drop rows: ``rows`` is ``(new_rows,)`` long."""
    return tuple(part.index_select(0, rows) for part in states)
