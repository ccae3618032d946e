"""The steps of unrolled LSTM layers and their attention, compiled: one pass over memory for a dozen operations.

For float32 on a CPU, where numba is installed (see ``kernels.compiled_for``). Matrix products stay with PyTorch; what
lies between them is here, on one thread: on a step's few thousand numbers PyTorch's operations spend most of their
time in being called.

Arguments are NumPy views of contiguous tensors. As in ``kernels`` and ``ragged``, features stand first; ``at`` is a
buffer's first column of the step, and its ``n`` columns are the sentences that take part. H hidden units, B sentences,
S source positions, T target steps, N tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numba
import numpy as np
from torch import Tensor

# The compiler may reorder and fuse sums and products; NaN and infinity keep their meaning.
_OPTIONS = {"fastmath": {"contract", "reassoc", "nsz", "arcp"}, "error_model": "numpy", "nogil": True}

NONE = {dims: np.zeros((0,) * dims, np.float32) for dims in (2, 3)}  # an array that is not given

_0, _1, _2, _HALF = (np.float32(number) for number in (0, 1, 2, 0.5))
_LOG2_E = np.float32(1 / math.log(2))
# log 2 in two parts, the first of so few bits that its multiples are exact
_LOG2_HIGH = np.float32(0.693359375)
_LOG2_LOW = np.float32(math.log(2) - 0.693359375)
_LOWEST, _HIGHEST = np.float32(-87), np.float32(88)  # exponents whose powers are normal numbers
_BIAS, _MANTISSA = np.float32(127), np.float32(2**23)  # of float32's bits


def _coefficients() -> tuple[np.float32, ...]:
    """Of a polynomial q of degree 4 with exp(r) = 1 + r + r² q(r) up to rounding, for |r| at most log(2) / 2."""
    r = np.cos(np.linspace(0, np.pi, 2001)) * math.log(2) / 2
    far = np.abs(r) > 1e-3
    series = 1 / 2 + r / 6 + r * r / 24
    q = np.where(far, (np.expm1(r) - r) / np.where(far, r * r, 1), series)
    return tuple(np.float32(c) for c in np.polynomial.polynomial.polyfit(r, q, 4))


_Q0, _Q1, _Q2, _Q3, _Q4 = _coefficients()


def _jit(function):
    """Compile at the first call; the result is kept on disk where there is a place to keep it."""
    try:
        return numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # no folder can be written to
        return numba.njit(**_OPTIONS)(function)


_inlined = numba.njit(inline="always", **_OPTIONS)


def blocks(height: int, batch: int, like: Tensor) -> Callable[[int], tuple[Tensor, np.ndarray]]:
    """Gives room for ``(height, n)`` numbers in one piece, always the same, at first zeros.

    Products into columns of a wider buffer take a fifth to a third longer.
    """
    room = like.new_zeros(height * batch)
    known: dict[int, tuple[Tensor, np.ndarray]] = {}

    def block(n: int) -> tuple[Tensor, np.ndarray]:
        if n not in known:
            found = room[: height * n].view(height, n)
            known[n] = found, found.numpy()
        return known[n]

    return block


def transposed(matrix: Tensor) -> Tensor:
    """A contiguous copy of the transposed matrix, in a third of PyTorch's time."""
    rows, columns = matrix.shape
    found = matrix.new_empty(columns, rows)
    _to_columns(matrix.detach().numpy(), rows, found.numpy(), 0)
    return found


@_inlined
def _exp(x):
    """e to the power of x, relative error below 2e-7; x is kept between -87 and 88."""
    x = _LOWEST if x < _LOWEST else x  # written so that NaN stays
    x = _HIGHEST if x > _HIGHEST else x
    whole = np.floor(x * _LOG2_E + _HALF)
    r = x - whole * _LOG2_HIGH - whole * _LOG2_LOW
    power = _1 + r + r * r * (_Q0 + r * (_Q1 + r * (_Q2 + r * (_Q3 + r * _Q4))))
    return power * np.int32((whole + _BIAS) * _MANTISSA).view(np.float32)


@_inlined
def _sigmoid(x):
    return _1 / (_1 + _exp(-x))


