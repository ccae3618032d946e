"""One decoding step for many live prefixes of few sentences, without a copy of the memory for each prefix.

Search keeps R live rows (prefixes) of B sentences, any number for each sentence. The recurrent layers run on the R
rows; for the attention the rows of a sentence stand side by side, ``(B, W, dim)`` with W the most rows of any sentence,
so that keys and values, projected once per sentence, are read where they lie. The mapping runs on the R rows only.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from onmt_entmax.entmax import entmax_forward
from onmt_entmax.model.attention import SourceMask, solver_for
from onmt_entmax.model.kernels import cell_forward, tanh_


class StepMemory(NamedTuple):
    """What steps read of B sentences and of the decoder's weights, prepared once.

    Attributes:
        keys: ``(B, S, H)``, see ``GlobalAttention.keys``.
        values: ``(B, S, H)``, memory times the context's half of the output matrix.
        hide: 0, or minus infinity at padding, ``(B, 1, S)``; None if nothing is padding.
        not_empty: 1 for a source with tokens, else 0, ``(B, 1)``; None if every source has tokens.
        cells: per LSTM layer the weights ``(inputs + H, 4H)`` of its inputs beside its own output, and the bias
            ``(4H,)``; empty for other layers.
        w_query: ``(H, H)``, transposed output matrix, the recurrent output's half.
    """

    keys: Tensor
    values: Tensor
    hide: Tensor | None
    not_empty: Tensor | None
    cells: tuple[tuple[Tensor, Tensor], ...]
    w_query: Tensor

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
    cells = tuple(
        (torch.cat([cell.weight_ih, cell.weight_hh], 1).t().contiguous(), cell.bias_ih + cell.bias_hh)
        for cell in decoder.rnn.layers
        if isinstance(cell, nn.LSTMCell)
    )
    keys = decoder.attn.keys(memory)
    return StepMemory(keys, memory @ w_context.t(), hide, not_empty, cells, w_query.t().contiguous())


def start_states(decoder, enc_final_hs) -> tuple[Tensor, ...]:
    """See ``InputFeedDecoder.start_states``."""
    states = []
    for state in enc_final_hs if isinstance(enc_final_hs, tuple) else (enc_final_hs,):
        if decoder.bidirectional_encoder:  # layers * directions are interleaved: both directions side by side
            state = torch.cat([state[0::2], state[1::2]], 2)
        states.append(state.transpose(0, 1).contiguous())  # (B, L, H)
    return *states, states[0].new_zeros(states[0].size(0), decoder.hidden_size)


def step(decoder, tokens: Tensor, states: tuple, view: StepMemory, sentences: Tensor) -> tuple:
    """See ``InputFeedDecoder.step``."""
    emb = decoder.embeddings(tokens.view(-1, 1, 1)).squeeze(1)  # (R, E)
    *hidden, feed = states
    dec_in = torch.cat([emb, feed], 1)
    if len(hidden) == 2:
        out, hidden = _lstm_layers(view.cells, dec_in, *hidden)
    else:
        out, hidden = _gru_layers(decoder.rnn.layers, dec_in, *hidden)
    result, probs = _attend(decoder.attn, out, view, sentences)
    if decoder.context_gate is not None:
        result = decoder.context_gate(dec_in, out, result)
    return result, (*hidden, result), probs


def _lstm_layers(cells, below: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, list[Tensor]]:
    new_hidden, new_cell = torch.empty_like(hidden), torch.empty_like(cell)  # (R, L, H)
    squashed = torch.empty_like(cell[:, 0])
    for layer, (weight, bias) in enumerate(cells):
        gates = torch.addmm(bias, torch.cat([below, hidden[:, layer]], 1), weight)
        below = new_hidden[:, layer]
        cell_forward(gates, cell[:, layer], new_cell[:, layer], squashed, below)
    return below, [new_hidden, new_cell]


def _gru_layers(layers, below: Tensor, hidden: Tensor) -> tuple[Tensor, list[Tensor]]:
    outs = []
    for index, layer in enumerate(layers):
        below = layer(below, hidden[:, index])
        outs.append(below)
    return below, [torch.stack(outs, 1)]


def _attend(attention, query: Tensor, view: StepMemory, sentences: Tensor) -> tuple[Tensor, Tensor]:
    """Attentional output ``(R, H)`` and attention ``(R, S)`` of queries ``(R, H)``."""
    rows, batch = query.size(0), view.keys.size(0)
    counts = torch.bincount(sentences, minlength=batch)
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
    return (result if attention.attn_type == "mlp" else tanh_(result)), probs


def _side_by_side(rows: Tensor, places: Tensor | None, batch: int, width: int) -> Tensor:
    """Rows ``(R, n)`` as ``(B, W, n)``, zeros where a sentence has fewer than W rows."""
    if places is None:
        return rows.reshape(batch, width, rows.size(1))
    return rows.new_zeros(batch * width, rows.size(1)).index_copy_(0, places, rows).view(batch, width, -1)
