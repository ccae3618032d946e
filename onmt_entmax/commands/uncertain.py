"""``onmt_entmax uncertain``: the inputs of which a model was least certain, to look at with ``trace`` and ``force``.

onmt_entmax uncertain --certificates test.jsonl --src test.src --tgt test.tgt --count 20 --output examples
onmt_entmax trace --model model.pt --src examples.src --output examples.trace.jsonl
onmt_entmax force --model model.pt --src examples.src --tgt examples.tgt --output examples.forced.jsonl
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from onmt_entmax.errors import invalid_setting
from onmt_entmax.files import check_output, write_lines
from onmt_entmax.report.readers import certainty, least_certain, lines_beside, read_examples
from onmt_entmax.report.text import count, percent_of_log


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--certificates", required=True, type=Path, metavar="FILE", help="output of `onmt_translate -certificates`")
    add("--src", required=True, type=Path, metavar="FILE", help="the inputs it was given, all of them")
    add("--tgt", type=Path, metavar="FILE", help="their targets")
    add("--count", type=int, default=20, metavar="N", help="how many (default: %(default)s)")
    add(
        "--output", type=Path, metavar="PREFIX", help="write PREFIX.src, PREFIX.tgt (default: print numbers and inputs)"
    )


def run(args: argparse.Namespace) -> int:
    """Print or write the lines, the least certain first."""
    if args.count < 1:
        raise invalid_setting("count", args.count, "It must be at least 1.")
    if args.tgt and not args.output:
        raise invalid_setting("tgt", args.tgt, "It goes with --output: only inputs are printed.")
    for setting in ("certificates", "src", "tgt") if args.output else ():
        for side in ("src", "tgt"):
            check_output("output", f"{args.output}.{side}", setting, getattr(args, setting) or "")
    left = Path(f"{args.output}.tgt")
    if args.output and not args.tgt and left.exists():
        rule = f"{left} is there from another time, and would not be the targets of these inputs: delete it."
        raise invalid_setting("output", args.output, rule)
    examples = read_examples(args.certificates, ("certificate", "trace", "forced"))
    chosen = least_certain(examples)[: args.count]
    files = {name: path for name, path in (("src", args.src), ("tgt", args.tgt)) if path}
    texts = {name: lines_beside(args.certificates, path) for name, path in files.items()}
    if without := len(texts["src"]) - len(examples):
        said = f"{count(without, 'input line')} without an output (blank, or left out): not among these"
        print(said, file=sys.stderr)
    if args.output:
        for name, lines in texts.items():
            write_lines(f"{args.output}.{name}", [lines[example["line"] - 1] for example in chosen])
        return 0
    for example in chosen:
        print(f"{example['line']}\t{percent_of_log(certainty(example))}\t{texts['src'][example['line'] - 1]}")
    return 0
