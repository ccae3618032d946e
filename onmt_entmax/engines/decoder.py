"""All steps of an input-feeding LSTM decoder as one autograd function, with products as large as can be.

For any device and dtype; ``cpu/decoder.py`` is the same for float32 on a CPU.

The reference builds the graph of every step from small operations. Here a layer's gates take one product a step (to
take the embedding's part for all steps at once was slower: wide and flat products run at two thirds of the speed), keys
and values of the attention are projected once per sentence, and the backward pass goes back through the steps for the
gradients of activations only: each weight's gradient is one product over all steps at the end.

Letters: B sentences, T target steps, S source positions, H hidden units, L layers, E embedding size, N target tokens, n
sentences in a step. Buffers have features first (see ``lstm``) and a column for each token, step after step (see
``ragged``): where sentences come longest first, those that have ended leave the steps. ``inputs[l]`` is ``(2H, N)``:
what layer l reads, the output of the layer below above the layer's own previous output; for the first layer ``(E + 2H,
N)``: the embedding, the fed-back attentional output, its own. What meets a matrix per sentence is ``(T, B, H)`` or
``(T, B, S)``, zero at padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import starmap
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from onmt_entmax.engines.dropout import DropoutMask
from onmt_entmax.engines.lstm import cell_backward, cell_forward, cell_slopes, tanh
from onmt_entmax.engines.ragged import Ragged, source_padding
from onmt_entmax.entmax import entmax_backward, entmax_forward


class Plan(NamedTuple):
    """What is constant over the steps and not differentiated.

    Attributes:
        alpha: of the attention.
        src_len: lengths of the sources, ``(B,)``; None: no padding.
        ragged: which sentences have which steps.
        dropout: of ``(L, H * N)``, step after step ``(H, n)``; the last layer's is for the attentional output, the
            others' between the layers. None: no dropout.
        block_rows, threads: see the engines.
    """

    alpha: float
    src_len: Tensor | None
    ragged: Ragged
    dropout: DropoutMask | None = None
    block_rows: int = 400
    threads: int | None = None

    def factors(self, dtype: torch.dtype) -> list[list[Tensor]] | None:
        """The dropout's factors by layer and step, each ``(H, n)``."""
        return None if self.dropout is None else [self.ragged.blocks(flat) for flat in self.dropout.factors(dtype)]


class Arithmetic(NamedTuple):
    """How matrices are multiplied.

    Attributes:
        operand: prepares what is multiplied several times.
        mm, addmm: torch's, or such that give the same up to rounding; operands may be prepared.
    """

    operand: Callable[[Tensor], Tensor]
    mm: Callable[..., Tensor]
    addmm: Callable[..., Tensor]


EXACT = Arithmetic(lambda x: x, torch.mm, torch.addmm)


