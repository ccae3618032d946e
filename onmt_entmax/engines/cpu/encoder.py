"""LSTM layers of an encoder on a CPU, each in one autograd function.

PyTorch runs padded batches through small operations, one direction after the other and with a graph node for each; here
both directions of a layer take each step together, sentences leave the products when they end, and each weight's
gradient is one product over all steps.

Letters: B sentences, N tokens of all of them, n sentences in a step, E embedding size (or what the layer below gives),
H units of a direction, D directions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from onmt_entmax.engines.cpu.blocks import Blocks, to_columns, to_rows, transposed
from onmt_entmax.engines.cpu.cells import cell_backward, cell_forward
from onmt_entmax.engines.cpu.loops import NO_MASK, NONE, threads_for
from onmt_entmax.engines.cpu.products import arithmetic
from onmt_entmax.engines.lstm import writable
from onmt_entmax.engines.ragged import Ragged


def encode(engine, rnn: nn.Module, emb: Tensor, src_len: Tensor | None) -> tuple[Tensor, tuple[Tensor, Tensor]] | None:
    """See ``engines.Engine.encode``; None for other layers than LSTM, and for sources without tokens."""
    if not torch.is_grad_enabled():  # without a backward pass PyTorch has a fast kernel of its own
        return None
    if type(rnn) is not nn.LSTM or not rnn.bias or rnn.proj_size > 0:
        return None
    if src_len is None or src_len.numel() == 0 or int(src_len.min()) == 0:
        return None
    lengths, order = src_len.view(-1).cpu(), None
    if bool((lengths[1:] > lengths[:-1]).any()):  # the function wants the longest first
        lengths, order = lengths.sort(descending=True, stable=True)
        emb = emb.index_select(0, order)
    longest = int(lengths[0])
    ragged = Ragged.from_lengths(lengths, longest)
    mirrored = ragged.mirrored(lengths)
    out = ragged.pack(emb[:, :longest])  # (N, E)
    hidden, cell = [], []
    for index in range(rnn.num_layers):
        if index > 0 and rnn.training and rnn.dropout > 0:
            out = engine.dropout(out, rnn.dropout)
        out, last_hidden, last_cell = EncodeLayer.apply(ragged, mirrored, engine.threads, out, *_weights(rnn, index))
        hidden.append(last_hidden)
        cell.append(last_cell)
    memory, final = ragged.unpack(out), (torch.cat(hidden), torch.cat(cell))
    if order is not None:
        back = order.argsort()
        memory, final = memory.index_select(0, back), tuple(state.index_select(1, back) for state in final)
    return memory, final


def _weights(rnn: nn.LSTM, layer: int) -> list[Tensor]:
    """The layer's w_ih, w_hh, b_ih, b_hh of each direction."""
    names = ("weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l")
    ends = ("", "_reverse") if rnn.bidirectional else ("",)
    return [getattr(rnn, f"{name}{layer}{end}") for end in ends for name in names]


