"""``onmt_entmax sparsity``: mean attended source words and mean target types, by forced decoding (Table 3).

onmt_entmax sparsity --model best.pt --src dev.src --tgt dev.tgt --output sparsity.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from onmt_entmax.commands import shared
from onmt_entmax.files import write_json
from onmt_entmax.signatures import signature


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_forced_arguments(parser)
    shared.add_recipe_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print (and write) the means over all target tokens, EOS included."""
    sources, targets = shared.required_pairs(args)
    model = shared.load_model(args)
    numbers = model.sparsity(sources, targets, args.batch_size)
    source, lines = args.src.name if args.src else "text", numbers["lines"]
    about = {"src": source, "lines": lines, "forced": None, "alpha": model.alphas}
    if args.recipe:
        about["recipe"] = args.recipe
    record = {
        **numbers,
        "models": [Path(path).name for path in args.model],
        "signature": signature("sparsity", about),
    }
    attended, types = (
        "none" if record[name] is None else f"{record[name]:.2f}" for name in ("source_words", "target_types")
    )
    print(
        f"attended source words {attended}, target types {types}, "
        f"impossible targets {record['impossible_lines']} of {lines}"
    )
    print(record["signature"])
    if args.output:
        write_json(args.output, record)
    return 0
