"""Kernels for one step of the input-feeding decoder; ``decoder`` launches them, ``B * H`` numbers or B sentences each.

``read`` and ``above`` are rows of what a layer reads, with ``stride`` numbers each; a mask is a byte for each number.
Everything is computed in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from onmt_entmax.entmax.triton_kernels import _bounds, _ratios, _scalar, _solve


@triton.jit
def _read(pointers, inside):
    return tl.load(pointers, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.math.exp(-x))


@triton.jit
def _tanh(x):
    return 2 / (1 + tl.math.exp(-2 * x)) - 1


@triton.jit
def _dropped(x, mask, scale, at, inside, masked: tl.constexpr):
    if masked:
        kept = _read(mask + at, inside) != 0
        x = tl.where(kept, x * scale, 0.0)
    return x


@triton.jit
def cell_forward(
    gates, bias, before, after, read, stride, column, above, above_stride, mask, scale, size, count,
    masked: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """An LSTM cell: activates the gates in place; the state goes to ``read`` (the next step), dropped to ``above``."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < count
    row, unit = at // size, at % size
    gate = gates + row * 4 * size + unit
    bias += unit
    i = _sigmoid(_read(gate, inside) + _read(bias, inside))
    f = _sigmoid(_read(gate + size, inside) + _read(bias + size, inside))
    c = _tanh(_read(gate + 2 * size, inside) + _read(bias + 2 * size, inside))
    o = _sigmoid(_read(gate + 3 * size, inside) + _read(bias + 3 * size, inside))
    memory = f * _read(before + at, inside) + i * c
    state = o * _tanh(memory)
    tl.store(gate, i, mask=inside)
    tl.store(gate + size, f, mask=inside)
    tl.store(gate + 2 * size, c, mask=inside)
    tl.store(gate + 3 * size, o, mask=inside)
    tl.store(after + at, memory, mask=inside)
    tl.store(read + row * stride + column + unit, state, mask=inside)
    tl.store(above + row * above_stride + unit, _dropped(state, mask, scale, at, inside, masked), mask=inside)


