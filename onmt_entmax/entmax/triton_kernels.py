"""Triton's kernels for mappings and losses; triton.py launches them.

Logarithms and exponentials are those of ``tl.math``, mended near 0, so that Triton's interpreter
(``TRITON_INTERPRET=1``) runs the same kernels on a CPU; nothing here has run on a GPU so far.

In the *narrow* kernels (attention) a program keeps a row and its threshold in registers. In the kernel for *rows* of
any width (vocabularies) a program reads its row chunk after chunk. The first time through, each place of a chunk keeps
the largest entry that stood there: entmax of these maxima alone gives a width that is never below the row's, and as a
rule is the row's, since few entries are in the support and fewer share a place. So norm-Newton begins where it mostly
ends, and a row is read three or four times. A kernel writes over what it reads only after sums over the whole row,
which all of a program's threads wait for.
"""

from __future__ import annotations

import triton
import triton.language as tl

MOST_STEPS = tl.constexpr(64)  # of Newton, every third of which halves the bracket


@triton.jit
def _log1p(x):
    # by the series of atanh near 0, where a GPU's logarithm is only right to 2^-22 of 1
    z = x / (2 + x)
    q = z * z
    series = 2 * z * (1 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q * (1 / 9 + q / 11)))))
    return tl.where(tl.abs(x) < 0.25, series, tl.math.log(1 + x))


@triton.jit
def _phi(x):
    # (exp(x) - 1 - x) / x^2, see functional.py
    series = 1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * (1 / 720 + x * (1 / 5040 + x / 40320)))))
    far = tl.abs(x) > 0.3
    safe = tl.where(far, x, 1.0)
    return tl.where(far, (tl.math.exp(safe) - 1 - safe) / (safe * safe), series)


@triton.jit
def _ratios(s, width, epsilon, kind: tl.constexpr):
    # [1 + s / w]_+ and its power 1 / epsilon; exact zeros outside the support
    base = tl.maximum((s + width) / width, 0.0)
    if kind == 2:
        ratios = base
    elif kind == 1:
        ratios = base * base
    else:
        inside = base > 0
        logs = _log1p(tl.where(inside, s / width, 0.0))
        ratios = tl.where(inside, tl.math.exp(logs / epsilon), 0.0)
    return base, ratios


@triton.jit
def _scalar(columns, value, dtype: tl.constexpr):
    return tl.max(tl.where(columns == 0, value, 0.0).to(dtype), 0)


@triton.jit
def _bounds(one, epsilon, d, slack: tl.constexpr):
    # the least width that a row of d entries has, and how far its norm may be from 1
    low = one * tl.math.exp(-epsilon * tl.math.log(d * one)) * (1 - slack)
    return low, slack * (1 + 0.03 * tl.math.sqrt(d * 1.0))


@triton.jit
def _follow(total, slope, width, low, high, step, epsilon, limit, slack: tl.constexpr):
    # norm-Newton's next width and bracket from the sums over a row, and whether there is one: see solvers.newton
    convex = epsilon <= 1
    power = tl.math.exp(epsilon * tl.math.log(total))
    norm = width * power
    tangent = width - (width * total - total / power) / slope
    high = tl.where(norm >= 1, width, high)
    low = tl.where(norm < 1, width, low)
    high = tl.where(convex, tl.minimum(high, tangent), high)
    moving = (tl.abs(norm - 1) > limit) & (high - low > slack * 0.25 * high)
    moving = moving & ((tl.abs(tangent - width) > slack * 0.1 * width) | (convex == 0))
    middle = tl.math.sqrt(low * high)
    halves = tl.where(convex, (step >= 5) & (step % 3 == 2), step % 2 == 1)
    otherwise = tl.where(convex, high, middle)
    following = tl.where((tangent > low) & (tangent <= high), tangent, otherwise)
    return tl.where(moving, tl.where(halves, middle, following), width), low, high, moving


