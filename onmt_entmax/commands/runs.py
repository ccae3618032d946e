"""``onmt_entmax overview`` and ``onmt_entmax report``: what the files in the folders of runs say.

onmt_entmax overview softmax=runs/quickstart/softmax 1.5-entmax=runs/quickstart/entmax15
onmt_entmax report runs/quickstart/entmax15

For the overview each run's folder holds ``evaluation.json`` (``onmt_entmax evaluate inflection --json``) and
``sparsity.json`` (``onmt_entmax sparsity --output``).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from onmt_entmax.errors import invalid_setting
from onmt_entmax.files import write_text
from onmt_entmax.report.run_files import OVERVIEW, overview_row, read_run


def add_overview_arguments(parser: argparse.ArgumentParser) -> None:
    what = "a row's name and the run's folder, which holds evaluation.json and sparsity.json"
    parser.add_argument("runs", nargs="+", metavar="NAME=FOLDER", help=what)


def run_overview(args: argparse.Namespace) -> int:
    """Print the table and, below it, how its numbers were made."""
    from onmt_entmax.report.table_formats import pipe_table

    rows: list[list[str]] = []
    signatures: list[str] = []
    for word in args.runs:
        name, separator, folder = word.partition("=")
        if not (separator and name):
            raise invalid_setting("runs", word, "Write NAME=FOLDER.")
        if any(name == row[0] for row in rows):
            raise invalid_setting("runs", word, f"Another row is called {name}.")
        cells, own = overview_row(Path(folder))
        rows.append([name, *cells])
        signatures += own
    print(pipe_table(["", *OVERVIEW], rows))
    print("", *signatures, sep="\n")
    return 0


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_dir", type=Path, metavar="RUN_DIR", help="folder with the files of one run")
    add("--output", type=Path, metavar="FILE", help="(default: RUN_DIR/report.html)")
    add("--examples", type=int, default=20, metavar="N", help="inputs shown (default: %(default)s)")


def run_report(args: argparse.Namespace) -> int:
    """Write one self-contained HTML page of a run; prints its name and what is missing."""
    from onmt_entmax.report.page import page

    if args.examples < 0:
        raise invalid_setting("examples", args.examples, "It must be at least 0.")
    files = read_run(args.run_dir)
    output = args.output or args.run_dir / "report.html"
    write_text(output, page(files, args.examples))
    print("\n".join([str(output), *files.notices]))
    return 0
