"""Which outputs to trust: how good they are by their certificate and by their probability, with bootstrap intervals.

Expected calibration error: Naeini et al. (2015), Guo et al. (2017). Risk and coverage: El-Yaniv and Wiener (2010).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np

from onmt_entmax.search.result import rates_of
from onmt_entmax.tasks.results import layout

# an output is of the first that fits; `uncertified`: something that was dropped may be more probable
CLASSES = ("single", "complete", "optimal", "uncertified")
BINS = 10  # of probabilities, of equal width
_POINTS = 100  # at most, on the risk-coverage curve
_HEADS = {"share": "share %", "acc": "acc %", "chrf": "chrF", "bleu": "BLEU"}
_NAMES = {"ece": "expected calibration error", "auroc": "AUROC", "aurc": "area under the risk-coverage curve"}

Corpus = Callable[[np.ndarray], float]  # how often each output was drawn, (n,) -> score of that text


def class_of(certificate: Mapping[str, Any]) -> str:
    """The strongest of :data:`CLASSES` that holds of an output: ``complete`` ones with one string are ``single``."""
    return next((name for name, holds in rates_of(certificate).items() if holds and name in CLASSES), CLASSES[-1])


def probability(certificate: Mapping[str, Any]) -> float:
    """Probability of the best string, given the forced prefix if there is one; 0 where no string is finished.

    The probability of a string that is not finished is that of all that begin with it, and says nothing of itself.
    """
    hypotheses = certificate["hypotheses"]
    if not hypotheses or not hypotheses[0]["finished"]:
        return 0.0
    return math.exp(min(hypotheses[0]["log_prob"] - (certificate.get("prefix_log_prob") or 0.0), 0.0))


def trust(
    certificates: Sequence[Mapping[str, Any]],
    quality: Sequence[float],
    measure: str,
    samples: int = 1000,
    seed: int = 1,
    corpus: Optional[Callable[[Sequence[int]], Mapping[str, Corpus]]] = None,
) -> Optional[dict[str, Any]]:
    """Say how good outputs are by class of certificate and by probability.

    Args:
        certificates: one per output.
        quality: of each output, from 0 to 100; for ``acc`` 0 or 100.
        measure: ``acc`` or ``chrf``. Calibration and AUROC need outputs that are right or wrong: ``acc``.
        samples: resamples of the outputs for the 95% percentile intervals.
        seed: of the resampling.
        corpus: from the indices of the outputs that count to scores of whole texts, such as ``bleu``.

    Returns:
        What ``docs/formats.md`` calls ``trust``; None if all certificates are void.
    """
    counted = [index for index, certificate in enumerate(certificates) if certificate["reason"] is None]
    if not counted:
        return None
    probs = np.array([probability(certificates[index]) for index in counted])
    order = np.argsort(-probs, kind="stable")
    counted, probs = [counted[index] for index in order], probs[order]
    values = np.array([quality[index] for index in counted], dtype=np.float64)
    classes = np.array([CLASSES.index(class_of(certificates[index])) for index in counted])
    judged = _Judged(probs, values, classes, measure, corpus(counted) if corpus else {})
    generator, n = np.random.default_rng(seed), len(counted)
    observed = judged.numbers(np.ones(n))
    drawn = [judged.numbers(np.bincount(generator.integers(0, n, n), minlength=n)) for _ in range(samples)]
    numbers = {key: _interval(value, [one[key] for one in drawn]) for key, value in observed.items()}
    names = [*CLASSES, "all"]
    sizes = [*np.bincount(classes, minlength=len(CLASSES)).tolist(), n]
    result: dict[str, Any] = {
        "measure": measure,
        "outputs": n,
        "void": dict(Counter(one["reason"] for one in certificates if one["reason"] is not None)),
        "classes": {
            name: {"outputs": size, **{key: numbers[own, key] for own, key in numbers if own == name}}
            for name, size in zip(names, sizes)
        },
        **{key: value for (own, key), value in numbers.items() if own is None},
        "curve": judged.curve(),
    }
    if measure == "acc":
        result["reliability"] = judged.reliability()
    return result


def trust_lines(result: Mapping[str, Any], name: str = "") -> list[str]:
    """Lay out :func:`trust` for reading; ``name`` is that of the run, where there are several."""
    rows, heads = [], {}
    for own, values in result["classes"].items():
        row: dict[str, Any] = {}
        for key, value in values.items():
            if key == "outputs":
                continue
            heads[key] = _HEADS[key]
            row[key] = value["value"]
            if key != "share":
                heads.update({f"{key} low": "low", f"{key} high": "high"})
                row.update({f"{key} low": value["low"], f"{key} high": value["high"]})
        rows.append((own, row))
    sentences = [
        f"{words} {result[key]['value']:.2f} ({result[key]['low']:.2f} to {result[key]['high']:.2f})"
        for key, words in _NAMES.items()
        if key in result and result[key]["value"] is not None
    ]
    lines = ["", layout(f"certificate{f', {name}' if name else ''}", heads, rows)]
    lines.append(f"By probability: {', '.join(sentences)}; intervals are 95%, by bootstrap.")
    if result["void"]:
        reasons = ", ".join(f"{reason}: {number:,}" for reason, number in result["void"].items())
        lines.append(f"Without the outputs whose certificates are void ({reasons}).")
    return [*lines, *unlike_line(result.get("unlike"))]


def unlike(pairs: Iterable[tuple[str, Mapping[str, Any]]], text_of: Callable[[str], str] = str) -> int:
    """How many predictions are not the best string of their certificate, where it has one.

    Args:
        pairs: predictions as ``text_of`` gives them, and certificates.
        text_of: from tokens joined by blanks.
    """
    best = ((text, one["hypotheses"][0]["tokens"]) for text, one in pairs if one["hypotheses"])
    return sum(text != text_of(" ".join(tokens)) for text, tokens in best)


def unlike_line(number: Optional[int]) -> list[str]:
    """The sentence about predictions that are not the best string of their certificate, if there are any."""
    if not number:
        return []
    return [
        f"Predictions that are not the best string of their certificate: {number:,}. That is right with "
        "`-replace_unk` or `-transforms`; else the files do not belong together."
    ]


class _Judged:
    """Outputs in order of falling probability; all measures are functions of how often each output was drawn."""

    def __init__(
        self, probs: np.ndarray, values: np.ndarray, classes: np.ndarray, measure: str, corpus: Mapping[str, Corpus]
    ) -> None:
        self.probs, self.values, self.classes = probs, values, classes  # (n,)
        self.measure, self.corpus = measure, corpus
        self.bins = np.minimum((probs * BINS).astype(int), BINS - 1)
        # outputs of one probability cannot be told apart: whoever accepts one accepts them all
        self.starts = np.flatnonzero(np.concatenate([[True], probs[1:] != probs[:-1]]))
        self.harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, len(probs) + 1))])

    def numbers(self, weights: np.ndarray) -> dict[tuple[Optional[str], str], float]:
        """Class (None: of all by probability) and measure -> value, NaN where there is none; ``weights`` (n,)."""
        total = weights.sum()
        found: dict[tuple[Optional[str], str], float] = {}
        sizes = np.bincount(self.classes, weights, len(CLASSES))
        sums = np.bincount(self.classes, weights * self.values, len(CLASSES))
        for index, name in enumerate([*CLASSES, "all"]):
            size, value = (sizes[index], sums[index]) if name != "all" else (total, sums.sum())
            found[name, "share"] = 100 * size / total
            found[name, self.measure] = value / size if size else math.nan
            own = weights if name == "all" else weights * (self.classes == index)
            for key, score in self.corpus.items():
                found[name, key] = score(own) if size else math.nan
        sizes = np.add.reduceat(weights, self.starts)  # by probability, the highest first
        wrong = np.add.reduceat(weights * (100 - self.values), self.starts) / 100
        if self.measure == "acc":
            gaps = np.bincount(self.bins, weights * (100 * self.probs - self.values), BINS)
            found[None, "ece"] = float(np.abs(gaps).sum() / total)
            right = sizes - wrong
            pairs = right.sum() * wrong.sum()
            before = np.cumsum(right) - right / 2  # right outputs above each wrong one, ties for half
            found[None, "auroc"] = 100 * float(before @ wrong / pairs) if pairs else math.nan
        # mean over k of the risk among the k most probable; inside a tie the wrong ones lie evenly:
        # (E_a + (k - a) r) / k for a < k <= b, whose sum needs harmonic numbers
        ends, errors = np.cumsum(sizes).astype(int), np.cumsum(wrong)
        starts, rate = ends - sizes.astype(int), np.divide(wrong, sizes, out=np.zeros(len(wrong)), where=sizes > 0)
        parts = rate * sizes + (errors - wrong - starts * rate) * (self.harmonic[ends] - self.harmonic[starts])
        found[None, "aurc"] = 100 * float(parts.sum() / total)
        return found

    def curve(self) -> list[dict[str, float]]:
        """Rules "accept from this probability on", the strictest first: coverage and quality of what they accept."""
        n = len(self.probs)
        ends = np.append(self.starts[1:], n)
        wanted = np.ceil(np.arange(1, _POINTS + 1) * n / _POINTS)  # at least so many outputs
        chosen = np.unique(ends[np.searchsorted(ends, wanted)])
        means = np.cumsum(self.values)[chosen - 1] / chosen
        return [
            {"threshold": float(self.probs[end - 1]), "coverage": 100 * int(end) / n, self.measure: float(mean)}
            for end, mean in zip(chosen, means)
        ]

    def reliability(self) -> list[dict[str, float]]:
        """Mean probability and accuracy of every bin that is not empty."""
        rows = []
        for number in np.unique(self.bins):
            inside = self.bins == number
            means = {"prob": float(self.probs[inside].mean()), self.measure: float(self.values[inside].mean())}
            rows.append({"from": number / BINS, "to": (number + 1) / BINS, "outputs": int(inside.sum()), **means})
        return rows


def _interval(value: float, drawn: Sequence[float]) -> dict[str, Optional[float]]:
    """A value with its percentiles over the resamples that have one."""
    known = [one for one in drawn if not math.isnan(one)]
    if math.isnan(value) or not known:
        return {"value": None, "low": None, "high": None}
    low, high = np.percentile(known, [2.5, 97.5])
    return {"value": float(value), "low": float(low), "high": float(high)}