@_inlined
def _tanh(x):
    return _2 / (_1 + _exp(-_2 * x)) - _1


@_jit
def cell_forward(bias, product, fresh, gates, cells, squashed, at, n, before, before_at, out, out_at):
    """One LSTM step.

    Args:
        bias: of the gates, ``(4H,)``.
        product: of weights and what the step reads, ``(4H, n)``.
        fresh: whether that is all of it; else the rest is in the gates already.
        gates: receive the activated gates, ``(4H, N)``: input, forget, candidate, output.
        cells, squashed: receive the new state and its tanh, ``(H, N)``.
        before, before_at: the state before the step.
        out, out_at: receives the output.
    """
    size = cells.shape[0]
    for row in range(4 * size):
        gate, shift = gates[row, at : at + n], bias[row]
        if fresh:
            for j in range(n):
                gate[j] = product[row, j] + shift
        else:
            for j in range(n):
                gate[j] += product[row, j] + shift
        if 2 * size <= row < 3 * size:
            for j in range(n):
                gate[j] = _tanh(gate[j])
        else:
            for j in range(n):
                gate[j] = _sigmoid(gate[j])
    for r in range(size):
        i, f = gates[r, at : at + n], gates[size + r, at : at + n]
        g, o = gates[2 * size + r, at : at + n], gates[3 * size + r, at : at + n]
        old, new = before[r, before_at : before_at + n], cells[r, at : at + n]
        squash, output = squashed[r, at : at + n], out[r, out_at : out_at + n]
        for j in range(n):
            state = f[j] * old[j] + i[j] * g[j]
            tanh = _tanh(state)
            new[j], squash[j], output[j] = state, tanh, o[j] * tanh


@_jit
def cell_backward(gates, squashed, at, n, before, before_at, d_out, d_row, d_at, above, factors, d_cell, d_gates):
    """Back through one LSTM step.

    Args:
        gates, squashed: what :func:`cell_forward` left in them.
        before, before_at: the state before the step.
        d_out, d_row, d_at: gradient of the output: rows from ``d_row``, columns from ``d_at``.
        above: more of it, from the layer above, the first H rows from column 0; ``(0, 0)``: none.
        factors: of the dropout that lies between, ``(H, N)``; ``(0, 0)``: none.
        d_cell: gradient of the new state, ``(H, B)``; becomes that of the state before.
        d_gates: receives that of the gates before their activations, ``(4H, N)``.
    """
    size = squashed.shape[0]
    d_h = np.empty(n, np.float32)
    for r in range(size):
        d_own = d_out[d_row + r, d_at : d_at + n]
        if above.shape[0] == 0:
            for j in range(n):
                d_h[j] = d_own[j]
        elif factors.shape[0] == 0:
            for j in range(n):
                d_h[j] = d_own[j] + above[r, j]
        else:
            for j in range(n):
                d_h[j] = d_own[j] + above[r, j] * factors[r, at + j]
        i, f = gates[r, at : at + n], gates[size + r, at : at + n]
        g, o = gates[2 * size + r, at : at + n], gates[3 * size + r, at : at + n]
        d_i, d_f = d_gates[r, at : at + n], d_gates[size + r, at : at + n]
        d_g, d_o = d_gates[2 * size + r, at : at + n], d_gates[3 * size + r, at : at + n]
        squash, old, d_state = squashed[r, at : at + n], before[r, before_at : before_at + n], d_cell[r, :n]
        for j in range(n):
            opens, keeps, candidate, shows = i[j], f[j], g[j], o[j]
            tanh = squash[j]
            inner = d_state[j] + d_h[j] * shows * (_1 - tanh * tanh)
            d_i[j] = inner * candidate * opens * (_1 - opens)
            d_f[j] = inner * old[j] * keeps * (_1 - keeps)
            d_g[j] = inner * opens * (_1 - candidate * candidate)
            d_o[j] = d_h[j] * tanh * shows * (_1 - shows)
            d_state[j] = inner * keeps


