"""Accept outputs from a probability on, as low as a development set allows for a promise of accuracy.

Thresholds are tested from the strictest down, each only if all before it passed (fixed-sequence testing: learn then
test, Angelopoulos et al., 2021), by the exact lower bound of the accuracy (Clopper and Pearson, 1934). They come from
the outputs to be split, whose answers nobody knows, and not from the development set; so with the wanted confidence no
threshold that accepts too many wrong outputs is chosen, however many are tested.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np

from onmt_entmax.errors import UserError, invalid_setting
from onmt_entmax.files import iterate_lines, read_lines, sha256, split_tokens, write_json, write_lines
from onmt_entmax.search.result import read_certificates
from onmt_entmax.signatures import signature
from onmt_entmax.tasks.inflection.evaluate import pair_of, score
from onmt_entmax.tasks.inflection.files import read_certificates as certificates_of
from onmt_entmax.tasks.inflection.files import read_gold, read_guesses
from onmt_entmax.tasks.results import read_checked_certificates, read_predictions
from onmt_entmax.tasks.trust import probability, unlike_line

_FIRST = 0.1  # share of the outputs that the strictest threshold accepts, at least: fewer tell too little
_STEP = 0.01  # further share per threshold


class Choice(NamedTuple):
    """The threshold chosen and what the development set says of it, or of the first one tested if none passed.

    Attributes:
        threshold: outputs of at least this probability are accepted; None for none.
        tested: probability that the other numbers are about; None if nothing could be tested.
        accepted: outputs of the development set that have it.
        right: how many of these are right.
        low: lower bound of the accuracy, at the confidence asked for.
    """

    threshold: Optional[float]
    tested: Optional[float]
    accepted: int
    right: int
    low: float


def lower_bound(right: int, outputs: int, confidence: float) -> float:
    """The exact one-sided lower bound of a proportion (Clopper and Pearson): a quantile of a beta distribution."""
    from scipy.special import betaincinv

    return float(betaincinv(right, outputs - right + 1, 1 - confidence)) if right else 0.0


def fewest(at: float, confidence: float) -> int:
    """How many outputs, all of them right, have a lower bound of ``at``: the least n with at^n <= 1 - confidence."""
    return math.ceil(math.log(1 - confidence) / math.log(at))


def candidates(probs: np.ndarray, first: float = _FIRST) -> list[float]:
    """Thresholds to test, the strictest first: the probabilities that accept a share ``first``, then 1% more each time.

    Outputs of probability 0 have no answer: they are never accepted, and ``first`` is a share of the others.
    """
    ordered = np.sort(probs[probs > 0])[::-1]
    shares = np.arange(min(first, 1.0), 1.0 + _STEP / 2, _STEP)
    places = np.ceil(np.append(shares, 1.0).clip(max=1.0) * len(ordered) - 1e-9).astype(int) - 1
    return list(dict.fromkeys(ordered[np.maximum(places, 0)].tolist())) if len(ordered) else []


def choose(
    probs: np.ndarray, dev_probs: np.ndarray, dev_right: np.ndarray, at: float, confidence: float = 0.95
) -> Choice:
    """Choose the lowest threshold that can be promised.

    Args:
        probs: of the outputs to be split, shape (n,).
        dev_probs, dev_right: of the development set's outputs, and whether these are right, (m,).
        at, confidence: the accuracy wanted of what is accepted, and that it is reached.

    Raises:
        UserError: a development set so small that not even perfect outputs would do.
    """
    needed = fewest(at, confidence)
    if len(dev_right) < needed:
        raise UserError(
            f"A development set of {len(dev_right):,} is too small: to promise {at:.6g} with confidence "
            f"{confidence:.6g} takes at least {needed} outputs, all of them right."
        )
    best: Optional[Choice] = None
    for threshold in candidates(probs, max(_FIRST, 2 * needed / len(dev_right))):
        accepted = dev_probs >= threshold
        right = int(dev_right[accepted].sum())
        low = lower_bound(right, int(accepted.sum()), confidence)
        if low < at:
            return best or Choice(None, threshold, int(accepted.sum()), right, low)
        best = Choice(threshold, threshold, int(accepted.sum()), right, low)
    return best or Choice(None, None, 0, 0, 0.0)


def accept(
    predictions: Path,
    certificates: Path,
    dev_gold: Sequence[Path],
    dev_predictions: Path,
    dev_certificates: Path,
    output: str,
    at: float,
    confidence: float = 0.95,
    n_best: int = 1,
) -> dict[str, Any]:
    """Choose a threshold and split predictions; the help of ``onmt_entmax accept`` explains the arguments.

    Returns:
        What ``docs/formats.md`` says of ``PREFIX.accept.json``, which is written too.

    Raises:
        UserError: files that do not fit each other, void certificates, gold with duplicates, a wrong option.
    """
    for name, value in (("at", at), ("confidence", confidence)):
        if not 0 < value < 1:
            raise invalid_setting(name, value, "It must be between 0 and 1, such as 0.95.")
    if n_best < 1:
        raise invalid_setting("n-best", n_best, "It must be at least 1.")
    if predictions.is_file() and dev_predictions.is_file() and sha256(predictions) == sha256(dev_predictions):
        raise UserError(
            f"{predictions} and {dev_predictions} are the same: a promise holds for other outputs than those that it "
            "was learned from."
        )
    own = read_certificates(certificates)
    texts = read_predictions(predictions, len(own), n_best, "certificates")[::n_best]
    probs = _probabilities(certificates, own)
    dev_own, dev_texts, dev_right = _read_dev(dev_gold, dev_predictions, dev_certificates, n_best)
    dev_probs = _probabilities(dev_certificates, dev_own)
    choice = choose(probs, dev_probs, dev_right, at, confidence)
    taken = probs >= choice.threshold if choice.threshold is not None else np.zeros(len(probs), dtype=bool)
    for name, wanted in (("accepted", True), ("review", False)):
        rows = (
            f"{number}\t{prob:.6g}\t{text}"
            for number, (text, prob, kept) in enumerate(zip(texts, probs.tolist(), taken.tolist()), 1)
            if kept is wanted
        )
        write_lines(f"{output}.{name}.tsv", rows)
    files = [predictions, certificates, *dev_gold, dev_predictions, dev_certificates]
    about = {"at": at, "confidence": confidence, "bound": "clopper-pearson", "test": "fixed-sequence"}
    result = {
        "at": at,
        "confidence": confidence,
        "threshold": choice.threshold,
        "accepted": int(taken.sum()),
        "review": int((~taken).sum()),
        "unanswered": int((probs == 0).sum()),
        "unlike": _unlike(texts, own) + _unlike(dev_texts, dev_own),
        "dev": {"outputs": len(dev_right), **{k: v for k, v in choice._asdict().items() if k != "threshold"}},
        "files": {str(path): sha256(path) for path in files if path.is_file()},
        "signature": signature("accept", {**about, "dev": len(dev_right), "outputs": len(probs)}),
    }
    write_json(f"{output}.accept.json", result)
    return result


def sentences(result: Mapping[str, Any], output: str) -> list[str]:
    """What was done and what it promises."""
    dev, total = result["dev"], result["accepted"] + result["review"]
    percent = "{:.6g}%".format
    at, confidence = percent(100 * result["at"]), percent(100 * result["confidence"])
    lines = []
    if dev["tested"] is not None:
        share = f"{dev['right']:,} of {dev['accepted']:,}"
        shown = f"{share} right, {100 * dev['right'] / max(dev['accepted'], 1):.1f}%, at least {100 * dev['low']:.1f}%"
    if result["threshold"] is None:
        lines.append(f"No probability reaches {at} with {confidence} confidence: nothing is accepted.")
        if dev["tested"] is not None:
            lines.append(f"The strictest one tested, {dev['tested']:.6g} or more, has in the development set {shown}.")
    else:
        lines.append(
            f"Accepted {result['accepted']:,} of {total:,} outputs "
            f"({100 * result['accepted'] / total:.1f}%): those of probability {result['threshold']:.6g} or more."
        )
        lines.append(
            f"Promise: of outputs of such a probability at least {at} are right, with {confidence} confidence, for "
            f"inputs like those of the development set (there {shown})."
        )
    lines.append(f"{output}.accepted.tsv, {output}.review.tsv: line number, probability, prediction.")
    if result["unanswered"]:
        lines.append(f"To review without a probability (blank, or nothing finished): {result['unanswered']:,}.")
    return [*lines, *unlike_line(result["unlike"]), result["signature"]]


def _probabilities(path: Path, certificates: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Probability of each output, (n,), 0 without an answer; refuses answers of another search than the model's own."""
    probs = np.array([probability(one) for one in certificates], dtype=np.float64)
    void = Counter(one["reason"] for one, prob in zip(certificates, probs) if one["reason"] is not None and prob > 0)
    if void:
        reasons = ", ".join(f"{reason}: {number:,}" for reason, number in void.items())
        raise UserError(
            f"{path}: {sum(void.values()):,} of {len(certificates):,} certificates are void ({reasons}). Decode "
            "without these options."
        )
    return probs


