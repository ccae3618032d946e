"""All steps of an input-feeding LSTM decoder as one autograd function, with products as large as can be.

Stock code builds the graph of every step from small operations. Here the embedding's part of the first layer's gates is
one product for all steps, keys and values of the attention are projected once per sentence (by the caller), and the
backward pass goes back through the steps for the gradients of activations only: each weight's gradient is one product
over all steps at the end.

Shapes: T target steps, B sentences, S source positions, H hidden units, L layers, E embedding size. Buffers have
features first and sentences last (see ``kernels``); those that meet a weight are ``(features, T, B)``, so that all
steps are one matrix. ``inputs[l]`` is ``(2H, T + 1, B)``: step t holds what layer l reads at step t besides the
embedding, the output of the layer below (for the first layer the fed-back attentional output) above the layer's own
previous output. Where sentences come longest first, those that have ended leave the steps; what belongs to them is
zero from there on.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from onmt_entmax.entmax import entmax_backward, entmax_forward
from onmt_entmax.model.attention import SourceMask, solver_for
from onmt_entmax.model.kernels import cell_backward, cell_forward, tanh


class Plan(NamedTuple):
    """What is constant over the steps and not differentiated.

    Attributes:
        alpha: of the attention.
        mask: which source positions may be attended to.
        dropout: factors ``(T, L, H, B)``: 0 or 1 / (1 - p); the last layer's apply to the attentional output, the
            others between the layers. None: no dropout.
        rows: how many sentences are left at each step, T numbers that do not rise; None: all of them.
    """

    alpha: float
    mask: SourceMask
    dropout: Tensor | None
    rows: list[int] | None = None


def unroll(plan: Plan, emb: Tensor, keys: Tensor, values: Tensor, w_query: Tensor, state: tuple, cells: list) -> tuple:
    """Run the decoder over all target steps, differentiably if anything requires a gradient.

    Args:
        plan: see :class:`Plan`.
        emb: target embeddings, ``(B, T, E)``.
        keys: ``(B, S, H)``; the score of a position is its key times the recurrent output.
        values: ``(B, S, H)``, memory times the context's half of the output matrix.
        w_query: ``(H, H)``, the recurrent output's half of the output matrix.
        state: fed-back output ``(B, H)``, hidden ``(L, B, H)``, cell ``(L, B, H)``, before the first step.
        cells: per layer the four tensors of an ``nn.LSTMCell``: w_ih, w_hh, b_ih, b_hh.

    Returns:
        Outputs ``(B, T, H)``, attention ``(B, T, S)``, last hidden and cell ``(L, B, H)`` of each sentence.
    """
    return _Unroll.apply(plan, emb, keys, values, w_query, *state, *(tensor for cell in cells for tensor in cell))


def _recurrent_weights(cells: list) -> list[Tensor]:
    """Per layer ``(4H, 2H)``: weights of what comes from below (without the embedding) beside the layer's own."""
    hidden = cells[0][1].size(1)
    return [torch.cat([w_ih[:, -hidden:], w_hh], 1) for w_ih, w_hh, _, _ in cells]


