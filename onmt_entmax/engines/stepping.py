"""Search steps for many live prefixes of few sentences, without a copy of the memory for each prefix.

Search keeps R live rows (prefixes) of B sentences, any number for each sentence. The recurrent layers run on the R
rows; for the attention the rows of a sentence stand side by side, ``(B, W, H)`` with W the most rows of any sentence,
so that keys and values, projected once per sentence, are read where they lie. The mapping runs on the R rows only.

Letters: B sentences, R live rows, W rows of the sentence that has most, S source positions, H hidden units, L layers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from onmt_entmax.engines.lstm import cell_forward, tanh
from onmt_entmax.engines.ragged import source_padding
from onmt_entmax.entmax import entmax_forward
from onmt_entmax.entmax.engine import on_host


class _Weights(NamedTuple):
    """What steps read of the decoder's weights.

    Attributes:
        cells: per LSTM layer the weights of what is new in a step (the embedding, or the layer below) ``(inputs, 4H)``,
            those of the state ``(H, 4H)`` (in the first layer also those of the fed-back output, in front), and the
            bias ``(4H,)``; empty for GRU layers.
        w_query: the recurrent output's half of the output matrix, transposed, ``(H, H)``.
        embedded: what each type's embedding adds to the first LSTM layer's gates, ``(types, 4H)``; None if there are
            too many types.
    """

    cells: tuple[tuple[Tensor, Tensor, Tensor], ...]
    w_query: Tensor
    embedded: Tensor | None


class GroupedSteps(NamedTuple):
    """What steps read of B sentences; see ``model.stepping.SearchSteps``, whose place it takes.

    Attributes:
        keys, values: ``(B, S, H)``, see ``unrolled.project``.
        hide, not_empty: ``(B, S)`` and ``(B, 1)``, see ``ragged.source_padding``.
    """

    decoder: nn.Module
    few_rows: int
    weights: _Weights
    keys: Tensor
    values: Tensor
    hide: Tensor | None
    not_empty: Tensor | None

    @classmethod
    def prepare(cls, engine, decoder, projected: tuple, src_len: Tensor | None) -> GroupedSteps:
        """Project what can be projected once for all steps.

        Args:
            engine: for its parameters.
            decoder: ``model.decoder.InputFeedDecoder``.
            projected: keys, values and the query's half of the output matrix.
            src_len: ``(B,)``, or None.
        """
        keys, values, w_query = projected
        cells = []
        for layer, cell in enumerate(decoder.rnn.layers if isinstance(decoder.rnn.layers[0], nn.LSTMCell) else ()):
            # beside the first layer's embedding lies the fed-back output, which belongs to the state
            width = cell.input_size - (decoder.hidden_size if layer == 0 else 0)
            new, state = cell.weight_ih[:, :width], torch.cat([cell.weight_ih[:, width:], cell.weight_hh], 1)
            cells.append((new.t().contiguous(), state.t().contiguous(), cell.bias_ih + cell.bias_hh))
        embedded, types = None, decoder.embeddings.word_lut.num_embeddings
        if cells and types <= engine.types_per_sentence * keys.size(0):
            embedded = _embed(decoder, torch.arange(types, device=keys.device)) @ cells[0][0]
        weights = _Weights(tuple(cells), w_query.t().contiguous(), embedded)
        hide, not_empty = source_padding(src_len, keys.size(1), keys.dtype)
        return cls(decoder, engine.few_rows, weights, keys, values, hide, not_empty)

    def select(self, sentences: Tensor) -> GroupedSteps:
        """The steps of the given sentences ``(n,)`` only, in that order."""
        keys, values, hide, not_empty = (
            part if part is None else part.index_select(0, sentences)
            for part in (self.keys, self.values, self.hide, self.not_empty)
        )
        return self._replace(keys=keys, values=values, hide=hide, not_empty=not_empty)

    @torch.no_grad()
    def step(self, tokens: Tensor, states: tuple, sentences: Tensor, parents: Tensor | None = None) -> tuple:
        """See ``model.stepping.SearchSteps.step``."""
        layers = self._lstm_layers if self.weights.cells else self._gru_layers
        states, dec_in = layers(tokens, states, parents)
        out = states[0][:, -1]
        result, probs = self._attend(out, sentences)
        if self.decoder.context_gate is not None:
            result = self.decoder.context_gate(dec_in, out, result)
        states[0][:, 0] = result
        return result, states, probs

    def _lstm_layers(self, tokens: Tensor, states: tuple, parents: Tensor | None) -> tuple:
        """The new states, not yet with the fed-back output, and the decoder's input if a gate wants it.

        What the state adds to the gates is computed once for all rows that continue it, what the embedding adds once
        for all rows with the same token: together more than half of all products where several rows go on from one
        prefix.
        """
        hidden, cell = states  # (n, 1 + L, H), (n, L, H)
        rows, size = tokens.size(0), cell.size(2)
        new_hidden, new_cell = (state.new_empty(rows, *state.shape[1:]) for state in states)
        squashed = cell.new_empty(rows, size)
        below = None
        for layer, (w_new, w_state, bias) in enumerate(self.weights.cells):
            state, before = hidden[:, 0 if layer == 0 else layer + 1 : layer + 2].flatten(1), cell[:, layer]
            gates = torch.addmm(bias, state, w_state)
            if parents is not None:
                gates, before = gates.index_select(0, parents), before.index_select(0, parents)
            if layer == 0:
                self._add_embedding(gates, tokens, w_new)
            else:
                gates.addmm_(below, w_new)
            below = new_hidden[:, layer + 1]
            cell_forward(gates.t(), before.t(), new_cell[:, layer].t(), squashed.t(), below.t())
        dec_in = None
        if self.decoder.context_gate is not None:
            feed = hidden[:, 0]
            feed = feed if parents is None else feed.index_select(0, parents)
            dec_in = torch.cat([_embed(self.decoder, tokens), feed], 1)
        return (new_hidden, new_cell), dec_in

    def _add_embedding(self, gates: Tensor, tokens: Tensor, weight: Tensor) -> None:
        """Add the embeddings' part ``(R, 4H)``, in place."""
        if self.weights.embedded is not None:
            gates += self.weights.embedded.index_select(0, tokens)
            return
        if tokens.device.type == "cpu" and tokens.numel() >= self.few_rows:  # elsewhere it would synchronise
            types, places = tokens.unique(return_inverse=True)
            if types.numel() <= tokens.numel() // 2:
                gates += (_embed(self.decoder, types) @ weight).index_select(0, places)
                return
        gates.addmm_(_embed(self.decoder, tokens), weight)

    def _gru_layers(self, tokens: Tensor, states: tuple, parents: Tensor | None) -> tuple:
        """As :meth:`_lstm_layers`, for GRU layers."""
        hidden = states[0] if parents is None else states[0].index_select(0, parents)
        below = dec_in = torch.cat([_embed(self.decoder, tokens), hidden[:, 0]], 1)
        new_hidden = torch.empty_like(hidden)
        for index, layer in enumerate(self.decoder.rnn.layers, 1):
            below = layer(below, hidden[:, index])
            new_hidden[:, index] = below
        return (new_hidden,), dec_in

    def _attend(self, query: Tensor, sentences: Tensor) -> tuple[Tensor, Tensor]:
        """Attentional output ``(R, H)`` and attention ``(R, S)`` of queries ``(R, H)``."""
        attention, batch = self.decoder.attn, self.keys.size(0)
        width, places = row_places(sentences, batch)
        queries = side_by_side(query, places, batch, width)
        if attention.attn_type == "mlp":
            scores = attention.score(queries, self.keys)  # (B, W, S)
        else:
            scores = torch.bmm(queries, self.keys.transpose(1, 2))
        if self.hide is not None:
            scores = scores + self.hide.unsqueeze(1)
        scores = scores.view(batch * width, -1)
        scores = scores if places is None else scores[places]  # (R, S)
        alpha = attention.alpha if attention.alpha is not None else attention.learned_alpha()
        probs = entmax_forward(scores, alpha)
        if self.not_empty is not None:
            probs = probs * self.not_empty[sentences]
        context = torch.bmm(side_by_side(probs, places, batch, width), self.values).view(batch * width, -1)
        result = context if places is None else context[places]
        result = result.addmm_(query, self.weights.w_query)
        if attention.linear_out.bias is not None:
            result += attention.linear_out.bias
        return (result if attention.attn_type == "mlp" else tanh(result, result)), probs


def _embed(decoder, tokens: Tensor) -> Tensor:
    return decoder.embeddings(tokens.view(-1, 1, 1)).squeeze(1)  # (R, E)


def row_places(sentences: Tensor, batch: int) -> tuple[int, Tensor | None]:
    """W, and where each of the R rows stands among ``(B * W,)``: None where all sentences have W, in their order.

    The search knows its rows' sentences on the host (``entmax.engine.with_host_copy``): nobody waits for the device.
    """
    host, rows = on_host(sentences), sentences.numel()
    counts = host.bincount(minlength=batch)
    width = int(counts.max())
    if rows == batch * width:
        return width, None
    first = counts.cumsum(0) - counts
    places = host * width + torch.arange(rows) - first[host]
    return width, places.to(sentences.device, non_blocking=True)


def side_by_side(rows: Tensor, places: Tensor | None, batch: int, width: int) -> Tensor:
    """Rows ``(R, n)`` as ``(B, W, n)``, zeros where a sentence has fewer than W rows."""
    if places is None:
        return rows.reshape(batch, width, rows.size(1))
    return rows.new_zeros(batch * width, rows.size(1)).index_copy_(0, places, rows).view(batch, width, -1)
