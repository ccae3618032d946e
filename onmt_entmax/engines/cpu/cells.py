"""One step of an LSTM layer, forward and back."""

from __future__ import annotations

import numpy as np
from numba import types

from onmt_entmax.engines.cpu.loops import (
    FLOAT,
    INT,
    MASK,
    ONE,
    ONE_D,
    TWO_D,
    Shared,
    bounds,
    jit,
    sigmoid,
    tanh,
    this_thread,
)


@jit
def _cell_forward(share, shares, bias, gates, cells, before, state, read, row, above, mask, scale):
    """One LSTM step.

    Args:
        bias: of the gates, ``(4H,)``.
        gates: product of weights and what the step reads, ``(4H, n)``; with the bias and activated afterwards: input,
            forget, candidate, output.
        cells: receive the new state, ``(H, n)``.
        before: the state before the step, ``(H, n or more)``.
        state: receives the output, ``(H, B)``.
        read, row: what the layer reads in the next step, whose rows from ``row`` receive the output of the sentences
            that go on; ``(0, 0)``: there is no next step, or it reads the output elsewhere.
        above: what the layer above reads in this step; its first H rows receive the output. ``(0, 0)``: none.
        mask, scale: the dropout mask in between, ``(H, n)``, 1 for what is multiplied with the scale, else 0.
            ``(0, 0)``: no dropout.
    """
    size, n = cells.shape
    factor = np.float32(scale)
    first, stop = bounds(size, share, shares)
    for r in range(first, stop):
        input, forget = gates[r], gates[size + r]
        candidate, output = gates[2 * size + r], gates[3 * size + r]
        for j in range(n):
            input[j] = sigmoid(input[j] + bias[r])
        for j in range(n):
            forget[j] = sigmoid(forget[j] + bias[size + r])
        for j in range(n):
            candidate[j] = tanh(candidate[j] + bias[2 * size + r])
        for j in range(n):
            output[j] = sigmoid(output[j] + bias[3 * size + r])
        old, new, hidden = before[r, :n], cells[r], state[r, :n]
        for j in range(n):
            total = forget[j] * old[j] + input[j] * candidate[j]
            new[j], hidden[j] = total, output[j] * tanh(total)
        if read.shape[0] > 0:
            following = read[row + r]
            for j in range(following.size):
                following[j] = hidden[j]
        if above.shape[0] > 0:
            upper = above[r]
            if mask.shape[0] == 0:
                for j in range(n):
                    upper[j] = hidden[j]
            else:
                for j in range(n):
                    upper[j] = hidden[j] * (factor * np.float32(mask[r, j]))


_CELL_FORWARD = types.Tuple((ONE_D, TWO_D, TWO_D, TWO_D, TWO_D, TWO_D, INT, TWO_D, MASK, FLOAT))
cell_forward = Shared(_cell_forward, lambda at: _cell_forward(*this_thread(at, _CELL_FORWARD)), _CELL_FORWARD)


@jit
def _cell_backward(share, shares, gates, cells, before, d_out, d_row, above, mask, scale, d_cell):
    """Back through one LSTM step.

    Args:
        gates: what ``cell_forward`` left there, ``(4H, n)``; becomes their gradient before the activations.
        cells: the new state, ``(H, n)``.
        before: the state before the step, ``(H, n or more)``.
        d_out, d_row: gradient of the output, rows from ``d_row``, the first n columns.
        above: more of it, the first H rows and n columns; ``(0, 0)``: none.
        mask, scale: the dropout mask that ``above`` passes, as in ``cell_forward``.
        d_cell: gradient of the new state, ``(H, B)``; becomes that of the state before.
    """
    size, n = cells.shape
    d_h, factor = np.empty(n, np.float32), np.float32(scale)
    first, stop = bounds(size, share, shares)
    for r in range(first, stop):
        d_own = d_out[d_row + r, :n]
        if above.shape[0] == 0:
            for j in range(n):
                d_h[j] = d_own[j]
        elif mask.shape[0] == 0:
            for j in range(n):
                d_h[j] = d_own[j] + above[r, j]
        else:
            for j in range(n):
                d_h[j] = d_own[j] + above[r, j] * (factor * np.float32(mask[r, j]))
        d_input, d_forget = gates[r], gates[size + r]  # hold the gates until their gradients take their place
        d_candidate, d_output = gates[2 * size + r], gates[3 * size + r]
        new, old, d_state = cells[r], before[r, :n], d_cell[r, :n]
        for j in range(n):
            input, forget, candidate, output = d_input[j], d_forget[j], d_candidate[j], d_output[j]
            squashed = tanh(new[j])  # takes less time than to store it
            d_new = d_state[j] + d_h[j] * output * (ONE - squashed * squashed)
            d_input[j] = d_new * candidate * input * (ONE - input)
            d_forget[j] = d_new * old[j] * forget * (ONE - forget)
            d_candidate[j] = d_new * input * (ONE - candidate * candidate)
            d_output[j] = d_h[j] * squashed * output * (ONE - output)
            d_state[j] = d_new * forget


_CELL_BACKWARD = types.Tuple((TWO_D, TWO_D, TWO_D, TWO_D, INT, TWO_D, MASK, FLOAT, TWO_D))
cell_backward = Shared(_cell_backward, lambda at: _cell_backward(*this_thread(at, _CELL_BACKWARD)), _CELL_BACKWARD)
