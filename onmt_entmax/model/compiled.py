"""The steps of unrolled LSTM layers and their attention, compiled: one pass over memory for a dozen operations.

For float32 on a CPU, where numba is installed (see ``kernels.compiled_for``). Matrix products stay with PyTorch; what
lies between them is here: on a step's few thousand numbers PyTorch's operations spend most of their time in being
called.

Arguments are NumPy views of contiguous tensors. Features stand first, and what belongs to a step is a block of its own
(see :func:`blocks`), whose columns are the n sentences that take part. H hidden units, B sentences, S source positions,
T target steps, N tokens.

Every function is ``threads.Shared``: its first argument, not named below, is the number of threads (of
``threads_for``), and ``share`` of ``shares`` is a thread's part of the work, hidden units or sentences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np
from numba import types
from torch import Tensor

from onmt_entmax.model.ragged import Ragged
from onmt_entmax.model.threads import OPTIONS, Shared, jit, this_thread, threads_for  # noqa: F401

NONE = {dims: np.zeros((0,) * dims, np.float32) for dims in (2, 3)}  # an array that is not given

_INT, _BOOL, _FLOAT, _INDEX = types.int64, types.boolean, types.float64, types.int64[::1]
_1D, _2D, _3D = types.float32[::1], types.float32[:, ::1], types.float32[:, :, ::1]

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


_inlined = numba.njit(inline="always", **OPTIONS)


@_inlined
def _part(count, share, shares):
    return count * share // shares, count * (share + 1) // shares


class Blocks(NamedTuple):
    """A number of features for every token of a ragged batch: of each step a block ``(features, n)``, in one piece.

    The columns of a buffer ``(features, N)`` lie in as many pages of memory as there are features, and to look those up
    takes longer than to compute.
    """

    flat: Tensor
    tensors: list[Tensor]
    arrays: list[np.ndarray]

    @classmethod
    def of(cls, flat: Tensor, ragged: Ragged) -> Blocks:
        """Views of ``(features * N,)``."""
        tensors = ragged.blocks(flat)
        return cls(flat, tensors, [part.numpy() for part in tensors])

    @classmethod
    def empty(cls, features: int, ragged: Ragged, like: Tensor) -> Blocks:
        """New ones, of no values yet."""
        return cls.of(like.new_empty(features * sum(ragged.rows)), ragged)

    def columns(self, threads: int) -> Tensor:
        """A copy ``(features, N)``."""
        found = self.flat.new_empty(self.tensors[0].size(0), sum(part.size(1) for part in self.tensors))
        rows = np.array([part.size(1) for part in self.tensors])
        join(threads, self.flat.numpy(), rows, found.numpy())
        return found


def room(features: int, batch: int, like: Tensor) -> Callable[[int], tuple[Tensor, np.ndarray]]:
    """Gives ``(features, n)`` numbers in one piece, always the same."""
    flat = like.new_empty(features * batch)

    def first(n: int) -> tuple[Tensor, np.ndarray]:
        found = flat[: features * n].view(features, n)
        return found, found.numpy()

    return first


def transposed(threads: int, matrix: Tensor, skip: int = 0) -> Tensor:
    """A contiguous copy of the transposed matrix, which is contiguous, without its first columns."""
    rows, columns = matrix.shape
    found = matrix.new_empty(columns - skip, rows)
    to_columns(threads, matrix.detach().numpy(), skip, np.arange(rows), 0, rows, found.numpy(), columns - skip)
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


@jit
def _cell_forward(share, shares, bias, gates, cells, squashed, before, state, read, row, above, factors):
    """One LSTM step.

    Args:
        bias: of the gates, ``(4H,)``.
        gates: product of weights and what the step reads, ``(4H, n)``; with the bias and activated afterwards: input,
            forget, candidate, output.
        cells, squashed: receive the new state and its tanh, ``(H, n)``.
        before: the state before the step, ``(H, n or more)``.
        state: receives the output, ``(H, B)``.
        read, row: what the layer reads in the next step, whose rows from ``row`` receive the output of the sentences
            that go on; ``(0, 0)``: there is no next step, or it reads the output elsewhere.
        above, factors: what the layer above reads in this step; its first H rows receive the output, times the dropout
            ``(H, n)`` that lies between. ``(0, 0)``: none.
    """
    size, n = cells.shape
    first, stop = _part(size, share, shares)
    for r in range(first, stop):
        i, f, g, o = gates[r], gates[size + r], gates[2 * size + r], gates[3 * size + r]
        for j in range(n):
            i[j] = _sigmoid(i[j] + bias[r])
        for j in range(n):
            f[j] = _sigmoid(f[j] + bias[size + r])
        for j in range(n):
            g[j] = _tanh(g[j] + bias[2 * size + r])
        for j in range(n):
            o[j] = _sigmoid(o[j] + bias[3 * size + r])
        old, new, squash, output = before[r, :n], cells[r], squashed[r], state[r, :n]
        for j in range(n):
            total = f[j] * old[j] + i[j] * g[j]
            tanh = _tanh(total)
            new[j], squash[j], output[j] = total, tanh, o[j] * tanh
        if read.shape[0] > 0:
            following = read[row + r]
            for j in range(following.size):
                following[j] = output[j]
        if above.shape[0] > 0:
            upper = above[r]
            if factors.shape[0] == 0:
                for j in range(n):
                    upper[j] = output[j]
            else:
                for j in range(n):
                    upper[j] = output[j] * factors[r, j]


@jit
def _cell_backward(share, shares, gates, squashed, before, d_out, d_row, above, factors, d_cell, d_gates):
    """Back through one LSTM step.

    Args:
        gates, squashed: what ``cell_forward`` left in them.
        before: the state before the step, ``(H, n or more)``.
        d_out, d_row: gradient of the output, rows from ``d_row``, the first n columns.
        above: more of it, the first H rows and n columns; ``(0, 0)``: none.
        factors: of the dropout that ``above`` passes, ``(H, n)``; ``(0, 0)``: none.
        d_cell: gradient of the new state, ``(H, B)``; becomes that of the state before.
        d_gates: receives that of the gates before their activations, ``(4H, n)``.
    """
    size, n = squashed.shape
    d_h = np.empty(n, np.float32)
    first, stop = _part(size, share, shares)
    for r in range(first, stop):
        d_own = d_out[d_row + r, :n]
        if above.shape[0] == 0:
            for j in range(n):
                d_h[j] = d_own[j]
        elif factors.shape[0] == 0:
            for j in range(n):
                d_h[j] = d_own[j] + above[r, j]
        else:
            for j in range(n):
                d_h[j] = d_own[j] + above[r, j] * factors[r, j]
        i, f, g, o = gates[r], gates[size + r], gates[2 * size + r], gates[3 * size + r]
        d_i, d_f, d_g, d_o = d_gates[r], d_gates[size + r], d_gates[2 * size + r], d_gates[3 * size + r]
        squash, old, d_state = squashed[r], before[r, :n], d_cell[r, :n]
        for j in range(n):
            opens, keeps, candidate, shows = i[j], f[j], g[j], o[j]
            tanh = squash[j]
            inner = d_state[j] + d_h[j] * shows * (_1 - tanh * tanh)
            d_i[j] = inner * candidate * opens * (_1 - opens)
            d_f[j] = inner * old[j] * keeps * (_1 - keeps)
            d_g[j] = inner * opens * (_1 - candidate * candidate)
            d_o[j] = d_h[j] * tanh * shows * (_1 - shows)
            d_state[j] = inner * keeps


@jit
def _join(share, shares, flat, rows, columns):
    """From the blocks of all steps to ``(F, N)``."""
    size = columns.shape[0]
    first, stop = _part(size, share, shares)
    for r in range(first, stop):
        begin = at = 0
        for n in rows:
            here, there = flat[begin + r * n : begin + (r + 1) * n], columns[r, at : at + n]
            for j in range(n):
                there[j] = here[j]
            begin, at = begin + size * n, at + n


@_inlined
def _turn_to_rows(columns, start, n, rows, skip):
    """n sentences from ``start``, from ``(H, B)`` to ``(B, skip + H)``, in squares that stay in the fastest cache."""
    size = columns.shape[0]
    for top in range(0, size, 16):
        bottom = min(top + 16, size)
        for left in range(start, start + n, 16):
            for j in range(left, min(left + 16, start + n)):
                row = rows[j]
                for r in range(top, bottom):
                    row[skip + r] = columns[r, j]


@_inlined
def _turn_to_columns(rows, n, columns, at):
    """n sentences from ``(B, H)`` to the columns from ``at`` of ``(H, N)``."""
    size = columns.shape[0]
    for top in range(0, size, 16):
        bottom = min(top + 16, size)
        for left in range(0, n, 16):
            right = min(left + 16, n)
            for r in range(top, bottom):
                column = columns[r]
                for j in range(left, right):
                    column[at + j] = rows[j, r]


@jit
def _to_rows(share, shares, columns, index, start, n, rows, skip):
    """The first n columns of ``(H, B)`` go to rows of ``(N, F)``, from their column ``skip``.

    Column j goes to row ``index[start + j]``.
    """
    first, stop = _part(columns.shape[0], share, shares)
    for top in range(first, stop, 16):
        bottom = min(top + 16, stop)
        for j in range(n):
            row = rows[index[start + j]]
            for r in range(top, bottom):
                row[skip + r] = columns[r, j]


@jit
def _to_columns(share, shares, rows, skip, index, start, n, columns, units):
    """The other way: so many units of the first n columns of ``(F, B)`` are filled from the rows."""
    first, stop = _part(units, share, shares)
    for top in range(first, stop, 16):
        bottom = min(top + 16, stop)
        for left in range(0, n, 16):
            right = min(left + 16, n)
            for r in range(top, bottom):
                column = columns[r]
                for j in range(left, right):
                    column[j] = rows[index[start + j], skip + r]


@jit
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


@jit
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


@jit
def _attend_forward(share, shares, state, queries, keys, values, lengths, alpha, probs, context):
    """Attention of one step.

    Args:
        state: the recurrent outputs, ``(H, B)``.
        queries: receives them, ``(B, H)``.
        keys, values: ``(B, S, H)``.
        lengths: how many positions may be attended to, ``(B,)``; zero: the attention is zero.
        alpha: from 1 to 2.
        probs: receives the attention, ``(B, S)``, zero beforehand.
        context: receives the context, ``(H, n)``.
    """
    size, n = context.shape
    first, stop = _part(n, share, shares)
    _turn_to_rows(state, first, stop - first, queries, 0)
    scores = np.empty(keys.shape[1], np.float32)
    contexts = np.zeros((stop - first, size), np.float32)
    for b in range(first, stop):
        count = lengths[b]
        if count == 0:
            continue
        query, found = queries[b], contexts[b - first]
        for s in range(count):
            key, score = keys[b, s], _0
            for h in range(size):
                score += key[h] * query[h]
            scores[s] = score
        row = probs[b, :count]
        _map(scores[:count], alpha, row)
        for s in range(count):
            weight = row[s]
            if weight != _0:
                value = values[b, s]
                for h in range(size):
                    found[h] += weight * value[h]
    _turn_to_columns(contexts, stop - first, context, first)


@jit
def _finish_forward(share, shares, attended, factors, outputs, t, read, row):
    """The attentional output of one step.

    Args:
        attended: the output before its tanh, ``(H, n)``; its tanh afterwards.
        factors: of the dropout, ``(H, n)``; ``(0, 0)``: none.
        outputs, t: receive what leaves the step, ``(B, T, H)``.
        read, row: what the first layer reads in the next step, whose rows from ``row`` receive it for the sentences
            that go on; ``(0, 0)``: there is no next step.
    """
    size, n = attended.shape
    first, stop = _part(size, share, shares)
    leaving = np.empty((stop - first, n), np.float32)
    for r in range(first, stop):
        here, column = attended[r], leaving[r - first]
        if factors.shape[0] == 0:
            for j in range(n):
                here[j] = _tanh(here[j])
                column[j] = here[j]
        else:
            factor = factors[r]
            for j in range(n):
                here[j] = _tanh(here[j])
                column[j] = here[j] * factor[j]
        if read.shape[0] > 0:
            following = read[row + r]
            for j in range(following.size):
                following[j] = column[j]
    _turn_to_rows(leaving, 0, n, outputs[:, t], first)


@jit
def _finish_backward(share, shares, attended, factors, d_outputs, t, d_feed, d_result, d_results):
    """Back through ``finish_forward``.

    Args:
        d_outputs, t: gradient of the outputs, ``(B, T, H)``; ``(0, 0, 0)``: none.
        d_feed: what comes back from the next step, the first H rows and n columns.
        d_result: receives the gradient before the tanh, ``(H, n)``.
        d_results: receives it, ``(B, H)``.
    """
    size, n = attended.shape
    first, stop = _part(size, share, shares)
    if d_outputs.shape[0] > 0:
        _turn_to_columns(d_outputs[:, t, first:stop], n, d_result[first:stop], 0)
    else:
        d_result[first:stop] = _0
    for r in range(first, stop):
        here, gradient, feed = attended[r], d_result[r], d_feed[r, :n]
        if factors.shape[0] == 0:
            for j in range(n):
                gradient[j] = (gradient[j] + feed[j]) * (_1 - here[j] * here[j])
        else:
            factor = factors[r]
            for j in range(n):
                gradient[j] = (gradient[j] + feed[j]) * (_1 - here[j] * here[j]) * factor[j]
    _turn_to_rows(d_result[first:stop], 0, n, d_results, first)


@jit
def _attend_backward(share, shares, probs, d_results, keys, values, lengths, alpha, d_probs, t, d_scores, d_hidden):
    """Back through ``attend_forward``; what has no probability has no part in it (Prop. 1 of the paper).

    Args:
        probs: attention of the step, ``(B, S)``.
        d_results: gradient of the contexts, ``(B, H)``.
        d_probs, t: gradient of all steps' attention, ``(B, T, S)``; ``(0, 0, 0)``: none.
        d_scores: receives the gradient of the scores, ``(B, S)``, zero beforehand.
        d_hidden: that of the recurrent outputs is added, ``(H, n)``.
    """
    size, n = d_hidden.shape
    first, stop = _part(n, share, shares)
    rows = np.zeros((stop - first, size), np.float32)
    weights = np.empty(keys.shape[1], np.float32)
    power = np.float32(2.0 - alpha)
    for b in range(first, stop):
        row, gradients, gradient, out = probs[b], d_scores[b], d_results[b], rows[b - first]
        total, mean = _0, _0
        for s in range(lengths[b]):
            share_of_s = row[s]
            if share_of_s == _0:
                continue
            value, dot = values[b, s], _0
            for h in range(size):
                dot += value[h] * gradient[h]
            if d_probs.shape[0] > 0:
                dot += d_probs[b, t, s]
            if alpha == 1.0:
                weight = share_of_s
            elif alpha == 1.5:
                weight = np.sqrt(share_of_s)
            elif alpha == 2.0:
                weight = _1
            else:
                weight = share_of_s**power
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
    columns = np.empty((size, stop - first), np.float32)
    _turn_to_columns(rows, stop - first, columns, 0)
    for h in range(size):
        d_row = d_hidden[h, first:stop]
        for j in range(stop - first):
            d_row[j] += columns[h, j]


_CELL_FORWARD = types.Tuple((_1D, _2D, _2D, _2D, _2D, _2D, _2D, _INT, _2D, _2D))
_CELL_BACKWARD = types.Tuple((_2D, _2D, _2D, _2D, _INT, _2D, _2D, _2D, _2D))
_JOIN = types.Tuple((_1D, _INDEX, _2D))
_TO_ROWS = types.Tuple((_2D, _INDEX, _INT, _INT, _2D, _INT))
_TO_COLUMNS = types.Tuple((_2D, _INT, _INDEX, _INT, _INT, _2D, _INT))
_ATTEND_FORWARD = types.Tuple((_2D, _2D, _3D, _3D, _INDEX, _FLOAT, _2D, _2D))
_ATTEND_BACKWARD = types.Tuple((_2D, _2D, _3D, _3D, _INDEX, _FLOAT, _3D, _INT, _2D, _2D))
_FINISH_FORWARD = types.Tuple((_2D, _2D, _3D, _INT, _2D, _INT))
_FINISH_BACKWARD = types.Tuple((_2D, _2D, _3D, _INT, _2D, _2D, _2D))


def _cell_forward_task(address):
    share, shares, arguments = this_thread(address, _CELL_FORWARD)
    _cell_forward(share, shares, *arguments)


def _cell_backward_task(address):
    share, shares, arguments = this_thread(address, _CELL_BACKWARD)
    _cell_backward(share, shares, *arguments)


def _join_task(address):
    share, shares, arguments = this_thread(address, _JOIN)
    _join(share, shares, *arguments)


def _to_rows_task(address):
    share, shares, arguments = this_thread(address, _TO_ROWS)
    _to_rows(share, shares, *arguments)


def _to_columns_task(address):
    share, shares, arguments = this_thread(address, _TO_COLUMNS)
    _to_columns(share, shares, *arguments)


def _attend_forward_task(address):
    share, shares, arguments = this_thread(address, _ATTEND_FORWARD)
    _attend_forward(share, shares, *arguments)


def _attend_backward_task(address):
    share, shares, arguments = this_thread(address, _ATTEND_BACKWARD)
    _attend_backward(share, shares, *arguments)


def _finish_forward_task(address):
    share, shares, arguments = this_thread(address, _FINISH_FORWARD)
    _finish_forward(share, shares, *arguments)


def _finish_backward_task(address):
    share, shares, arguments = this_thread(address, _FINISH_BACKWARD)
    _finish_backward(share, shares, *arguments)


cell_forward = Shared(_cell_forward, _cell_forward_task, _CELL_FORWARD)
cell_backward = Shared(_cell_backward, _cell_backward_task, _CELL_BACKWARD)
join = Shared(_join, _join_task, _JOIN)
to_rows = Shared(_to_rows, _to_rows_task, _TO_ROWS)
to_columns = Shared(_to_columns, _to_columns_task, _TO_COLUMNS)
attend_forward = Shared(_attend_forward, _attend_forward_task, _ATTEND_FORWARD)
attend_backward = Shared(_attend_backward, _attend_backward_task, _ATTEND_BACKWARD)
finish_forward = Shared(_finish_forward, _finish_forward_task, _FINISH_FORWARD)
finish_backward = Shared(_finish_backward, _finish_backward_task, _FINISH_BACKWARD)
