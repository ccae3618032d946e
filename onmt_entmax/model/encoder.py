"""OpenNMT-py's recurrent encoder, with LSTM layers on a CPU unrolled in one autograd function per layer.

Parameters and their names are those of OpenNMT-py. PyTorch runs padded batches through small operations, one direction
after the other and with a graph node for each; here both directions of a layer take each step together, sentences drop
out of the products when they end, and each weight's gradient is one product over all steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from onmt.encoders.rnn_encoder import RNNEncoder
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from onmt_entmax.model.kernels import Dropout, cell_backward, cell_forward, dropout_factors


class Encoder(RNNEncoder):
    """OpenNMT-py's ``RNNEncoder``; all but LSTM layers on a CPU in float32 or float64 run its code."""

    @classmethod
    def from_opt(cls, opt, embeddings):
        """Build the encoder from OpenNMT-py's model options and its source embeddings."""
        embeddings.dropout = Dropout(embeddings.dropout.p)
        return super().from_opt(opt, embeddings)

    def forward(self, src: Tensor, src_len: Tensor | None = None):
        """Encode source tokens ``(batch, src_len, features)`` of lengths ``(batch,)``.

        Returns:
            Memory ``(batch, longest, hidden)``, zero at padding; last hidden and cell states, each
            ``(layers * directions, batch, hidden / directions)``; and ``src_len``.
        """
        if not self._may_unroll(src, src_len):
            return super().forward(src, src_len)
        lengths = src_len.view(-1)
        order = None
        if bool((lengths[1:] > lengths[:-1]).any()):  # the function wants the longest first
            lengths, order = lengths.sort(descending=True, stable=True)
            src = src.index_select(0, order)
        longest = int(lengths[0])
        out = self.embeddings(src)[:, :longest].transpose(0, 1)  # (S, B, E)
        ragged = Ragged.from_lengths(lengths, longest)
        hidden, cell = [], []
        for layer in range(self.rnn.num_layers):
            if layer > 0 and self.training and self.rnn.dropout > 0:
                out = out * dropout_factors(out, tuple(out.shape), self.rnn.dropout)
            out, last_hidden, last_cell = _Layer.apply(ragged, out, *_weights(self.rnn, layer))
            hidden.append(last_hidden)
            cell.append(last_cell)
        memory, final = out.transpose(0, 1), (torch.cat(hidden), torch.cat(cell))
        if order is not None:
            back = order.argsort()
            memory, final = memory.index_select(0, back), tuple(state.index_select(1, back) for state in final)
        if self.use_bridge:
            final = self._bridge(final)
        return memory.contiguous(), final, src_len

    def _may_unroll(self, src: Tensor, src_len: Tensor | None) -> bool:
        if not torch.is_grad_enabled():  # without a backward pass PyTorch has a fast kernel of its own
            return False
        if type(self.rnn) is not nn.LSTM or src.device.type != "cpu" or src_len is None:
            return False
        if not self.rnn.bias or self.rnn.weight_ih_l0.dtype not in (torch.float32, torch.float64):
            return False
        try:
            mixed = torch.is_autocast_enabled("cpu")
        except TypeError:  # torch 2.2 has one function per device
            mixed = torch.is_autocast_cpu_enabled()
        return not mixed and self.rnn.proj_size == 0 and src_len.numel() > 0 and int(src_len.min()) > 0


def _weights(rnn: nn.LSTM, layer: int) -> list[Tensor]:
    """Of each direction of the layer: w_ih, w_hh, b_ih, b_hh."""
    names = ("weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l")
    ends = ("", "_reverse") if rnn.bidirectional else ("",)
    return [getattr(rnn, f"{name}{layer}{end}") for end in ends for name in names]


class Ragged(NamedTuple):
    """How the sentences of a batch, longest first, lie in ``(S, B)`` rows, time-first.

    Attributes:
        rows: how many sentences reach each step, S numbers.
        reverse: for each of the S * B rows the one that takes its place when each sentence is read from its end;
            padding stays where it is, and doing it twice changes nothing.
        last: the row of each sentence's last token, ``(B,)``.
    """

    rows: list[int]
    reverse: Tensor
    last: Tensor

    @classmethod
    def from_lengths(cls, lengths: Tensor, longest: int) -> Ragged:
        """Of lengths ``(B,)`` in descending order."""
        step, sentence = torch.arange(longest).unsqueeze(1), torch.arange(lengths.numel())
        inside = step < lengths  # (S, B)
        mirrored = torch.where(inside, lengths - 1 - step, step)
        reverse = (mirrored * lengths.numel() + sentence).view(-1)
        last = (lengths - 1) * lengths.numel() + sentence
        return cls(inside.sum(1).tolist(), reverse, last)