@triton.jit
def cell_backward(
    gates, before, after, above, stride, d_read, d_cell, mask, scale, size, count,
    masked: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Back through a cell: its activated gates become their gradients before activation, ``d_cell`` that of before.

    The state's gradient comes from ``above`` (dropped, as forwards) and from the later half of ``d_read``.
    """
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < count
    row, unit = at // size, at % size
    d_state = _read(above + row * stride + unit, inside)
    d_state = _dropped(d_state, mask, scale, at, inside, masked)
    d_state += _read(d_read + row * 2 * size + size + unit, inside)
    gate = gates + row * 4 * size + unit
    i = _read(gate, inside)
    f = _read(gate + size, inside)
    c = _read(gate + 2 * size, inside)
    o = _read(gate + 3 * size, inside)
    squashed = _tanh(_read(after + at, inside))
    d_memory = _read(d_cell + at, inside) + d_state * o * (1 - squashed * squashed)
    earlier = _read(before + at, inside)
    tl.store(gate, d_memory * c * i * (1 - i), mask=inside)
    tl.store(gate + size, d_memory * earlier * f * (1 - f), mask=inside)
    tl.store(gate + 2 * size, d_memory * i * (1 - c * c), mask=inside)
    tl.store(gate + 3 * size, d_state * squashed * o * (1 - o), mask=inside)
    tl.store(d_cell + at, d_memory * f, mask=inside)


@triton.jit
def finish_forward(
    attended, output, read, stride, column, mask, scale, size, count, masked: tl.constexpr, block: tl.constexpr
):
    """tanh in place; dropped, the attentional output goes to ``output`` and ``read`` (the next step's)."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < count
    x = _tanh(_read(attended + at, inside))
    tl.store(attended + at, x, mask=inside)
    x = _dropped(x, mask, scale, at, inside, masked)
    tl.store(output + at, x, mask=inside)
    tl.store(read + at // size * stride + column + at % size, x, mask=inside)


@triton.jit
def finish_backward(
    attended, d_read, d_result, d_output, stride, mask, scale, size, count,
    masked: tl.constexpr, given: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Gradient before the tanh: of the fed-back output (first half of ``d_read``) and, where given, ``d_output``."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < count
    row, unit = at // size, at % size
    d = _read(d_read + row * 2 * size + unit, inside)
    if given:
        d += _read(d_output + row * stride + unit, inside)
    d = _dropped(d, mask, scale, at, inside, masked)
    x = _read(attended + at, inside)
    tl.store(d_result + at, d * (1 - x * x), mask=inside)


@triton.jit
def attend_forward(
    query, keys, values, context, probs, lengths, width, size, alpha,
    kind: tl.constexpr, rows: tl.constexpr, chunk: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    """Scores, alpha-entmax and context of a sentence; a source of length 0 gets none of either."""
    sentence = tl.program_id(0)
    places, features = tl.arange(0, rows), tl.arange(0, chunk)
    length = tl.minimum(tl.load(lengths + sentence), width).to(tl.int32) if padded else width
    first = sentence.to(tl.int64) * width * size
    z = tl.zeros((rows,), tl.float32)
    for start in range(0, size, chunk):
        here = start + features
        q = _read(query + sentence * size + here, here < size)
        tile = (places[:, None] < length) & (here[None, :] < size)
        k = _read(keys + first + places[:, None] * size + here[None, :], tile)
        z += tl.sum(k * q[None, :], 1)
    inside = places < length
    broken = tl.max((inside & (z != z)).to(tl.int32), 0) > 0
    z = tl.where(inside, z, -float("inf"))
    x = z - tl.max(z, 0)
    if kind == 4:
        p = tl.math.exp(x)
    else:
        one = _scalar(places, 1.0, tl.float32)
        epsilon = _scalar(places, alpha, tl.float32) - 1
        low, limit = _bounds(one, epsilon, width, 1e-6)
        wide = _solve(x * epsilon, one, low, one, epsilon, limit, one > 0, kind, 1e-6)
        _base, p = _ratios(x * epsilon, wide, epsilon, kind)
    p = tl.where(inside, p / tl.sum(p, 0), 0.0)
    p = tl.where(inside & broken, float("nan"), p).to(probs.dtype.element_ty)
    tl.store(probs + sentence * width + places, p, mask=places < width)
    p = p.to(tl.float32)
    for start in range(0, size, chunk):
        here = start + features
        tile = (places[:, None] < length) & (here[None, :] < size)
        v = _read(values + first + places[:, None] * size + here[None, :], tile)
        tl.store(context + sentence * size + here, tl.sum(v * p[:, None], 0), mask=here < size)


@triton.jit
def attend_backward(
    probs, d_result, keys, values, d_scores, d_query, d_probs, stride, lengths, width, size, alpha,
    kind: tl.constexpr, rows: tl.constexpr, chunk: tl.constexpr, padded: tl.constexpr, given: tl.constexpr,
):  # fmt: skip
    """Gradients of a sentence's scores, and of its query, which is added to ``d_query``."""
    sentence = tl.program_id(0)
    places, features = tl.arange(0, rows), tl.arange(0, chunk)
    length = tl.minimum(tl.load(lengths + sentence), width).to(tl.int32) if padded else width
    first = sentence.to(tl.int64) * width * size
    inside = places < length
    d_p = tl.zeros((rows,), tl.float32)
    for start in range(0, size, chunk):
        here = start + features
        d = _read(d_result + sentence * size + here, here < size)
        tile = (places[:, None] < length) & (here[None, :] < size)
        v = _read(values + first + places[:, None] * size + here[None, :], tile)
        d_p += tl.sum(v * d[None, :], 1)
    if given:
        d_p += _read(d_probs + sentence * stride + places, inside)
    p = _read(probs + sentence * width + places, inside)
    if kind == 4:
        s = p
    elif kind == 2:
        s = tl.where(p > 0, 1.0, 0.0)
    elif kind == 1:
        s = tl.math.sqrt(p)
    else:
        s = tl.where(p > 0, tl.math.exp((2 - alpha) * tl.math.log(tl.where(p > 0, p, 1.0))), 0.0)
    total = tl.sum(s, 0)
    d_z = s * (d_p - tl.sum(s * d_p, 0) / tl.where(length > 0, total, 1.0))
    tl.store(d_scores + sentence * width + places, d_z, mask=places < width)
    for start in range(0, size, chunk):
        here = start + features
        tile = (places[:, None] < length) & (here[None, :] < size)
        k = _read(keys + first + places[:, None] * size + here[None, :], tile)
        old = _read(d_query + sentence * size + here, here < size)
        tl.store(d_query + sentence * size + here, old + tl.sum(k * d_z[:, None], 0), mask=here < size)