class UnrollOperations(torch.autograd.Function):
    """The steps by PyTorch's operations.

    Arguments after the plan: embeddings ``(B, T, E)``; keys and values ``(B, S, H)`` and ``w_query`` ``(H, H)``, see
    :func:`project`; the state before the first step: fed-back output ``(B, H)``, hidden and cell ``(L, B, H)``; and of
    each layer the four tensors of an ``nn.LSTMCell``: w_ih, w_hh, b_ih, b_hh.

    Returns outputs ``(B, T, H)``, attention ``(B, T, S)``, last hidden and cell ``(L, B, H)`` of each sentence.
    """

    @staticmethod
    def forward(ctx, plan, emb, keys, values, w_query, feed, hidden, cell, *weights):
        ctx.set_materialize_grads(False)
        ragged, layers = plan.ragged, len(weights) // 4
        cells = [weights[4 * i : 4 * i + 4] for i in range(layers)]
        batch, steps, size = ragged.batch, ragged.steps, feed.size(-1)
        weight = [torch.cat([w_ih, w_hh], 1) for w_ih, w_hh, _, _ in cells]
        emb = ragged.pack(emb)  # (N, E)
        tokens = emb.size(0)
        # The bias first, to add the product to: a product that adds a broadcast bias takes twice the time.
        gates = [(b_ih + b_hh).unsqueeze(1).repeat(1, tokens) for _, _, b_ih, b_hh in cells]
        inputs = [emb.new_empty(part.size(1), tokens) for part in weight]
        inputs[0][: emb.size(1)] = emb.t()
        memories = [emb.new_empty(size, tokens) for _ in range(layers)]  # cell states after each step
        squashed = [emb.new_empty(size, tokens) for _ in range(layers)]  # their tanh
        attended = emb.new_empty(size, tokens)  # the attentional output before dropout
        new = emb.new_empty if ragged.index is None else emb.new_zeros
        queries, outputs = new(steps, batch, size), new(steps, batch, size)
        probs = new(steps, batch, keys.size(1))
        # Each (H, B), copies to write into: the fed-back output, and by layer the states that the step begins with, in
        # the end the last ones.
        feed, first = contiguous_transpose(feed), _by_layer(cell)
        state, last_cell = _by_layer(hidden), _by_layer(cell)

        hide, not_empty = source_padding(plan.src_len, keys.size(1), emb.dtype)
        keys_t = keys.transpose(1, 2)
        at = _by_step(ragged, gates, inputs, memories, squashed)
        dropped = plan.factors(emb.dtype)
        for t, (n, result) in enumerate(zip(ragged.rows, ragged.split(attended))):
            for i in range(layers):
                gate, read, memory, squash = at[i][t]
                own, below = state[i][:, :n], (feed if i == 0 else state[i - 1])[:, :n]
                read[-size:] = own
                if i > 0 and dropped is not None:
                    torch.mul(below, dropped[i - 1][t], out=read[:size])
                else:
                    read[-2 * size : -size] = below
                gate.addmm_(weight[i], read)
                before = at[i][t - 1][2][:, :n] if t > 0 else first[i]
                cell_forward(gate, before, memory, squash, own)
            query = queries[t, :n].copy_(own.t()).unsqueeze(1)  # (n, 1, H); bmm copies strided rows one by one
            scores = (
                torch.bmm(query, keys_t[:n])
                if hide is None
                else torch.baddbmm(hide[:n].unsqueeze(1), query, keys_t[:n])
            )
            row = entmax_forward(scores, plan.alpha)  # (n, 1, S)
            row = row if not_empty is None else row * not_empty[:n].unsqueeze(1)
            probs[t, :n] = row.squeeze(1)
            result.copy_(torch.bmm(row, values[:n]).squeeze(1).t())
            tanh(result.addmm_(w_query, own), result)
            if dropped is None:
                feed[:, :n] = result
            else:
                torch.mul(result, dropped[-1][t], out=feed[:, :n])
            outputs[t, :n] = feed[:, :n].t()
            ended = ragged.rows[t + 1] if t + 1 < steps else 0
            if ended < n:
                for i in range(layers):
                    last_cell[i][:, ended:n] = at[i][t][2][:, ended:]

        ctx.plan, ctx.not_empty = plan, not_empty
        ctx.save_for_backward(
            *(keys, values, w_query, attended, queries, probs, *weights[::4], *weights[1::4]),
            *(*first, *gates, *inputs, *memories, *squashed),
        )
        last_hidden, last_cell = (torch.stack([part.t() for part in parts]) for parts in (state, last_cell))
        outputs, probs = (x.transpose(0, 1).clone(memory_format=torch.contiguous_format) for x in (outputs, probs))
        return outputs, probs, last_hidden, last_cell

    @staticmethod
    @once_differentiable
    def backward(ctx, d_outputs, d_probs, d_last_hidden, d_last_cell):
        plan = ctx.plan
        ragged, steps = plan.ragged, plan.ragged.steps
        keys, values, w_query, attended, queries, probs, *rest = ctx.saved_tensors
        layers = len(rest) // 7
        w_ih, w_hh, first, gates, inputs, memories, squashed = (rest[k * layers : (k + 1) * layers] for k in range(7))
        size = attended.size(0)
        values_t = values.transpose(1, 2)
        empty = None if ctx.not_empty is None else ctx.not_empty.unsqueeze(1) == 0
        new = torch.empty_like if ragged.index is None else torch.zeros_like

        d_gates, cell_slope = zip(*(cell_slopes(gate, squash) for gate, squash in zip(gates, squashed)))
        # By layer (H, B), the gradients of the states after this step; those of an ended sentence stay as they are.
        d_cell = _by_layer(d_last_cell) or [attended.new_zeros(size, ragged.batch) for _ in range(layers)]
        d_state = _by_layer(d_last_hidden) or [torch.zeros_like(part) for part in d_cell]
        d_feed = torch.zeros_like(d_cell[0])
        d_attended = 1 - attended * attended  # becomes the gradient before the tanh
        dropped = plan.factors(attended.dtype)
        if dropped is not None:
            d_attended *= torch.cat(dropped[-1], 1)
        d_results, d_scores = new(queries), new(probs)
        d_probs = None if d_probs is None else d_probs.transpose(0, 1)
        if d_outputs is not None:
            d_outputs = ragged.split(contiguous_transpose(ragged.pack(d_outputs)))

        # copied, as products with a transposed view take a fifth more, at every step
        recurrent = [torch.cat([read[:, -size:], own], 1).t().contiguous() for read, own in zip(w_ih, w_hh)]
        forget = [gate.narrow(0, size, size) for gate in gates]
        at = _by_step(ragged, d_gates, cell_slope, forget, memories)
        d_attended_at = ragged.split(d_attended)
        for t in range(steps - 1, -1, -1):
            n = ragged.rows[t]
            d_output = d_feed[:, :n]
            if d_outputs is not None:
                d_output = d_outputs[t].add_(d_output)
            d_result = d_attended_at[t].mul_(d_output)  # (H, n)
            d_rows = d_results[t, :n].copy_(d_result.t()).unsqueeze(1)
            d_row = torch.bmm(d_rows, values_t[:n])  # (n, 1, S)
            if d_probs is not None:
                d_row += d_probs[t, :n].unsqueeze(1)
            d_score = entmax_backward(probs[t, :n].unsqueeze(1), d_row, plan.alpha)
            if empty is not None:
                d_score = d_score.masked_fill(empty[:n], 0)
            d_scores[t, :n] = d_score.squeeze(1)
            d_hidden = torch.addmm(d_state[-1][:, :n], w_query.t(), d_result)
            d_hidden += torch.bmm(d_score, keys[:n]).squeeze(1).t()
            for i in range(layers - 1, -1, -1):
                d_gate, slope, forgets, _ = at[i][t]
                before = at[i][t - 1][3][:, :n] if t > 0 else first[i][:, :n]
                cell_backward(d_gate, slope, forgets, before, d_hidden, d_cell[i][:, :n])
                d_below, own = torch.mm(recurrent[i], d_gate).split(size)
                d_state[i][:, :n] = own
                if i == 0:
                    d_feed[:, :n] = d_below
                elif dropped is None:
                    d_hidden = d_state[i - 1][:, :n] + d_below
                else:
                    d_hidden = torch.addcmul(d_state[i - 1][:, :n], d_below, dropped[i - 1][t])

        w_emb = w_ih[0][:, :-size] if ctx.needs_input_grad[1] else None
        gradients = gradients_at_once(
            *(ragged, queries, probs, d_results, d_scores),
            [
                (_pieces(d_gates[i], plan.block_rows), inputs[i], w_emb if i == 0 else None)
                for i in reversed(range(layers))
            ],
        )
        d_hidden, d_cell = (torch.stack([part.t() for part in parts]) for parts in (d_state, d_cell))
        return None, *gradients.inputs, d_feed.t(), d_hidden, d_cell, *gradients.weights


