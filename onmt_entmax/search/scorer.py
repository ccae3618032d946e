"""What search asks of a model: one distribution over the next token per live prefix.

Dimension letters in this folder: B sentences, R live rows (prefixes that go through the model together), V target
types, S source positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Optional, Protocol

import torch
from torch import Tensor

from onmt_entmax.errors import UserError

# One entry per part of the decoder's state, each with one row per prefix in dimension 0. Search copies,
# reorders and joins rows; it never looks inside.
States = tuple[Tensor, ...]


class StepOutput(NamedTuple):
    """One decoding step of some rows.

    Attributes:
        log_probs: log-probabilities of the next token, ``(R, V)``; ``-inf`` is a probability of zero. Search may
            overwrite it.
        states: the states after this step, R rows in dimension 0.
        attention: attention over the source, ``(R, S)``, or None.
        tokens: if given, ``log_probs`` is ``(R, best)``, descending, and these are its tokens, same shape.
    """

    log_probs: Tensor
    states: States
    attention: Optional[Tensor] = None
    tokens: Optional[Tensor] = None


def refuse_nan(log_probs: Tensor) -> None:
    """Refuse the distribution of a broken model.

    Args:
        log_probs: some of each row, a NaN among them if there is one: ``topk`` and ``max`` put it first.

    Raises:
        UserError: there is one.
    """
    if bool(log_probs.isnan().any()):
        raise UserError(
            "The model computes NaN, and no search can go on: its training diverged, its checkpoint is damaged, or "
            "numbers overflow in half precision."
        )


class Scorer(Protocol):
    """A model bound to a batch of inputs (encoded already).

    Attributes:
        vocab_size: number of target types, V.
        batch_size: number of sentences, B.
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

    def drop_finished(self, sentences: Sequence[int]) -> None:
        """Until the next ``start`` only these sentences, ascending, have rows: memory of the others may go.

        Sentences are numbered as before.
        """
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
            tokens: the last token of each prefix, ``(R,)`` long.
            states: the states that the rows continue.
            sentences: the sentence to which each row belongs, ``(R,)`` long, ascending. The number of rows per
                sentence varies from step to step, and may be zero.
            parents: which of the states each row continues, ``(R,)`` long; None: one state per row, in order. Rows
                that continue the same prefix share what depends on it alone.
            best: that no more than so many of each row's best continuations are wanted; the scorer may then leave out
                the others.
        """
        ...
