"""``onmt_entmax report``: one self-contained HTML page of a run, made from the files in its folder.

onmt_entmax report runs/quickstart/entmax15
"""

from __future__ import annotations

import argparse
from pathlib import Path

from onmt_entmax.errors import invalid_setting
from onmt_entmax.files import write_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``onmt_entmax report``."""
    add = parser.add_argument
    add("run_dir", type=Path, metavar="RUN_DIR", help="folder with the files of one run")
    add("--output", type=Path, metavar="FILE", help="(default: RUN_DIR/report.html)")
    add("--examples", type=int, default=20, metavar="N", help="inputs shown (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Write the page; prints its name and what is missing."""
    from onmt_entmax.report.page import page
    from onmt_entmax.report.run_files import read_run

    if args.examples < 0:
        raise invalid_setting("examples", args.examples, "It must be at least 0.")
    files = read_run(args.run_dir)
    output = args.output or args.run_dir / "report.html"
    write_text(output, page(files, args.examples))
    print("\n".join([str(output), *files.notices]))
    return 0
