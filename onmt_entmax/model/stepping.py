"""One decoding step for many live prefixes of few sentences, without a copy of the memory for each prefix.

Search keeps R live rows (prefixes) of B sentences, any number for each sentence. The recurrent layers run on the R
rows; for the attention the rows of a sentence stand side by side, ``(B, W, dim)`` with W the most rows of any sentence,
so that keys and values, projected once per sentence, are read where they lie. The mapping runs on the R rows only.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from onmt.modules.stacked_rnn import StackedLSTM
from torch import Tensor

from onmt_entmax.engines.kernels import cell_forward, tanh
from onmt_entmax.entmax import entmax_forward
from onmt_entmax.model.attention import SourceMask, solver_for

FEW_ROWS = 32  # below which looking for tokens that occur twice costs more than it saves
# Types per sentence up to which the embeddings' part of the gates is computed for all types, once: a sentence's steps
# feed more rows than that.
TYPES_PER_SENTENCE = 4


class StepMemory(NamedTuple):
    """What steps read of B sentences and of the decoder's weights, prepared once.

    Attributes:
        keys: ``(B, S, H)``, see ``GlobalAttention.keys``.
        values: ``(B, S, H)``, memory times the context's half of the output matrix.
        hide: 0, or minus infinity at padding, ``(B, 1, S)``; None if nothing is padding.
        not_empty: 1 for a source with tokens, else 0, ``(B, 1)``; None if every source has tokens.
        cells: per LSTM layer the weights of what is new in a step (the embedding, or the layer below) ``(inputs, 4H)``,
            those of the state ``(H, 4H)`` (of the first layer also the fed-back output, in front), and the bias
            ``(4H,)``; empty for other layers.
        w_query: ``(H, H)``, transposed output matrix, the recurrent output's half.
        embedded: what each type's embedding adds to the first LSTM layer's gates, ``(types, 4H)``; None if there are
            too many types.
    """

    keys: Tensor
    values: Tensor
    hide: Tensor | None
    not_empty: Tensor | None
    cells: tuple[tuple[Tensor, Tensor, Tensor], ...]
    w_query: Tensor
    embedded: Tensor | None

    def select(self, sentences: Tensor) -> StepMemory:
        """The memory of the given sentences ``(n,)`` only, in that order."""
        keys, values, hide, not_empty = (
            part if part is None else part.index_select(0, sentences)
            for part in (self.keys, self.values, self.hide, self.not_empty)
        )
        return self._replace(keys=keys, values=values, hide=hide, not_empty=not_empty)


def prepare_memory(decoder, memory: Tensor, src_len: Tensor | None) -> StepMemory:
    """See ``InputFeedDecoder.prepare_memory``."""
    w_context, w_query = decoder.attn.linear_out.weight.split(decoder.hidden_size, 1)
    mask = SourceMask.from_lengths(src_len, memory.size(1))
    hide = None
    if mask.padding is not None:
        hide = memory.new_zeros(mask.padding.shape).masked_fill_(mask.padding, -float("inf")).unsqueeze(1)
    not_empty = None if mask.not_empty is None else mask.not_empty.to(memory.dtype)
    cells = []
    for layer, cell in enumerate(decoder.rnn.layers if isinstance(decoder.rnn, StackedLSTM) else ()):
        # beside the first layer's embedding lies the fed-back output, which belongs to the state
        width = cell.input_size - (decoder.hidden_size if layer == 0 else 0)
        new, state = cell.weight_ih[:, :width], torch.cat([cell.weight_ih[:, width:], cell.weight_hh], 1)
        cells.append((new.t().contiguous(), state.t().contiguous(), cell.bias_ih + cell.bias_hh))
    embedded, types = None, decoder.embeddings.word_lut.num_embeddings
    if cells and types <= TYPES_PER_SENTENCE * memory.size(0):
        embedded = _embed(decoder, torch.arange(types, device=memory.device)) @ cells[0][0]
    keys, values = decoder.attn.keys(memory), memory @ w_context.t()
    return StepMemory(keys, values, hide, not_empty, tuple(cells), w_query.t().contiguous(), embedded)


def start_states(decoder, enc_final_hs) -> tuple[Tensor, ...]:
    """See ``InputFeedDecoder.start_states``."""
    states = []
    for state in enc_final_hs if isinstance(enc_final_hs, tuple) else (enc_final_hs,):
        if decoder.bidirectional_encoder:  # layers * directions are interleaved: both directions side by side
            state = torch.cat([state[0::2], state[1::2]], 2)
        states.append(state.transpose(0, 1).contiguous())  # (B, L, H)
    feed = states[0].new_zeros(states[0].size(0), 1, decoder.hidden_size)
    return torch.cat([feed, states[0]], 1), *states[1:]


def step(
    decoder, tokens: Tensor, states: tuple, view: StepMemory, sentences: Tensor, parents: Tensor | None = None
) -> tuple:
    """See ``InputFeedDecoder.step``."""
    layers = _lstm_layers if view.cells else _gru_layers
    states, dec_in = layers(decoder, view, tokens, states, parents)
    out = states[0][:, -1]
    result, probs = _attend(decoder.attn, out, view, sentences)
    if decoder.context_gate is not None:
        result = decoder.context_gate(dec_in, out, result)
    states[0][:, 0] = result
    return result, states, probs


def _embed(decoder, tokens: Tensor) -> Tensor:
    return decoder.embeddings(tokens.view(-1, 1, 1)).squeeze(1)  # (R, E)


def _lstm_layers(decoder, view: StepMemory, tokens: Tensor, states: tuple, parents: Tensor | None) -> tuple:
    """The new states, whose place for the fed-back output is still empty, and the decoder's input if a gate wants it.

    What the state adds to the gates is computed once for all rows that continue it, what the embedding adds once for
    all rows with the same token: together more than half of all products where several rows go on from one prefix.
    """
    hidden, cell = states  # (n, 1 + L, H), (n, L, H)
    rows, size = tokens.size(0), cell.size(2)
    new_hidden, new_cell = (state.new_empty(rows, *state.shape[1:]) for state in states)
    squashed = cell.new_empty(rows, size)
    below = None
    for layer, (w_new, w_state, bias) in enumerate(view.cells):
        state, before = hidden[:, 0 if layer == 0 else layer + 1 : layer + 2].flatten(1), cell[:, layer]
        gates = torch.addmm(bias, state, w_state)
        if parents is not None:
            gates, before = gates.index_select(0, parents), before.index_select(0, parents)
        if layer == 0:
            _add_embedding(gates, decoder, tokens, w_new, view.embedded)
        else:
            gates.addmm_(below, w_new)
        below = new_hidden[:, layer + 1]
        cell_forward(gates.t(), before.t(), new_cell[:, layer].t(), squashed.t(), below.t())
    dec_in = None
    if decoder.context_gate is not None:
        feed = hidden[:, 0]
        dec_in = torch.cat([_embed(decoder, tokens), feed if parents is None else feed.index_select(0, parents)], 1)
    return (new_hidden, new_cell), dec_in


def _add_embedding(gates: Tensor, decoder, tokens: Tensor, weight: Tensor, embedded: Tensor | None) -> None:
    """Add the embeddings' part ``(R, 4H)``, in place."""
    if embedded is not None:
        gates += embedded.index_select(0, tokens)
        return
    if tokens.device.type == "cpu" and tokens.numel() >= FEW_ROWS:  # elsewhere the host would have to wait
        types, places = tokens.unique(return_inverse=True)
        if types.numel() <= tokens.numel() // 2:
            gates += (_embed(decoder, types) @ weight).index_select(0, places)
            return
    gates.addmm_(_embed(decoder, tokens), weight)


