"""``onmt_entmax evaluate translation``: BLEU and chrF of one or several runs, with signatures.

onmt_entmax evaluate translation --data runs/de-en --predictions seed1.pred seed2.pred seed3.pred --json scores.json

Predictions are what ``onmt_translate`` wrote for ``test.src`` of a prepared folder: subwords, which are undone here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from onmt_entmax.errors import UserError, choices, invalid_setting
from onmt_entmax.files import read_lines, sha256, write_json
from onmt_entmax.tasks.inflection.results import RATES, Gold, rates_of, read_certificates
from onmt_entmax.tasks.translation.bpe import left_over, undo_subwords
from onmt_entmax.tasks.translation.scores import (
    RAW_TOKENIZERS,
    chrf,
    corpus_score,
    mean,
    metric_signature,
    paired_bootstrap,
    raw_bleu,
    raw_tokenizer_for,
    sentence_statistics,
    standard_deviation,
    tokenised_bleu,
)
from onmt_entmax.tasks.translation.text import make_tokenizer
from onmt_entmax.version import __version__

_HEADS = {"bleu_tok": "BLEU tok", "bleu_raw": "BLEU raw", "chrf": "chrF", **{rate: f"{rate} %" for rate in RATES}}
_SPLITS = ("test", "dev")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``onmt_entmax evaluate translation``."""
    add = parser.add_argument
    add("--data", required=True, type=Path, metavar="FOLDER", help="the output of `onmt_entmax prepare translation`")
    add("--split", default="test", metavar="SPLIT", help=f"{', '.join(_SPLITS)} (default: %(default)s)")
    runs = "output of onmt_translate, one file per run (seed)"
    add("--predictions", required=True, nargs="+", type=Path, metavar="FILE", help=runs)
    add("--n-best", type=int, default=1, metavar="N", help="lines per input; the first counts (default: %(default)s)")
    add("--compare", nargs="+", type=Path, metavar="FILE", help="runs of a second system: paired bootstrap")
    add("--bootstrap-samples", type=int, default=1000, metavar="N", help="(default: %(default)s)")
    add("--bootstrap-seed", type=int, default=1, metavar="N", help="(default: %(default)s)")
    add("--certificates", nargs="+", type=Path, metavar="FILE", help="one JSON object per input; a file per run")
    raw = f"sacreBLEU's tokeniser for running text: {', '.join(RAW_TOKENIZERS)} (default: 13a; ja-mecab for Japanese)"
    add("--raw-tokenizer", metavar="NAME", help=raw)
    add("--json", type=Path, metavar="FILE", help="write all numbers")
    add("--alpha", default="unknown", metavar="OUT/ATT", help="alphas of output and attention, for the signature")
    add("--seed", default="unknown", metavar="SEED", help="of the training, for the signature, e.g. 1,2,3")


def run(args: argparse.Namespace) -> int:
    """Score, write the JSON asked for, print the table, return 0."""
    result = evaluate(
        args.data,
        args.predictions,
        split=args.split,
        n_best=args.n_best,
        compare=args.compare,
        samples=args.bootstrap_samples,
        bootstrap_seed=args.bootstrap_seed,
        certificates=args.certificates,
        raw_tokenizer=args.raw_tokenizer,
        about={"alpha": args.alpha, "seed": args.seed},
    )
    if args.json:
        write_json(args.json, result)
    print(table(result))
    return 0


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

    @cached_property
    def words(self) -> set[str]:
        """What stands between blanks in the references, tokenised or running."""
        return {word for reference in [*(self.tokens or ()), *self.text] for word in reference.split(" ")}

    def references(self, metric: str) -> list[str]:
        """The references in the form that a metric scores."""
        return self.tokens if metric == "bleu_tok" else self.text

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
    """Score the runs of a system; see ``add_arguments`` for the arguments.

    Returns:
        ``runs`` (each file with its scores), ``mean`` and ``sd`` (``None`` for one run) of each score, ``comparison``,
        and a signature for each.

    Raises:
        UserError: unequal numbers of lines (both counts), subwords left over, a changed reference, a wrong option.
    """
    for name, value in (("--n-best", n_best), ("--bootstrap-samples", samples)):
        if value < 1:
            raise invalid_setting(name, value, "It must be at least 1.")
    if split not in _SPLITS:
        raise invalid_setting("--split", split, choices(_SPLITS))
    if certificates and len(certificates) != len(predictions):
        raise UserError(f"--certificates has {len(certificates)} files, --predictions {len(predictions)}: one per run.")
    test = _read_test(data, split, raw_tokenizer)
    forms = [test.forms(_read_predictions(path, test, n_best)) for path in predictions]
    runs = [_scores(path, test, own) for path, own in zip(predictions, forms)]
    metrics = list(test.metrics)
    if certificates:
        for run_scores, path in zip(runs, certificates):
            run_scores.update(_rates(path, test))
        metrics += RATES
    fields = {**_about(test.manifest, split, test.text), **(about or {}), "runs": len(runs)}
    result = {
        "runs": runs,
        "mean": {name: mean([run_scores[name] for run_scores in runs]) for name in metrics},
        "sd": {name: standard_deviation([run_scores[name] for run_scores in runs]) for name in metrics},
    }
    signatures = {name: signature(name, fields, metric) for name, metric in test.metrics.items()}
    if certificates:
        signatures["certificates"] = signature("certificates", fields)
    if compare:
        others = [test.forms(_read_predictions(path, test, n_best)) for path in compare]
        result["comparison"] = {"others": [{"predictions": str(path), "sha256": sha256(path)} for path in compare]}
        for name in [name for name in test.metrics if name.startswith("bleu")]:
            first, second = ([_statistics(test, name, own) for own in system] for system in (forms, others))
            difference = paired_bootstrap(first, second, samples, bootstrap_seed)
            result["comparison"][name] = difference._asdict()
            drawn = {**fields, "others": len(compare), "bootstrap": samples, "bootstrap_seed": bootstrap_seed}
            signatures[f"{name}_difference"] = signature(f"{name}_difference", drawn, test.metrics[name])
    result["signatures"] = signatures
    return result


