"""What ``unrolled`` does, for float32 on a CPU: matrix products by PyTorch, all between them compiled (``compiled``).

Shapes and buffers are those of ``unrolled``.
"""

from __future__ import annotations

import torch
from torch.autograd.function import once_differentiable

from onmt_entmax.model import compiled
from onmt_entmax.model.unrolled import gradients_at_once


class UnrollCompiled(torch.autograd.Function):
    """As ``unrolled.unroll``, whose arguments it takes one after the other."""

    @staticmethod
    def forward(ctx, plan, emb, keys, values, w_query, feed, hidden, cell, *weights):
        ctx.set_materialize_grads(False)
        ragged, layers, alpha = plan.ragged, len(weights) // 4, float(plan.alpha)
        cells = [weights[4 * i : 4 * i + 4] for i in range(layers)]
        batch, steps, size, embedded = ragged.batch, ragged.steps, feed.size(-1), emb.size(-1)
        weight = [torch.cat([w_ih, w_hh], 1) for w_ih, w_hh, _, _ in cells]
        emb = ragged.pack(emb)  # (N, E)
        tokens = emb.size(0)
        keys, values = keys.contiguous(), values.contiguous()
        bias = [(b_ih + b_hh).detach().numpy() for _, _, b_ih, b_hh in cells]
        gates = [emb.new_empty(4 * size, tokens) for _ in range(layers)]
        inputs = [emb.new_empty(part.size(1), tokens) for part in weight]
        inputs[0][:embedded] = emb.t()
        memories = [emb.new_empty(size, tokens) for _ in range(layers)]  # cell states after each step
        squashed = [emb.new_empty(size, tokens) for _ in range(layers)]  # their tanh
        attended = emb.new_empty(size, tokens)  # the attentional output before dropout
        queries, probs = emb.new_zeros(steps, batch, size), emb.new_zeros(steps, batch, keys.size(1))
        outputs = emb.new_zeros(batch, steps, size)
        lengths = plan.mask.lengths(batch, keys.size(1))
        first = [part.t().contiguous() for part in cell]  # (H, B)
        state = [part.t().contiguous() for part in hidden]  # after each step, in the end the last ones
        last_cell = cell.clone()
        inputs[0][embedded : embedded + size, :batch] = feed.t()
        for read, own in zip(inputs, state):
            read[-size:, :batch] = own

        np_gates, np_inputs, np_memories, np_squashed, np_first, np_state = (
            [buffer.numpy() for buffer in buffers] for buffers in (gates, inputs, memories, squashed, first, state)
        )
        np_keys, np_values, np_lengths = keys.detach().numpy(), values.detach().numpy(), lengths.numpy()
        np_queries, np_probs, np_outputs, np_attended = (x.numpy() for x in (queries, probs, outputs, attended))
        factors = [compiled.NONE[2]] * layers if plan.dropout is None else list(plan.dropout.numpy())
        inputs_at = [ragged.split(buffer) for buffer in inputs]
        block = compiled.blocks(4 * size, batch, emb)
        attended_at = ragged.split(attended)
        at = before_at = 0
        for t, n in enumerate(ragged.rows):
            next_at, next_n = at + n, ragged.rows[t + 1] if t + 1 < steps else 0
            product, np_product = block(n)
            for i in range(layers):
                torch.mm(weight[i], inputs_at[i][t], out=product)
                before = np_memories[i] if t > 0 else np_first[i]
                compiled.cell_forward(
                    *(bias[i], np_product, True, np_gates[i], np_memories[i], np_squashed[i], at, n),
                    *(before, before_at, np_state[i], 0),
                )
                own_row = inputs[i].size(0) - size
                compiled.copy_columns(np_state[i], next_n, compiled.NONE[2], np_inputs[i], own_row, next_at)
                if i + 1 < layers:
                    compiled.copy_columns(np_state[i], n, factors[i], np_inputs[i + 1], 0, at)
            compiled.attend_forward(
                *(np_state[-1], n, np_queries[t], np_keys, np_values, np_lengths, alpha, np_probs[t], np_attended, at)
            )
            attended_at[t].addmm_(w_query, state[-1][:, :n])
            compiled.finish_forward(
                *(np_attended, at, n, factors[-1], np_outputs, t, np_inputs[0], embedded, next_at, next_n)
            )
            if next_n < n:
                for i in range(layers):
                    last_cell[i, next_n:n] = memories[i][:, at + next_n : next_at].t()
            before_at, at = at, next_at

        ctx.plan = plan
        ctx.save_for_backward(
            *(keys, values, w_query, attended, queries, probs, lengths),
            *(*first, *weight, *gates, *inputs, *memories, *squashed),
        )
        last_hidden = torch.stack([part.t() for part in state])
        return outputs, probs.transpose(0, 1).contiguous(), last_hidden, last_cell

    @staticmethod
    @once_differentiable
    def backward(ctx, d_outputs, d_probs, d_last_hidden, d_last_cell):
        plan = ctx.plan
        ragged, steps, batch, alpha = plan.ragged, plan.ragged.steps, plan.ragged.batch, float(plan.alpha)
        keys, values, w_query, attended, queries, probs, lengths, *rest = ctx.saved_tensors
        layers = len(rest) // 6
        first, weight, gates, inputs, memories, squashed = (rest[k * layers : (k + 1) * layers] for k in range(6))
        size = attended.size(0)

        d_gates = [torch.empty_like(gate) for gate in gates]
        # By layer: the gradient of what a step reads from below, and of its own state, (2H, B); that of its cell.
        # A sentence's wait until its last step.
        d_read = [attended.new_zeros(2 * size, batch) for _ in range(layers)]
        d_cell = [attended.new_zeros(size, batch) for _ in range(layers)]
        for i in range(layers):
            if d_last_hidden is not None:
                d_read[i][size:] = d_last_hidden[i].t()
            if d_last_cell is not None:
                d_cell[i].copy_(d_last_cell[i].t())
        d_result, d_hidden = attended.new_empty(size, batch), attended.new_empty(size, batch)
        d_results, d_scores = torch.zeros_like(queries), torch.zeros_like(probs)
        # copied, as products with a transposed view take a fifth more, at every step
        recurrent = [compiled.transposed(part[:, -2 * size :]) for part in weight]
        w_query_t = compiled.transposed(w_query)

        np_gates, np_memories, np_squashed, np_first, np_d_gates, np_d_read, np_d_cell = (
            [buffer.numpy() for buffer in buffers]
            for buffers in (gates, memories, squashed, first, d_gates, d_read, d_cell)
        )
        np_keys, np_values, np_lengths, np_attended, np_probs = (
            x.detach().numpy() for x in (keys, values, lengths, attended, probs)
        )
        np_d_result, np_d_hidden, np_d_results, np_d_scores = (
            x.numpy() for x in (d_result, d_hidden, d_results, d_scores)
        )
        np_d_outputs, np_d_probs = (
            compiled.NONE[3] if given is None else given.contiguous().numpy() for given in (d_outputs, d_probs)
        )
        factors = [compiled.NONE[2]] * layers if plan.dropout is None else list(plan.dropout.numpy())
        d_gates_at = [ragged.split(buffer) for buffer in d_gates]
        next_at = attended.size(1)
        for t in range(steps - 1, -1, -1):
            n = ragged.rows[t]
            at = next_at - n
            before_at = at - ragged.rows[t - 1] if t > 0 else 0
            compiled.finish_backward(
                *(np_attended, at, n, factors[-1], np_d_outputs, t, np_d_read[0], np_d_result, np_d_results[t])
            )
            torch.addmm(d_read[-1][size:, :n], w_query_t, d_result[:, :n], out=d_hidden[:, :n])
            compiled.attend_backward(
                *(np_probs[t], np_d_results[t], np_keys, np_values, np_lengths, alpha, np_d_probs, t),
                *(np_d_scores[t], np_d_hidden, n),
            )
            d_out, d_row, above, between = np_d_hidden, 0, compiled.NONE[2], compiled.NONE[2]
            for i in range(layers - 1, -1, -1):
                before = np_memories[i] if t > 0 else np_first[i]
                compiled.cell_backward(
                    *(np_gates[i], np_squashed[i], at, n, before, before_at, d_out, d_row, 0, above, between),
                    *(np_d_cell[i], np_d_gates[i]),
                )
                torch.mm(recurrent[i], d_gates_at[i][t], out=d_read[i][:, :n])
                if i > 0:
                    d_out, d_row, above, between = np_d_read[i - 1], size, np_d_read[i], factors[i - 1]
            next_at = at

        gradients = gradients_at_once(
            *(ragged, queries, probs, d_results, d_scores, inputs, d_gates),
            weight[0][:, : -2 * size] if ctx.needs_input_grad[1] else None,
        )
        d_hidden = torch.stack([part[size:].t() for part in d_read])
        d_cell = torch.stack([part.t() for part in d_cell])
        return None, *gradients.inputs, d_read[0][:size].t(), d_hidden, d_cell, *gradients.weights
