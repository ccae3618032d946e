"""What a search returns, and the certificate of what it ruled out: decided, written and read here and nowhere else.

A hypothesis is finished only by EOS, and without penalties a prefix's probability bounds that of all its
continuations. A search therefore knows the most that anything it did not finish can be worth. Everything that it did
not finish is called dropped: by the beam, by the length limit, or because the search ended before.

Imports no torch: tasks and reports read certificates too. ``docs/formats.md`` describes the JSON.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable

from onmt_entmax.errors import UserError
from onmt_entmax.files import BLANK_LINE, iterate_records

if TYPE_CHECKING:
    from torch import Tensor

    from onmt_entmax.search.settings import SearchSettings

# Rounding of up to a few hundred float32 log-probabilities; see `Certificate.mass_is_one`.
MASS_TOLERANCE = 1e-5

IMPOSSIBLE_PREFIX = "forced prefix has probability zero"
SAMPLING = "sampling"
SEVERAL_SEGMENTS = "the input was split into several segments"

RATES = ("single", "complete", "optimal", "mass_is_one")
REQUIRED = ("line", "hypotheses", "complete", "optimal", "mass_found", "mass_is_one", "found", "reason")


@dataclass
class Hypothesis:
    """One string that a search found.

    Attributes:
        tokens: without BOS and EOS; a forced prefix included.
        log_prob: log-probability, summed in float64; EOS included where finished.
        score: after penalties; without penalties the same as ``log_prob``; of a minimum-risk decision the expected
            utility.
        finished: whether it ended with EOS.
        attention: ``(steps, S)``, one row per token and one for EOS where finished; or None.
    """

    tokens: list[int]
    log_prob: float
    score: float
    finished: bool
    attention: Tensor | None = None


@dataclass
class Certificate:
    """What is known of everything the search did not finish. All but the last six are None where void.

    Attributes:
        complete: nothing of non-zero probability was dropped (by the beam, by the length limit, or alive at the end):
            the finished hypotheses are the whole distribution.
        optimal: the best finished hypothesis is at least as probable as all of that: it is a mode.
        certified_n: how many of the hypotheses returned, from the top, are so: that much of the list is exact.
        margin: log-probability of the best finished hypothesis minus ``best_dropped_log_prob``; None without either.
        mass_found: probability of all finished hypotheses, those beyond ``n_best`` included.
        mass_dropped: probability of everything else, exactly 0 when complete.
        best_dropped_log_prob: log-probability of the most probable prefix dropped; None for none.
        mass_is_one: the paper's own count: the best ``beam_size`` finished hypotheses sum to 1 in floating point
            (within ``MASS_TOLERANCE``).
        found: number of finished hypotheses, those beyond ``n_best`` included.
        expansions: prefixes whose next-token distribution was computed.
        dtype: dtype of that distribution, whose zeros, bounds and ties these are.
        reason: why the certificate is void, or None.
        prefix_log_prob: log-probability of the forced prefix. The masses are then conditional on the prefix; the
            log-probabilities are those of whole strings. None without a forced prefix.
        mbr: how the best hypothesis was chosen, where not by probability: ``utility``, number of ``candidates``, and
            whether they are the whole distribution, so that expectations are ``exact``.
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
    mbr: dict[str, Any] | None = None


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


class Account:
    """Running account of one sentence's search: what finished, and the most that anything else can be worth."""

    __slots__ = ("best_dropped_log_prob", "disjoint", "dropped", "expansions", "finished", "prefix_log_prob")

    def __init__(self) -> None:
        self.finished: list[float] = []  # log-probabilities
        self.dropped = False  # whether anything of non-zero probability was
        self.best_dropped_log_prob = -math.inf
        self.disjoint = True  # whether nothing that finished continues a prefix that was dropped
        self.expansions = 0
        self.prefix_log_prob = 0.0  # of a forced prefix

    def drop(self, log_prob: float) -> None:
        """Account for a prefix of non-zero probability that is dropped."""
        self.dropped = True
        if log_prob > self.best_dropped_log_prob:
            self.best_dropped_log_prob = log_prob

    def certified(self, log_probs: Iterable[float]) -> int:
        """How many of these finished hypotheses, best first, are at least as probable as all that was dropped."""
        count = 0
        for log_prob in log_probs:
            if log_prob < self.best_dropped_log_prob:
                break
            count += 1
        return count


