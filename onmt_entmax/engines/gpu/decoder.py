"""What ``engines/decoder.py`` does, by one Triton kernel between two products.

Letters are those of that module; here buffers are a row for each sentence, a block for each step, and every sentence
has all T steps. ``inputs[l]`` is ``(T + 1, B, F)``: what layer l reads, with the states after the last step in the end.
A step takes, forwards, a product and a kernel for each layer, a kernel for scores, entmax and context, a product, and a
kernel for tanh and dropout; and as many back.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from onmt_entmax.engines.decoder import gradients_at_once
from onmt_entmax.engines.lstm import writable
from onmt_entmax.entmax.engine import KINDS

LONGEST = 256  # source positions that an attention kernel keeps in registers
BLOCK = 256  # numbers of a program where each is by itself


class UnrollKernels(torch.autograd.Function):
    """As ``engines.decoder.UnrollOperations``, for alpha up to 2."""

    @staticmethod
    def forward(ctx, plan, emb, keys, values, w_query, feed, hidden, cell, *weights):
        ctx.set_materialize_grads(False)
        layers = len(weights) // 4
        cells = [weights[4 * i : 4 * i + 4] for i in range(layers)]
        (batch, steps, embedded), size = emb.shape, feed.size(-1)
        weight = [torch.cat([w_ih, w_hh], 1).t() for w_ih, w_hh, _, _ in cells]  # (F, 4H)
        bias = [b_ih + b_hh for _, _, b_ih, b_hh in cells]
        inputs = [emb.new_empty(steps + 1, batch, part.size(0)) for part in weight]
        gates = [emb.new_empty(steps, batch, 4 * size) for _ in range(layers)]
        memories = [emb.new_empty(steps + 1, batch, size) for _ in range(layers)]  # cell states before each step
        inputs[0][:steps, :, :embedded] = emb.transpose(0, 1)
        inputs[0][0, :, embedded : embedded + size] = feed
        for i in range(layers):
            inputs[i][0, :, -size:] = hidden[i]
            memories[i][0] = cell[i]
        queries, attended, outputs = (emb.new_empty(steps, batch, size) for _ in range(3))
        probs = emb.new_empty(steps, batch, keys.size(1))
        keys, values, w_query_t = keys.contiguous(), values.contiguous(), w_query.t()
        masks = _masks(plan, layers)
        with torch.cuda.device_of(emb):
            for t in range(steps):
                for i in range(layers):
                    torch.mm(inputs[i][t], weight[i], out=gates[i][t])
                    top = i + 1 == layers
                    mask, scale = (None, 1.0) if top else masks[i][t]
                    _by_number("cell_forward", batch * size)(
                        *(gates[i][t], bias[i], memories[i][t], memories[i][t + 1]),
                        *(inputs[i][t + 1], inputs[i].size(2), inputs[i].size(2) - size),
                        *(queries[t] if top else inputs[i + 1][t], size if top else inputs[i + 1].size(2)),
                        *_mask_or(mask, gates[i][t], scale),
                        *(size, batch * size),
                        masked=mask is not None,
                    )
                _attend("attend_forward", plan, keys)(queries[t], keys, values, attended[t], probs[t])
                attended[t].addmm_(queries[t], w_query_t)
                mask, scale = masks[-1][t]
                _by_number("finish_forward", batch * size)(
                    *(attended[t], outputs[t], inputs[0][t + 1], inputs[0].size(2), embedded),
                    *_mask_or(mask, attended[t], scale),
                    *(size, batch * size),
                    masked=mask is not None,
                )
        ctx.plan = plan
        ctx.save_for_backward(
            *(keys, values, w_query, attended, queries, probs, *weights[::4], *weights[1::4]),
            *(*gates, *inputs, *memories),
        )
        last_hidden = torch.stack([part[steps, :, -size:] for part in inputs])
        last_cell = torch.stack([part[steps] for part in memories])
        outputs, probs = (x.transpose(0, 1).clone(memory_format=torch.contiguous_format) for x in (outputs, probs))
        return outputs, probs, last_hidden, last_cell

    @staticmethod
    @once_differentiable
    def backward(ctx, d_outputs, d_probs, d_last_hidden, d_last_cell):
        plan = ctx.plan
        keys, values, w_query, attended, queries, probs, *rest = ctx.saved_tensors
        layers = len(rest) // 5
        w_ih, w_hh, gates, inputs, memories = (rest[k * layers : (k + 1) * layers] for k in range(5))
        d_gates = writable(gates)  # each step's when it had its turn
        steps, batch, size = queries.shape
        recurrent = [torch.cat([read[:, -size:], own], 1) for read, own in zip(w_ih, w_hh)]  # (4H, 2H)
        # by layer: the gradient of what a step reads from below, and of its own state; that of its cell
        d_read = [queries.new_zeros(batch, 2 * size) for _ in range(layers)]
        d_cell = [queries.new_zeros(batch, size) for _ in range(layers)]
        for i in range(layers):
            if d_last_hidden is not None:
                d_read[i][:, size:] = d_last_hidden[i]
            if d_last_cell is not None:
                d_cell[i].copy_(d_last_cell[i])
        d_results, d_scores, d_hidden = torch.empty_like(queries), torch.empty_like(probs), torch.empty_like(d_cell[0])
        d_outputs = None if d_outputs is None else d_outputs.contiguous()
        d_probs = None if d_probs is None else d_probs.contiguous()
        masks = _masks(plan, layers)
        with torch.cuda.device_of(queries):
            for t in range(steps - 1, -1, -1):
                mask, scale = masks[-1][t]
                _by_number("finish_backward", batch * size)(
                    *(attended[t], d_read[0], d_results[t], d_results if d_outputs is None else d_outputs[:, t]),
                    *(steps * size, *_mask_or(mask, attended[t], scale), size, batch * size),
                    masked=mask is not None,
                    given=d_outputs is not None,
                )
                torch.mm(d_results[t], w_query, out=d_hidden)
                _attend("attend_backward", plan, keys)(
                    *(probs[t], d_results[t], keys, values, d_scores[t], d_hidden),
                    *(probs if d_probs is None else d_probs[:, t], steps * keys.size(1)),
                    given=d_probs is not None,
                )
                above, mask, scale = d_hidden, None, 1.0
                for i in range(layers - 1, -1, -1):
                    _by_number("cell_backward", batch * size)(
                        *(d_gates[i][t], memories[i][t], memories[i][t + 1], above, above.size(1), d_read[i]),
                        *(d_cell[i], *_mask_or(mask, above, scale), size, batch * size),
                        masked=mask is not None,
                    )
                    torch.mm(d_gates[i][t], recurrent[i], out=d_read[i])
                    if i > 0:
                        above, (mask, scale) = d_read[i], masks[i - 1][t]
        w_emb = w_ih[0][:, :-size] if ctx.needs_input_grad[1] else None
        columns = [(d_gates[i].flatten(0, 1).t(), inputs[i][:steps].flatten(0, 1).t()) for i in range(layers)]
        gradients = gradients_at_once(
            *(plan.ragged, queries, probs, d_results, d_scores),
            [((columns[i][0],), columns[i][1], None if i else w_emb) for i in reversed(range(layers))],
        )
        d_hidden = torch.stack([part[:, size:] for part in d_read])
        return None, *gradients.inputs, d_read[0][:, :size], d_hidden, torch.stack(d_cell), *gradients.weights


def launch(kernel: str, programs: int, *arguments: object, **constants: object) -> None:
    """Start a kernel of ``kernels``."""
    from onmt_entmax.engines.gpu import kernels  # needs triton

    getattr(kernels, kernel)[(programs,)](*arguments, **constants)


def _by_number(kernel: str, count: int):
    """Launches a kernel for ``count`` numbers, each by itself."""
    return lambda *arguments, **constants: launch(
        kernel, -(-count // BLOCK), *arguments, block=BLOCK, num_warps=4, **constants
    )


def _attend(kernel: str, plan, keys: Tensor):
    """Launches a kernel for the attention of each sentence."""
    batch, width, size = keys.shape
    rows = 1 << (width - 1).bit_length()
    chunk = min(1 << (size - 1).bit_length(), max(16, 4096 // rows))  # of features; all positions of it at a time
    lengths = keys if plan.src_len is None else plan.src_len
    return lambda *arguments, **constants: launch(
        *(kernel, batch, *arguments, lengths, width, size, float(plan.alpha)),
        **{"kind": KINDS.get(plan.alpha, 0), "rows": rows, "chunk": chunk, "padded": plan.src_len is not None},
        **constants,
        num_warps=4,
    )


def _masks(plan, layers: int) -> list[list[tuple]]:
    """By layer and step, a byte for each number ``(B * H,)`` that says whether dropout leaves it, and the scale."""
    if plan.dropout is None:
        return [[(None, 1.0)] * plan.ragged.steps] * layers
    mask = plan.dropout.mask.view(torch.int8)
    parts = zip(mask, plan.dropout.scales)
    return [[(part, scale) for part in flat.view(plan.ragged.steps, -1)] for flat, scale in parts]


def _mask_or(mask: Tensor | None, other: Tensor, scale: float) -> tuple[Tensor, float]:
    return other if mask is None else mask, scale
