"""Recurrent decoders with attention: with input feeding (Luong et al. 2015) step by step, and without.

This is the reference: it reads top to bottom and runs on every device in every dtype. Where an engine computes the same
in less time (``engines``), it is asked first.

Letters: B sentences, T target steps, S source positions, H hidden units, L layers, E embedding size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from onmt_entmax import engines
from onmt_entmax.model.attention import GlobalAttention, SourceMask


class DecoderState(NamedTuple):
    """What a decoder remembers from step to step.

    Attributes:
        feed: the attentional output of the last step, which the next one reads, ``(B, H)``.
        hidden: of the recurrent layers: hidden and cell for LSTM, hidden alone for others, each ``(L, B, H)``.
        coverage: sum of the attention so far, ``(B, S)``; None without coverage, and before the first step.
    """

    feed: Tensor
    hidden: tuple[Tensor, ...]
    coverage: Tensor | None = None

    @classmethod
    def from_encoder(cls, final: Tensor | tuple[Tensor, ...], both_directions: bool, size: int) -> DecoderState:
        """The state before the first step: the encoder's last states, and nothing fed back.

        Args:
            final: the encoder's, ``(L * directions, B, H / directions)``; a tuple for LSTM.
            both_directions: whether they are those of two directions, in turns.
            size: H.
        """
        final = final if isinstance(final, tuple) else (final,)
        hidden = tuple(torch.cat([state[0::2], state[1::2]], 2) if both_directions else state for state in final)
        return cls(hidden[0].new_zeros(hidden[0].size(1), size), hidden)


class StackedCells(nn.Module):
    """LSTM or GRU layers that take one step at a time, with dropout between the layers.

    Args:
        cell: ``nn.LSTMCell`` or ``nn.GRUCell``.
        layers: L.
        input_size: of what the first layer reads.
        hidden_size: H.
        dropout: share to drop between layers.
    """

    def __init__(self, cell: type[nn.Module], layers: int, input_size: int, hidden_size: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        sizes = [input_size] + [hidden_size] * (layers - 1)
        self.layers = nn.ModuleList(cell(size, hidden_size) for size in sizes)

    def forward(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One step: from ``(B, inputs)`` and states ``(L, B, H)`` to the last layer's output and the new states."""
        new = []
        for index, layer in enumerate(self.layers):
            before = tuple(part[index] for part in state)
            after = layer(self.dropout(x) if index > 0 else x, before if len(before) > 1 else before[0])
            new.append(after if isinstance(after, tuple) else (after,))
            x = new[-1][0]
        return x, tuple(torch.stack(parts) for parts in zip(*new))