def void_reason(settings: SearchSettings) -> str | None:
    """Why settings void certificates, or None: the search is then over another function or another set."""
    reasons = []
    if settings.has_length:
        reasons.append(f"length_penalty {settings.length_penalty}")
    if settings.has_coverage:
        reasons.append(f"coverage_penalty {settings.coverage_penalty}")
    if settings.ratio > 0:
        reasons.append(f"ratio {settings.ratio}")
    if settings.min_length > 0:
        reasons.append(f"min_length {settings.min_length}")
    if settings.block_ngram_repeat > 0:
        reasons.append(f"block_ngram_repeat {settings.block_ngram_repeat}")
    if settings.banned:
        reasons.append("banned tokens")
    return ", ".join(reasons) or None


def certify(
    account: Account, hypotheses: Sequence[Hypothesis], settings: SearchSettings, dtype: str, forced: Sequence[int]
) -> Certificate:
    """Close an account; the certificate is void where the settings or an impossible forced prefix make it so.

    Args:
        account: of one sentence.
        hypotheses: those returned, best first.
        settings: of the search.
        dtype: of the distribution.
        forced: the sentence's forced prefix.
    """
    given = bool(forced) and math.isfinite(account.prefix_log_prob)
    certificate = Certificate(
        found=len(account.finished),
        expansions=account.expansions,
        dtype=dtype,
        reason=IMPOSSIBLE_PREFIX if account.prefix_log_prob == -math.inf else void_reason(settings),
        prefix_log_prob=account.prefix_log_prob if given else None,
    )
    if certificate.reason is not None:
        return certificate
    base = certificate.prefix_log_prob or 0.0
    masses = sorted((math.exp(log_prob - base) for log_prob in account.finished), reverse=True)
    finished = [hypothesis.log_prob for hypothesis in hypotheses if hypothesis.finished]
    certificate.complete = not account.dropped
    certificate.certified_n = account.certified(finished)
    certificate.optimal = certificate.certified_n > 0
    certificate.mass_found = min(math.fsum(masses), 1.0)
    certificate.mass_is_one = abs(math.fsum(masses[: settings.beam_size]) - 1.0) <= MASS_TOLERANCE
    certificate.mass_dropped = 0.0
    if account.dropped:
        certificate.best_dropped_log_prob = account.best_dropped_log_prob
        # Each distribution sums to 1, so what is not found is dropped; rounding must not make that zero.
        floor = math.exp(account.best_dropped_log_prob - base) if account.disjoint else 0.0
        certificate.mass_dropped = max(1.0 - certificate.mass_found, floor)
        if finished:
            certificate.margin = finished[0] - account.best_dropped_log_prob
    return certificate


def certificate_record(
    result: SearchResult, line: int, lookup: Callable[[int], str], prefix: Sequence[str] = ()
) -> dict[str, Any]:
    """What a certificates file says of one line, ready for JSON.

    Args:
        result: of one sentence.
        line: number of the input line, from 1.
        lookup: from a token's index to its text.
        prefix: that was forced; it appears as it was given, not as ``<unk>``.
    """
    hypotheses = [
        {
            "tokens": [*prefix[: len(hypothesis.tokens)], *map(lookup, hypothesis.tokens[len(prefix) :])],
            "log_prob": hypothesis.log_prob,
            "prob": math.exp(hypothesis.log_prob),
            "finished": hypothesis.finished,
        }
        for hypothesis in result.hypotheses
    ]
    record = {"line": line, "hypotheses": hypotheses, **vars(result.certificate)}
    if record["mbr"] is None:
        del record["mbr"]
    elif record["mbr"]["candidates"]:
        for entry, hypothesis in zip(hypotheses, result.hypotheses[: record["mbr"]["candidates"]]):
            entry["expected_utility"] = hypothesis.score
    prefix_log_prob = record.pop("prefix_log_prob")
    if prefix_log_prob is not None:
        record["conditional_on_prefix"] = True
        record["prefix_log_prob"] = prefix_log_prob
    return record


