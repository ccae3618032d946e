"""Models of OpenNMT-py as scorers for our search: one distribution over the next token per live prefix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Optional

import torch
from onmt.decoders import CNNDecoder
from torch import Tensor

from onmt_entmax.entmax import log_entmax, log_entmax_topk
from onmt_entmax.entmax.engine import on_host, with_host_copy
from onmt_entmax.entmax.functional import working_dtype
from onmt_entmax.plugin.models import generator_alpha
from onmt_entmax.plugin.translate.transformer import TransformerSteps, steps_transformer
from onmt_entmax.search.scorer import Scorer, States, StepOutput


class ModelScorer:
    """What all scorers of a single model share: the encoded batch, and the mapping of its output layer.

    Args:
        model: an ``NMTModel`` in evaluation mode.
        src: ``(batch, src_len, features)``.
        src_len: ``(batch,)``, each at least 1.
        most_bytes: see :func:`build_scorer`.
    """

    def __init__(self, model, src: Tensor, src_len: Tensor, most_bytes: int | None = None) -> None:
        self.most_bytes = most_bytes
        self.model, self.decoder, self.generator = model, model.decoder, model.generator
        self.alpha = generator_alpha(model)
        self.src = src
        # some encoders (CNN, mean) return no lengths: then the given ones hold
        self.memory, self.final_states, lengths = model.encoder(src, src_len)
        self.src_len = src_len if lengths is None else lengths
        self.batch_size = src.size(0)
        self.device = self.memory.device
        weight = next(self.generator.parameters())
        self.vocab_size = weight.size(0)
        # entmax is solved in float32 where the network runs in half precision
        self.dtype = str(working_dtype(weight.dtype))[6:]

    def drop_finished(self, sentences: Sequence[int]) -> None:
        """See :class:`~onmt_entmax.search.scorer.Scorer`; the stock decoders gather each step's memory anyway."""

    def _scores(self, hidden: Tensor) -> Tensor:
        scores = self.generator(hidden)
        return scores.to(working_dtype(scores.dtype))

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Log-probabilities ``(..., vocab_size)`` of the next token from decoder outputs ``(..., hidden)``."""
        return log_entmax(self._scores(hidden), self.alpha, dim=-1)

    def advance(
        self, tokens: Tensor, states: States, sentences: Tensor, parents: Optional[Tensor]
    ) -> tuple[Tensor, States, Optional[Tensor]]:
        """The decoder's part of :meth:`step`: outputs ``(rows, hidden)``, states, attention."""
        raise NotImplementedError

    def step(
        self,
        tokens: Tensor,
        states: States,
        sentences: Tensor,
        parents: Optional[Tensor] = None,
        best: Optional[int] = None,
    ) -> StepOutput:
        """See :class:`~onmt_entmax.search.scorer.Scorer`."""
        hidden, states, attention = self.advance(tokens, states, sentences, parents)
        if best is None:
            return StepOutput(self.log_probs(hidden), states, attention)
        log_probs, types = log_entmax_topk(self._scores(hidden), self.alpha, best)
        return StepOutput(log_probs, states, attention, types)


class RecurrentScorer(ModelScorer):
    """Our input-feeding decoder, step by step, without a copy of the memory per prefix."""

    mixed_lengths = True

    def start(self) -> States:
        """See :class:`~onmt_entmax.search.scorer.Scorer`."""
        self.view = self.decoder.search(self.memory, self.src_len)
        self.places: Optional[Tensor] = None  # of the sentences in the view, once finished ones are dropped
        return self.decoder.start_states(self.final_states)

    def drop_finished(self, sentences: Sequence[int]) -> None:
        """See :class:`~onmt_entmax.search.scorer.Scorer`."""
        kept = torch.tensor(sentences)
        rows = kept if self.places is None else on_host(self.places)[kept]
        self.view = self.view.select(rows.to(self.device))
        places = kept.new_zeros(self.batch_size).index_copy_(0, kept, torch.arange(len(kept)))
        self.places = with_host_copy(places.to(self.device), places)

    def advance(
        self, tokens: Tensor, states: States, sentences: Tensor, parents: Optional[Tensor]
    ) -> tuple[Tensor, States, Optional[Tensor]]:
        """See :meth:`ModelScorer.advance`."""
        if self.places is not None:
            known, places = on_host(sentences, wait=False), self.places[sentences]
            sentences = places if known is None else with_host_copy(places, on_host(self.places)[known])
        return self.view.step(tokens, states, sentences, parents)


