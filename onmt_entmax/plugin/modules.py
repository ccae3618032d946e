"""Our recurrent encoder and decoders in OpenNMT-py's clothes: built from its options, with its decoder state.

Its convolutional models are here, too, mended so that padding has no influence.

Names and order of parameters are those of OpenNMT-py, so that checkpoints and optimizer states go both ways. Private
names of OpenNMT-py's decoders (``_coverage``) are used here only.
"""

from __future__ import annotations

import torch
from onmt.decoders import CNNDecoder
from onmt.decoders.decoder import RNNDecoderBase
from onmt.encoders import CNNEncoder
from onmt.modules import context_gate_factory
from onmt.utils.cnn_factory import SCALE_WEIGHT
from onmt.utils.rnn_factory import rnn_factory
from torch import Tensor, nn

from onmt_entmax.engines.dropout import Dropout
from onmt_entmax.errors import invalid_setting
from onmt_entmax.model import decoder as model
from onmt_entmax.model import encoder
from onmt_entmax.model.attention import GlobalAttention
from onmt_entmax.model.decoder import DecoderState, StackedCells
from onmt_entmax.model.stepping import pack
from onmt_entmax.plugin.alphas import alpha_of


def _dropout(opt) -> float:
    return opt.dropout[0] if isinstance(opt.dropout, list) else opt.dropout


class Encoder(encoder.Encoder):
    """In place of ``RNNEncoder``."""

    @classmethod
    def from_opt(cls, opt, embeddings: nn.Module) -> Encoder:
        """Build the encoder from OpenNMT-py's model options and its source embeddings."""
        embeddings.dropout = Dropout(embeddings.dropout.p)
        directions = 2 if opt.brnn else 1
        if opt.enc_hid_size % directions:
            raise invalid_setting("enc_hid_size", opt.enc_hid_size, "It must be even for two directions (`brnn`).")
        rnn, reads_padding = rnn_factory(
            opt.rnn_type,
            input_size=embeddings.embedding_size,
            hidden_size=opt.enc_hid_size // directions,
            num_layers=opt.enc_layers,
            dropout=_dropout(opt),
            bidirectional=opt.brnn,
        )
        return cls(embeddings, rnn, opt.bridge, packs=not reads_padding)

    def update_dropout(self, dropout: float, attention_dropout: float | None = None) -> None:
        """As OpenNMT-py has it: between the layers."""
        self.rnn.dropout = dropout


class _InOpenNMT:
    """The decoder state as OpenNMT-py keeps it: a dictionary, batch in the second dimension."""

    def _dress(self, opt) -> None:
        self.attentional = self.attn is not None
        self.bidirectional_encoder, self.hidden_size = opt.brnn, opt.dec_hid_size
        self._coverage = opt.coverage_attn
        self.state: dict = {}

    # they read and write `state`, `_coverage`, `bidirectional_encoder` and `hidden_size`
    init_state = RNNDecoderBase.init_state
    map_state = RNNDecoderBase.map_state
    detach_state = RNNDecoderBase.detach_state

    def forward(self, tgt: Tensor, enc_out: Tensor, src_len: Tensor | None = None, step=None, **kwargs):
        """Run the decoder over given target tokens, from its state on.

        Args:
            tgt: tokens, ``(batch, tgt_len, features)``.
            enc_out: memory, ``(batch, src_len, hidden)``; its lengths are ``(batch,)``.

        Returns:
            Outputs ``(batch, tgt_len, hidden)`` and a dictionary of attentions ``(batch, tgt_len, src_len)``, see
            ``model.decoder``.
        """
        coverage = self.state["coverage"]
        state = DecoderState(
            self.state["input_feed"].squeeze(0), self.state["hidden"], None if coverage is None else coverage.squeeze(0)
        )
        outputs, attns, state = self.run(tgt, enc_out, src_len, state)
        self.state["hidden"], self.state["input_feed"] = state.hidden, state.feed.unsqueeze(0)
        self.state["coverage"] = None if state.coverage is None else state.coverage.unsqueeze(0)
        return outputs, attns


def _context_gate(opt, input_size: int) -> nn.Module | None:
    if opt.context_gate is None:
        return None
    return context_gate_factory(opt.context_gate, input_size, *[opt.dec_hid_size] * 3)


def _attention(opt) -> GlobalAttention | None:
    if opt.global_attention in ("none", None):
        if opt.coverage_attn:
            raise invalid_setting("coverage_attn", True, "It needs an attention (`global_attention`).")
        return None
    return GlobalAttention(opt.dec_hid_size, opt.coverage_attn, opt.global_attention, alpha_of(opt, "global_attention"))