class InputFeedDecoder(nn.Module):
    """A decoder of which each step also reads the attentional output of the step before.

    Args:
        embeddings: module from tokens ``(B, T, features)`` to ``(B, T, E)``.
        rnn: its layers read E + H numbers.
        attention: None: outputs are those of the last layer.
        context_gate: module of a step's input, recurrent output and attentional output, for a new attentional output.
        dropout: of the attentional output.
        coverage: also give the sum of the attention up to each step.
    """

    def __init__(
        self,
        embeddings: nn.Module,
        rnn: StackedCells,
        attention: GlobalAttention | None,
        *,
        context_gate: nn.Module | None = None,
        dropout: float = 0.0,
        coverage: bool = False,
    ) -> None:
        super().__init__()
        self.hidden_size, self.num_layers = rnn.layers[0].hidden_size, len(rnn.layers)
        self.has_coverage = coverage
        # in the order of OpenNMT-py's: an optimizer's state goes by the order of parameters
        self.embeddings = embeddings
        self.dropout = nn.Dropout(dropout)
        self.rnn = rnn
        self.context_gate = context_gate
        self.attn = attention

    def step(
        self, emb: Tensor, state: DecoderState, memory: Tensor, keys: Tensor | None, mask: SourceMask
    ) -> tuple[Tensor, DecoderState, Tensor | None]:
        """One step of B sentences.

        Args:
            emb: embeddings of the last tokens, ``(B, E)``.
            state: before the step; its coverage is not looked at.
            memory: ``(B, S, H)``.
            keys: ``attn.keys(memory)``; None without attention.
            mask: which positions may be attended to.

        Returns:
            The attentional output ``(B, H)``, the state after the step, and the attention ``(B, S)`` or None.
        """
        step_input = torch.cat([emb, state.feed], 1)  # (B, E + H)
        recurrent, hidden = self.rnn(step_input, state.hidden)  # (B, H)
        output, probs = recurrent, None
        if self.attn is not None:
            output, probs = self.attn.attend(recurrent.unsqueeze(1), memory, keys, mask)
            output, probs = output.squeeze(1), probs.squeeze(1)
        if self.context_gate is not None:
            output = self.context_gate(step_input, recurrent, output)
        output = self.dropout(output)
        return output, DecoderState(output, hidden), probs

    def run(
        self, tgt: Tensor, memory: Tensor, src_len: Tensor | None, state: DecoderState
    ) -> tuple[Tensor, dict[str, Tensor], DecoderState]:
        """Run over given target tokens.

        Args:
            tgt: ``(B, T, features)``.
            memory: ``(B, S, H)``.
            src_len: ``(B,)``; None: every position counts.
            state: before the first step; not changed.

        Returns:
            Outputs ``(B, T, H)``; attentions ``(B, T, S)`` by name: ``std``, with coverage ``coverage`` (the sum up to
            and including each step); and the state after the last step. At padding behind the target, outputs and
            attention may be zero.
        """
        emb = self.embeddings(tgt)  # (B, T, E)
        engine = engines.choose(emb.device, engines.computing_dtype(emb))
        found = engine.decode(self, tgt, emb, memory, src_len, (state.feed, *state.hidden))
        if found is None:
            outputs, probs, hidden = self._step_by_step(emb, memory, src_len, state)
        else:
            outputs, probs, hidden = found
        attns = {} if probs is None else {"std": probs}
        coverage = None
        if self.has_coverage:
            attns["coverage"] = probs.cumsum(1)
            if state.coverage is not None:
                attns["coverage"] = attns["coverage"] + state.coverage.unsqueeze(1)
            coverage = attns["coverage"][:, -1]
        return outputs, attns, DecoderState(outputs[:, -1], hidden, coverage)

    def _step_by_step(self, emb: Tensor, memory: Tensor, src_len: Tensor | None, state: DecoderState) -> tuple:
        mask = SourceMask.from_lengths(src_len, memory.size(1))
        keys = None if self.attn is None else self.attn.keys(memory)
        outputs, probs = [], []
        for emb_t in emb.unbind(1):
            output, state, probs_t = self.step(emb_t, state, memory, keys, mask)
            outputs.append(output)
            probs.append(probs_t)
        return torch.stack(outputs, 1), None if self.attn is None else torch.stack(probs, 1), state.hidden

    @property
    def supports_search(self) -> bool:
        """Whether :meth:`search` works: not without attention."""
        return self.attn is not None

    @torch.no_grad()
    def search(self, memory: Tensor, src_len: Tensor | None = None):
        """Steps for many live prefixes of B sentences, a ``stepping.SearchSteps``; in evaluation mode."""
        from onmt_entmax.model.stepping import SearchSteps

        engine = engines.choose(memory.device, memory.dtype)
        return engine.search(self, memory, src_len) or SearchSteps(self, memory, src_len)


class StandardDecoder(nn.Module):
    """A decoder without input feeding: all steps of the recurrent layers, then all of the attention.

    Args:
        embeddings: module from tokens ``(B, T, features)`` to ``(B, T, E)``.
        rnn: ``nn.LSTM`` or other layers, batch first.
        attention, context_gate, dropout: see :class:`InputFeedDecoder`; the gate is given the embedding.
    """

    def __init__(
        self,
        embeddings: nn.Module,
        rnn: nn.Module,
        attention: GlobalAttention | None,
        *,
        context_gate: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.dropout = nn.Dropout(dropout)
        self.rnn = rnn
        self.context_gate = context_gate
        self.attn = attention

    def run(
        self, tgt: Tensor, memory: Tensor, src_len: Tensor | None, state: DecoderState
    ) -> tuple[Tensor, dict[str, Tensor], DecoderState]:
        """See :meth:`InputFeedDecoder.run`; nothing is fed back, and only ``std`` attention is given."""
        emb = self.embeddings(tgt)  # (B, T, E)
        recurrent, hidden = self.rnn(emb, state.hidden if len(state.hidden) > 1 else state.hidden[0])
        outputs, attns = recurrent, {}
        if self.attn is not None:
            outputs, attns["std"] = self.attn(recurrent, memory, src_len=src_len)
        if self.context_gate is not None:
            flat = (part.reshape(-1, part.size(2)) for part in (emb, recurrent, outputs))
            outputs = self.context_gate(*flat).view(recurrent.shape)
        outputs = self.dropout(outputs)
        hidden = hidden if isinstance(hidden, tuple) else (hidden,)
        return outputs, attns, DecoderState(outputs[:, -1], hidden)