@_jit
def copy_columns(source, n, factors, target, row, at):
    """Columns 0 to n of ``source``, times those of ``factors`` from ``at`` unless it is ``(0, 0)``.

    They go to rows from ``row`` and columns from ``at`` of ``target``.
    """
    for r in range(source.shape[0]):
        if factors.shape[0] == 0:
            for j in range(n):
                target[row + r, at + j] = source[r, j]
        else:
            for j in range(n):
                target[row + r, at + j] = source[r, j] * factors[r, at + j]


@_jit
def _to_rows(columns, n, rows):
    """n sentences from ``(H, B)`` to ``(B, H)``, in squares that stay in the fastest cache."""
    size = columns.shape[0]
    for first in range(0, size, 16):
        for start in range(0, n, 16):
            for j in range(start, min(start + 16, n)):
                for r in range(first, min(first + 16, size)):
                    rows[j, r] = columns[r, j]


@_jit
def _to_columns(rows, n, columns, at):
    """n sentences from ``(B, H)`` to the columns from ``at`` of ``(H, N)``."""
    size = columns.shape[0]
    for first in range(0, size, 16):
        for start in range(0, n, 16):
            for r in range(first, min(first + 16, size)):
                for j in range(start, min(start + 16, n)):
                    columns[r, at + j] = rows[j, r]


@_jit
def _map(scores, alpha, probs):
    """alpha-entmax of one row for alpha from 1 to 2, by Newton on the norm (see ``entmax.thresholds``)."""
    top = scores[0]
    check = _0
    for s in scores:
        top = max(top, s)
        check += s
    if math.isnan(check):
        probs[:] = np.nan
        return
    total = 0.0
    if alpha == 1.0:
        for s in range(scores.size):
            probs[s] = _exp(scores[s] - top)
            total += probs[s]
    else:
        epsilon = alpha - 1.0
        width = 1.0
        for _ in range(100):
            norm, following = _norm_and_step(scores, top, epsilon, width)
            width = min(width, following)
            if norm - 1.0 <= 1e-7:
                break
        for s in range(scores.size):
            base = 1.0 + epsilon * (scores[s] - top) / width
            probs[s] = np.float32(_power(base, epsilon)) if base > 0.0 else _0
            total += probs[s]
    scale = np.float32(1.0 / total)
    for s in range(scores.size):
        probs[s] *= scale


@_inlined
def _power(base, epsilon):
    if epsilon == 1.0:
        return base
    return base * base if epsilon == 0.5 else math.exp(math.log(base) / epsilon)


@_jit
def _norm_and_step(scores, top, epsilon, width):
    """``h(w)`` and the root of its tangent at 1."""
    total = slope = 0.0
    for s in range(scores.size):
        base = 1.0 + epsilon * (scores[s] - top) / width
        if base > 0.0:
            r = _power(base, epsilon)
            total += r
            slope += r / base
    return width * total**epsilon, width - (width * total - total ** (1.0 - epsilon)) / slope


@_jit
def attend_forward(columns, n, queries, keys, values, lengths, alpha, probs, result, at):
    """Attention of one step.

    Args:
        columns: the recurrent outputs, ``(H, B)``.
        queries: receives them, ``(B, H)``.
        keys, values: ``(B, S, H)``.
        lengths: how many positions may be attended to, ``(B,)``; zero: the attention is zero.
        alpha: from 1 to 2.
        probs: receives the attention, ``(B, S)``, zero beforehand.
        result, at: receives the context, ``(H, N)``.
    """
    _to_rows(columns, n, queries)
    size = columns.shape[0]
    scores = np.empty(keys.shape[1], np.float32)
    contexts = np.zeros((n, size), np.float32)
    for b in range(n):
        count = lengths[b]
        if count == 0:
            continue
        query, context = queries[b], contexts[b]
        for s in range(count):
            key, score = keys[b, s], _0
            for h in range(size):
                score += key[h] * query[h]
            scores[s] = score
        row = probs[b, :count]
        _map(scores[:count], alpha, row)
        for s in range(count):
            share = row[s]
            if share != _0:
                value = values[b, s]
                for h in range(size):
                    context[h] += share * value[h]
    _to_columns(contexts, n, result, at)


