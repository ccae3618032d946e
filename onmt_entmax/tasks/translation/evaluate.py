"""Scoring of translation: BLEU and chrF of one or several runs, with signatures.

Predictions are what ``onmt_translate`` wrote for ``test.src`` of a prepared folder: subwords, which are undone here.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from onmt_entmax.errors import UserError, choices, invalid_setting
from onmt_entmax.files import read_json, read_lines, sha256, split_tokens
from onmt_entmax.search.result import RATES
from onmt_entmax.signatures import signature
from onmt_entmax.tasks.prepared import MANIFEST
from onmt_entmax.tasks.results import (
    RATE_HEADS,
    certificate_rates,
    comparison_line,
    layout,
    read_checked_certificates,
    read_predictions,
    void_line,
)
from onmt_entmax.tasks.translation.scores import (
    chrf,
    corpus_score,
    metric_fields,
    paired_bootstrap,
    raw_bleu,
    raw_tokenizer_for,
    sentence_scores,
    sentence_statistics,
    summed_bleu,
    tokenised_bleu,
)
from onmt_entmax.tasks.translation.subwords import check_undone, undo_subwords
from onmt_entmax.tasks.translation.text import make_tokenizer
from onmt_entmax.tasks.trust import trust, trust_lines, unlike

SPLITS = ("test", "dev")
_HEADS = {"bleu_tok": "BLEU tok", "bleu_raw": "BLEU raw", "chrf": "chrF", **RATE_HEADS}


@dataclass
class References:
    """References of a split and how predictions become comparable with them.

    Attributes:
        tokens: tokenised references, or ``None`` where there is no tokenisation (untokenised Japanese).
        text: references as running text.
        metrics: name -> sacreBLEU metric.
    """

    manifest: dict
    tokens: list[str] | None
    text: list[str]
    metrics: dict

    def forms(self, lines: list[str]) -> dict[str, list[str]]:
        """Metric -> the predictions in the form that it scores; ``lines`` are tokens without subwords."""
        tokens = [self.scoring.tokenise(line) for line in lines] if self.scoring else lines
        running = [self.tokenizer.detokenise(line) for line in lines]
        return {name: tokens if name == "bleu_tok" else running for name in self.metrics}

    @functools.cached_property
    def words(self) -> set[str]:
        """What stands between blanks in the references, tokenised or running."""
        return {word for reference in [*(self.tokens or ()), *self.text] for word in reference.split(" ")}

    def references(self, metric: str) -> list[str]:
        """The references in the form that a metric scores."""
        return self.text if self.tokens is None or metric != "bleu_tok" else self.tokens

    def __post_init__(self):
        language = self.manifest["direction"].split("-")[1]
        kind = self.manifest["tokenizers"]["tgt"]
        self.tokenizer = make_tokenizer(kind, language)
        # subwords of raw text: the paper's scores need tokens, so both sides are tokenised here
        self.scoring = make_tokenizer("moses", language) if kind == "none" and language != "ja" else None
        if self.scoring:
            self.tokens = [self.scoring.tokenise(line) for line in self.tokens]
        elif kind == "none":
            self.tokens = None
            self.metrics.pop("bleu_tok")


def evaluate(
    data: Path,
    predictions: Sequence[Path],
    split: str = "test",
    n_best: int = 1,
    compare: Sequence[Path] | None = None,
    samples: int = 1000,
    bootstrap_seed: int = 1,
    certificates: Sequence[Path] | None = None,
    raw_tokenizer: str | None = None,
    about: dict[str, str] | None = None,
) -> dict:
    """Score the runs of a system; the help of ``onmt_entmax evaluate translation`` explains the arguments.

    Returns:
        ``runs`` (each file with its scores), ``mean`` and ``sd`` (``None`` for one run) of each score, ``comparison``,
        and a signature for each.

    Raises:
        UserError: unequal numbers of lines (both counts), subwords left over, a changed reference, a wrong option.
    """
    limits = (("--n-best", n_best, 1), ("--bootstrap-samples", samples, 1), ("--bootstrap-seed", bootstrap_seed, 0))
    for name, value, least in limits:
        if value < least:
            raise invalid_setting(name, value, f"It must be at least {least}.")
    if split not in SPLITS:
        raise invalid_setting("--split", split, choices(SPLITS))
    if certificates and len(certificates) != len(predictions):
        raise UserError(f"--certificates has {len(certificates)} files, --predictions {len(predictions)}: one per run.")
    test = _read_test(data, split, raw_tokenizer)
    texts = [_read_predictions(path, test, n_best) for path in predictions]
    forms = [test.forms(own) for own in texts]
    runs = [_scores(path, test, own) for path, own in zip(predictions, forms)]
    metrics = list(test.metrics)
    if certificates:
        for run_scores, path, text, own in zip(runs, certificates, texts, forms):
            found = read_checked_certificates(path, len(test.text))
            run_scores.update(certificate_rates(found))
            run_scores["trust"] = _trust(test, own, found, samples, bootstrap_seed)
            if run_scores["trust"] is not None:
                kind = test.manifest["settings"]["subwords"]
                run_scores["trust"]["unlike"] = unlike(zip(text, found), functools.partial(undo_subwords, kind))
        metrics += RATES
    fields = {**_about(test.manifest, split, test.text), **(about or {}), "runs": len(runs)}
    bootstrap = {"bootstrap": samples, "bootstrap_seed": bootstrap_seed}
    result = {
        "runs": runs,
        "mean": {name: fmean(own[name] for own in runs) for name in metrics},
        "sd": {name: stdev(own[name] for own in runs) if len(runs) > 1 else None for name in metrics},
    }
    signatures = {name: signature(name, {**fields, **metric_fields(m)}) for name, m in test.metrics.items()}
    if certificates:
        signatures["certificates"] = signature("certificates", fields)
        if any(own["trust"] for own in runs):
            signatures["trust"] = signature("trust", {**fields, "bleu": _class_metric(test), **bootstrap})
    if compare:
        others = [test.forms(_read_predictions(path, test, n_best)) for path in compare]
        result["comparison"] = {"others": [{"predictions": str(path), "sha256": sha256(path)} for path in compare]}
        for name in [name for name in test.metrics if name.startswith("bleu")]:
            first, second = ([_statistics(test, name, own) for own in system] for system in (forms, others))
            difference = paired_bootstrap(first, second, samples, bootstrap_seed)
            result["comparison"][name] = difference._asdict()
            drawn = {**fields, "others": len(compare), **bootstrap}
            signatures[f"{name}_difference"] = signature(
                f"{name}_difference", {**drawn, **metric_fields(test.metrics[name])}
            )
    result["signatures"] = signatures
    return result


def table(result: dict) -> str:
    """Lay out the scores for reading: a line per run, mean and sd, the comparison, the signatures."""
    heads = {metric: _HEADS[metric] for metric in result["mean"]}
    rows = [*((own["predictions"], own) for own in result["runs"]), ("mean", result["mean"]), ("sd", result["sd"])]
    lines = [layout("run", heads, rows), *void_line(result["runs"])]
    for name, comparison in result.get("comparison", {}).items():
        if name != "others":
            lines.append(comparison_line(f"{_HEADS[name]}, first minus second system", comparison))
    for own in result["runs"]:
        if own.get("trust"):
            lines += trust_lines(own["trust"], own["predictions"] if len(result["runs"]) > 1 else "")
    return "\n".join([*lines, "", *result["signatures"].values()])


def _read_test(data: Path, split: str, raw_tokenizer: str | None) -> References:
    path = data / MANIFEST
    manifest = read_json(path)
    try:
        if manifest["task"] != "translation":
            raise KeyError("translation")
        language = manifest["direction"].split("-")[1]
        lowercase = manifest["settings"]["lowercase"]
        outputs = manifest["outputs"]
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is not a manifest of `onmt_entmax prepare translation`.") from None
    for name in (f"{split}.ref", f"{split}.ref.tok"):
        if not (data / name).is_file():
            raise UserError(f"{data} lacks the file {name}.")
        if sha256(data / name) != outputs.get(name):
            raise UserError(f"{data / name} was changed since it was prepared: its checksum differs from {path}.")
    metrics = {
        "bleu_tok": tokenised_bleu(lowercase),
        "bleu_raw": raw_bleu(raw_tokenizer or raw_tokenizer_for(language), lowercase),
        "chrf": chrf(lowercase),
    }
    return References(manifest, read_lines(data / f"{split}.ref.tok"), read_lines(data / f"{split}.ref"), metrics)


def _read_predictions(path: Path, test: References, n_best: int) -> list[str]:
    """Read the best prediction of each input and undo the subwords."""
    lines = read_predictions(path, len(test.text), n_best, "references")
    kind = test.manifest["settings"]["subwords"]
    undone = [undo_subwords(kind, " ".join(split_tokens(line))) for line in lines[::n_best]]

    def describe(index: int, token: str) -> str:
        place = f"{path}, line {index * n_best + 1}"
        return (
            f"{place}: {token!r} is left over: the data's subwords are {kind}. Are these predictions of another model?"
        )

    check_undone(kind, undone, test.words, describe)
    return undone


def _scores(path: Path, test: References, forms: dict[str, list[str]]) -> dict:
    scores = {name: corpus_score(metric, forms[name], test.references(name)) for name, metric in test.metrics.items()}
    return {"predictions": str(path), "sha256": sha256(path), **scores}


def _trust(
    test: References, forms: dict[str, list[str]], certificates: list[dict], samples: int, seed: int
) -> dict | None:
    """Mean chrF of lines, and BLEU of the texts that the lines of a class make."""
    statistics = _statistics(test, _class_metric(test), forms)

    def corpus(counted: Sequence[int]) -> dict:
        own = statistics[counted]
        return {"bleu": lambda weights: summed_bleu(weights @ own)}

    quality = sentence_scores(test.metrics["chrf"], forms["chrf"], test.references("chrf"))
    return trust(certificates, quality, "chrf", samples, seed, corpus)


def _class_metric(test: References) -> str:
    return "bleu_tok" if "bleu_tok" in test.metrics else "bleu_raw"


def _statistics(test: References, metric: str, forms: dict[str, list[str]]):
    return sentence_statistics(test.metrics[metric], forms[metric], test.references(metric))


def _about(manifest: dict, split: str, references: list[str]) -> dict[str, object]:
    """The fields of the signatures that the manifest knows."""
    settings = manifest["settings"]
    subwords = settings["subwords"]
    if subwords != "none":
        subwords += f"-{settings['codes']}-{settings['merges']}"
    about = {
        "task": manifest["corpus"],
        "dir": manifest["direction"],
        "split": split,
        "lines": len(references),
        "train": manifest["counts"]["train"]["kept"],
        "text": manifest["tokenizers"]["tgt"],
        "subwords": subwords,
    }
    if manifest["direction"].endswith("-ro"):
        about["romanian"] = settings["romanian"]
    return about