class StandardDecoder(_InOpenNMT, model.StandardDecoder):
    """In place of ``StdRNNDecoder``; no coverage, as there."""

    @classmethod
    def from_opt(cls, opt, embeddings: nn.Module) -> StandardDecoder:
        """Build the decoder from OpenNMT-py's model options, ``global_attention_alpha`` and its target embeddings.

        Raises:
            UserError: alpha below 1; coverage, which needs input feeding.
        """
        if opt.coverage_attn:
            raise invalid_setting("coverage_attn", True, "It needs the input-feeding decoder (`input_feed: 1`).")
        embeddings.dropout = Dropout(embeddings.dropout.p)
        size = embeddings.embedding_size
        sizes = {"input_size": size, "hidden_size": opt.dec_hid_size, "num_layers": opt.dec_layers}
        # in this order they draw the initial values that OpenNMT-py's draw
        rnn, _ = rnn_factory(opt.rnn_type, dropout=_dropout(opt), **sizes)
        gate = _context_gate(opt, size)
        decoder = cls(embeddings, rnn, _attention(opt), context_gate=gate, dropout=_dropout(opt))
        decoder._dress(opt)
        return decoder

    def update_dropout(self, dropout: float, attention_dropout: float | None = None) -> None:
        """As OpenNMT-py has it: of the outputs and of the embeddings."""
        self.dropout.p = dropout
        self.embeddings.update_dropout(dropout)


class InputFeedDecoder(_InOpenNMT, model.InputFeedDecoder):
    """In place of ``InputFeedRNNDecoder``."""

    @classmethod
    def from_opt(cls, opt, embeddings: nn.Module) -> InputFeedDecoder:
        """Build the decoder from OpenNMT-py's model options, ``global_attention_alpha`` and its target embeddings.

        Raises:
            UserError: alpha below 1, or an attention that is needed and left out.
        """
        if opt.rnn_type == "SRU":
            raise invalid_setting("rnn_type", "SRU", "It has no input feeding: set `input_feed: 0`.")
        embeddings.dropout = Dropout(embeddings.dropout.p)
        cell = nn.LSTMCell if opt.rnn_type == "LSTM" else nn.GRUCell  # OpenNMT-py has these two here
        size = embeddings.embedding_size + opt.dec_hid_size
        # in this order they draw the initial values that OpenNMT-py's draw
        rnn = StackedCells(cell, opt.dec_layers, size, opt.dec_hid_size, _dropout(opt))
        gate = _context_gate(opt, size)
        decoder = cls(
            embeddings, rnn, _attention(opt), context_gate=gate, dropout=_dropout(opt), coverage=opt.coverage_attn
        )
        decoder._dress(opt)
        return decoder

    def update_dropout(self, dropout: float, attention_dropout: float | None = None) -> None:
        """As OpenNMT-py has it: of the outputs, between the layers and of the embeddings."""
        self.dropout.p = dropout
        self.rnn.dropout.p = dropout
        self.embeddings.update_dropout(dropout)

    def start_states(self, enc_final_hs) -> tuple[Tensor, ...]:
        """States of B sentences before the first step of a search, from the encoder's last state."""
        return pack(DecoderState.from_encoder(enc_final_hs, self.bidirectional_encoder, self.hidden_size))


def _padding(src_len: Tensor | None, width: int) -> Tensor | None:
    """True at padding, ``(batch, 1, width)``; a source without tokens has none, as no row may be masked as a whole."""
    if src_len is None:
        return None
    padding = torch.arange(width, device=src_len.device) >= src_len.view(-1, 1)
    return (padding & (src_len.view(-1, 1) > 0)).unsqueeze(1)


class MaskedCNNEncoder(CNNEncoder):
    """OpenNMT-py's convolutional encoder, in which padding is what lies beyond a sentence's ends: zero."""

    def forward(self, input: Tensor, src_len: Tensor | None = None, hidden=None):
        """Encode tokens ``(batch, src_len, features)``: two ``(batch, hidden, src_len)``, and the lengths."""
        padding = _padding(src_len, input.size(1))
        x = self.linear(self.embeddings(input)).transpose(1, 2)  # (batch, hidden, src_len)
        x = first = x if padding is None else x.masked_fill(padding, 0)
        for conv in self.cnn.layers:
            x = (x + conv(x.unsqueeze(3)).squeeze(3)) * SCALE_WEIGHT
            x = x if padding is None else x.masked_fill(padding, 0)
        return x, first, src_len


class MaskedCNNDecoder(CNNDecoder):
    """OpenNMT-py's convolutional decoder, whose attention leaves out padding."""

    def forward(self, tgt: Tensor, enc_out: Tensor, src_len: Tensor | None = None, step=None, **kwargs):
        """See OpenNMT-py; ``enc_out`` is ``(batch, hidden, src_len)``."""
        padding = _padding(src_len, enc_out.size(2))
        for attention in self.attn_layers:
            attention.apply_mask(padding)
        return super().forward(tgt, enc_out, step=step, **kwargs)