def attention_record(
    result: SearchResult, line: int, lookup: Callable[[int], str], source_tokens: Sequence[str], eos: str
) -> dict[str, Any]:
    """What an attention file says of one line, ready for JSON.

    Args:
        result: of one sentence, searched with ``return_attention``.
        line: number of the input line, from 1.
        lookup: from a token's index to its text.
        source_tokens: text of the source; one column each.
        eos: text for the end of a finished hypothesis, which has a row of its own.

    Returns:
        ``{"line": ..., "source": [...], "hypotheses": [{"tokens": [...], "attention": [[...], ...]}]}``, with one row
        of ``attention`` per entry of ``tokens``, or ``null`` for a model without attention.
    """
    hypotheses = []
    for hypothesis in result.hypotheses:
        tokens = [lookup(token) for token in hypothesis.tokens] + [eos] * hypothesis.finished
        hypotheses.append({"tokens": tokens, "attention": attention_rows(hypothesis, len(source_tokens))})
    return {"line": line, "source": list(source_tokens), "hypotheses": hypotheses}


def attention_rows(hypothesis: Hypothesis, source_length: int) -> list[list[float]] | None:
    """A hypothesis's attention as nested lists ``(steps, source_length)``; None for a model without."""
    weights = hypothesis.attention
    return None if weights is None else weights[:, :source_length].tolist()


def tree_records(tree: Sequence[TreeNode], lookup: Callable[[int], str]) -> list[dict[str, Any]]:
    """The prefixes that a search saw, ready for JSON."""
    return [{**vars(node), "token": lookup(node.token), "prob": math.exp(node.log_prob)} for node in tree]


def void_record(line: int, reason: str = BLANK_LINE) -> dict[str, Any]:
    """The record of an input line that was not searched."""
    return certificate_record(SearchResult([], Certificate(reason=reason)), line, str)


def read_certificates(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read a certificates file: one record per input line, line 1 first, blank ones included.

    Raises:
        UserError: another kind of file, or a line that is missing or breaks the format, with file and line.
    """
    records = []
    for number, record in iterate_records(path):
        where = f"{path}, line {number}"
        check_certificate(record, where)
        if record["line"] != number:
            raise UserError(f"{where}: this certificate is of input line {record['line']}.")
        records.append(record)
    return records


def check_certificate(record: Any, where: str) -> None:
    """Refuse what is no record of a certificates file (or of a trace), with ``where`` in the message."""
    if not isinstance(record, dict):
        raise UserError(f"{where}: not a JSON object.")
    if "complete" not in record and "source" in record and "hypotheses" in record:
        raise UserError(f"{where}: this is a file of `-attention`; one of `-certificates` is needed.")
    missing = [key for key in REQUIRED if key not in record]
    if missing:
        raise UserError(f"{where}: the certificate lacks `{missing[0]}`; was it written by an older version?")
    for hypothesis in record["hypotheses"]:
        for key in ("tokens", "log_prob", "prob", "finished"):
            if not isinstance(hypothesis, dict) or key not in hypothesis:
                raise UserError(f"{where}: a hypothesis lacks `{key}`.")


def rates_of(certificate: Mapping[str, Any]) -> dict[str, bool]:
    """What one certificate counts for; ``single``: the whole distribution is one string. Void ones count for none."""
    complete = certificate["complete"] is True
    single = complete and certificate["found"] == 1
    optimal, mass_is_one = certificate["optimal"] is True, certificate["mass_is_one"] is True
    return dict(zip(RATES, (single, complete, optimal, mass_is_one)))


class CertificateRates:
    """Counts certificates one by one, for a line in the log: rates over those that are not void, and why others are."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.total = 0

    def add(self, certificate: Mapping[str, Any]) -> None:
        """Count one certificate, a record or ``vars`` of a :class:`Certificate`."""
        if certificate["reason"] is not None:
            self.reasons[certificate["reason"]] += 1
            return
        self.total += 1
        self.counts.update(rates_of(certificate))

    def __str__(self) -> str:
        """E.g. ``complete 50.0%, optimal 100.0%, single hypothesis 25.0%, mass_is_one 50.0%, of 4 lines``."""
        names = {
            "complete": "complete",
            "optimal": "optimal",
            "single": "single hypothesis",
            "mass_is_one": "mass_is_one",
        }
        parts = [f"{name} {100 * self.counts[rate] / self.total:.1f}%" for rate, name in names.items() if self.total]
        parts.append(f"of {self.total} lines")
        return ", ".join(parts + [f"no certificate for {n} ({reason})" for reason, n in self.reasons.items()])
