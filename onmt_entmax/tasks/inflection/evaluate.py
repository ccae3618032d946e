"""Scoring of inflection: accuracy, edit distance and certificate rates, per language and averaged.

What the official scorer of the CoNLL–SIGMORPHON 2018 shared task (``evalm.py``) does, this does too: a line is stripped
as a whole, so blanks before a lemma and after the tags are ignored and those around a form count; of the rows with the
same lemma and tags, the last one read is kept, in the gold file and in the guesses; a pair without a guess counts as
the empty word. It rounds a language's scores to two decimals; here only the table is rounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from rapidfuzz.distance import Levenshtein

from onmt_entmax.errors import UserError, choices, invalid_setting
from onmt_entmax.files import read_json, sha256
from onmt_entmax.signatures import signature
from onmt_entmax.tasks.inflection.files import (
    Gold,
    read_certificates,
    read_gold,
    read_guesses,
    read_submission,
    read_training,
    write_submission,
)
from onmt_entmax.tasks.inflection.format import SETTINGS, Row, decode_form
from onmt_entmax.tasks.prepared import MANIFEST
from onmt_entmax.tasks.results import (
    RATE_HEADS,
    Comparison,
    certificate_rates,
    compare,
    comparison_line,
    layout,
    training_fields,
    void_line,
)
from onmt_entmax.tasks.trust import BINS, trust, trust_lines, unlike

_LEMMA_HEADS = {
    "lemma_seen": "lemma seen %",
    "acc_seen": "acc seen %",
    "acc_unseen": "acc unseen %",
    "acc_gap": "seen - unseen",
}
_HEADS = {"acc": "acc %", "lev": "lev", "nbest_acc": "n-best %", **_LEMMA_HEADS, **RATE_HEADS}


@dataclass
class Options:
    """What to score and how; the help of ``onmt_entmax evaluate inflection`` explains each."""

    gold: list[Path]
    predictions: Path
    submitted: bool = False
    n_best: int = 1
    train: list[Path] | None = None
    certificates: Path | None = None
    compare: Path | None = None
    bootstrap_samples: int = 1000
    bootstrap_seed: int = 1
    submission: Path | None = None
    alpha: str = "unknown"
    seed: str = "unknown"
    steps: str | None = None
    recipe: str | None = None
    name: str | None = None
    setting: str | None = None
    split: str | None = None

    def check(self) -> None:
        """Refuse values that cannot be, and what does not go together."""
        for name, least in (("n_best", 1), ("bootstrap_samples", 1), ("bootstrap_seed", 0)):
            if getattr(self, name) < least:
                raise invalid_setting(name.replace("_", "-"), getattr(self, name), f"It must be at least {least}.")
        if self.submitted and (self.submission or self.n_best > 1):
            raise UserError("--submitted goes without --submission and --n-best: such files hold one guess per pair.")
        if self.setting is not None and self.setting not in (*SETTINGS, "none"):
            raise invalid_setting("setting", self.setting, choices((*SETTINGS, "none")))


def evaluate(options: Options) -> dict:
    """Score predictions, and write a submission where one is asked for.

    Returns:
        ``languages`` (each with its scores), ``macro`` (their averages), ``trust``, ``comparison``, ``files`` (SHA-256)
        and ``signatures``.

    Raises:
        UserError: a wrong option, or files that do not fit the inputs, with file and line.
    """
    options.check()
    golds = read_gold(options.gold)
    about = _about(options, golds)
    outcomes = _outcomes(options.predictions, golds, options)
    files = [path for path in (options.predictions, options.certificates, options.compare) if path is not None]
    result: dict[str, Any] = {
        "languages": {gold.language: {"inputs": len(gold.rows)} for gold in golds},
        "n_best": options.n_best,
        "files": {str(path): sha256(path) for path in files if path.is_file()},
    }
    for language, own in outcomes.items():
        result["languages"][language].update(_language_scores(own, options.n_best))
    train_rows: dict[str, object] = {}
    if options.train:
        training = read_training(options.train, golds, about["set"] if about["set"] in SETTINGS else None)
        train_rows["train"] = training.rows
        result["files"].update({str(path): sha256(path) for path in training.files})
        for gold in golds:
            if gold.scored:
                own = lemma_scores(gold.rows, outcomes[gold.language], training.lemmas[gold.language])
                result["languages"][gold.language].update(own)
    bootstrap = {"bootstrap": options.bootstrap_samples, "bootstrap_seed": options.bootstrap_seed}
    signatures = {}
    if options.certificates:
        certificates = read_certificates(options.certificates, golds)
        for language, own in certificates.items():
            result["languages"][language].update(certificate_rates(own))
    result["macro"] = _macro(result["languages"])
    for metric in result["macro"]:
        count = sum(metric in scores for scores in result["languages"].values())
        signatures[metric] = signature(
            metric, {**about, "langs": count, **(train_rows if metric in _LEMMA_HEADS else {})}
        )
    if options.certificates:
        result["trust"] = _trust(golds, outcomes, certificates, options)
        if result["trust"] is not None:
            signatures["trust"] = signature("trust", {**about, "avg": "micro", "bins": BINS, **bootstrap})
    if options.compare:
        other = _outcomes(options.compare, golds, options)
        first, second = (
            {language: [outcome.correct for outcome in own] for language, own in system.items()}
            for system in (outcomes, other)
        )
        comparison = paired_bootstrap(first, second, options.bootstrap_samples, options.bootstrap_seed)
        paths = {"predictions": str(options.predictions), "other": str(options.compare)}
        result["comparison"] = {**comparison._asdict(), **paths}
        signatures["acc_difference"] = signature("acc_difference", {**about, **bootstrap})
    result["signatures"] = signatures
    if options.submission:
        guesses = read_guesses(options.predictions, golds, options.n_best)
        write_submission(options.submission, about["set"] if about["set"] in SETTINGS else None, golds, guesses)
    return result


def table(result: dict) -> str:
    """Lay out the scores for reading: a line per language, the macro average, the comparison, the signatures."""
    heads = {metric: _HEADS[metric] for metric in result["macro"]}
    lines = [layout("language", heads, [*result["languages"].items(), ("macro average", result["macro"])])]
    lines += void_line(result["languages"].values())
    lines += _averaged_over(result["languages"])
    if "comparison" in result:
        names = "{predictions} minus {other}".format_map(result["comparison"])
        lines.append(comparison_line(f"accuracy, {names}", result["comparison"]))
    if result.get("trust"):
        lines += trust_lines(result["trust"])
    return "\n".join([*lines, "", *result["signatures"].values()])


class Outcome(NamedTuple):
    """One scored (lemma, tags) pair: is the first guess right, its Levenshtein distance, is any of the n-best right."""

    correct: bool
    distance: int
    any_correct: bool


def pair_of(row: Row) -> tuple[str, str]:
    """What the official scorer knows a row by: lemma and tags, without the blanks at the ends of the line."""
    return row.lemma.lstrip(), row.tags.rstrip()


def score(gold: Sequence[Row], guesses: Sequence[tuple[Row, Sequence[str]]]) -> list[Outcome]:
    """Score one language: one outcome per different (lemma, tags) pair of ``gold``, in order of their first rows.

    Args:
        gold: rows with forms.
        guesses: rows (their form is not used) with their guesses, the best first; in any order, some may be missing.
    """
    wanted = {pair_of(row): row.form for row in gold}  # the last one read is kept
    given = {pair_of(row): forms for row, forms in guesses}
    outcomes = []
    for pair, form in wanted.items():
        forms = given.get(pair) or ("",)
        outcomes.append(Outcome(forms[0] == form, Levenshtein.distance(form, forms[0]), form in forms))
    return outcomes


def lemma_scores(rows: Sequence[Row], outcomes: Sequence[Outcome], lemmas: Set[str]) -> dict[str, float]:
    """How many pairs have a lemma that was seen in training, and accuracy with and without (Goldman et al., 2022).

    Args:
        rows, outcomes: of one language, as :func:`score` takes and gives them.
        lemmas: of its training rows, compared character by character.

    Returns:
        In percent ``lemma_seen``, ``acc_seen``, ``acc_unseen``, and ``acc_gap``, the difference of the two accuracies;
        what no pair counts for is missing.
    """
    pairs = dict.fromkeys(map(pair_of, rows))
    correct: dict[str, list[bool]] = {"acc_seen": [], "acc_unseen": []}
    for (lemma, _), outcome in zip(pairs, outcomes):
        correct["acc_seen" if lemma in lemmas else "acc_unseen"].append(outcome.correct)
    scores = {name: 100 * fmean(own) for name, own in correct.items() if own}
    if len(scores) == 2:
        scores["acc_gap"] = scores["acc_seen"] - scores["acc_unseen"]
    return {"lemma_seen": 100 * len(correct["acc_seen"]) / len(pairs), **scores}


def paired_bootstrap(
    first: Mapping[str, Sequence[bool]], second: Mapping[str, Sequence[bool]], samples: int = 1000, seed: int = 1
) -> Comparison:
    """Compare two systems' macro-averaged accuracies by resampling the pairs of every language (Koehn, 2004).

    A resample of n pairs matters only through how many of them one system alone, the other alone, or neither gets
    right, which is a multinomial draw: no pair needs to be drawn by itself.

    Args:
        first, second: language -> whether each of its pairs is right, n values, of one system and of the other.
        samples, seed: number of resamples, and where they start.

    Returns:
        The difference in percent, its interval and its p-value.
    """
    generator = np.random.default_rng(seed)
    differences = np.zeros(samples)  # (samples,)
    observed = 0.0
    for language in sorted(first):
        delta = np.asarray(first[language], dtype=np.int64) - np.asarray(second[language], dtype=np.int64)  # (n,)
        shares = np.array([(delta == -1).mean(), (delta == 0).mean(), (delta == 1).mean()])
        drawn = generator.multinomial(len(delta), shares, size=samples)  # (samples, 3)
        differences += (drawn[:, 2] - drawn[:, 0]) / len(delta)
        observed += float(delta.mean())
    differences *= 100 / len(first)
    observed *= 100 / len(first)
    return compare(observed, differences)


def _outcomes(path: Path, golds: Sequence[Gold], options: Options) -> dict[str, list[Outcome]]:
    """Language -> outcomes, for the languages whose forms are known."""
    golds_scored = [gold for gold in golds if gold.scored]
    if options.submitted:
        answers = read_submission(path, golds_scored)
        guesses = {language: [(row, (row.form,)) for row in rows] for language, rows in answers.items()}
    else:
        predictions = read_guesses(path, golds, options.n_best)
        guesses = {gold.language: list(zip(gold.rows, predictions[gold.language])) for gold in golds}
    return {gold.language: score(gold.rows, guesses[gold.language]) for gold in golds_scored}


def _trust(
    golds: Sequence[Gold], outcomes: dict[str, list[Outcome]], certificates: dict[str, list[dict]], options: Options
) -> dict | None:
    """Over the pairs of all languages; of rows with the same pair the last one counts, as in its score."""
    own: list = []
    right: list = []
    for gold in golds:
        if gold.language in outcomes:
            own += {pair_of(row): one for row, one in zip(gold.rows, certificates[gold.language])}.values()
            right += [100.0 * outcome.correct for outcome in outcomes[gold.language]]
    result = trust(own, right, "acc", options.bootstrap_samples, options.bootstrap_seed)
    if result is not None:
        result["unlike"] = None
    if result is not None and not options.submitted:
        guesses = read_guesses(options.predictions, golds, options.n_best)
        pairs = [pair for gold in golds for pair in zip(guesses[gold.language], certificates[gold.language])]
        result["unlike"] = unlike(((forms[0], one) for forms, one in pairs), decode_form)
    return result


def _language_scores(outcomes: list[Outcome], n_best: int) -> dict[str, float]:
    scores = {
        "pairs": len(outcomes),
        "acc": 100 * fmean(outcome.correct for outcome in outcomes),
        "lev": fmean(outcome.distance for outcome in outcomes),
    }
    if n_best > 1:
        scores["nbest_acc"] = 100 * fmean(outcome.any_correct for outcome in outcomes)
    return scores


def _macro(languages: dict[str, dict[str, float]]) -> dict[str, float]:
    """Average over languages every score that a language has."""
    macro = {}
    for metric in _HEADS:
        values = [scores[metric] for scores in languages.values() if metric in scores]
        if values:
            macro[metric] = fmean(values)
    return macro


def _averaged_over(languages: dict[str, dict[str, float]]) -> list[str]:
    """Over how many languages seen and unseen lemmas are averaged, where it is not over all."""
    count = sum("lemma_seen" in scores for scores in languages.values())
    lines = []
    for metric in ("acc_seen", "acc_unseen"):
        own = sum(metric in scores for scores in languages.values())
        if own < count:
            lines.append(f"`{_HEADS[metric]}` is over {own} of {count} languages: the others have no such pairs.")
    return lines


def _about(options: Options, golds: Sequence[Gold]) -> dict[str, object]:
    """The fields of the signatures; what nobody says is ``unknown``."""
    folder = golds[0].path.resolve().parent
    try:
        manifest = read_json(folder.parent / MANIFEST)
    except UserError:  # gold files from elsewhere
        manifest = {}
    if "setting" in manifest and manifest["setting"] is None:
        manifest["setting"] = "none"
    return {
        "task": options.name or manifest.get("task", "unknown"),
        "set": options.setting or manifest.get("setting", "unknown"),
        "split": options.split or (folder.name if manifest else "unknown"),
        "langs": sum(gold.scored for gold in golds),
        "avg": "macro",
        **({"nbest": options.n_best} if options.n_best > 1 else {}),
        **training_fields(options),
    }
