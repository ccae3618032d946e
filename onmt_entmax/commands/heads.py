"""``onmt_entmax heads``: what each head of a Transformer looks at, by forced decoding.

onmt_entmax heads --model best.pt --src dev.src --tgt dev.tgt --output heads.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from onmt_entmax.commands import shared
from onmt_entmax.files import write_json
from onmt_entmax.signatures import signature

WORDS = {
    "previous": "the token before",
    "itself": "the token itself",
    "next": "the token behind",
    "first": "the first token",
    "last": "the last token",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``onmt_entmax heads``."""
    shared.add_forced_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print (and write) one row for each head."""
    sources, targets = shared.required_pairs(args)
    model = shared.load_model(args)
    heads = model.heads(sources, targets, args.batch_size)
    source = args.src.name if args.src else "text"
    made = signature("heads", {"src": source, "lines": len(sources), "forced": None, "alpha": model.alphas})
    print(f"{'attention':24}{'layer':>5}{'head':>5}{'alpha':>8}{'non-zeros':>10}{'density %':>10}{'JS':>7}  looks at")
    for one in heads:
        where = one["looks_at"]
        seen = "" if where is None else f"{WORDS[where]} ({100 * one[where]:.0f}%)"
        print(
            f"{one['attention'].replace('_', ' '):24}{one['layer']:5}{one['head']:5}{one['alpha']:8.3f}"
            f"{one['support']:10.2f}{100 * one['density']:10.1f}{one['jensen_shannon']:7.3f}  {seen}".rstrip()
        )
    print(made)
    if args.output:
        models = [Path(path).name for path in args.model]
        write_json(args.output, {"heads": heads, "models": models, "signature": made})
    return 0
