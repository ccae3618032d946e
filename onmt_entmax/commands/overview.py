"""``onmt_entmax overview``: one row per run: accuracy, sparsity, certificate rates (the quickstart's table).

onmt_entmax overview softmax=runs/quickstart/softmax 1.5-entmax=runs/quickstart/entmax15

Each run's folder holds ``evaluation.json`` (``onmt_entmax evaluate inflection --json``) and ``sparsity.json``
(``onmt_entmax sparsity --output``).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from onmt_entmax.errors import UserError

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
        files = {file: read_json(Path(folder) / file) for file in ("evaluation.json", "sparsity.json")}
        rows.append([name, *(cell(files[file], keys, form) for file, keys, form in COLUMNS.values())])
        signatures += [files["evaluation.json"]["signatures"]["acc"], files["sparsity.json"]["signature"]]
    print(markdown_table(["", *COLUMNS], rows))
    print()
    print("\n".join(signatures))
    return 0


def read_json(path: Path) -> dict:
    """Read one JSON object.

    Raises:
        UserError: the file is missing, or is no JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: has the run finished?") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}: not JSON ({error.msg}).") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a JSON object.")
    return content


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
