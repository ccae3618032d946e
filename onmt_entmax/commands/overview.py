"""``onmt_entmax overview``: one row per run: accuracy, sparsity, certificate rates (the quickstart's table).

onmt_entmax overview softmax=runs/quickstart/softmax 1.5-entmax=runs/quickstart/entmax15

Each run's folder holds ``evaluation.json`` (``onmt_entmax evaluate inflection --json``) and ``sparsity.json``
(``onmt_entmax sparsity --output``).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from onmt_entmax.errors import invalid_setting
from onmt_entmax.report.run_files import OVERVIEW, overview_row
from onmt_entmax.report.table_formats import pipe_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``onmt_entmax overview``."""
    what = "a row's name and the run's folder, which holds evaluation.json and sparsity.json"
    parser.add_argument("runs", nargs="+", metavar="NAME=FOLDER", help=what)


def run(args: argparse.Namespace) -> int:
    """Print the table and, below it, how its numbers were made."""
    rows, signatures = [], []
    for word in args.runs:
        name, separator, folder = word.partition("=")
        if not separator:
            raise invalid_setting("runs", word, "Write NAME=FOLDER.")
        cells, own = overview_row(Path(folder))
        rows.append([name, *cells])
        signatures += own
    print(pipe_table(["", *OVERVIEW], rows))
    print("", *signatures, sep="\n")
    return 0
