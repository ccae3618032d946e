"""What a search returns, and the certificate of what it ruled out: one JSON object per input line.

A hypothesis is finished only by EOS, and without penalties a prefix's probability bounds that of all its
continuations. A search therefore knows the most that anything it did not finish can be worth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Callable

from torch import Tensor

# Rounding of up to a few hundred float32 log-probabilities; see `Certificate.mass_is_one`.
MASS_TOLERANCE = 1e-5

BLANK_LINE = "blank input line"


@dataclass
class Hypothesis:
    """One string that a search found.

    Attributes:
        tokens: without BOS and EOS; a forced prefix included.
        log_prob: log-probability, summed in float64; EOS included where finished.
        score: after penalties; without penalties the same as ``log_prob``.
        finished: whether it ended with EOS.
        attention: ``(steps, src_len)``, one row per token and one for EOS where finished; or None.
    """

    tokens: list[int]
    log_prob: float
    score: float
    finished: bool
    attention: Tensor | None = None


@dataclass
class Certificate:
    """What is known of everything the search did not finish. All but the last five are None where void.

    Attributes:
        complete: nothing of non-zero probability was dropped, cut by the length limit, or alive at the end: the
            finished hypotheses are the whole distribution.
        optimal: the best finished hypothesis is at least as probable as all of that: it is a mode.
        certified_n: how many of the hypotheses returned, from the top, are so: that much of the list is exact.
        margin: log-probability of the best finished hypothesis minus ``best_dropped_log_prob``; None without either.
        mass_found: probability of all finished hypotheses, those beyond ``n_best`` included.
        mass_dropped: probability of everything else, exactly 0 when complete.
        best_dropped_log_prob: log-probability of the most probable prefix dropped, cut or alive; None for none.
        mass_is_one: the paper's own count: the best ``beam_size`` finished hypotheses sum to 1 in floating point
            (within ``MASS_TOLERANCE``).
        found: number of finished hypotheses, those beyond ``n_best`` included.
        expansions: prefixes whose next-token distribution was computed.
        dtype: dtype of that distribution, whose zeros, bounds and ties these are.
        reason: why the certificate is void, or None.
        prefix_log_prob: log-probability of the forced prefix. The masses are then conditional on the prefix; the
            log-probabilities are those of whole strings. None without a forced prefix.
    """

    complete: bool | None = None
    optimal: bool | None = None
    certified_n: int | None = None
    margin: float | None = None
    mass_found: float | None = None
    mass_dropped: float | None = None
    best_dropped_log_prob: float | None = None
    mass_is_one: bool | None = None
    found: int = 0
    expansions: int = 0
    dtype: str | None = None
    reason: str | None = None
    prefix_log_prob: float | None = None


@dataclass
class TreeNode:
    """A prefix seen by a search.

    Attributes:
        parent: index of the prefix it extends in ``SearchResult.tree``; None for the root.
        token: its last token.
        log_prob: of the whole prefix.
        status: ``live`` (was extended), ``finished``, ``dropped`` (by the beam), ``cut`` (by the length limit) or
            ``stopped`` (alive when the search ended).
    """

    parent: int | None
    token: int
    log_prob: float
    status: str


@dataclass
class SearchResult:
    """The outcome for one sentence.

    Attributes:
        hypotheses: best first, at most ``n_best`` and all finished; or, where nothing finished, the best prefix alone.
        certificate: what is known of the rest.
        tree: every prefix seen, parents first, where asked for.
    """

    hypotheses: list[Hypothesis]
    certificate: Certificate
    tree: list[TreeNode] | None = field(default=None, repr=False)


class Ledger:
    """Running account of one sentence's search: what finished, and the most that anything else can be worth."""

    __slots__ = ("best_lost", "disjoint", "expansions", "finished", "lost")

    def __init__(self) -> None:
        self.finished: list[float] = []  # log-probabilities
        self.lost = False  # whether anything of non-zero probability was dropped, cut or left alive
        self.best_lost = -math.inf
        self.disjoint = True  # whether nothing that finished continues a prefix that was given up
        self.expansions = 0

    def lose(self, log_prob: float) -> None:
        """Account for a prefix of non-zero probability that is given up."""
        self.lost = True
        if log_prob > self.best_lost:
            self.best_lost = log_prob

    def certified(self, log_probs: Iterable[float]) -> int:
        """How many of these finished hypotheses, best first, are at least as probable as all that was given up."""
        count = 0
        for log_prob in log_probs:
            if log_prob < self.best_lost:
                break
            count += 1
        return count

    def certificate(
        self,
        hypotheses: Sequence[Hypothesis],
        beam_size: int,
        dtype: str,
        reason: str | None,
        prefix_log_prob: float | None,
    ) -> Certificate:
        """Close the account.

        Args:
            hypotheses: those returned, best first.
            beam_size: for ``mass_is_one``.
            dtype: of the distribution.
            reason: why the certificate is void, or None.
            prefix_log_prob: of a forced prefix, or None.
        """
        certificate = Certificate(
            found=len(self.finished),
            expansions=self.expansions,
            dtype=dtype,
            reason=reason,
            prefix_log_prob=prefix_log_prob,
        )
        if reason is not None:
            return certificate
        base = prefix_log_prob or 0.0
        masses = sorted((math.exp(log_prob - base) for log_prob in self.finished), reverse=True)
        finished = [hypothesis.log_prob for hypothesis in hypotheses if hypothesis.finished]
        certificate.complete = not self.lost
        certificate.certified_n = self.certified(finished)
        certificate.optimal = certificate.certified_n > 0
        certificate.mass_found = min(math.fsum(masses), 1.0)
        certificate.mass_is_one = abs(math.fsum(masses[:beam_size]) - 1.0) <= MASS_TOLERANCE
        if self.lost:
            certificate.best_dropped_log_prob = self.best_lost
            # Each distribution sums to 1, so what is not found is given up; rounding must not make that zero.
            floor = math.exp(self.best_lost - base) if self.disjoint else 0.0
            certificate.mass_dropped = max(1.0 - certificate.mass_found, floor)
            if finished:
                certificate.margin = finished[0] - self.best_lost
        else:
            certificate.mass_dropped = 0.0
        return certificate


