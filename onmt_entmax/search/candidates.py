"""The best continuations of each sentence, from the best of each row: one small grid, one transfer from the device."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from onmt_entmax.search.scorer import refuse_nan


class Candidates(NamedTuple):
    """The best continuations of each sentence, best first: a list per sentence, of which the first ``size`` are real.

    Attributes:
        sizes: how many are possible at all.
        finish: whether any of these ends with EOS.
        ranks: what they are ranked by.
        logs: their log-probabilities.
        rows: the rows that they continue.
        tokens: their last tokens.
    """

    sizes: list[int]
    finish: list[bool]
    ranks: list[list[float]]
    logs: list[list[float]]
    rows: list[list[int]]
    tokens: list[list[int]]


def merge(scores: Tensor, tokens: Tensor, penalty: Tensor | None, counts: list[int], keep: int, eos: int) -> Candidates:
    """The best candidates of each sentence.

    Args:
        scores: log-probabilities of each row's best continuations, ``(R, per_row)``.
        tokens: their last tokens, ``(R, per_row)``.
        penalty: subtracted from a row's scores for ranking, ``(R,)`` or None.
        counts: rows of each sentence.
        keep: most candidates wanted per sentence.
        eos: token that finishes a hypothesis.
    """
    sentences, most, per_row = len(counts), max(counts), scores.size(1)
    per_sentence = torch.tensor(counts)
    first = per_sentence.cumsum(0) - per_sentence  # row of each sentence
    if len(scores) != sentences * most:
        # Rows of sentences with fewer live prefixes move to a grid whose empty places are impossible.
        shift = torch.arange(0, sentences * most, most) - first
        where = (torch.arange(len(scores)) + shift.repeat_interleave(per_sentence)).to(scores.device)
        grid = scores.new_full((sentences * most, per_row), -math.inf)
        scores = grid.index_copy_(0, where, scores)
        tokens = tokens.new_zeros((sentences * most, per_row)).index_copy_(0, where, tokens)
        if penalty is not None:
            penalty = penalty.new_zeros(sentences * most).index_copy_(0, where, penalty)
    logs = scores.reshape(sentences, most * per_row)
    tokens = tokens.reshape(sentences, most * per_row)
    ranks = logs if penalty is None else (scores - penalty.unsqueeze(1)).view(sentences, most * per_row)
    keep = min(keep, most * per_row)
    # Stable, so that ties fall the same way whatever else is in the batch.
    best, places = ranks.sort(dim=-1, descending=True, stable=True)
    best, places = best[:, :keep], places[:, :keep]  # (sentences, keep)
    parts = [best, places.double(), tokens.gather(1, places).double()]
    if penalty is not None:
        parts.append(logs.gather(1, places))
    ranks, places, tokens, *own = torch.stack(parts).cpu()  # one transfer; integers below 2**53 are exact
    refuse_nan(own[0] if own else ranks)
    tokens = tokens.long()
    possible = ranks > -math.inf
    rank_lists = ranks.tolist()
    return Candidates(
        possible.sum(1).tolist(),
        (possible & (tokens == eos)).any(1).tolist(),
        rank_lists,
        own[0].tolist() if own else rank_lists,
        (places.long().div_(per_row, rounding_mode="floor") + first.unsqueeze(1)).tolist(),
        tokens.tolist(),
    )