class Gradients(NamedTuple):
    """Gradients of embeddings, keys, values and ``w_query``; and of each layer's four tensors."""

    inputs: tuple[Tensor | None, Tensor, Tensor, Tensor]
    weights: list[Tensor]


def gradients_at_once(
    ragged: Ragged,
    queries: Tensor,
    probs: Tensor,
    d_results: Tensor,
    d_scores: Tensor,
    layers: Iterable[tuple[Iterable[Tensor], Tensor, Tensor | None]],
    multiply: Arithmetic = EXACT,
) -> Gradients:
    """Those gradients that are one product over all steps, once the gradients of all activations are there.

    Args:
        queries, d_results: ``(T, B, H)``.
        probs, d_scores: ``(T, B, S)``.
        layers: arguments of :func:`_gradients_of_layer` from the last layer to the first; an iterator may make each
            layer's copies when they are asked for.
        multiply: for the gradients of weights and embeddings.
    """
    size = queries.size(2)
    d_keys = torch.bmm(d_scores.permute(1, 2, 0), queries.transpose(0, 1))
    d_values = torch.bmm(probs.permute(1, 2, 0), d_results.transpose(0, 1))
    d_w_query = multiply.mm(d_results.view(-1, size).t(), queries.view(-1, size))
    d_embs, d_weights = zip(*starmap(partial(_gradients_of_layer, size, multiply), layers))
    d_emb = None if d_embs[-1] is None else ragged.unpack(d_embs[-1])
    return Gradients((d_emb, d_keys, d_values, d_w_query), [tensor for four in reversed(d_weights) for tensor in four])


