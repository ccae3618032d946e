"""OpenNMT-py's recurrent encoder, with LSTM layers on a CPU unrolled in one autograd function per layer.

Parameters and their names are those of OpenNMT-py. PyTorch runs padded batches through small operations, one direction
after the other and with a graph node for each; here both directions of a layer take each step together, sentences drop
out of the products when they end, and each weight's gradient is one product over all steps.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from onmt.encoders.rnn_encoder import RNNEncoder
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from onmt_entmax.model.kernels import (
    Dropout,
    cell_backward,
    cell_forward,
    cell_slopes,
    compiled_for,
    dropout_factors,
)
from onmt_entmax.model.ragged import Ragged


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
        ragged = Ragged.from_lengths(lengths, longest)
        mirrored = ragged.mirrored(lengths)
        out = ragged.pack(self.embeddings(src)[:, :longest])  # (N, E)
        hidden, cell = [], []
        for layer in range(self.rnn.num_layers):
            if layer > 0 and self.training and self.rnn.dropout > 0:
                out = out * dropout_factors(out, tuple(out.shape), self.rnn.dropout)
            out, last_hidden, last_cell = _Layer.apply(ragged, mirrored, out, *_weights(self.rnn, layer))
            hidden.append(last_hidden)
            cell.append(last_cell)
        memory, final = ragged.unpack(out), (torch.cat(hidden), torch.cat(cell))
        if order is not None:
            back = order.argsort()
            memory, final = memory.index_select(0, back), tuple(state.index_select(1, back) for state in final)
        if self.use_bridge:
            final = self._bridge(final)
        return memory, final, src_len

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


class _Layer(torch.autograd.Function):
    """One LSTM layer of D directions over the tokens of a ragged batch: from ``(N, E)`` to ``(N, D * H)``.

    Also returns the last states, ``(D, B, H)``. Buffers are ``(D, features, N)`` (see ``kernels`` and ``ragged``); the
    second direction is in reading order, that is each sentence ``mirrored``.
    """

    @staticmethod
    def forward(ctx, ragged, mirrored, x, *weights):
        ctx.set_materialize_grads(False)
        directions = len(weights) // 4
        w_ih, w_hh, b_ih, b_hh = (weights[k::4] for k in range(4))
        size, batch, tokens = w_hh[0].size(1), ragged.batch, x.size(0)
        read = [x, x.index_select(0, mirrored)][:directions]
        gates = x.new_empty(directions, 4 * size, tokens)
        for d in range(directions):
            torch.mm(w_ih[d], read[d].t(), out=gates[d])
        bias = torch.stack([first + second for first, second in zip(b_ih, b_hh)])
        own = torch.stack(w_hh)  # (D, 4H, H)
        hidden, cells, squashed = (x.new_empty(directions, size, tokens) for _ in range(3))
        take_step = _forward_step(ragged, own, bias, gates, cells, squashed, hidden)
        at = before_at = 0
        for n in ragged.rows:
            take_step(at, n, before_at)
            before_at, at = at, at + n
        ctx.ragged = ragged
        ctx.save_for_backward(mirrored, x, gates, hidden, cells, squashed, *w_ih, own)
        last = mirrored[:batch]  # a sentence read from its end begins with its last token
        flat = hidden.transpose(1, 2)  # (D, N, H)
        result = torch.cat([flat[0], *(part.index_select(0, mirrored) for part in flat[1:])], 1)
        return result, flat.index_select(1, last), cells.transpose(1, 2).index_select(1, last)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_result, d_last_hidden, d_last_cell):
        ragged = ctx.ragged
        mirrored, x, gates, hidden, cells, squashed, *w_ih, own = ctx.saved_tensors
        directions, size, tokens = hidden.shape
        batch, last = ragged.batch, mirrored[: ragged.batch]
        if d_result is None:
            d_hidden = torch.zeros_like(hidden)
        else:
            parts = d_result.reshape(tokens, directions, size).unbind(1)
            parts = [parts[0], *(part.index_select(0, mirrored) for part in parts[1:])]
            d_hidden = torch.stack([part.t() for part in parts])  # (D, H, N)
        if d_last_hidden is not None:
            d_hidden.index_add_(2, last, d_last_hidden.transpose(1, 2))
        d_cell = hidden.new_zeros(directions, size, batch)
        if d_last_cell is not None:
            d_cell.copy_(d_last_cell.transpose(1, 2))
        previous = torch.empty_like(hidden)  # the state that each step began with
        back = own.transpose(1, 2).contiguous()  # products with a transposed view take longer, at every step
        take_step, d_gates = _backward_step(gates, cells, squashed, d_hidden, d_cell)
        d_outs, d_steps, outs, begins = (ragged.split(buffer) for buffer in (d_hidden, d_gates, hidden, previous))
        next_at = tokens
        for t in range(ragged.steps - 1, -1, -1):
            n = ragged.rows[t]
            at = next_at - n
            take_step(at, n, at - ragged.rows[t - 1] if t > 0 else 0)
            next_at = at
            if t > 0:
                d_outs[t - 1][:, :, :n].baddbmm_(back, d_steps[t])
                begins[t].copy_(outs[t - 1][:, :, :n])
        d_w_hh = torch.bmm(d_gates[:, :, batch:], previous[:, :, batch:].transpose(1, 2))
        d_bias = d_gates.sum(2)
        d_x = None
        if ctx.needs_input_grad[2]:
            d_x = d_gates[0].t() @ w_ih[0]
            for d in range(1, directions):
                d_x += (d_gates[d].t() @ w_ih[d]).index_select(0, mirrored)
        gradients = []
        for d in range(directions):
            read = x if d == 0 else x.index_select(0, mirrored)
            gradients += [d_gates[d] @ read, d_w_hh[d], d_bias[d], d_bias[d]]
        return None, None, d_x, *gradients


def _forward_step(
    ragged: Ragged, own: Tensor, bias: Tensor, gates: Tensor, cells: Tensor, squashed: Tensor, hidden: Tensor
) -> Callable:
    """What takes one step, given its first column, its number of columns and the first column of the step before."""
    zeros = cells.new_zeros(cells.size(0), cells.size(1), ragged.batch)
    compiled = compiled_for(zeros.numel(), gates)
    if compiled:
        block = compiled.blocks(gates.size(0) * gates.size(1), ragged.batch, gates)
        arrays = list(zip(*(buffer.detach().numpy() for buffer in (bias, gates, cells, squashed, hidden, zeros))))

        def take_step(at: int, n: int, before_at: int) -> None:
            product, np_product = block(n)
            if at > 0:  # the first state is zero, and so is its product
                torch.bmm(own, hidden.narrow(2, before_at, n), out=product.view(*gates.shape[:2], n))
            parts = np.split(np_product, len(arrays))
            for part, (shift, gate, cell, squash, out, zero) in zip(parts, arrays):
                before = cell if at > 0 else zero
                compiled.cell_forward(shift, part, False, gate, cell, squash, at, n, before, before_at, out, at)

        return take_step

    gates += bias.unsqueeze(2)

    def take_step(at: int, n: int, before_at: int) -> None:
        gate, after, squash, out = (buffer.narrow(2, at, n) for buffer in (gates, cells, squashed, hidden))
        if at > 0:
            gate.baddbmm_(own, hidden.narrow(2, before_at, n))
        cell_forward(gate, cells.narrow(2, before_at, n) if at > 0 else zeros[:, :, :n], after, squash, out)

    return take_step


def _backward_step(
    gates: Tensor, cells: Tensor, squashed: Tensor, d_hidden: Tensor, d_cell: Tensor
) -> tuple[Callable, Tensor]:
    """What goes back through one step, given the same, and the gradient of the gates that it fills."""
    zeros = torch.zeros_like(d_cell)
    compiled = compiled_for(zeros.numel(), gates)
    if compiled:
        d_gates = torch.empty_like(gates)
        arrays = list(zip(*(part.numpy() for part in (gates, cells, squashed, d_hidden, d_cell, zeros, d_gates))))
        none = compiled.NONE[2]

        def take_step(at: int, n: int, before_at: int) -> None:
            for gate, cell, squash, d_out, d_state, zero, d_gate in arrays:
                before = cell if at > 0 else zero
                compiled.cell_backward(
                    *(gate, squash, at, n, before, before_at, d_out, 0, at, none, none, d_state, d_gate)
                )

        return take_step, d_gates

    d_gates, opened = cell_slopes(gates, squashed)
    forget = gates.narrow(1, d_cell.size(1), d_cell.size(1))

    def take_step(at: int, n: int, before_at: int) -> None:
        slopes, opens, keeps, d_out = (part.narrow(2, at, n) for part in (d_gates, opened, forget, d_hidden))
        before = cells.narrow(2, before_at, n) if at > 0 else zeros[:, :, :n]
        cell_backward(slopes, opens, keeps, before, d_out, d_cell[:, :, :n])

    return take_step, d_gates
