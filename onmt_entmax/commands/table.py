"""``onmt_entmax table``: the paper's tables from our result files, the paper's numbers beside ours.

onmt_entmax table 1 --input runs/*/evaluation.json
onmt_entmax table 3 --input runs/*/sparsity.json --format latex --output results/table3.tex
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from onmt_entmax.commands.shared import check_distinct
from onmt_entmax.files import write_text
from onmt_entmax.report.table_formats import FORMATS, terminal
from onmt_entmax.report.tables import TABLES

_BY_SUFFIX = {".md": "markdown", ".tex": "latex"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "1: inflection, 2: translation, 3: sparsity"
    parser.add_argument("number", type=int, choices=sorted(TABLES), help=what)
    files = "results of `evaluate --json` (1, 2); of `sparsity --output`, or metrics files (3)"
    parser.add_argument("--input", nargs="*", default=[], type=Path, metavar="FILE", help=files)
    parser.add_argument("--format", choices=sorted(FORMATS), help="(default: by the suffix of --output, or terminal)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="(default: standard output)")


def run(args: argparse.Namespace) -> int:
    """Print or write the table; without input it has the paper's numbers alone."""
    check_distinct(args.input)
    table = TABLES[args.number](args.input)
    suffix = args.output.suffix.lower() if args.output else ""
    name = args.format or _BY_SUFFIX.get(suffix, "terminal")
    if args.output:
        write_text(args.output, FORMATS[name](table) + "\n")
        print("\n".join([str(args.output), *table.notices]))
    elif name == "terminal":
        print(terminal(table, bold=sys.stdout.isatty()))
    else:
        print(FORMATS[name](table))
    return 0