def _gru_layers(decoder, view: StepMemory, tokens: Tensor, states: tuple, parents: Tensor | None) -> tuple:
    """As :func:`_lstm_layers`, for GRU layers."""
    hidden = states[0] if parents is None else states[0].index_select(0, parents)
    below = dec_in = torch.cat([_embed(decoder, tokens), hidden[:, 0]], 1)
    new_hidden = torch.empty_like(hidden)
    for index, layer in enumerate(decoder.rnn.layers, 1):
        below = layer(below, hidden[:, index])
        new_hidden[:, index] = below
    return (new_hidden,), dec_in


def _attend(attention, query: Tensor, view: StepMemory, sentences: Tensor) -> tuple[Tensor, Tensor]:
    """Attentional output ``(R, H)`` and attention ``(R, S)`` of queries ``(R, H)``."""
    rows, batch = query.size(0), view.keys.size(0)
    # bincount would have a device wait twice
    counts = sentences.new_zeros(batch).scatter_add_(0, sentences, torch.ones_like(sentences))
    width = int(counts.max())
    places = None
    if rows != batch * width:  # else every sentence has as many rows, and they stand side by side already
        first = counts.cumsum(0) - counts
        places = sentences * width + torch.arange(rows, device=query.device) - first[sentences]

    scores = attention.score(_side_by_side(query, places, batch, width), view.keys)  # (B, W, S)
    if view.hide is not None:
        scores = scores + view.hide
    scores = scores.view(batch * width, -1)
    scores = scores if places is None else scores[places]  # (R, S)
    alpha = attention.alpha if attention.alpha is not None else attention.learned_alpha()
    probs = entmax_forward(scores, alpha, solver=solver_for(scores, alpha))
    if view.not_empty is not None:
        probs = probs * view.not_empty[sentences]
    context = torch.bmm(_side_by_side(probs, places, batch, width), view.values).view(batch * width, -1)
    result = context if places is None else context[places]
    result = result.addmm_(query, view.w_query)
    if attention.linear_out.bias is not None:
        result += attention.linear_out.bias
    return (result if attention.attn_type == "mlp" else tanh(result, result)), probs


def _side_by_side(rows: Tensor, places: Tensor | None, batch: int, width: int) -> Tensor:
    """Rows ``(R, n)`` as ``(B, W, n)``, zeros where a sentence has fewer than W rows."""
    if places is None:
        return rows.reshape(batch, width, rows.size(1))
    return rows.new_zeros(batch * width, rows.size(1)).index_copy_(0, places, rows).view(batch, width, -1)