class TransformerScorer(RecurrentScorer):
    """OpenNMT-py's Transformer decoder, step by step, without a copy of the memory per prefix; rows in any order."""

    mixed_lengths = False

    def start(self) -> States:
        """See :class:`~onmt_entmax.search.scorer.Scorer`."""
        self.view = TransformerSteps(self.decoder, self.memory, self.src_len, self.most_bytes)
        self.places = None
        return self.view.start_states()


class GenericScorer(ModelScorer):
    """Any decoder of OpenNMT-py, step by step; its state stays in the decoder, search holds the rows' numbers.

    Rows must follow from the previous step's rows, as in beam search and sampling.
    """

    mixed_lengths = False

    def start(self) -> States:
        """See :class:`~onmt_entmax.search.scorer.Scorer`."""
        self.decoder.init_state(self.src, self.memory, self.final_states)
        self.steps = 0
        return (torch.arange(self.batch_size, device=self.device),)

    def _follow(self, rows: Tensor) -> None:
        """Let the decoder's rows be those of the step: sampling begins with several of each sentence."""
        if self.steps > 0 or not torch.equal(rows, torch.arange(self.batch_size, device=rows.device)):
            self.decoder.map_state(lambda state, dim: state.index_select(dim, rows))

    def advance(
        self, tokens: Tensor, states: States, sentences: Tensor, parents: Optional[Tensor]
    ) -> tuple[Tensor, States, Optional[Tensor]]:
        """See :meth:`ModelScorer.advance`."""
        rows = states[0] if parents is None else states[0].index_select(0, parents)
        self._follow(rows)
        hidden, attention = self.decoder(
            tokens.view(-1, 1, 1),
            self.memory[sentences],
            src_len=self.src_len[sentences],
            step=self.steps,
            return_attn=True,
        )
        self.steps += 1
        attention = attention.get("std")
        if attention is not None:  # (rows, 1, src_len), but (1, rows, src_len) from later steps of a CNN decoder
            attention = attention.reshape(tokens.size(0), -1, self.src.size(1))[:, -1]
        return hidden[:, -1], (torch.arange(tokens.size(0), device=self.device),), attention


class PrefixScorer(ModelScorer):
    """Any decoder of OpenNMT-py, each step from the whole prefix: slow, but rows may come in any order."""

    mixed_lengths = False

    def start(self) -> States:
        """See :class:`~onmt_entmax.search.scorer.Scorer`."""
        return (torch.empty(self.batch_size, 0, dtype=torch.long, device=self.device),)

    def advance(
        self, tokens: Tensor, states: States, sentences: Tensor, parents: Optional[Tensor]
    ) -> tuple[Tensor, States, Optional[Tensor]]:
        """See :meth:`ModelScorer.advance`."""
        before = states[0] if parents is None else states[0].index_select(0, parents)
        prefixes = torch.cat([before, tokens.unsqueeze(1)], 1)  # (rows, steps)
        memory = self.memory[sentences]
        self.decoder.init_state(self.src[sentences], memory, self._rows_of_final_states(sentences))
        hidden, attention = self.decoder(
            prefixes.unsqueeze(-1), memory, src_len=self.src_len[sentences], return_attn=True
        )
        attention = attention.get("std")
        return hidden[:, -1], (prefixes,), None if attention is None else attention[:, -1]

    def _rows_of_final_states(self, sentences: Tensor):
        if self.final_states is None:
            return None
        if isinstance(self.final_states, tuple):
            return tuple(state[:, sentences] for state in self.final_states)
        if isinstance(self.decoder, CNNDecoder):  # (batch, hidden, src_len), others (layers, batch, hidden)
            return self.final_states[sentences]
        return self.final_states[:, sentences]


