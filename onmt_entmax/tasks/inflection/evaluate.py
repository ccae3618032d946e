"""``onmt_entmax evaluate inflection``: accuracy, edit distance and certificate rates, per language and averaged.

onmt_entmax evaluate inflection --gold runs/medium/test --predictions test.pred --certificates test.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from onmt_entmax.errors import UserError, choices, invalid_setting
from onmt_entmax.files import sha256, write_json
from onmt_entmax.tasks.inflection.format import SETTINGS
from onmt_entmax.tasks.inflection.results import (
    RATES,
    Gold,
    rates_of,
    read_certificates,
    read_gold,
    read_predictions,
    read_submission,
    write_submission,
)
from onmt_entmax.tasks.inflection.scores import Outcome, mean, paired_bootstrap, score
from onmt_entmax.version import __version__

_HEADS = {"acc": "acc %", "lev": "lev", "nbest_acc": "n-best %", **{rate: f"{rate} %" for rate in RATES}}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``onmt_entmax evaluate inflection``."""
    add = parser.add_argument
    add("--gold", required=True, nargs="+", type=Path, metavar="PATH", help="folder with LANG.gold, or gold files")
    system = "output of onmt_translate, all languages in one file or a folder of LANG.pred"
    add("--predictions", required=True, type=Path, metavar="PATH", help=system)
    add("--submitted", action="store_true", help="predictions are a folder of LANG-SETTING-out files with three fields")
    add("--n-best", type=int, default=1, metavar="N", help="lines per input (default: %(default)s)")
    add(
        "--certificates", type=Path, metavar="PATH", help="one JSON object per input; a file, or a folder of LANG.jsonl"
    )
    add("--compare", type=Path, metavar="PATH", help="predictions of a second system: paired bootstrap")
    add("--bootstrap-samples", type=int, default=1000, metavar="N", help="(default: %(default)s)")
    add("--bootstrap-seed", type=int, default=1, metavar="N", help="(default: %(default)s)")
    add("--submission", type=Path, metavar="FOLDER", help="write LANG-SETTING-out files, the shared task's format")
    add("--json", type=Path, metavar="FILE", help="write all numbers")
    add("--alpha", default="unknown", metavar="OUT/ATT", help="alphas of output and attention, for the signature")
    add("--seed", default="unknown", metavar="SEED", help="of the training, for the signature; 1+2+3 for an ensemble")
    add("--name", help="the task's name in the signature (default: from the manifest)")
    add("--setting", help="for the signature (default: from the manifest)")
    add("--split", help="for the signature (default: the gold folder's name)")


def run(args: argparse.Namespace) -> int:
    """Score, write the files asked for, print the table, return 0."""
    for name in ("n_best", "bootstrap_samples"):
        if getattr(args, name) < 1:
            raise invalid_setting(name.replace("_", "-"), getattr(args, name), "It must be at least 1.")
    if args.submitted and (args.submission or args.n_best > 1):
        raise UserError("--submitted goes without --submission and --n-best: such files hold one guess per pair.")
    if args.setting is not None and args.setting not in (*SETTINGS, "none"):
        raise invalid_setting("setting", args.setting, choices((*SETTINGS, "none")))
    golds = read_gold(args.gold)
    about = _about(args, golds)
    outcomes = _outcomes(args.predictions, golds, args.n_best, args.submitted)
    result = {
        "languages": {gold.language: {"inputs": len(gold.rows)} for gold in golds},
        "n_best": args.n_best,
        "files": _checksums(args),
    }
    for language, own in outcomes.items():
        result["languages"][language].update(_language_scores(own, args.n_best))
    if args.certificates:
        for language, own in read_certificates(args.certificates, golds).items():
            counted = [rates_of(certificate) for certificate in own]
            rates = {rate: 100 * mean([row[rate] for row in counted]) for rate in RATES}
            void = sum(certificate.get("reason") is not None for certificate in own)
            result["languages"][language].update(rates, void_certificates=void)
    result["macro"] = _macro(result["languages"])
    signatures = {}
    for metric in result["macro"]:
        count = sum(metric in scores for scores in result["languages"].values())
        signatures[metric] = signature(metric, {**about, "langs": count})
    if args.compare:
        other = _outcomes(args.compare, golds, args.n_best, args.submitted)
        first, second = (
            {language: [outcome.correct for outcome in own] for language, own in system.items()}
            for system in (outcomes, other)
        )
        comparison = paired_bootstrap(first, second, args.bootstrap_samples, args.bootstrap_seed)
        result["comparison"] = {
            **comparison._asdict(),
            "predictions": str(args.predictions),
            "other": str(args.compare),
        }
        bootstrap = {"bootstrap": args.bootstrap_samples, "bootstrap_seed": args.bootstrap_seed}
        signatures["acc_difference"] = signature("acc_difference", {**about, **bootstrap})
    result["signatures"] = signatures
    if args.submission:
        predictions = read_predictions(args.predictions, golds, args.n_best)
        write_submission(args.submission, about["set"] if about["set"] in SETTINGS else None, golds, predictions)
    if args.json:
        write_json(args.json, result)
    print(table(result))
    return 0


