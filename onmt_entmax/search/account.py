"""What a search keeps of one sentence while it runs, and how that becomes a certificate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from onmt_entmax.search.certificates import Certificate, Hypothesis, Ledger
from onmt_entmax.search.settings import SearchSettings

IMPOSSIBLE_PREFIX = "forced prefix has probability zero"


class Found(NamedTuple):
    """A hypothesis as the search keeps it: where its backpointers start."""

    score: float
    log_prob: float
    step: int  # steps of its last row
    row: int  # row in that step
    last: int | None = None  # token after that row; None for EOS or for nothing
    stage: int = 0


class SentenceState:
    """Everything a search knows of one sentence."""

    __slots__ = (
        "best_ratio",
        "fallback",
        "finished",
        "ledger",
        "limit",
        "prefix_log_prob",
        "ranking",
        "settled",
        "stage",
    )

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.ledger = Ledger()
        self.finished: list[Found] = []
        self.stage = 0  # with penalties; see beam.py
        self.ranking: list[float] = []  # negative scores of those finished in this stage, ascending
        self.fallback: Found | None = None
        self.prefix_log_prob = 0.0
        self.settled = 0  # step at which the n-best list could not change any more
        self.best_ratio = -1e10  # as in OpenNMT-py


def sentence_certificate(
    sentence: SentenceState,
    hypotheses: Sequence[Hypothesis],
    settings: SearchSettings,
    dtype: str,
    forced: Sequence[int],
) -> Certificate:
    """Close a sentence's account, void where the settings or an impossible forced prefix make it so."""
    reason = settings.void_reason()
    if sentence.prefix_log_prob == -math.inf:
        reason = IMPOSSIBLE_PREFIX
    given = sentence.prefix_log_prob if forced and math.isfinite(sentence.prefix_log_prob) else None
    return sentence.ledger.certificate(hypotheses, settings.beam_size, dtype, reason, given)
