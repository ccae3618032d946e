"""What ``engines/decoder.py`` does, for float32 on a CPU: products by PyTorch, what is between them by compiled loops.

Letters and shapes are those of that module; each buffer is a block per step, until the gradients of weights need
columns. What is written into is always a copy: where a size is 1, ``.t().contiguous()`` would be a view of somebody
else's tensor.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from onmt_entmax.engines.cpu.attention import attend_backward, attend_forward, finish_backward, finish_forward
from onmt_entmax.engines.cpu.blocks import Blocks, scratch, to_columns, transposed
from onmt_entmax.engines.cpu.cells import cell_backward, cell_forward
from onmt_entmax.engines.cpu.loops import NO_MASK, NONE, threads_for
from onmt_entmax.engines.cpu.products import arithmetic
from onmt_entmax.engines.decoder import contiguous_transpose, gradients_at_once
from onmt_entmax.engines.lstm import writable

_NONE = NONE[2]


class UnrollCompiled(torch.autograd.Function):
    """As ``engines.decoder.UnrollOperations``, for alpha up to 2."""

    @staticmethod
    def forward(ctx, plan, emb, keys, values, w_query, feed, hidden, cell, *weights):
        ctx.set_materialize_grads(False)
        ragged, layers, alpha = plan.ragged, len(weights) // 4, float(plan.alpha)
        cells = [weights[4 * i : 4 * i + 4] for i in range(layers)]
        batch, steps, size, embedded = ragged.batch, ragged.steps, feed.size(-1), emb.size(-1)
        threads = plan.threads or threads_for(size * batch)
        multiply = arithmetic()
        weight = [multiply.operand(torch.cat([w_ih, w_hh], 1)) for w_ih, w_hh, _, _ in cells]
        w_out = multiply.operand(w_query)
        bias = [(b_ih + b_hh).detach().numpy() for _, _, b_ih, b_hh in cells]
        gates, memories = ([Blocks.empty(n * size, ragged, emb) for _ in range(layers)] for n in (4, 1))
        inputs = [Blocks.empty(part.size(1), ragged, emb) for part in weight]
        attended = Blocks.empty(size, ragged, emb)  # the attentional output before dropout
        queries, probs = emb.new_zeros(steps, batch, size), emb.new_zeros(steps, batch, keys.size(1))
        outputs = emb.new_zeros(batch, steps, size)
        lengths = torch.full((batch,), keys.size(1)) if plan.src_len is None else plan.src_len.long().contiguous()
        first = [contiguous_transpose(part) for part in cell]  # (H, B)
        state = [contiguous_transpose(part) for part in hidden]  # after each step, in the end the last ones
        last_cell = cell.clone()
        inputs[0].tensors[0][embedded : embedded + size] = feed.t()
        for read, own in zip(inputs, state):
            read.tensors[0][-size:] = own

        keys, values = keys.contiguous(), values.contiguous()
        np_keys, np_values, np_lengths, np_queries, np_probs, np_outputs, np_emb = (
            part.detach().numpy()
            for part in (keys, values, lengths, queries, probs, outputs, emb.reshape(batch * steps, embedded))
        )
        np_first, np_state = ([part.numpy() for part in parts] for parts in (first, state))
        masks, index, at = _masks(plan, layers), ragged.every_index().numpy(), 0
        for t, n in enumerate(ragged.rows):
            last = t + 1 == steps
            to_columns(threads, np_emb, 0, index, at, n, inputs[0].arrays[t], embedded)
            for i in range(layers):
                multiply.mm(weight[i], inputs[i].tensors[t], out=gates[i].tensors[t])
                cell_forward(
                    *(threads, bias[i], gates[i].arrays[t], memories[i].arrays[t]),
                    *(memories[i].arrays[t - 1] if t > 0 else np_first[i], np_state[i]),
                    *(_NONE if last else inputs[i].arrays[t + 1], weight[i].size(1) - size),
                    *((inputs[i + 1].arrays[t], *masks[i][t]) if i + 1 < layers else (_NONE, *NO_MASK)),
                )
            attend_forward(
                *(threads, np_state[-1], np_queries[t], np_keys, np_values, np_lengths, alpha, np_probs[t]),
                attended.arrays[t],
            )
            multiply.addmm(attended.tensors[t], w_out, state[-1][:, :n], out=attended.tensors[t])
            following = _NONE if last else inputs[0].arrays[t + 1]
            finish_forward(*(threads, attended.arrays[t], *masks[-1][t], np_outputs, t, following, embedded))
            ended = 0 if last else ragged.rows[t + 1]
            if ended < n:
                for i in range(layers):
                    last_cell[i, ended:n] = memories[i].tensors[t][:, ended:].t()
            at += n

        ctx.plan, ctx.multiply = plan, multiply
        ctx.save_for_backward(
            *(keys, values, w_query, attended.flat, queries, probs, lengths, *weights[::4], *weights[1::4], *first),
            *(buffer.flat for buffers in (gates, inputs, memories) for buffer in buffers),
        )
        last_hidden = torch.stack([part.t() for part in state])
        return outputs, probs.transpose(0, 1).clone(memory_format=torch.contiguous_format), last_hidden, last_cell

    @staticmethod
    @once_differentiable
    def backward(ctx, d_outputs, d_probs, d_last_hidden, d_last_cell):
        plan, multiply = ctx.plan, ctx.multiply
        ragged, steps, batch, alpha = plan.ragged, plan.ragged.steps, plan.ragged.batch, float(plan.alpha)
        keys, values, w_query, attended, queries, probs, lengths, *rest = ctx.saved_tensors
        layers = len(rest) // 6
        w_ih, w_hh, first, gates, *buffers = (rest[k * layers : (k + 1) * layers] for k in range(6))
        d_gates = [Blocks.of(flat, ragged) for flat in writable(gates)]  # each step's when it had its turn
        inputs, memories = ([Blocks.of(flat, ragged) for flat in part] for part in buffers)
        attended = Blocks.of(attended, ragged)
        size = queries.size(2)
        threads = plan.threads or threads_for(size * batch)

        d_results, d_scores = torch.zeros_like(queries), torch.zeros_like(probs)
        result_of, hidden_of = (scratch(size, batch, queries) for _ in range(2))
        # By layer: the gradient of what a step reads from below, and of its own state, (2H, B); that of its cell.
        # Those of an ended sentence stay as they are until its last step.
        d_read = [queries.new_zeros(2 * size, batch) for _ in range(layers)]
        d_cell = [queries.new_zeros(size, batch) for _ in range(layers)]
        for i in range(layers):
            if d_last_hidden is not None:
                d_read[i][size:] = d_last_hidden[i].t()
            if d_last_cell is not None:
                d_cell[i].copy_(d_last_cell[i].t())
        # copied, as products with a transposed view take a fifth more, at every step
        recurrent = [multiply.operand(transposed(read[:, -size:], own)) for read, own in zip(w_ih, w_hh)]
        w_query_t = multiply.operand(transposed(w_query))

        np_keys, np_values, np_lengths, np_probs = (x.detach().numpy() for x in (keys, values, lengths, probs))
        np_d_results, np_d_scores = d_results.numpy(), d_scores.numpy()
        np_first, np_d_read, np_d_cell = ([part.numpy() for part in parts] for parts in (first, d_read, d_cell))
        np_d_outputs, np_d_probs = (
            NONE[3] if given is None else given.contiguous().numpy() for given in (d_outputs, d_probs)
        )
        masks = _masks(plan, layers)
        for t in range(steps - 1, -1, -1):
            n = ragged.rows[t]
            (d_result, np_d_result), (d_hidden, np_d_hidden) = result_of(n), hidden_of(n)
            finish_backward(
                *(threads, attended.arrays[t], *masks[-1][t], np_d_outputs, t, np_d_read[0], np_d_result),
                np_d_results[t],
            )
            multiply.addmm(d_read[-1][size:, :n], w_query_t, d_result, out=d_hidden)
            attend_backward(
                *(threads, np_probs[t], np_d_results[t], np_keys, np_values, np_lengths, alpha, np_d_probs, t),
                *(np_d_scores[t], np_d_hidden),
            )
            d_out, d_row, above, between = np_d_hidden, 0, _NONE, NO_MASK
            for i in range(layers - 1, -1, -1):
                cell_backward(
                    *(threads, d_gates[i].arrays[t], memories[i].arrays[t]),
                    *(memories[i].arrays[t - 1] if t > 0 else np_first[i], d_out, d_row, above),
                    *(*between, np_d_cell[i]),
                )
                multiply.mm(recurrent[i], d_gates[i].tensors[t], out=d_read[i][:, :n])
                if i > 0:
                    d_out, d_row, above, between = np_d_read[i - 1], size, np_d_read[i], masks[i - 1][t]

        del recurrent, w_query_t  # frees memory
        w_emb = w_ih[0][:, :-size] if ctx.needs_input_grad[1] else None
        gradients = gradients_at_once(
            *(
                ragged,
                queries,
                probs,
                d_results,
                d_scores,
                _last_first(d_gates, inputs, w_emb, threads, plan.block_rows),
                multiply,
            )
        )
        d_hidden = torch.stack([part[size:].t() for part in d_read])
        d_cell = torch.stack([part.t() for part in d_cell])
        return None, *gradients.inputs, d_read[0][:size].t(), d_hidden, d_cell, *gradients.weights


def _last_first(
    d_gates: list[Blocks], inputs: list[Blocks], w_emb: Tensor | None, threads: int, block_rows: int
) -> Iterator[tuple]:
    """What ``gradients_at_once`` asks for, from the last layer to the first; frees each layer's blocks."""
    while d_gates:
        pieces = _pieces(d_gates.pop(), threads, block_rows)
        yield pieces, inputs[len(d_gates)].columns(threads), None if d_gates else w_emb


def _pieces(blocks: Blocks, threads: int, block_rows: int) -> Iterator[Tensor]:
    features = blocks.tensors[0].size(0)
    for start in range(0, features, block_rows):
        yield blocks.columns(threads, start, min(start + block_rows, features))


def _masks(plan, layers: int) -> list[list]:
    """The dropout mask ``(H, n)`` and its scale by layer and step."""
    if plan.dropout is None:
        return [[NO_MASK] * plan.ragged.steps] * layers
    parts = zip(plan.dropout.mask.view(torch.uint8), plan.dropout.scales)
    return [[(mask, scale) for mask in Blocks.of(flat, plan.ragged).arrays] for flat, scale in parts]