def signature(metric: str, about: dict[str, object]) -> str:
    """Say how a number was made: ``acc|task:conll2018.1|set:medium|...|version:0.1.0``."""
    return "|".join([metric, *(f"{key}:{value}" for key, value in about.items()), f"version:{__version__}"])


def table(result: dict) -> str:
    """Lay out the scores for reading: a line per language, the macro average, the comparison, the signatures."""
    columns = list(result["macro"])
    width = max(len(name) for name in [*result["languages"], "macro average"])
    rows = {**result["languages"], "macro average": result["macro"]}
    lines = [f"{'language':{width}}  " + "  ".join(f"{_HEADS[column]:>13}" for column in columns)]
    for name, values in rows.items():
        cells = (f"{values[column]:13.2f}" if column in values else f"{'-':>13}" for column in columns)
        lines.append(f"{name:{width}}  " + "  ".join(cells))
    void = sum(values.get("void_certificates", 0) for values in result["languages"].values())
    if void:
        lines.append(f"{void} certificates are void (see their `reason`) and count as not certified.")
    if "comparison" in result:
        c = result["comparison"]
        interval = f"95% interval {c['low']:+.2f} to {c['high']:+.2f}, p = {c['p_value']:.4f}"
        lines.append(f"accuracy, {c['predictions']} minus {c['other']}: {c['difference']:+.2f} ({interval})")
    return "\n".join([*lines, "", *result["signatures"].values()])


def _outcomes(path: Path, golds: Sequence[Gold], n_best: int, submitted: bool) -> dict[str, list[Outcome]]:
    """Language -> outcomes, for the languages whose forms are known."""
    golds_scored = [gold for gold in golds if gold.scored]
    if submitted:
        answers = read_submission(path, golds_scored)
        guesses = {language: [(row, (row.form,)) for row in rows] for language, rows in answers.items()}
    else:
        predictions = read_predictions(path, golds, n_best)
        guesses = {gold.language: list(zip(gold.rows, predictions[gold.language])) for gold in golds}
    return {gold.language: score(gold.rows, guesses[gold.language]) for gold in golds_scored}


def _language_scores(outcomes: list[Outcome], n_best: int) -> dict[str, float]:
    scores = {
        "pairs": len(outcomes),
        "acc": 100 * mean([outcome.correct for outcome in outcomes]),
        "lev": mean([outcome.distance for outcome in outcomes]),
    }
    if n_best > 1:
        scores["nbest_acc"] = 100 * mean([outcome.any_correct for outcome in outcomes])
    return scores


def _macro(languages: dict[str, dict[str, float]]) -> dict[str, float]:
    """Average over languages every score that a language has."""
    macro = {}
    for metric in _HEADS:
        values = [scores[metric] for scores in languages.values() if metric in scores]
        if values:
            macro[metric] = mean(values)
    return macro


def _about(args: argparse.Namespace, golds: Sequence[Gold]) -> dict[str, object]:
    """The fields of the signatures; what nobody says is ``unknown``."""
    folder = golds[0].path.resolve().parent
    try:
        manifest = json.loads((folder.parent / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        manifest = {}
    if "setting" in manifest and manifest["setting"] is None:
        manifest["setting"] = "none"
    split = folder.name if manifest else "unknown"
    return {
        "task": args.name or manifest.get("task", "unknown"),
        "set": args.setting or manifest.get("setting", "unknown"),
        "split": args.split or split,
        "langs": sum(gold.scored for gold in golds),
        "avg": "macro",
        **({"nbest": args.n_best} if args.n_best > 1 else {}),
        "alpha": args.alpha,
        "seed": args.seed,
    }


def _checksums(args: argparse.Namespace) -> dict[str, str]:
    paths = [path for path in (args.predictions, args.certificates, args.compare) if path is not None]
    return {str(path): sha256(path) for path in paths if path.is_file()}