class EncodeLayer(torch.autograd.Function):
    """One LSTM layer of D directions over the tokens of a ragged batch: from ``(N, E)`` to ``(N, D * H)``.

    Also returns the last states, ``(D, B, H)``. Each direction has its own ``Blocks``, those of the second in the
    order in which it reads: each sentence ``mirrored``.
    """

    @staticmethod
    def forward(ctx, ragged, mirrored, threads, x, *weights):
        ctx.set_materialize_grads(False)
        directions = range(len(weights) // 4)
        w_ih, w_hh, b_ih, b_hh = (weights[k::4] for k in range(4))
        size, batch, tokens = w_hh[0].size(1), ragged.batch, x.size(0)
        threads, none = threads or threads_for(size * batch), NONE[2]
        multiply = arithmetic()
        read = [multiply.operand(x if d == 0 else x.index_select(0, mirrored)) for d in directions]
        w_new, w_state = ([multiply.operand(part) for part in parts] for parts in (w_ih, w_hh))
        gates, cells, previous = (
            [Blocks.empty(features, ragged, x) for _ in directions] for features in (4 * size, size, size)
        )
        bias = [(first + second).detach().numpy() for first, second in zip(b_ih, b_hh)]
        first, state, last_cell = (x.new_zeros(len(directions), size, batch) for _ in range(3))
        np_first, np_state = first.numpy(), state.numpy()
        result = x.new_empty(tokens, len(directions) * size)
        index, np_result, at = _index(mirrored), result.numpy(), 0
        for t, n in enumerate(ragged.rows):
            last = t + 1 == ragged.steps
            for d in directions:
                gate = gates[d].tensors[t]
                multiply.mm(w_new[d], read[d][at : at + n].t(), out=gate)
                if t > 0:  # the first state is zero, and so is its product
                    multiply.addmm(gate, w_state[d], previous[d].tensors[t], out=gate)
                cell_forward(
                    *(threads, bias[d], gates[d].arrays[t], cells[d].arrays[t]),
                    *(cells[d].arrays[t - 1] if t > 0 else np_first[d], np_state[d]),
                    *(none if last else previous[d].arrays[t + 1], 0, none, *NO_MASK),
                )
                to_rows(threads, np_state[d], index[d], at, n, np_result, d * size)
                ended = 0 if last else ragged.rows[t + 1]
                if ended < n:
                    last_cell[d, :, ended:n] = cells[d].tensors[t][:, ended:]
            at += n
        ctx.threads, ctx.ragged, ctx.multiply = threads, ragged, multiply
        buffers = (buffer.flat for part in (gates, cells, previous) for buffer in part)
        ctx.save_for_backward(mirrored, x, *w_ih, *w_hh, *buffers)
        return result, state.transpose(1, 2), last_cell.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_result, d_last_hidden, d_last_cell):
        threads, ragged, multiply = ctx.threads, ctx.ragged, ctx.multiply
        mirrored, x, *rest = ctx.saved_tensors
        directions = range(len(rest) // 5)
        w_ih, w_hh, gates, *buffers = (rest[k * len(directions) : (k + 1) * len(directions)] for k in range(5))
        d_gates = [Blocks.of(flat, ragged) for flat in writable(gates)]
        cells, previous = ([Blocks.of(flat, ragged) for flat in part] for part in buffers)
        size, batch = w_hh[0].size(1), ragged.batch
        # Gradients of the output, of the state and of the cell; an ended sentence's stay until its last step.
        d_out, d_state, d_cell, first = (x.new_zeros(len(directions), size, batch) for _ in range(4))
        if d_last_hidden is not None:
            d_state.copy_(d_last_hidden.transpose(1, 2))
        if d_last_cell is not None:
            d_cell.copy_(d_last_cell.transpose(1, 2))
        w_hh_t = [multiply.operand(transposed(part)) for part in w_hh]
        np_d_result = None if d_result is None else d_result.contiguous().numpy()
        np_d_out, np_d_state, np_d_cell, np_first = (part.numpy() for part in (d_out, d_state, d_cell, first))
        index, at = _index(mirrored), x.size(0)
        for t in range(ragged.steps - 1, -1, -1):
            n = ragged.rows[t]
            at -= n
            for d in directions:
                if np_d_result is not None:
                    to_columns(threads, np_d_result, d * size, index[d], at, n, np_d_out[d], size)
                cell_backward(
                    *(threads, d_gates[d].arrays[t], cells[d].arrays[t]),
                    *(cells[d].arrays[t - 1] if t > 0 else np_first[d], np_d_out[d], 0, np_d_state[d]),
                    *(*NO_MASK, np_d_cell[d]),
                )
                if t > 0:
                    multiply.mm(w_hh_t[d], d_gates[d].tensors[t], out=d_state[d][:, :n])
        d_x, gradients = None, []
        for d in directions:
            d_gate, begun = d_gates[d].columns(threads), previous[d].columns(threads)
            read, d_bias = x if d == 0 else x.index_select(0, mirrored), d_gate.sum(1)
            d_gate = multiply.operand(d_gate)
            of_read, of_begun = multiply.mm(d_gate, read), multiply.mm(d_gate[:, batch:], begun[:, batch:].t())
            gradients += [of_read, of_begun, d_bias, d_bias]
            if ctx.needs_input_grad[3]:
                d_read = multiply.mm(d_gate.t(), w_ih[d])
                d_x = d_read if d == 0 else d_x.add_(d_read.index_select(0, mirrored))
        return None, None, None, d_x, *gradients


def _index(mirrored: Tensor) -> list[np.ndarray]:
    """Row of each direction's columns in the order of the first direction."""
    return [np.arange(mirrored.numel()), mirrored.numpy()]