def _read_dev(
    gold: Sequence[Path], predictions: Path, certificates: Path, n_best: int
) -> tuple[list[dict[str, Any]], list[str], np.ndarray]:
    """Certificates, predictions and whether they are right, output by output."""
    if len(gold) == 1 and gold[0].is_file() and "\t" not in next(iterate_lines(gold[0]), ""):
        targets = read_lines(gold[0])
        texts = read_predictions(predictions, len(targets), n_best, f"lines of {gold[0]}")[::n_best]
        own = read_checked_certificates(certificates, len(targets))
        right = [split_tokens(text) == split_tokens(target) for text, target in zip(texts, targets)]
        return own, texts, np.array(right, dtype=bool)
    golds = read_gold(gold)
    guesses, found = read_guesses(predictions, golds, n_best), certificates_of(certificates, golds)
    own, answers = [], []
    for one in golds:
        if not one.scored:
            raise UserError(f"{one.path} has no forms: the development set's answers are needed.")
        seen: set[tuple[str, str]] = set()
        for number, row in enumerate(one.rows, 1):
            if pair_of(row) in seen:
                raise UserError(
                    f"{one.path}, line {number}: {row.lemma!r} with {row.tags!r} stands there before. Each lemma with "
                    "its tags may stand once: repeated outputs would count as evidence twice."
                )
            seen.add(pair_of(row))
        own += found[one.language]
        answers += [outcome.correct for outcome in score(one.rows, list(zip(one.rows, guesses[one.language])))]
    inputs = sum(len(one.rows) for one in golds)
    texts = read_predictions(predictions, inputs, n_best)[::n_best] if predictions.is_file() else []
    return own, texts, np.array(answers, dtype=bool)


def _unlike(texts: Sequence[str], certificates: Sequence[Mapping[str, Any]]) -> int:
    """How many predictions are not the best string of their certificate."""
    pairs = ((split_tokens(text), one["hypotheses"]) for text, one in zip(texts, certificates))
    return sum(tokens != (hypotheses[0]["tokens"] if hypotheses else []) for tokens, hypotheses in pairs)
