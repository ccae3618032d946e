"""The engine for any device and dtype: decoder steps in one autograd function, search steps that share the memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from onmt_entmax.engines import Engine, computing_dtype, say_once
from onmt_entmax.engines.decoder import Plan, UnrollOperations
from onmt_entmax.engines.dropout import DropoutMask, dropout
from onmt_entmax.engines.ragged import Ragged
from onmt_entmax.engines.stepping import GroupedSteps
from onmt_entmax.entmax.engine import without_autocast


@dataclass(frozen=True)
class Unrolled(Engine):
    """Decoder steps in one autograd function and search steps without copies of the memory, on any device.

    Attributes:
        block_rows: rows of a large product on a CPU, which takes a fifth less time than at once.
        few_rows: live rows of a search below which looking for tokens that occur twice costs more than it saves.
        types_per_sentence: up to so many types per sentence the embeddings' part of the first layer's gates is
            computed for all types, once: a sentence's steps feed more rows than that.
        threads: of compiled loops, which only the engine ``cpu`` has; None: as many as the work is worth.
    """

    block_rows: int = 400
    few_rows: int = 32
    types_per_sentence: int = 4
    threads: int | None = None

    name = "unrolled"

    def function(self, plan: Plan, keys: Tensor) -> type[torch.autograd.Function]:
        """What runs the steps."""
        return UnrollOperations

    def decode(self, decoder, tgt, emb, memory, src_len, state):
        """See :class:`~onmt_entmax.engines.Engine`; None, and a line in the log, for decoders of other kinds."""
        reason = why_by_steps(decoder)
        if reason is not None:
            say_once(f"The input-feeding decoder runs step by step: {reason}.")
            return None
        if emb.size(1) == 1 and not torch.is_grad_enabled():
            return None  # one step of a search: nothing to gain
        order, ragged = None, Ragged.full(emb.size(0), emb.size(1))
        tgt_len = target_lengths(decoder, tgt)
        if tgt_len is not None:
            tgt_len, order = tgt_len.sort(descending=True, stable=True)
            ragged = Ragged.from_lengths(tgt_len, emb.size(1))
            emb, memory = emb.index_select(0, order), memory.index_select(0, order)
            src_len = src_len if src_len is None else src_len.index_select(0, order)
            state = tuple(part.index_select(-2, order) for part in state)
        dtype = computing_dtype(emb)  # of the products; autograd casts the gradients back
        mask = draw_dropout(decoder, emb.device, sum(ragged.rows)) if decoder.training else None
        keys, values, w_query = project(decoder.attn, memory)
        cells = [(cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh) for cell in decoder.rnn.layers]
        plan = Plan(decoder.attn.alpha, src_len, ragged, mask, self.block_rows, self.threads)
        arguments = [emb, keys, values, w_query, *state, *(tensor for cell in cells for tensor in cell)]
        with without_autocast(emb.device.type):
            outputs, probs, hidden, cell = self.function(plan, keys).apply(plan, *(x.to(dtype) for x in arguments))
        if order is not None:
            back = order.argsort()
            outputs, probs = outputs.index_select(0, back), probs.index_select(0, back)
            hidden, cell = hidden.index_select(1, back), cell.index_select(1, back)
        return outputs, probs, (hidden, cell)

    def search(self, decoder, memory, src_len):
        """See :class:`~onmt_entmax.engines.Engine`; None for layers that are not what they look like."""
        if has_replaced_layers(decoder):
            return None
        return GroupedSteps.prepare(self, decoder, project(decoder.attn, memory), src_len)

    def dropout(self, x: Tensor, p: float) -> Tensor:
        """Zero a share ``p`` of ``x`` and scale the rest, with masks that take little time to draw."""
        return dropout(x, p)


def why_by_steps(decoder) -> str | None:
    """Why this decoder can't be unrolled in one function, or None."""
    if any(type(cell) is nn.GRUCell for cell in decoder.rnn.layers):
        return "only LSTM layers are unrolled at once"
    if decoder.attn is None or decoder.attn.attn_type == "mlp":
        return "only dot and general attention are unrolled at once"
    if decoder.attn.learned_alpha is not None:
        return "the attention's alpha is learned"
    if decoder.context_gate is not None:
        return "it has a context gate"
    return "some of its layers were replaced (quantised, or adapted)" if has_replaced_layers(decoder) else None


def has_replaced_layers(decoder) -> bool:
    """Whether calling a layer may be something else than a product with its weight."""
    linear = (getattr(decoder.attn, name, None) for name in ("linear_in", "linear_out"))
    replaced = any(layer is not None and type(layer) is not nn.Linear for layer in linear)
    return replaced or any(type(cell) not in (nn.LSTMCell, nn.GRUCell) for cell in decoder.rnn.layers)


def target_lengths(decoder, tgt: Tensor) -> Tensor | None:
    """Lengths ``(B,)`` without the padding behind, at least 1; None if all steps are to be run for all."""
    pad = getattr(decoder.embeddings, "word_padding_idx", None)
    if tgt.device.type != "cpu" or pad is None or decoder.has_coverage:
        return None
    places = torch.arange(1, tgt.size(1) + 1)
    lengths = ((tgt[:, :, 0] != pad) * places).amax(1).clamp_(min=1)
    # If no target fills the batch, a last token is the padding token itself, and is to be fed like any other.
    return lengths if int(lengths.min()) < tgt.size(1) == int(lengths.max()) else None


def project(attention, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""What steps read of the memory ``(B, S, H)`` and of the output matrix, computed once per sentence.

    Scores: :math:`h^\top (W q) = (W^\top h)^\top q`. Output: :math:`W_o [\sum_j p_j h_j; q]` is the sum of :math:`p_j`
    times the context's half of :math:`W_o` times :math:`h_j`, and of the query's half times q.

    Returns:
        Keys and values, ``(B, S, H)``, and the query's half of the output matrix, ``(H, H)``.
    """
    w_context, w_query = attention.linear_out.weight.split(attention.dim, 1)
    keys = memory @ attention.linear_in.weight if attention.attn_type == "general" else attention.keys(memory)
    return keys, memory @ w_context.t(), w_query


def draw_dropout(decoder, device: torch.device, tokens: int) -> DropoutMask | None:
    """The mask between layers, and last of the attentional output, ``(L, H * tokens)``; None without dropout."""
    between, output, size = decoder.rnn.dropout.p, decoder.dropout.p, decoder.hidden_size * tokens
    if between == output == 0:
        return None
    if between == output or decoder.num_layers == 1:
        return DropoutMask.draw((decoder.num_layers, size), output, device)
    shares = [between] * (decoder.num_layers - 1) + [output]
    masks, scales = zip(*(DropoutMask.draw((1, size), p, device) for p in shares))
    return DropoutMask(torch.cat(masks), [scale for (scale,) in scales])
