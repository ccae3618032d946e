"""``onmt_entmax trace``: the whole beam search of an input, every prefix with its probability (the paper's Fig. 1).

onmt_entmax trace --model best.pt --src-text "<lang:english> <tag:V> <tag:V.PTCP> <tag:PST> d r a w" --output draw.jsonl
onmt_entmax figure beam --input draw.jsonl --output draw.png
"""

from __future__ import annotations

import argparse
from typing import Any

from onmt_entmax.commands import shared


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_model_arguments(parser)
    shared.add_text_argument(parser, "src", "the inputs")
    parser.add_argument("--beam-size", type=int, default=5, help="prefixes kept per step (default: %(default)s)")
    parser.add_argument("--max-length", type=int, default=250, help="of a hypothesis (default: %(default)s)")
    parser.add_argument("--output", metavar="FILE", help="JSON lines (default: standard output)")


def run(args: argparse.Namespace) -> int:
    """Search every line and write its certificate with the tree, one JSON object each, blank lines included."""
    sources = shared.required_lines(args, "src")
    found = shared.load_model(args).translate(
        sources,
        beam_size=args.beam_size,
        n_best=args.beam_size,
        max_length=args.max_length,
        attention=True,
        tree=True,
        batch_size=args.batch_size,
    )
    shared.write_records(args.output, map(_record, found))
    return 0


def _record(one) -> dict[str, Any]:
    record = {**one.certificate, "source": one.source, "tree": one.tree}
    for entry, hypothesis in zip(record["hypotheses"], one.hypotheses):
        entry["attention"] = hypothesis.attention
    return record