def _gradients_of_layer(
    size: int, multiply: Arithmetic, pieces: Iterable[Tensor], read: Tensor, w_emb: Tensor | None
) -> tuple[Tensor | None, list[Tensor]]:
    """Gradients of the embeddings ``(N, E)`` and of a layer's four tensors.

    Args:
        size: H.
        multiply: see :func:`gradients_at_once`.
        pieces: the gradient of the gates, ``(4H, N)``, some rows at a time.
        read: what the layer read, ``(features, N)``.
        w_emb: the embedding's part of the layer's weight, ``(4H, E)``; None: no gradient of embeddings is wanted.
    """
    below, own = (multiply.operand(part).t() for part in (read[:-size], read[-size:]))
    d_w_ih, d_w_hh, d_bias = (read.new_empty(4 * size, *rest) for rest in ([below.size(1)], [size], []))
    d_emb = None if w_emb is None else read.new_zeros(read.size(1), w_emb.size(1))
    start = 0
    for piece in pieces:
        rows = slice(start, start + piece.size(0))
        torch.sum(piece, 1, out=d_bias[rows])
        piece = multiply.operand(piece)
        multiply.mm(piece, below, out=d_w_ih[rows])
        multiply.mm(piece, own, out=d_w_hh[rows])
        if d_emb is not None:
            multiply.addmm(d_emb, piece.t(), w_emb[rows], out=d_emb)
        start = rows.stop
        del piece  # before the next one is made
    return d_emb, [d_w_ih, d_w_hh, d_bias, d_bias]


def _pieces(d_gate: Tensor, block_rows: int) -> Sequence[Tensor]:
    return d_gate.split(block_rows) if d_gate.device.type == "cpu" else (d_gate,)


def _by_step(ragged: Ragged, *buffers: Sequence[Tensor]) -> list[list[tuple[Tensor, ...]]]:
    """Buffers given by layer as tuples of parts, by layer and step."""
    return [list(zip(*(ragged.split(buffer) for buffer in layer))) for layer in zip(*buffers)]


def _by_layer(states: Tensor | None) -> list[Tensor] | None:
    """One ``(H, B)`` for each layer of ``(L, B, H)``: copies, to be written into."""
    return None if states is None else [contiguous_transpose(part) for part in states]


def contiguous_transpose(x: Tensor) -> Tensor:
    """A transposed copy of ``(n, m)``, never a view: ``x.t().contiguous()`` is one where n or m is 1."""
    return x.t().clone(memory_format=torch.contiguous_format)
