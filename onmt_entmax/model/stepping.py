"""Search steps: one decoder step for many live prefixes, each with its own copy of its sentence's memory.

Letters: B sentences, R live rows (prefixes), S source positions, H hidden units, L layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from onmt_entmax.model.attention import SourceMask
from onmt_entmax.model.decoder import DecoderState


class SearchSteps:
    """Steps of a decoder over B encoded sentences; the model is in evaluation mode.

    Args:
        decoder: ``InputFeedDecoder``.
        memory: ``(B, S, H)``.
        src_len: ``(B,)``, or None: every position counts.
    """

    def __init__(self, decoder, memory: Tensor, src_len: Tensor | None) -> None:
        self.decoder, self.memory, self.src_len = decoder, memory, src_len

    def select(self, sentences: Tensor) -> SearchSteps:
        """The steps of the given sentences ``(n,)`` only, in that order."""
        src_len = self.src_len if self.src_len is None else self.src_len[sentences]
        return SearchSteps(self.decoder, self.memory[sentences], src_len)

    @torch.no_grad()
    def step(
        self, tokens: Tensor, states: tuple[Tensor, ...], sentences: Tensor, parents: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        """One step for R live rows.

        Args:
            tokens: the last token of each row, ``(R,)``.
            states: see :func:`pack`, R rows, or fewer with ``parents``; not changed.
            sentences: the sentence of each row, ``(R,)``, ascending; a sentence may have any number of rows.
            parents: the state that each row continues, ``(R,)``; None: one each, in order.

        Returns:
            Outputs ``(R, H)``, the new states, and the attention ``(R, S)``.
        """
        if parents is not None:
            states = tuple(state[parents] for state in states)
        rows = self.select(sentences)
        emb = self.decoder.embeddings(tokens.view(-1, 1, 1)).squeeze(1)  # (R, E)
        mask = SourceMask.from_lengths(rows.src_len, rows.memory.size(1))
        keys = self.decoder.attn.keys(rows.memory)
        output, state, probs = self.decoder.step(emb, unpack(states), rows.memory, keys, mask)
        return output, pack(state), probs


def pack(state: DecoderState) -> tuple[Tensor, ...]:
    """The state as search keeps it, whose rows can be repeated, selected and reordered by the first dimension.

    Returns:
        The fed-back output, in front of the layers' hidden states, ``(R, 1 + L, H)``, and for LSTM the cells,
        ``(R, L, H)``.
    """
    hidden, *cell = (part.transpose(0, 1) for part in state.hidden)
    return torch.cat([state.feed.unsqueeze(1), hidden], 1), *(part.contiguous() for part in cell)


def unpack(states: tuple[Tensor, ...]) -> DecoderState:
    """Inverse of :func:`pack`."""
    first, *cell = (part.transpose(0, 1) for part in states)
    return DecoderState(first[0], (first[1:], *cell))