@triton.jit
def _solve(s, width, low, high, epsilon, limit, moving, kind: tl.constexpr, slack: tl.constexpr):
    # the width of a row that is in registers
    step = 0
    while moving & (step < MOST_STEPS):
        base, ratios = _ratios(s, width, epsilon, kind)
        total = tl.sum(ratios, 0)
        slope = tl.sum(tl.where(base > 0, ratios / tl.where(base > 0, base, 1.0), 0.0), 0)
        width, low, high, moving = _follow(total, slope, width, low, high, step, epsilon, limit, slack)
        step += 1
    return width


@triton.jit
def narrow_forward(scores, alphas, probs, d, alpha, kind: tl.constexpr, double: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    inside = columns < d
    z = tl.load(scores + row * d + columns, mask=inside, other=-float("inf"))
    z = z.to(tl.float64 if double else tl.float32)
    x = z - tl.max(z, 0)
    broken = tl.max((z != z).to(tl.int32), 0) > 0  # maxima leave NaN out
    # kind 3: one alpha per row
    epsilon = (tl.load(alphas + row).to(z.dtype) if kind == 3 else _scalar(columns, alpha, z.dtype)) - 1
    dense = epsilon <= 0
    epsilon = tl.where(dense, 1.0, epsilon).to(z.dtype)
    s = x * epsilon
    slack: tl.constexpr = 1e-12 if double else 1e-6
    one = _scalar(columns, 1.0, z.dtype)
    low, limit = _bounds(one, epsilon, d, slack)
    width = _solve(s, one, low, one, epsilon, limit, ~dense, kind, slack)
    _base, ratios = _ratios(s, width, epsilon, kind)
    ratios = tl.where(dense, tl.math.exp(x), ratios)
    found = tl.where(broken, float("nan"), ratios / tl.sum(ratios, 0))
    tl.store(probs + row * d + columns, found.to(tl.float32), mask=inside)


@triton.jit
def narrow_backward(probs, grads, alphas, d_scores, d_alphas, d, alpha, kind: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    valid = columns < d
    p = tl.load(probs + row * d + columns, mask=valid, other=0.0).to(tl.float32)
    g = tl.load(grads + row * d + columns, mask=valid, other=0.0).to(tl.float32)
    inside = p > 0
    epsilon = tl.load(alphas + row).to(tl.float32) - 1 if kind == 3 else alpha - 1
    u = tl.where(inside, -tl.math.log(tl.where(inside, p, 1.0)), 0.0)
    if kind == 2:
        s = tl.where(inside, 1.0, 0.0)
    elif kind == 1:
        s = tl.math.sqrt(p)
    else:
        s = tl.where(inside, tl.math.exp((epsilon - 1) * u), 0.0)
    d_z = s * (g - tl.sum(s * g, 0) / tl.sum(s, 0))
    tl.store(d_scores + row * d + columns, d_z, mask=valid)
    if kind == 3:  # see functional.alpha_gradient
        x = epsilon * u
        r = u * u * _phi(x)
        entropy = tl.sum(p * u, 0)
        mean = tl.sum(p * r, 0)
        scale = 1 + tl.sum(p * (x + x * x * _phi(x)), 0)
        slope = p * (mean * (1 + x) - r * (1 + epsilon * entropy)) / scale
        tl.store(d_alphas + row, tl.sum(g * slope, 0))


@triton.jit
def rows_forward(
    logits, out, targets, counted, losses, spreads, hits, sizes, golds, squares, d, alpha, share,
    kind: tl.constexpr, double: tl.constexpr, block: tl.constexpr, mapping: tl.constexpr, masked: tl.constexpr,
    smooth: tl.constexpr, sized: tl.constexpr, measured: tl.constexpr, differentiate: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, block)
    logits += row * d
    gold = -1 if mapping else tl.load(targets + row)  # -1: probabilities are wanted, not p - y
    counts = (tl.load(counted + row) != 0) if masked else (row >= 0)
    end = tl.where(counts, d, 0)  # a row that does not count is not read
    kept: tl.constexpr = tl.float64 if double else tl.float32
    slack: tl.constexpr = 1e-12 if double else 1e-6

    best = tl.full((block,), -float("inf"), kept)  # the largest entry of each place, and its column
    column = tl.zeros((block,), tl.int32)
    reached = tl.full((block,), -float("inf"), kept)
    broken = tl.zeros((block,), tl.int32)  # maxima leave NaN out
    for start in range(0, end, block):
        here = start + places
        z = tl.load(logits + here, mask=here < end, other=-float("inf")).to(kept)
        broken = tl.where(z != z, 1, broken)
        column = tl.where(z > best, here, column)
        best = tl.where(z > best, z, best)
        reached = tl.where(here == gold, z, reached)
    top = tl.max(best, 0)
    first = tl.min(tl.where(best == top, column, d), 0)
    x_gold = tl.max(reached, 0) - top

    one = _scalar(places, 1.0, kept)
    epsilon = _scalar(places, alpha, kept) - 1
    width = one
    moving = one > 0
    low, limit = _bounds(one, epsilon, d, slack)
    if kind != 4:
        width = _solve((best - top) * epsilon, one, low, one, epsilon, limit, moving, kind, slack)
    high = one
    total, mean, square, rest, size = one, one, one, one, one
    step = 0
    while moving & (step < MOST_STEPS):
        totals = tl.zeros((block,), kept)
        slopes = tl.zeros((block,), kept)
        means = tl.zeros((block,), kept)
        squared = tl.zeros((block,), kept)
        rests = tl.zeros((block,), kept)
        supports = tl.zeros((block,), kept)
        for start in range(0, end, block):
            here = start + places
            z = tl.load(logits + here, mask=here < end, other=-float("inf")).to(kept)
            x = z - top
            if kind == 4:
                ratios = tl.math.exp(x)
            else:
                base, ratios = _ratios(x * epsilon, width, epsilon, kind)
                slopes += tl.where(base > 0, ratios / tl.where(base > 0, base, 1.0), 0.0)
                supports += tl.where(ratios > 0, 1.0, 0.0)
                means += tl.where(ratios > 0, ratios * x, 0.0)
            totals += ratios
            if measured:
                squared += ratios * ratios
            if smooth:
                rests += tl.where(here < d, x, 0.0)
        total, mean, size = tl.sum(totals, 0), tl.sum(means, 0), tl.sum(supports, 0)
        square, rest = tl.sum(squared, 0), tl.sum(rests, 0)
        if kind == 4:
            moving = one < 0
        else:
            width, low, high, moving = _follow(total, tl.sum(slopes, 0), width, low, high, step, epsilon, limit, slack)
        step += 1

    total = tl.where(tl.max(broken, 0) > 0, float("nan"), total)
    if not mapping:
        log = tl.math.log(total)
        y = epsilon * log  # losses.conjugate; for softmax epsilon is 0
        loss = (log * (1 - y * _phi(-y)) + epsilon * mean / total) / (1 + epsilon) - x_gold
        tl.store(losses + row, tl.where(counts, loss, 0.0).to(tl.float32))
        tl.store(hits + row, tl.where(counts & (first == gold), 1, 0).to(tl.int32))
    if sized:  # softmax has no zeros but by rounding
        tl.store(sizes + row, tl.where(counts, d if kind == 4 else size, 0).to(tl.int64))
    if smooth:
        tl.store(spreads + row, tl.where(counts, x_gold - rest / d, 0.0).to(tl.float32))
    if measured:
        tl.store(squares + row, tl.where(counts, square / (total * total), 0.0).to(tl.float32))
        if kind == 4:
            at_gold = tl.math.exp(x_gold)
        else:
            _base, at_gold = _ratios(x_gold * epsilon, width, epsilon, kind)
        tl.store(golds + row, tl.where(counts, at_gold / total, 0.0).to(tl.float32))
    if differentiate:
        out += row * d
        for start in range(0, d, block):
            here = start + places
            z = tl.load(logits + here, mask=here < end, other=-float("inf")).to(kept)
            if kind == 4:
                ratios = tl.math.exp(z - top)
            else:
                base, ratios = _ratios((z - top) * epsilon, width, epsilon, kind)
            gradient = ratios / total - tl.where(here == gold, 1.0, 0.0)
            if smooth:
                gradient += tl.where(here == gold, share * d, 0.0) - share
            tl.store(out + here, tl.where(counts, gradient, 0.0).to(tl.float32), mask=here < d)
