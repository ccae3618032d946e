"""OpenNMT-py's recurrent decoders with our attention: ``StandardDecoder`` and ``InputFeedDecoder``.

Parameters, their names and the decoder state are those of OpenNMT-py; checkpoints go both ways. Attention comes
batch-first, ``(batch, tgt_len, src_len)``, from both.
"""

from __future__ import annotations

import copy

import torch
from onmt.decoders.decoder import InputFeedRNNDecoder, StdRNNDecoder
from onmt.modules.stacked_rnn import StackedLSTM
from onmt.utils.logging import logger
from torch import Tensor, nn

from onmt_entmax.engines.kernels import Dropout, Kept
from onmt_entmax.engines.ragged import Ragged
from onmt_entmax.engines.unrolled import Plan, unroll
from onmt_entmax.errors import invalid_setting
from onmt_entmax.model import stepping
from onmt_entmax.model.attention import GlobalAttention, SourceMask

ALPHA_OF_FUNCTION = {"softmax": 1.0, "entmax15": 1.5, "sparsemax": 2.0}


def _alpha_from_options(opt) -> float | str:
    """``global_attention_alpha``, or where it is not set the alpha that ``global_attention_function`` names."""
    alpha = getattr(opt, "global_attention_alpha", None)
    if alpha is not None:
        return alpha
    return ALPHA_OF_FUNCTION.get(getattr(opt, "global_attention_function", "softmax"), 1.5)


def _replacement(stock, alpha: float | str) -> GlobalAttention:
    """Our attention with the parameters of ``stock``; draws no random numbers, so seeds keep their meaning."""
    with torch.random.fork_rng(devices=[]):
        ours = GlobalAttention(stock.dim, hasattr(stock, "linear_cover"), stock.attn_type, alpha)
    ours.load_state_dict(stock.state_dict(), strict=alpha != "learned")
    return ours


def _autocast_dtype(device_type: str) -> torch.dtype | None:
    """The dtype that autocast computes in on this kind of device, or None where it is off."""
    try:
        return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None
    except (AttributeError, TypeError):  # torch 2.2 has one function per device
        if device_type == "cpu":
            return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
        return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None


class _WithOurAttention:
    """``from_opt`` shared by both decoders: OpenNMT-py's, then the attention replaced by ours."""

    @classmethod
    def from_opt(cls, opt, embeddings):
        """Build the decoder from options.

        Args:
            opt: OpenNMT-py's model options, and ``global_attention_alpha`` (at least 1, or ``learned``).
            embeddings: OpenNMT-py's target embeddings.

        Raises:
            ValueError: alpha below 1.
        """
        embeddings.dropout = Dropout(embeddings.dropout.p)
        stock_opt = copy.copy(opt)
        stock_opt.global_attention_function = "softmax"  # the stock class knows no other that we have
        decoder = super().from_opt(stock_opt, embeddings)
        alpha = _alpha_from_options(opt)
        if decoder.attn is not None:
            decoder.attn = _replacement(decoder.attn, alpha)
        if decoder.copy_attn is not None:
            decoder.copy_attn = _replacement(decoder.copy_attn, alpha)
        return decoder


class StandardDecoder(_WithOurAttention, StdRNNDecoder):
    """OpenNMT-py's decoder without input feeding; no coverage and no copy attention, as there."""

    @classmethod
    def from_opt(cls, opt, embeddings):
        """As for the other decoder; UserError with coverage or copy attention, which need input feeding."""
        for name in ("coverage_attn", "copy_attn"):
            if getattr(opt, name):
                raise invalid_setting(name, getattr(opt, name), "It needs the input-feeding decoder (`input_feed: 1`).")
        return super().from_opt(opt, embeddings)

    def _run_forward_pass(self, tgt: Tensor, enc_out: Tensor, src_len: Tensor | None = None):
        """As in OpenNMT-py, which crashes here with a context gate (it views a transposed tensor)."""
        emb = self.embeddings(tgt)  # (batch, tgt_len, embedding)
        hidden = self.state["hidden"]
        rnn_out, state = self.rnn(emb, hidden[0] if isinstance(self.rnn, nn.GRU) else hidden)
        outputs, attns = rnn_out, {}
        if self.attn is not None:
            outputs, attns["std"] = self.attn(rnn_out, enc_out, src_len=src_len)
        if self.context_gate is not None:
            flat = (part.reshape(-1, part.size(2)) for part in (emb, rnn_out, outputs))
            outputs = self.context_gate(*flat).view(rnn_out.shape)
        return state, self.dropout(outputs), attns


