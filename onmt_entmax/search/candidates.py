"""The best continuations of each sentence, from the best of each row: one small grid, one transfer from the device."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor


def merge(scores: Tensor, tokens: Tensor, penalty: Tensor | None, counts: list[int], keep: int) -> Iterator[tuple]:
    """The best candidates of each sentence, in one transfer from the device.

    Args:
        scores: log-probabilities of each row's best continuations, ``(rows, width)``.
        tokens: their last tokens, ``(rows, width)``.
        penalty: subtracted from a row's scores for ranking, ``(rows,)`` or None.
        counts: rows of each sentence.
        keep: candidates wanted per sentence.

    Yields:
        Per sentence four lists of up to ``keep``, best first: ranks (``-inf`` where there are no more candidates),
        log-probabilities, places among the sentence's continuations, tokens.
    """
    sentences, most, width = len(counts), max(counts), scores.size(1)
    if len(scores) != sentences * most:
        # Rows of sentences with fewer live prefixes move to a grid whose empty places are impossible.
        slots = [index * most + row for index, count in enumerate(counts) for row in range(count)]
        where = torch.tensor(slots, device=scores.device)
        grid = scores.new_full((sentences * most, width), -math.inf)
        scores = grid.index_copy_(0, where, scores)
        tokens = tokens.new_zeros((sentences * most, width)).index_copy_(0, where, tokens)
        if penalty is not None:
            penalty = penalty.new_zeros(sentences * most).index_copy_(0, where, penalty)
    logs = scores.reshape(sentences, most * width)
    tokens = tokens.reshape(sentences, most * width)
    ranks = logs if penalty is None else (scores - penalty.unsqueeze(1)).view(sentences, most * width)
    keep = min(keep, most * width)
    # Stable, so that ties fall the same way whatever else is in the batch.
    best, places = ranks.sort(dim=-1, descending=True, stable=True)
    best, places = best[:, :keep], places[:, :keep]  # (sentences, keep)
    parts = [best, places.double(), tokens.gather(1, places).double()]  # integers below 2**53 are exact
    if penalty is not None:
        parts.append(logs.gather(1, places))
    for row in torch.cat(parts, 1).tolist():
        rank = row[:keep]
        logs_of = row[3 * keep :] if penalty is not None else rank
        yield rank, logs_of, row[keep : 2 * keep], row[2 * keep : 3 * keep]
