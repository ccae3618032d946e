"""Arithmetic that the compiled loops share, and the types of what they work on."""

from __future__ import annotations

import math

import numba
import numpy as np
from numba import types

from onmt_entmax.engines.cpu.compiled.threads import OPTIONS

NONE = {dims: np.zeros((0,) * dims, np.float32) for dims in (2, 3)}  # an array that is not given
NO_MASK = np.zeros((0, 0), np.uint8), 1.0  # dropout that is not there

INT, FLOAT, INDEX = types.int64, types.float64, types.int64[::1]
ONE_D, TWO_D, THREE_D = types.float32[::1], types.float32[:, ::1], types.float32[:, :, ::1]
MASK = types.uint8[:, ::1]

ZERO, ONE, _2, _HALF = (np.float32(number) for number in (0, 1, 2, 0.5))
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


inlined = numba.njit(inline="always", **OPTIONS)


@inlined
def bounds(count, share, shares):
    return count * share // shares, count * (share + 1) // shares


@inlined
def exp(x):
    """e to the power of x, relative error below 2e-7; x is kept between -87 and 88."""
    x = _LOWEST if x < _LOWEST else x  # written so that NaN stays
    x = _HIGHEST if x > _HIGHEST else x
    whole = np.floor(x * _LOG2_E + _HALF)
    r = x - whole * _LOG2_HIGH - whole * _LOG2_LOW
    power = ONE + r + r * r * (_Q0 + r * (_Q1 + r * (_Q2 + r * (_Q3 + r * _Q4))))
    return power * np.int32((whole + _BIAS) * _MANTISSA).view(np.float32)


@inlined
def sigmoid(x):
    return ONE / (ONE + exp(-x))


@inlined
def tanh(x):
    return _2 / (ONE + exp(-_2 * x)) - ONE


@inlined
def turn_to_rows(columns, start, n, rows, skip):
    """n sentences from ``start``, from ``(H, B)`` to ``(B, skip + H)``, in squares that stay in the fastest cache."""
    size = columns.shape[0]
    for top in range(0, size, 16):
        bottom = min(top + 16, size)
        for left in range(start, start + n, 16):
            for j in range(left, min(left + 16, start + n)):
                row = rows[j]
                for r in range(top, bottom):
                    row[skip + r] = columns[r, j]


@inlined
def turn_to_columns(rows, n, columns, at):
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
