"""``onmt_entmax uncertain``: the inputs of which a model was least certain, to look at with ``trace`` and ``force``.

onmt_entmax uncertain --certificates test.jsonl --src test.src --tgt test.tgt --count 20 --output examples
onmt_entmax trace --model model.pt --src examples.src --output examples.trace.jsonl
onmt_entmax force --model model.pt --src examples.src --tgt examples.tgt --output examples.forced.jsonl
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from onmt_entmax.errors import UserError, invalid_setting
from onmt_entmax.files import read_lines, write_lines
from onmt_entmax.report.readers import read_examples
from onmt_entmax.report.text import percent_of_log


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``onmt_entmax uncertain``."""
    add = parser.add_argument
    add("--certificates", required=True, type=Path, metavar="FILE", help="output of `onmt_translate -certificates`")
    add("--src", required=True, type=Path, metavar="FILE", help="the inputs it was given")
    add("--tgt", type=Path, metavar="FILE", help="their targets")
    add("--count", type=int, default=20, metavar="N", help="how many (default: %(default)s)")
    add(
        "--output", type=Path, metavar="PREFIX", help="write PREFIX.src, PREFIX.tgt (default: print numbers and inputs)"
    )


def run(args: argparse.Namespace) -> int:
    """Print or write the lines, the least certain first."""
    if args.count < 1:
        raise invalid_setting("count", args.count, "It must be at least 1.")
    chosen = least_certain(read_examples(args.certificates))[: args.count]
    for name in ("src", "tgt"):
        path: Optional[Path] = getattr(args, name)
        if path is None:
            continue
        lines = read_lines(path)
        last = max(example["line"] for example in chosen)
        if last > len(lines):
            raise UserError(f"{path} has {len(lines)} lines, and {args.certificates} speaks of line {last}.")
        if args.output:
            write_lines(f"{args.output}.{name}", [lines[example["line"] - 1] for example in chosen])
        elif name == "src":
            for example in chosen:
                print(f"{example['line']}\t{percent_of_log(certainty(example))}\t{lines[example['line'] - 1]}")
    return 0


def certainty(example: dict[str, Any]) -> float:
    """Log-probability of the best hypothesis; of a forced target where nothing was searched; -inf where neither is."""
    hypotheses = (example.get("certificate") or {}).get("hypotheses")
    if hypotheses:
        return hypotheses[0]["log_prob"] if hypotheses[0]["finished"] else -math.inf
    log_prob = example.get("log_prob")
    return -math.inf if log_prob is None else log_prob


def least_certain(examples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Order examples by the probability of what the model would answer, the lowest first."""
    return sorted(examples, key=lambda example: (certainty(example), example["line"]))
