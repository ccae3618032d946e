"""What commands share: the arguments for model and text, a sub-parser for each task, and writing of records."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import onmt_entmax
from onmt_entmax.errors import UserError, invalid_setting
from onmt_entmax.files import json_line, read_lines, write_lines


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say which model, on which device."""
    parser.add_argument("--model", nargs="+", required=True, metavar="FILE", help="checkpoint, or several: an ensemble")
    parser.add_argument("--gpu", type=int, default=-1, help="index of the GPU (default: the CPU)")
    parser.add_argument("--batch-size", type=int, default=64, help="lines at a time (default: %(default)s)")


def add_text_argument(parser: argparse.ArgumentParser, name: str, what: str) -> None:
    """``--NAME FILE`` and ``--NAME-text "TOKENS"``, of which one is to be given."""
    parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"{what}, one line each")
    parser.add_argument(f"--{name}-text", metavar="TOKENS", help=f"{what}, given here: tokens separated by blanks")


def add_forced_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of a command that prints numbers about a whole text, by forced decoding."""
    add_model_arguments(parser)
    add_text_argument(parser, "src", "the inputs")
    add_text_argument(parser, "tgt", "the gold targets")
    parser.add_argument("--output", metavar="FILE", help="also write the numbers as JSON")


def add_recipe_argument(parser: argparse.ArgumentParser) -> None:
    """``--recipe TEXT``, a field of the signature; without it the signature has none."""
    what = "what else tells the training apart, for the signature; e.g. 'smoothing 0.1' or 'mean of 10 checkpoints'"
    parser.add_argument("--recipe", metavar="TEXT", help=what)


def add_tasks(parser: argparse.ArgumentParser, **tasks: tuple[str, Callable[[argparse.ArgumentParser], None]]) -> None:
    """One sub-parser per task, from what it does and the function that adds its arguments."""
    parsers = parser.add_subparsers(dest="task", metavar="TASK", required=True)
    for name, (what, add) in tasks.items():
        add(parsers.add_parser(name, help=what, description=what, allow_abbrev=False))


def load_model(args: argparse.Namespace):
    """The model of :func:`add_model_arguments`; unknown tokens are reported on standard error, once."""
    said: set[str] = set()

    def log(text: str) -> None:
        if text not in said:
            print(text, file=sys.stderr)
        said.add(text)

    return onmt_entmax.load(*args.model, gpu=args.gpu, log=log, progress=True)


def required_lines(args: argparse.Namespace, name: str) -> list[str]:
    """The lines given by :func:`add_text_argument`.

    Raises:
        UserError: neither or both were given, or the file cannot be read.
    """
    file, text = getattr(args, name), getattr(args, f"{name}_text")
    if (file is None) == (text is None):
        both = "" if file is None else " Both are given; leave one of the two out."
        raise UserError(f"Give `--{name} FILE` or `--{name}-text TOKENS`.{both}")
    return [text] if file is None else read_lines(file)


def required_pairs(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Sources and targets, as many of the one as of the other; errors as :func:`required_lines` has them."""
    sources, targets = required_lines(args, "src"), required_lines(args, "tgt")
    check_counts(sources, targets)
    return sources, targets


def check_counts(sources: Sequence, targets: Sequence, name: str = "tgt") -> None:
    """Refuse sources and targets (the option ``--name``) of different number, naming both."""
    if len(sources) != len(targets):
        raise UserError(f"`--src` has {len(sources)} lines, but `--{name}` has {len(targets)}.")


def check_distinct(paths: Sequence[Path], setting: str = "input") -> None:
    """Refuse to count a file twice.

    Raises:
        UserError: two of the paths lead to one file.
    """
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise invalid_setting(setting, path, "It is given twice.")
        seen.add(path.resolve())


def write_records(output: str | None, records: Iterable[dict[str, Any]]) -> None:
    """Write JSON lines to a file, or to standard output."""
    lines = [json_line(record) for record in records]
    if output:
        write_lines(output, lines)
    else:
        sys.stdout.writelines(f"{line}\n" for line in lines)
