"""One step of attention and of the attentional output, forward and back."""

from __future__ import annotations

import math

import numpy as np
from numba import types

from onmt_entmax.engines.cpu.loops import (
    FLOAT,
    INDEX,
    INT,
    MASK,
    ONE,
    THREE_D,
    TWO_D,
    ZERO,
    Shared,
    bounds,
    exp,
    inlined,
    jit,
    tanh,
    this_thread,
    transpose_to_columns,
    transpose_to_rows,
)


@jit
def map_row(scores, alpha, probs):
    """alpha-entmax of one row for alpha from 1 to 2, by Newton on the norm (see ``entmax.solvers``)."""
    top = scores[0]
    check = ZERO
    for s in scores:
        top = max(top, s)
        check += s
    if math.isnan(check):
        probs[:] = np.nan
        return
    total = 0.0
    if alpha == 1.0:
        for s in range(scores.size):
            probs[s] = exp(scores[s] - top)
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
            probs[s] = np.float32(_power(base, epsilon)) if base > 0.0 else ZERO
            total += probs[s]
    scale = np.float32(1.0 / total)
    for s in range(scores.size):
        probs[s] *= scale


@inlined
def _power(base, epsilon):
    if epsilon == 1.0:
        return base
    return base * base if epsilon == 0.5 else math.exp(math.log(base) / epsilon)


@jit
def _norm_and_step(scores, top, epsilon, width):
    """``h(w)`` and the root of its tangent at 1."""
    total = slope = 0.0
    shrink = epsilon / width
    for s in range(scores.size):
        base = 1.0 + shrink * (scores[s] - top)
        if base > 0.0:
            if epsilon == 0.5:
                total += base * base
                slope += base
            else:
                r = _power(base, epsilon)
                total += r
                slope += r / base
    if epsilon == 0.5:
        root = math.sqrt(total)
        return width * root, width - (width * total - root) / slope
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
    first, stop = bounds(n, share, shares)
    transpose_to_rows(state, first, stop - first, queries, 0)
    scores = np.empty(keys.shape[1], np.float32)
    contexts = np.zeros((stop - first, size), np.float32)
    for b in range(first, stop):
        count = lengths[b]
        if count == 0:
            continue
        query, found = queries[b], contexts[b - first]
        for s in range(count):
            key, score = keys[b, s], ZERO
            for h in range(size):
                score += key[h] * query[h]
            scores[s] = score
        row = probs[b, :count]
        map_row(scores[:count], alpha, row)
        for s in range(count):
            weight = row[s]
            if weight != ZERO:
                value = values[b, s]
                for h in range(size):
                    found[h] += weight * value[h]
    transpose_to_columns(contexts, stop - first, context, first)


_ATTEND_FORWARD = types.Tuple((TWO_D, TWO_D, THREE_D, THREE_D, INDEX, FLOAT, TWO_D, TWO_D))
attend_forward = Shared(_attend_forward, lambda at: _attend_forward(*this_thread(at, _ATTEND_FORWARD)), _ATTEND_FORWARD)


@jit
def _finish_forward(share, shares, attended, mask, scale, outputs, t, read, row):
    """The attentional output of one step.

    Args:
        attended: the output before its tanh, ``(H, n)``; its tanh afterwards.
        mask, scale: the dropout mask, ``(H, n)``, 1 for what is multiplied with the scale, else 0; ``(0, 0)``: none.
        outputs, t: receive what leaves the step, ``(B, T, H)``.
        read, row: what the first layer reads in the next step, whose rows from ``row`` receive it for the sentences
            that go on; ``(0, 0)``: there is no next step.
    """
    size, n = attended.shape
    first, stop = bounds(size, share, shares)
    leaving, scaling = np.empty((stop - first, n), np.float32), np.float32(scale)
    for r in range(first, stop):
        here, column = attended[r], leaving[r - first]
        if mask.shape[0] == 0:
            for j in range(n):
                here[j] = tanh(here[j])
                column[j] = here[j]
        else:
            for j in range(n):
                here[j] = tanh(here[j])
                column[j] = here[j] * (scaling * np.float32(mask[r, j]))
        if read.shape[0] > 0:
            following = read[row + r]
            for j in range(following.size):
                following[j] = column[j]
    transpose_to_rows(leaving, 0, n, outputs[:, t], first)