class _Layer(torch.autograd.Function):
    """One LSTM layer of D directions over a ragged batch: from ``(S, B, E)`` to ``(S, B, D * H)``.

    Also returns the last states, ``(D, B, H)``. Buffers have features before sentences (see ``kernels``), those that
    meet a weight ``(D, features, S, B)``; the second direction is in reading order, that is each sentence reversed.
    """

    @staticmethod
    def forward(ctx, ragged, x, *weights):
        ctx.set_materialize_grads(False)
        directions = len(weights) // 4
        w_ih, w_hh, b_ih, b_hh = (weights[k::4] for k in range(4))
        steps, batch, features = x.shape
        size = w_hh[0].size(1)
        x = x.contiguous().view(-1, features)
        read = [x, x.index_select(0, ragged.reverse)][:directions]
        gates = x.new_empty(directions, 4 * size, steps, batch)
        for d in range(directions):
            bias = (b_ih[d] + b_hh[d]).unsqueeze(1)
            torch.addmm(bias, w_ih[d], read[d].t(), out=gates[d].view(4 * size, -1))
        own = torch.stack(w_hh)  # (D, 4H, H)
        hidden = x.new_zeros(directions, size, steps + 1, batch)
        cells = x.new_zeros(directions, steps + 1, size, batch)
        squashed = torch.zeros_like(cells[:, 1:])
        for t, n in enumerate(ragged.rows):
            gate, before, after = gates[:, :, t, :n], cells[:, t, :, :n], cells[:, t + 1, :, :n]
            if t > 0:  # the first state is zero
                gate.baddbmm_(own, hidden[:, :, t, :n])
            cell_forward(gate, before, after, squashed[:, t, :, :n], hidden[:, :, t + 1, :n])
        ctx.ragged = ragged
        ctx.save_for_backward(x, gates, hidden, cells, squashed, *w_ih, own)
        flat = hidden.view(directions, size, -1)[:, :, batch:].transpose(1, 2)  # (D, S * B, H)
        out = torch.cat([flat[0], *(part.index_select(0, ragged.reverse) for part in flat[1:])], 1)
        last_hidden = flat.index_select(1, ragged.last)
        last_cell = cells[:, ragged.last // batch + 1, :, torch.arange(batch)].transpose(0, 1)
        return out.view(steps, batch, -1), last_hidden, last_cell.contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx, d_out, d_last_hidden, d_last_cell):
        ragged = ctx.ragged
        x, gates, hidden, cells, squashed, *w_ih, own = ctx.saved_tensors
        directions, steps, size, batch = squashed.shape
        d_gates = torch.zeros_like(gates)  # padding stays zero
        d_hidden, d_cell = (
            torch.zeros_like(cells[:, 0])
            if part is None
            else part.transpose(1, 2).clone(memory_format=torch.contiguous_format)
            for part in (d_last_hidden, d_last_cell)
        )
        if d_out is not None:
            parts = d_out.reshape(steps * batch, directions, size).unbind(1)
            parts = [parts[0], *(part.index_select(0, ragged.reverse) for part in parts[1:])]
            d_out = torch.stack([part.t() for part in parts]).view(directions, size, steps, batch)
        back = own.transpose(1, 2)
        for t in range(steps - 1, -1, -1):
            n = ragged.rows[t]
            if d_out is not None:
                d_hidden[:, :, :n] += d_out[:, :, t, :n]
            d_gate, out = d_gates[:, :, t, :n], hidden[:, :, t + 1, :n]
            before, squash = cells[:, t, :, :n], squashed[:, t, :, :n]
            cell_backward(d_gate, gates[:, :, t, :n], before, squash, out, d_hidden[:, :, :n], d_cell[:, :, :n])
            if t > 0:
                d_hidden[:, :, :n] = torch.bmm(back, d_gate)
        flat = d_gates.view(directions, 4 * size, -1)
        d_w_hh = torch.bmm(flat, hidden.view(directions, size, -1)[:, :, : steps * batch].transpose(1, 2))
        d_bias = flat.sum(2)
        read = [x, x.index_select(0, ragged.reverse)][:directions]
        d_x = None
        if ctx.needs_input_grad[1]:
            d_x = flat[0].t() @ w_ih[0]
            for d in range(1, directions):
                d_x += (flat[d].t() @ w_ih[d]).index_select(0, ragged.reverse)
            d_x = d_x.view(steps, batch, -1)
        gradients = []
        for d in range(directions):
            gradients += [flat[d] @ read[d], d_w_hh[d], d_bias[d], d_bias[d]]
        return None, d_x, *gradients
