"""``onmt_entmax overview``: one row per run: accuracy, sparsity, certificate rates (the quickstart's table).

onmt_entmax overview softmax=runs/quickstart/softmax 1.5-entmax=runs/quickstart/entmax15

Each run's folder holds ``evaluation.json`` (``onmt_entmax evaluate inflection --json``) and ``sparsity.json``
(``onmt_entmax sparsity --output``).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from onmt_entmax.errors import UserError
from onmt_entmax.files import read_json

# heading -> (file, where in it, format); rates are macro averages over languages, in percent
COLUMNS = {
    "test accuracy %": ("evaluation.json", ("macro", "acc"), ".1f"),
    "attended characters": ("sparsity.json", ("source_words",), ".2f"),
    "output support": ("sparsity.json", ("target_types",), ".2f"),
    "single hypothesis %": ("evaluation.json", ("macro", "single"), ".1f"),
    "complete %": ("evaluation.json", ("macro", "complete"), ".1f"),
    "optimal %": ("evaluation.json", ("macro", "optimal"), ".1f"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``onmt_entmax overview``."""
    parser.add_argument("runs", nargs="+", metavar="NAME=FOLDER", help="a row's name and the run's folder")


def run(args: argparse.Namespace) -> int:
    """Print the table and, below it, how its numbers were made."""
    rows, signatures = [], []
    for word in args.runs:
        name, separator, folder = word.partition("=")
        if not separator:
            raise UserError(f"Invalid setting for `runs`: {word}. Write NAME=FOLDER.")
        files = {}
        for file in ("evaluation.json", "sparsity.json"):
            if not Path(folder, file).exists():
                raise UserError(f"{Path(folder, file)} is missing: has the run finished?")
            files[file] = read_json(Path(folder, file))
        rows.append([name, *(cell(files[file], keys, form) for file, keys, form in COLUMNS.values())])
        signatures += [files["evaluation.json"]["signatures"]["acc"], files["sparsity.json"]["signature"]]
    print(markdown_table(["", *COLUMNS], rows))
    print()
    print("\n".join(signatures))
    return 0


def cell(content: dict, keys: tuple[str, ...], form: str) -> str:
    """The formatted value under nested ``keys``, or a dash where there is none."""
    value = content
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return "–" if value is None else format(value, form)


def markdown_table(heads: list[str], rows: list[list[str]]) -> str:
    """A table that reads in a terminal and in Markdown: first column left, the others right."""
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]

    def line(cells: list[str]) -> str:
        padded = [cells[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(cells[1:], widths[1:]))]
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "-" * (widths[0] + 2) + "|" + "|".join("-" * (width + 1) + ":" for width in widths[1:]) + "|"
    return "\n".join([line(heads), rule, *map(line, rows)])