def certificate_record(result: SearchResult, line: int, lookup: Callable[[int], str]) -> dict:
    """What a certificates file says of one line, ready for JSON.

    Args:
        result: of one sentence.
        line: number of the input line, from 1.
        lookup: from a token's index to its text.
    """
    certificate = result.certificate
    record = {
        "line": line,
        "hypotheses": [
            {
                "tokens": [lookup(token) for token in hypothesis.tokens],
                "log_prob": hypothesis.log_prob,
                "prob": math.exp(hypothesis.log_prob),
                "finished": hypothesis.finished,
            }
            for hypothesis in result.hypotheses
        ],
        "complete": certificate.complete,
        "optimal": certificate.optimal,
        "certified_n": certificate.certified_n,
        "margin": certificate.margin,
        "mass_found": certificate.mass_found,
        "mass_dropped": certificate.mass_dropped,
        "best_dropped_log_prob": certificate.best_dropped_log_prob,
        "mass_is_one": certificate.mass_is_one,
        "found": certificate.found,
        "expansions": certificate.expansions,
        "dtype": certificate.dtype,
        "reason": certificate.reason,
    }
    if certificate.prefix_log_prob is not None:
        record["conditional_on_prefix"] = True
        record["prefix_log_prob"] = certificate.prefix_log_prob
    return record


def blank_line_result() -> SearchResult:
    """The result for a blank input line, on which no model is run."""
    return SearchResult([], Certificate(reason=BLANK_LINE))


def summary(results: Iterable[SearchResult]) -> str:
    """The log line: rates over the lines that have a certificate, and how many have none, with the reasons.

    ``single hypothesis`` counts the lines whose whole distribution is one string.
    """
    counts = {"complete": 0, "optimal": 0, "single hypothesis": 0, "mass_is_one": 0}
    reasons: dict[str, int] = {}
    total = 0
    for result in results:
        certificate = result.certificate
        if certificate.reason is not None:
            reasons[certificate.reason] = reasons.get(certificate.reason, 0) + 1
            continue
        total += 1
        counts["complete"] += bool(certificate.complete)
        counts["optimal"] += bool(certificate.optimal)
        counts["single hypothesis"] += bool(certificate.complete) and certificate.found == 1
        counts["mass_is_one"] += bool(certificate.mass_is_one)
    parts = [f"{name} {100 * count / total:.1f}%" for name, count in counts.items()] if total else []
    parts.append(f"of {total} lines")
    parts += [f"no certificate for {count} ({reason})" for reason, count in reasons.items()]
    return ", ".join(parts)
