"""``onmt_entmax accept``: split predictions into those to accept and those to review, with a promise of accuracy.

onmt_entmax accept --predictions test.pred --certificates test.jsonl --at 0.95 --output test \\
    --dev-gold runs/medium/dev --dev-predictions dev.pred --dev-certificates dev.jsonl
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--predictions", required=True, type=Path, metavar="FILE", help="output of `onmt_translate`, to be split")
    add("--certificates", required=True, type=Path, metavar="FILE", help="its `-certificates`")
    add("--at", required=True, type=float, metavar="ACCURACY", help="wanted of what is accepted, e.g. 0.95")
    add("--confidence", type=float, default=0.95, metavar="P", help="that it is reached (default: %(default)s)")
    gold = "folder with LANG.gold, gold files, or one file of targets, as in training, a line per input"
    add("--dev-gold", required=True, nargs="+", type=Path, metavar="PATH", help=gold)
    add("--dev-predictions", required=True, type=Path, metavar="PATH", help="of the same model for the development set")
    add("--dev-certificates", required=True, type=Path, metavar="PATH", help="the same")
    add("--n-best", type=int, default=1, metavar="N", help="lines per input; the first counts (default: %(default)s)")
    outputs = "write PREFIX.accepted.tsv, PREFIX.review.tsv, PREFIX.accept.json (default: the predictions' name)"
    add("--output", metavar="PREFIX", help=outputs)


def run(args: argparse.Namespace) -> int:
    """Split the predictions, say what is promised, return 0 (also where nothing can be accepted)."""
    from onmt_entmax.tasks.accept import accept, sentences

    output = args.output or str(args.predictions)
    result = accept(
        args.predictions,
        args.certificates,
        args.dev_gold,
        args.dev_predictions,
        args.dev_certificates,
        output,
        args.at,
        args.confidence,
        args.n_best,
    )
    print("\n".join(sentences(result, output)))
    return 0
