"""Minimum Bayes risk: of what a search found, the hypothesis most like all of it (Kumar and Byrne, 2004).

Every hypothesis is taken for the truth as often as its probability says (a drawn one as often as it was drawn), and the
one of the highest expected utility wins. Where the search found the whole distribution, that expectation is exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from onmt_entmax.errors import choices, invalid_setting
from onmt_entmax.search.result import SAMPLING, Hypothesis, SearchResult
from onmt_entmax.search.settings import check_neutral

DECISIONS = ("map", "mbr")
UTILITIES = ("chrf", "edit")
MOST = 100  # hypotheses compared, the most probable ones: every one with every other


def check_decision(
    decision: str, utility: str, beam_size: int, length_penalty: str, coverage_penalty: str = "none", ratio: float = 0.0
) -> None:
    """Refuse a decision that does not exist, or that cannot be made with the other settings.

    Raises:
        UserError: naming the setting.
    """
    if decision not in DECISIONS:
        raise invalid_setting("decision", decision, choices(DECISIONS))
    if utility not in UTILITIES:
        raise invalid_setting("mbr_utility", utility, choices(UTILITIES))
    if decision == "map":
        return
    if beam_size < 2:
        raise invalid_setting("beam_size", beam_size, "`decision` mbr chooses among hypotheses: at least 2 are needed.")
    check_neutral("`decision` mbr", length_penalty=length_penalty, coverage_penalty=coverage_penalty, ratio=ratio)


def utilities(name: str, texts: Sequence[Sequence[str]]) -> np.ndarray:
    """How good each hypothesis (rows) is where each (columns) is right, from 0 to 100.

    ``chrf``: chrF2 (Popović, 2015) of the characters, subwords joined, as sacreBLEU has it for sentences, but of all
    pairs at once. ``edit``: 1 minus the edit distance in tokens divided by the length of the longer one.

    Args:
        name: of the utility.
        texts: tokens of n hypotheses.

    Returns:
        ``(n, n)``.
    """
    if name == "edit":
        from rapidfuzz.distance import Levenshtein

        return np.array([[100 * Levenshtein.normalized_similarity(own, other) for other in texts] for own in texts])
    lines = [_characters(tokens) for tokens in texts]
    precision, recall, orders = np.zeros((3, len(lines), len(lines)))
    for order in range(1, 7):
        grams = [Counter(line[start : start + order] for start in range(len(line) - order + 1)) for line in lines]
        places = {gram: place for place, gram in enumerate(dict.fromkeys(gram for own in grams for gram in own))}
        counts = np.zeros((len(lines), len(places)))
        for row, own in zip(counts, grams):
            row[[places[gram] for gram in own]] = list(own.values())
        totals = counts.sum(1)
        matches = np.array([np.minimum(row, counts).sum(1) for row in counts])
        both = np.outer(totals, totals) > 0  # shorter strings have fewer orders
        precision += np.where(both, matches / np.maximum(totals, 1)[:, None], 0)
        recall += np.where(both, matches / np.maximum(totals, 1), 0)
        orders += both
    precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
    scores = 500 * precision * recall / np.maximum(4 * precision + recall, 1e-300)
    np.fill_diagonal(scores, 100)  # the empty string's too
    return scores


def _characters(tokens: Sequence[str]) -> str:
    """All that chrF looks at: no blanks, and neither the ``@@`` of BPE nor sentencepiece's mark."""
    text = " ".join(token[:-2] if token.endswith("@@") else token for token in tokens)
    return "".join(text.replace("\u2581", "").split())


def decide(result: SearchResult, lookup: Callable[[int], str], utility: str, n_best: int | None) -> SearchResult:
    """Order hypotheses by their expected utility, ties by probability.

    Args:
        result: of one sentence, with all hypotheses that were found.
        lookup: from a token's index to its text.
        utility: one of :data:`UTILITIES`.
        n_best: hypotheses to be returned; None for all.

    Returns:
        Hypotheses whose ``score`` is the expected utility, and the certificate of this list: ``optimal`` and
        ``certified_n`` hold where it begins with the most probable hypotheses, and ``mbr`` says how the choice was
        made. Where nothing is finished, there is nothing to choose, and no utility: scores are minus infinity.
    """
    certificate = result.certificate
    drawn = certificate.reason == SAMPLING
    times = Counter(tuple(hypothesis.tokens) for hypothesis in result.hypotheses if hypothesis.finished)
    found: dict[tuple[int, ...], Hypothesis] = {}
    for hypothesis in sorted(result.hypotheses, key=lambda hypothesis: -hypothesis.log_prob):
        if hypothesis.finished:
            found.setdefault(tuple(hypothesis.tokens), hypothesis)
    by_probability = list(found.values())
    compared = by_probability[:MOST]
    exact = bool(certificate.complete) and len(compared) == certificate.found
    about = {"utility": utility, "candidates": len(compared), "exact": exact}
    if not compared:
        unfinished = [replace(hypothesis, score=-math.inf) for hypothesis in result.hypotheses]
        return SearchResult(unfinished, replace(certificate, mbr=about), result.tree)
    best = compared[0].log_prob
    weights = [
        times[tuple(hypothesis.tokens)] if drawn else math.exp(hypothesis.log_prob - best) for hypothesis in compared
    ]
    texts = [[lookup(token) for token in hypothesis.tokens] for hypothesis in compared]
    scores = (utilities(utility, texts) @ np.array(weights) / math.fsum(weights)).tolist()
    ranked = sorted(range(len(compared)), key=lambda place: -scores[place])
    hypotheses = [replace(compared[place], score=scores[place]) for place in ranked[:n_best]]
    if n_best is None:  # those that are not compared, behind the others
        hypotheses += [replace(hypothesis, score=-math.inf) for hypothesis in by_probability[MOST:]]
    certified = certificate.certified_n
    if certified is not None:
        agreeing = (place for place, rank in enumerate(ranked[:n_best]) if place != rank)
        certified = min(certified, next(agreeing, len(hypotheses)))
    optimal = certificate.optimal if certified is None else certified > 0
    certificate = replace(certificate, certified_n=certified, optimal=optimal, mbr=about)
    return SearchResult(hypotheses, certificate, result.tree)