@_jit
def finish_forward(attended, at, n, factors, outputs, t, inputs, row, next_at, next_n):
    """The attentional output of one step.

    Args:
        attended: before the tanh, ``(H, N)``; becomes its tanh.
        factors: of the dropout, ``(H, N)``; ``(0, 0)``: none.
        outputs, t: receive the result, ``(B, T, H)``.
        inputs, row, next_at, next_n: the next step's, which receive it for the sentences that go on.
    """
    size = attended.shape[0]
    columns = np.empty((size, n), np.float32)
    for r in range(size):
        here, column = attended[r, at : at + n], columns[r]
        if factors.shape[0] == 0:
            for j in range(n):
                here[j] = _tanh(here[j])
                column[j] = here[j]
        else:
            factor = factors[r, at : at + n]
            for j in range(n):
                here[j] = _tanh(here[j])
                column[j] = here[j] * factor[j]
        for j in range(next_n):
            inputs[row + r, next_at + j] = column[j]
    _to_rows(columns, n, outputs[:, t])


@_jit
def finish_backward(attended, at, n, factors, d_outputs, t, d_feed, d_result, d_results):
    """Back through :func:`finish_forward`.

    Args:
        d_outputs, t: gradient of the outputs, ``(B, T, H)``; ``(0, 0, 0)``: none.
        d_feed: what comes back from the next step, the first H rows.
        d_result: receives the gradient before the tanh, ``(H, n)``.
        d_results: receives it, ``(B, H)``.
    """
    size = attended.shape[0]
    columns = np.zeros((size, n), np.float32)
    if d_outputs.shape[0] > 0:
        _to_columns(d_outputs[:, t], n, columns, 0)
    for r in range(size):
        here, column, gradient = attended[r, at : at + n], columns[r], d_result[r]
        feed = d_feed[r]
        if factors.shape[0] == 0:
            for j in range(n):
                gradient[j] = (column[j] + feed[j]) * (_1 - here[j] * here[j])
        else:
            factor = factors[r, at : at + n]
            for j in range(n):
                gradient[j] = (column[j] + feed[j]) * (_1 - here[j] * here[j]) * factor[j]
    _to_rows(d_result, n, d_results)


@_jit
def attend_backward(probs, d_results, keys, values, lengths, alpha, d_probs, t, d_scores, d_hidden, n):
    """Back through :func:`attend_forward`; what has no probability has no part in it (Prop. 1 of the paper).

    Args:
        probs: attention of the step, ``(B, S)``.
        d_results: gradient of the contexts, ``(B, H)``.
        d_probs, t: gradient of all steps' attention, ``(B, T, S)``; ``(0, 0, 0)``: none.
        d_scores: receives the gradient of the scores, ``(B, S)``, zero beforehand.
        d_hidden: that of the recurrent outputs is added, ``(H, B)``.
    """
    size = keys.shape[2]
    rows = np.zeros((n, size), np.float32)
    weights = np.empty(keys.shape[1], np.float32)
    power = np.float32(2.0 - alpha)
    for b in range(n):
        row, gradients, gradient, out = probs[b], d_scores[b], d_results[b], rows[b]
        total, mean = _0, _0
        for s in range(lengths[b]):
            share = row[s]
            if share == _0:
                continue
            value, dot = values[b, s], _0
            for h in range(size):
                dot += value[h] * gradient[h]
            if d_probs.shape[0] > 0:
                dot += d_probs[b, t, s]
            if alpha == 1.0:
                weight = share
            elif alpha == 1.5:
                weight = np.sqrt(share)
            elif alpha == 2.0:
                weight = _1
            else:
                weight = share**power
            weights[s] = weight
            gradients[s] = dot
            total += weight
            mean += weight * dot
        if total == _0:
            continue
        mean /= total
        for s in range(lengths[b]):
            if row[s] == _0:
                continue
            change = weights[s] * (gradients[s] - mean)
            gradients[s] = change
            key = keys[b, s]
            for h in range(size):
                out[h] += change * key[h]
    columns = np.empty((size, n), np.float32)
    _to_columns(rows, n, columns, 0)
    for h in range(size):
        for j in range(n):
            d_hidden[h, j] += columns[h, j]
