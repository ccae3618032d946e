"""``onmt_entmax evaluate TASK``: score what ``onmt_translate`` wrote.

onmt_entmax evaluate inflection --gold runs/medium/test --predictions test.pred --certificates test.jsonl
onmt_entmax evaluate translation --data runs/de-en --predictions seed1.pred seed2.pred seed3.pred --json scores.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from onmt_entmax.commands import shared
from onmt_entmax.files import write_json
from onmt_entmax.tasks.translation.text import RAW_TOKENIZERS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one sub-parser per task."""
    shared.add_tasks(
        parser,
        inflection=("accuracy and edit distance per language", _inflection_arguments),
        translation=("BLEU, tokenised and detokenised", _translation_arguments),
    )


def run(args: argparse.Namespace) -> int:
    """Score, write the JSON asked for, print the table, return 0."""
    if args.task == "inflection":
        from onmt_entmax.tasks.inflection.evaluate import Options, evaluate, table

        result = evaluate(Options(**{name: getattr(args, name) for name in Options.__dataclass_fields__}))
    else:
        from onmt_entmax.tasks.translation.evaluate import evaluate, table

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


def _inflection_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--gold", required=True, nargs="+", type=Path, metavar="PATH", help="folder with LANG.gold, or gold files")
    system = "output of onmt_translate, all languages in one file or a folder of LANG.pred"
    add("--predictions", required=True, type=Path, metavar="PATH", help=system)
    add("--submitted", action="store_true", help="predictions are a folder of LANG-SETTING-out files with three fields")
    add("--n-best", type=int, default=1, metavar="N", help="lines per input (default: %(default)s)")
    certificates = "one JSON object per input; a file, or a folder of LANG.jsonl"
    add("--certificates", type=Path, metavar="PATH", help=certificates)
    add("--compare", type=Path, metavar="PATH", help="predictions of a second system: paired bootstrap")
    add("--submission", type=Path, metavar="FOLDER", help="write LANG-SETTING-out files, the shared task's format")
    add("--name", help="the task's name in the signature (default: from the manifest)")
    add("--setting", help="for the signature (default: from the manifest)")
    add("--split", help="for the signature (default: the gold folder's name)")
    _common_arguments(parser, "1+2+3 for an ensemble")


def _translation_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--data", required=True, type=Path, metavar="FOLDER", help="the output of `onmt_entmax prepare translation`")
    add("--split", default="test", metavar="SPLIT", help="test, dev (default: %(default)s)")
    runs = "output of onmt_translate, one file per run (seed)"
    add("--predictions", required=True, nargs="+", type=Path, metavar="FILE", help=runs)
    add("--n-best", type=int, default=1, metavar="N", help="lines per input; the first counts (default: %(default)s)")
    add("--compare", nargs="+", type=Path, metavar="FILE", help="runs of a second system: paired bootstrap")
    add("--certificates", nargs="+", type=Path, metavar="FILE", help="one JSON object per input; a file per run")
    raw = f"sacreBLEU's tokeniser for running text: {', '.join(RAW_TOKENIZERS)} (default: 13a; ja-mecab for Japanese)"
    add("--raw-tokenizer", metavar="NAME", help=raw)
    _common_arguments(parser, "e.g. 1,2,3")


def _common_arguments(parser: argparse.ArgumentParser, seeds: str) -> None:
    add = parser.add_argument
    add("--bootstrap-samples", type=int, default=1000, metavar="N", help="(default: %(default)s)")
    add("--bootstrap-seed", type=int, default=1, metavar="N", help="(default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write all numbers")
    add("--alpha", default="unknown", metavar="OUT/ATT", help="alphas of output and attention, for the signature")
    add("--seed", default="unknown", metavar="SEED", help=f"of the training, for the signature; {seeds}")