def signature(name: str, fields: dict[str, object], metric=None) -> str:
    """Say how a number was made: ``bleu_tok|task:iwslt17|dir:de-en|...|tok:none|...|version:0.1.0``."""
    own = [metric_signature(metric)] if metric is not None else []
    return "|".join([name, *(f"{key}:{value}" for key, value in fields.items()), *own, f"version:{__version__}"])


def table(result: dict) -> str:
    """Lay out the scores for reading: a line per run, mean and sd, the comparison, the signatures."""
    columns = list(result["mean"])
    rows = [(run_scores["predictions"], run_scores) for run_scores in result["runs"]]
    rows += [("mean", result["mean"]), ("sd", result["sd"])]
    width = max(len(name) for name, _ in rows)
    lines = [f"{'run':{width}}  " + "  ".join(f"{_HEADS[column]:>13}" for column in columns)]
    for name, values in rows:
        cells = (f"{'-':>13}" if values[column] is None else f"{values[column]:13.2f}" for column in columns)
        lines.append(f"{name:{width}}  " + "  ".join(cells))
    void = sum(run_scores.get("void_certificates", 0) for run_scores in result["runs"])
    if void:
        lines.append(f"{void} certificates are void (see their `reason`) and count as not certified.")
    for name, c in result.get("comparison", {}).items():
        if name != "others":
            interval = f"95% interval {c['low']:+.2f} to {c['high']:+.2f}, p = {c['p_value']:.4f}"
            lines.append(f"{_HEADS[name]}, first minus second system: {c['difference']:+.2f} ({interval})")
    return "\n".join([*lines, "", *result["signatures"].values()])


def _read_test(data: Path, split: str, raw_tokenizer: str | None) -> References:
    path = data / "manifest.json"
    try:
        manifest = json.loads("\n".join(read_lines(path)))
        if manifest["task"] != "translation":
            raise KeyError("translation")
        language = manifest["direction"].split("-")[1]
        lowercase = manifest["settings"]["lowercase"]
        outputs = manifest["outputs"]
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, UserError):
            raise
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
    lines = read_lines(path)
    if len(lines) != n_best * len(test.text):
        wanted = f"{len(test.text)} references" + (f" x {n_best}" if n_best > 1 else "")
        more = ""
        if lines and len(lines) % len(test.text) == 0:
            more = f"; that would be --n-best {len(lines) // len(test.text)}"
        raise UserError(f"{path} has {len(lines)} lines for {wanted}{more}.")
    kind = test.manifest["settings"]["subwords"]
    undone = []
    for number, line in enumerate(lines[::n_best]):
        text = line.partition("\t")[0]  # behind it `onmt_translate -with_score` writes the score
        tokens = undo_subwords(kind, " ".join(piece for piece in text.split(" ") if piece))
        rest = left_over(kind, tokens, test.words)
        if rest is not None:
            raise UserError(
                f"{path}, line {number * n_best + 1}: {rest!r} is left over: the data's subwords are {kind}. "
                "Are these predictions of another model?"
            )
        undone.append(tokens)
    return undone


def _scores(path: Path, test: References, forms: dict[str, list[str]]) -> dict:
    scores = {name: corpus_score(metric, forms[name], test.references(name)) for name, metric in test.metrics.items()}
    return {"predictions": str(path), "sha256": sha256(path), **scores}


def _statistics(test: References, metric: str, forms: dict[str, list[str]]):
    return sentence_statistics(test.metrics[metric], forms[metric], test.references(metric))


def _rates(path: Path, test: References) -> dict[str, float]:
    """Rates of one certificates file in percent; the reader wants the inputs as one "language"."""
    name = test.manifest["direction"]
    certificates = read_certificates(path, [Gold(language=name, path=path, rows=test.text, scored=False)])[name]
    counted = [rates_of(certificate) for certificate in certificates]
    rates = {rate: 100 * mean([row[rate] for row in counted]) for rate in RATES}
    return {**rates, "void_certificates": sum(c.get("reason") is not None for c in certificates)}


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