class _Unroll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, plan, emb, keys, values, w_query, feed, hidden, cell, *weights):
        ctx.set_materialize_grads(False)
        layers = len(weights) // 4
        cells = [weights[4 * i : 4 * i + 4] for i in range(layers)]
        batch, steps, size = emb.size(0), emb.size(1), feed.size(-1)
        weight = _recurrent_weights(cells)  # (4H, 2H)
        bias = [(b_ih + b_hh).unsqueeze(1) for _, _, b_ih, b_hh in cells]

        emb = emb.transpose(0, 1).reshape(-1, emb.size(2))  # (T * B, E)
        first = torch.addmm(bias[0], cells[0][0][:, : emb.size(1)], emb.t()).view(4 * size, steps, batch)
        gates = [first] + [emb.new_empty(4 * size, steps, batch) for _ in range(layers - 1)]
        rows = plan.rows or [batch] * steps
        new = emb.new_empty if rows[-1] == batch else emb.new_zeros  # products over all steps read what has ended too
        inputs = [new(2 * size, steps + 1, batch) for _ in range(layers)]
        memories = [emb.new_empty(steps + 1, size, batch) for _ in range(layers)]  # cell states
        squashed = [emb.new_empty(steps, size, batch) for _ in range(layers)]  # their tanh
        attended = new(size, steps, batch)  # the attentional output before dropout
        probs = new(steps, batch, keys.size(1))
        inputs[0][:size, 0] = feed.t()
        for i in range(layers):
            inputs[i][size:, 0] = hidden[i].t()
            memories[i][0] = cell[i].t()

        hide = None
        if plan.mask.padding is not None:
            hide = emb.new_zeros(batch, 1, keys.size(1)).masked_fill_(plan.mask.padding.unsqueeze(1), -float("inf"))
        keys_t = keys.transpose(1, 2)
        for t, n in enumerate(rows):
            for i in range(layers):
                gate, out = gates[i][:, t, :n], inputs[i][size:, t + 1, :n]
                if i == 0:
                    gate.addmm_(weight[0], inputs[0][:, t, :n])
                else:
                    below, into = inputs[i - 1][size:, t + 1, :n], inputs[i][:size, t, :n]
                    if plan.dropout is None:
                        into.copy_(below)
                    else:
                        torch.mul(below, plan.dropout[t, i - 1, :, :n], out=into)
                    torch.addmm(bias[i], weight[i], inputs[i][:, t, :n], out=gate)
                before, after = memories[i][t, :, :n], memories[i][t + 1, :, :n]
                cell_forward(gate, before, after, squashed[i][t, :, :n], out)
            query = out.t().contiguous().unsqueeze(1)  # (n, 1, H); bmm copies strided rows one by one
            scores = torch.bmm(query, keys_t[:n]) if hide is None else torch.baddbmm(hide[:n], query, keys_t[:n])
            row = entmax_forward(scores, plan.alpha, solver=solver_for(scores, plan.alpha))
            row = plan.mask.first(n).clear(row)  # (n, 1, S)
            probs[t, :n] = row.squeeze(1)
            result = attended[:, t, :n]
            result.copy_(torch.bmm(row, values[:n]).squeeze(1).t())
            tanh(result.addmm_(w_query, out), result)
            if plan.dropout is None:
                inputs[0][:size, t + 1, :n] = result
            else:
                torch.mul(result, plan.dropout[t, -1, :, :n], out=inputs[0][:size, t + 1, :n])

        ctx.plan = plan
        ctx.save_for_backward(
            emb, keys, values, w_query, attended, probs, *weights, *weight, *gates, *inputs, *memories, *squashed
        )
        outputs = inputs[0][:size, 1:].permute(2, 1, 0).contiguous()  # (B, T, H)
        if rows[-1] == batch:
            last = (-1, slice(None))
        else:
            last = (torch.tensor([sum(n > b for n in rows) for b in range(batch)]), torch.arange(batch))
        last_hidden = torch.stack([tensor[size:].permute(1, 2, 0)[last] for tensor in inputs])
        last_cell = torch.stack([tensor.transpose(1, 2)[last] for tensor in memories])
        return outputs, probs.transpose(0, 1).contiguous(), last_hidden, last_cell

    @staticmethod
    @once_differentiable
    def backward(ctx, d_outputs, d_probs, d_last_hidden, d_last_cell):
        plan = ctx.plan
        emb, keys, values, w_query, attended, probs, *rest = ctx.saved_tensors
        layers = len(rest) // 9
        weight, gates, inputs, memories, squashed = (rest[(4 + k) * layers : (5 + k) * layers] for k in range(5))
        size, steps, batch = attended.shape
        values_t = values.transpose(1, 2)
        empty = None if plan.mask.not_empty is None else ~plan.mask.not_empty.unsqueeze(1)

        rows = plan.rows or [batch] * steps
        new = torch.empty_like if rows[-1] == batch else torch.zeros_like
        d_gates = [new(gate) for gate in gates]
        d_cell = _states(d_last_cell, attended, layers)
        # Of the step after this one; those of a sentence wait until its last step.
        d_inputs = [attended.new_zeros(2 * size, batch) for _ in range(layers)]
        for i, d_hidden in enumerate(_states(d_last_hidden, attended, layers)):
            d_inputs[i][size:] = d_hidden
        d_attended = 1 - attended * attended  # becomes the gradient before the tanh
        if plan.dropout is not None:
            d_attended *= plan.dropout[:, -1].transpose(0, 1)
        d_scores = new(probs)
        d_probs = None if d_probs is None else d_probs.transpose(0, 1)
        d_outputs = None if d_outputs is None else d_outputs.permute(2, 1, 0).contiguous()

        for t in range(steps - 1, -1, -1):
            n = rows[t]
            d_output = d_inputs[0][:size, :n]
            if d_outputs is not None:
                d_output = d_output + d_outputs[:, t, :n]
            d_result = d_attended[:, t, :n].mul_(d_output)  # (H, n)
            d_attended[:, t, n:] = 0
            d_row = torch.bmm(d_result.t().contiguous().unsqueeze(1), values_t[:n])  # (n, 1, S)
            if d_probs is not None:
                d_row += d_probs[t, :n].unsqueeze(1)
            d_score = entmax_backward(probs[t, :n].unsqueeze(1), d_row, plan.alpha)
            if empty is not None:
                d_score = d_score.masked_fill(empty[:n], 0)
            d_scores[t, :n] = d_score.squeeze(1)
            d_hidden = torch.addmm(d_inputs[-1][size:, :n], w_query.t(), d_result)
            d_hidden += torch.bmm(d_score, keys[:n]).squeeze(1).t()
            for i in range(layers - 1, -1, -1):
                d_gate, gate, out = d_gates[i][:, t, :n], gates[i][:, t, :n], inputs[i][size:, t + 1, :n]
                before, squash = memories[i][t, :, :n], squashed[i][t, :, :n]
                cell_backward(d_gate, gate, before, squash, out, d_hidden, d_cell[i][:, :n])
                torch.mm(weight[i].t(), d_gate, out=d_inputs[i][:, :n])
                if i > 0:
                    d_below = d_inputs[i][:size, :n]
                    own = d_inputs[i - 1][size:, :n]
                    if plan.dropout is None:
                        d_hidden = own + d_below
                    else:
                        d_hidden = torch.addcmul(own, d_below, plan.dropout[t, i - 1, :, :n])

        columns = [tensor.view(2 * size, -1) for tensor in inputs]  # (2H, (T + 1) * B)
        query = columns[-1][size:, batch:]  # (H, T * B)
        d_keys = torch.bmm(d_scores.permute(1, 2, 0), query.view(size, steps, batch).permute(2, 1, 0))
        d_values = torch.bmm(probs.permute(1, 2, 0), d_attended.permute(2, 1, 0))
        d_w_query = d_attended.view(size, -1) @ query.t()
        flat = [d_gate.view(4 * size, -1) for d_gate in d_gates]
        d_emb = None
        if ctx.needs_input_grad[1]:
            d_emb = flat[0].t() @ rest[0][:, : emb.size(1)]
            d_emb = d_emb.view(steps, batch, -1).transpose(0, 1)
        d_weights = []
        for i in range(layers):
            product = flat[i] @ columns[i][:, : steps * batch].t()  # (4H, 2H)
            d_w_ih = product[:, :size]
            if i == 0:
                d_w_ih = torch.cat([flat[0] @ emb, d_w_ih], 1)
            d_bias = flat[i].sum(1)
            d_weights += [d_w_ih, product[:, size:], d_bias, d_bias]
        d_feed, d_hidden = d_inputs[0][:size].t(), torch.stack([d_input[size:].t() for d_input in d_inputs])
        d_cell = torch.stack([part.t() for part in d_cell])
        return None, d_emb, d_keys, d_values, d_w_query, d_feed, d_hidden, d_cell, *d_weights


def _states(gradient: Tensor | None, like: Tensor, layers: int) -> list[Tensor]:
    """One gradient ``(H, B)`` per layer, ours to change; zeros where there is none."""
    if gradient is None:
        return [torch.zeros_like(like[:, 0]) for _ in range(layers)]
    return [part.t().clone(memory_format=torch.contiguous_format) for part in gradient]