_FINISH_FORWARD = types.Tuple((TWO_D, MASK, FLOAT, THREE_D, INT, TWO_D, INT))
finish_forward = Shared(_finish_forward, lambda at: _finish_forward(*this_thread(at, _FINISH_FORWARD)), _FINISH_FORWARD)


@jit
def _finish_backward(share, shares, attended, mask, scale, d_outputs, t, d_feed, d_result, d_results):
    """Back through ``finish_forward``.

    Args:
        d_outputs, t: gradient of the outputs, ``(B, T, H)``; ``(0, 0, 0)``: none.
        d_feed: what comes back from the next step, the first H rows and n columns.
        d_result: receives the gradient before the tanh, ``(H, n)``.
        d_results: receives it, ``(B, H)``.
    """
    size, n = attended.shape
    first, stop = bounds(size, share, shares)
    scaling = np.float32(scale)
    if d_outputs.shape[0] > 0:
        transpose_to_columns(d_outputs[:, t, first:stop], n, d_result[first:stop], 0)
    else:
        d_result[first:stop] = ZERO
    for r in range(first, stop):
        here, gradient, feed = attended[r], d_result[r], d_feed[r, :n]
        if mask.shape[0] == 0:
            for j in range(n):
                gradient[j] = (gradient[j] + feed[j]) * (ONE - here[j] * here[j])
        else:
            for j in range(n):
                factor = scaling * np.float32(mask[r, j])
                gradient[j] = (gradient[j] + feed[j]) * (ONE - here[j] * here[j]) * factor
    transpose_to_rows(d_result[first:stop], 0, n, d_results, first)


_FINISH_BACKWARD = types.Tuple((TWO_D, MASK, FLOAT, THREE_D, INT, TWO_D, TWO_D, TWO_D))
finish_backward = Shared(
    _finish_backward, lambda at: _finish_backward(*this_thread(at, _FINISH_BACKWARD)), _FINISH_BACKWARD
)


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
    first, stop = bounds(n, share, shares)
    rows = np.zeros((stop - first, size), np.float32)
    weights = np.empty(keys.shape[1], np.float32)
    power = np.float32(2.0 - alpha)
    for b in range(first, stop):
        row, gradients, gradient, out = probs[b], d_scores[b], d_results[b], rows[b - first]
        total, mean = ZERO, ZERO
        for s in range(lengths[b]):
            prob = row[s]
            if prob == ZERO:
                continue
            value, dot = values[b, s], ZERO
            for h in range(size):
                dot += value[h] * gradient[h]
            if d_probs.shape[0] > 0:
                dot += d_probs[b, t, s]
            if alpha == 1.0:
                weight = prob
            elif alpha == 1.5:
                weight = np.sqrt(prob)
            elif alpha == 2.0:
                weight = ONE
            else:
                weight = prob**power
            weights[s] = weight
            gradients[s] = dot
            total += weight
            mean += weight * dot
        if total == ZERO:
            continue
        mean /= total
        for s in range(lengths[b]):
            if row[s] == ZERO:
                continue
            change = weights[s] * (gradients[s] - mean)
            gradients[s] = change
            key = keys[b, s]
            for h in range(size):
                out[h] += change * key[h]
    columns = np.empty((size, stop - first), np.float32)
    transpose_to_columns(rows, stop - first, columns, 0)
    for h in range(size):
        d_row = d_hidden[h, first:stop]
        for j in range(stop - first):
            d_row[j] += columns[h, j]


_ATTEND_BACKWARD = types.Tuple((TWO_D, TWO_D, THREE_D, THREE_D, INDEX, FLOAT, THREE_D, INT, TWO_D, TWO_D))
attend_backward = Shared(
    _attend_backward, lambda at: _attend_backward(*this_thread(at, _ATTEND_BACKWARD)), _ATTEND_BACKWARD
)