class InputFeedDecoder(_WithOurAttention, InputFeedRNNDecoder):
    """OpenNMT-py's input-feeding decoder (Luong et al. 2015): each step also reads the previous attentional output.

    With LSTM layers and dot or general attention all steps run in one autograd function (``unrolled.py``); everything
    else runs step by step, and the log says why.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._reasons_told: set[str] = set()

    def forward(self, tgt: Tensor, enc_out: Tensor, src_len: Tensor | None = None, step=None, **kwargs):
        """Run the decoder over given target tokens.

        Args:
            tgt: tokens, ``(batch, tgt_len, features)``.
            enc_out: memory, ``(batch, src_len, hidden)``.
            src_len: source lengths, ``(batch,)``.
            step: unused, part of OpenNMT-py's interface.

        Returns:
            Outputs ``(batch, tgt_len, hidden)``, and a dictionary of attentions ``(batch, tgt_len, src_len)``: ``std``;
            with coverage ``coverage``, the sum of the attention up to and including each step; with copy attention
            ``copy`` (not masked by length, as in OpenNMT-py). At padding behind the target, outputs and attention may
            be zero.
        """
        emb = self.embeddings(tgt)  # (batch, tgt_len, embedding)
        mask = SourceMask.from_lengths(src_len, enc_out.size(1))
        if self._may_unroll_at_once(emb, enc_out):
            outputs, probs = self._unroll_at_once(emb, enc_out, mask, self._target_lengths(tgt))
        else:
            outputs, probs = self._unroll_by_steps(emb, enc_out, mask)
        attns = {}
        if probs is not None:
            attns["std"] = probs
        if self._coverage:
            so_far = self.state["coverage"]
            attns["coverage"] = probs.cumsum(1) if so_far is None else probs.cumsum(1) + so_far.transpose(0, 1)
        if self.copy_attn is not None:
            attns["copy"] = self.copy_attn(outputs, enc_out)[1]
        elif self._reuse_copy_attn:
            attns["copy"] = probs
        self.state["input_feed"] = outputs[:, -1].unsqueeze(0)
        self.state["coverage"] = attns["coverage"][:, -1].unsqueeze(0) if self._coverage else None
        return outputs, attns

    @property
    def supports_step(self) -> bool:
        """Whether :meth:`step` works: not without attention, with copy attention, or with replaced layers."""
        if self.attn is None or self.copy_attn is not None or self._reuse_copy_attn:
            return False
        return not self._has_replaced_layers()

    @torch.no_grad()
    def prepare_memory(self, enc_out: Tensor, src_len: Tensor | None = None) -> stepping.StepMemory:
        """Project the memory ``(B, S, H)`` of sentences of lengths ``(B,)`` once, for all steps of a search."""
        return stepping.prepare_memory(self, enc_out, src_len)

    @torch.no_grad()
    def start_states(self, enc_final_hs) -> tuple[Tensor, ...]:
        """States of B sentences before the first step, from the encoder's last state (as ``init_state`` takes it).

        Returns:
            The fed-back output, in front of the layers' hidden states, ``(B, 1 + layers, H)``, and for LSTM the cells,
            ``(B, layers, H)``. Rows may be repeated, selected and reordered by indexing the first dimension of each.
        """
        return stepping.start_states(self, enc_final_hs)

    @torch.no_grad()
    def step(
        self,
        tokens: Tensor,
        states: tuple[Tensor, ...],
        memory_view: stepping.StepMemory,
        sentences: Tensor,
        parents: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        """One step for R live rows of B sentences; reads and changes nothing in ``self.state``, draws no dropout.

        Args:
            tokens: the last token of each row, ``(R,)``.
            states: as :meth:`start_states` gives them, R rows, or fewer with ``parents``; not changed.
            memory_view: of the B sentences, from :meth:`prepare_memory`.
            sentences: the sentence of each row, ``(R,)``, ascending; a sentence may have any number of rows.
            parents: the state that each row continues, ``(R,)``; None: one each, in order.

        Returns:
            Outputs ``(R, H)``, the new states, and the attention ``(R, S)``.
        """
        return stepping.step(self, tokens, states, memory_view, sentences, parents)

    def _may_unroll_at_once(self, emb: Tensor, memory: Tensor) -> bool:
        if emb.size(1) == 1 and not torch.is_grad_enabled():
            return False  # one step of a search: nothing to gain
        reason = self._reason_for_steps()
        if reason and reason not in self._reasons_told:
            self._reasons_told.add(reason)
            logger.info("The input-feeding decoder runs step by step: %s.", reason)
        return reason is None

    def _reason_for_steps(self) -> str | None:
        """Why this decoder can't be unrolled in one function, or None."""
        if not isinstance(self.rnn, StackedLSTM):
            return "only LSTM layers are unrolled at once"
        if self.attn is None or self.attn.attn_type == "mlp":
            return "only dot and general attention are unrolled at once"
        if self.attn.learned_alpha is not None:
            return "the attention's alpha is learned"
        if self.context_gate is not None:
            return "it has a context gate"
        return "some of its layers were replaced (quantised, or adapted)" if self._has_replaced_layers() else None

    def _has_replaced_layers(self) -> bool:
        """Whether calling a layer may be something else than a product with its weight."""
        linear = (getattr(self.attn, name, None) for name in ("linear_in", "linear_out"))
        replaced = any(layer is not None and type(layer) is not nn.Linear for layer in linear)
        return replaced or any(type(cell) not in (nn.LSTMCell, nn.GRUCell) for cell in self.rnn.layers)

    def _target_lengths(self, tgt: Tensor) -> Tensor | None:
        """Lengths ``(batch,)`` without the padding behind, at least 1; None if all steps are to be run for all."""
        pad = getattr(self.embeddings, "word_padding_idx", None)
        if tgt.device.type != "cpu" or pad is None or self._coverage or self.copy_attn or self._reuse_copy_attn:
            return None
        places = torch.arange(1, tgt.size(1) + 1)
        lengths = ((tgt[:, :, 0] != pad) * places).amax(1).clamp_(min=1)
        # If no target fills the batch, a last token is the padding token itself, and is to be fed like any other.
        return lengths if int(lengths.min()) < tgt.size(1) == int(lengths.max()) else None

    def _unroll_at_once(
        self, emb: Tensor, memory: Tensor, mask: SourceMask, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """What :meth:`_unroll_by_steps` computes, in one autograd function; nothing at padding behind the target."""
        device_type = emb.device.type
        state = (self.state["input_feed"].squeeze(0), *self.state["hidden"])
        order, ragged = None, Ragged.full(emb.size(0), emb.size(1))
        if lengths is not None:
            lengths, order = lengths.sort(descending=True, stable=True)
            ragged = Ragged.from_lengths(lengths, emb.size(1))
            emb, memory, mask = emb.index_select(0, order), memory.index_select(0, order), mask.select(order)
            state = tuple(part.index_select(-2, order) for part in state)
        dtype = _autocast_dtype(device_type) or emb.dtype  # of the products; autograd casts the gradients back
        emb = emb.to(dtype)
        dropout = None
        if self.training and (self.dropout.p > 0 or self.rnn.dropout.p > 0):
            dropout = self._draw_dropout(emb.device, sum(ragged.rows))
        w_context, w_query = self.attn.linear_out.weight.split(self.hidden_size, 1)
        keys, values = self.attn.keys(memory), memory @ w_context.t()
        cells = [(cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh) for cell in self.rnn.layers]
        with torch.autocast(device_type, enabled=False):
            outputs, probs, hidden, cell = unroll(
                Plan(self.attn.alpha, mask, ragged, dropout),
                emb,
                keys.to(dtype),
                values.to(dtype),
                w_query.to(dtype),
                tuple(part.to(dtype) for part in state),
                [tuple(part.to(dtype) for part in cell) for cell in cells],
            )
        if order is not None:
            back = order.argsort()
            outputs, probs = outputs.index_select(0, back), probs.index_select(0, back)
            hidden, cell = hidden.index_select(1, back), cell.index_select(1, back)
        self.state["hidden"] = (hidden, cell)
        return outputs, probs

    def _draw_dropout(self, device: torch.device, tokens: int) -> Kept:
        """Between layers, and last of the attentional output, ``(layers, hidden * tokens)``."""
        between, output, size = self.rnn.dropout.p, self.dropout.p, self.hidden_size * tokens
        if between == output or self.num_layers == 1:
            return Kept.draw((self.num_layers, size), output, device)
        shares = [between] * (self.num_layers - 1) + [output]
        masks, scales = zip(*(Kept.draw((1, size), p, device) for p in shares))
        return Kept(torch.cat(masks), [scale for (scale,) in scales])

    def _unroll_by_steps(self, emb: Tensor, memory: Tensor, mask: SourceMask) -> tuple[Tensor, Tensor | None]:
        """Outputs and attention, one step after the other; leaves the new recurrent state in ``self.state``."""
        hidden, feed = self.state["hidden"], self.state["input_feed"].squeeze(0)
        keys = None if self.attn is None else self.attn.keys(memory)
        outputs, probs = [], []
        for emb_t in emb.unbind(1):
            dec_in = torch.cat([emb_t, feed], 1)
            rnn_out, hidden = self.rnn(dec_in, hidden)
            feed = rnn_out
            if self.attn is not None:
                attended, probs_t = self.attn.attend(rnn_out.unsqueeze(1), memory, keys, mask)
                feed = attended.squeeze(1)
                probs.append(probs_t)
            if self.context_gate is not None:
                feed = self.context_gate(dec_in, rnn_out, feed)
            feed = self.dropout(feed)
            outputs.append(feed)
        self.state["hidden"] = hidden if isinstance(hidden, tuple) else (hidden,)
        return torch.stack(outputs, 1), torch.cat(probs, 1) if probs else None