def combine(log_probs: Tensor, average_probabilities: bool) -> Tensor:
    """The ensemble's log-probabilities ``(...)`` from those of its members ``(members, ...)``."""
    if average_probabilities:
        peak = log_probs.amax(0)  # beside it, no probability is too small for the mean
        peak = peak.masked_fill(peak == -math.inf, 0.0)
        return (log_probs - peak).exp_().mean(0).log_() + peak
    return log_probs.mean(0).log_softmax(-1)


class EnsembleScorer:
    """Several models with one target vocabulary, each with an alpha of its own.

    Probabilities are averaged where any member has alpha above 1, or on request; the support is then the union of the
    members' supports. Otherwise the members' log-probabilities are averaged and normalised again, as stock does.
    """

    def __init__(self, members: Sequence[Scorer], average_probabilities: bool) -> None:
        self.members = members
        self.average_probabilities = average_probabilities
        first = members[0]
        self.vocab_size, self.batch_size, self.device = first.vocab_size, first.batch_size, first.device
        self.dtype = first.dtype
        self.mixed_lengths = all(member.mixed_lengths for member in members)
        self.sizes: list[int] = []

    def start(self) -> States:
        """See :class:`~onmt_entmax.search.scorer.Scorer`."""
        states = [member.start() for member in self.members]
        self.sizes = [len(parts) for parts in states]
        return tuple(part for parts in states for part in parts)

    def drop_finished(self, sentences: Sequence[int]) -> None:
        """See :class:`~onmt_entmax.search.scorer.Scorer`."""
        for member in self.members:
            member.drop_finished(sentences)

    def step(
        self,
        tokens: Tensor,
        states: States,
        sentences: Tensor,
        parents: Optional[Tensor] = None,
        best: Optional[int] = None,
    ) -> StepOutput:
        """See :class:`~onmt_entmax.search.scorer.Scorer`."""
        outputs, start = [], 0
        for member, size in zip(self.members, self.sizes):
            outputs.append(member.step(tokens, states[start : start + size], sentences, parents))
            start += size
        stacked = torch.stack([output.log_probs for output in outputs])  # (members, rows, vocab_size)
        log_probs = combine(stacked, self.average_probabilities)
        attentions = [output.attention for output in outputs if output.attention is not None]
        attention = torch.stack(attentions).mean(0) if attentions else None
        return StepOutput(log_probs, tuple(part for output in outputs for part in output.states), attention)


def stepping_scorer(model) -> type[RecurrentScorer] | None:
    """The scorer that shares what prefixes of a sentence share and takes rows in any order; None for some decoders."""
    if getattr(model.decoder, "supports_search", False):
        return RecurrentScorer
    return TransformerScorer if steps_transformer(model.decoder) else None


def build_scorer(
    models: Sequence,
    src: Tensor,
    src_len: Tensor,
    average_probabilities: bool,
    any_order: bool = False,
    most_bytes: int | None = None,
) -> Scorer:
    """Encode a batch and make the scorer for it.

    Args:
        models: one model, or the members of an ensemble.
        src: ``(batch, src_len, features)``.
        src_len: ``(batch,)``.
        average_probabilities: for an ensemble, see :class:`EnsembleScorer`.
        any_order: exact search needs it: rows of one step need not follow from those of the step before.
        most_bytes: of what a Transformer keeps of prefixes; None: what searching needs.
    """
    other = PrefixScorer if any_order else GenericScorer
    scorers = [(stepping_scorer(model) or other)(model, src, src_len, most_bytes) for model in models]
    return scorers[0] if len(scorers) == 1 else EnsembleScorer(scorers, average_probabilities)
