"""``onmt_entmax figure``: the paper's figures and others, from the files that runs leave behind.

onmt_entmax figure mappings --output mappings.pdf
onmt_entmax figure beam --input draw.jsonl --output draw.svg
onmt_entmax figure forced --input forced.jsonl --line 7
onmt_entmax figure training-speed --input runs/*/model_metrics.jsonl --output speed.png
onmt_entmax figure trust --input runs/*/evaluation.json --output trust.png

The suffix of ``--output`` chooses PNG, SVG or PDF; ``beam`` and ``forced`` without it are drawn in the terminal.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from pathlib import Path

from onmt_entmax.commands.shared import check_distinct
from onmt_entmax.errors import UserError, choices, invalid_setting

# name -> (what it shows, what it is made from)
FIGURES = {
    "mappings": ("alpha-entmax in two dimensions (Fig. 3)", None),
    "beam": ("the search of one input as a tree (Fig. 1)", "output of `trace`, or of `onmt_translate -certificates`"),
    "forced": ("what the model allows along a target (Fig. 2)", "output of `force`"),
    "attention": (
        "attention weights, non-zeros outlined (Fig. 5)",
        "output of `trace`, `force`, `heads --weights` or `onmt_translate -attention`, one per model",
    ),
    "alpha-grid": ("accuracy against one alpha (Fig. 4)", "metrics files"),
    "training-speed": ("accuracy against time (Fig. 6)", "metrics files"),
    "learning-curves": ("loss, accuracy, support sizes by step", "metrics files"),
    "heads": (
        "learned alphas, densities and divergence of a Transformer's heads",
        "metrics files, or output of `heads`",
    ),
    "trust": ("reliability diagram, risk-coverage curve", "results of `evaluate --certificates --json`, one per model"),
    "search": ("scores over beam sizes and of exact search", "results of `evaluate search --json`, one per model"),
    "support-histogram": ("how often how many non-zeros", "output of `force`, one per model"),
}
# those of one input, which a terminal can show too
IN_TERMINAL = ("beam", "forced")
DRAWN = ("beam", "forced", "attention")
# option -> (the figures that it is for, its default)
OPTIONS = {
    "line": (DRAWN, None),
    "labels": (tuple(name for name in FIGURES if name not in ("mappings", *IN_TERMINAL, "alpha-grid")), None),
    "width": (tuple(FIGURES), None),
    "font": (DRAWN, None),
    "alphas": (("mappings",), None),
    "fixed": (("alpha-grid",), 1.5),
    "max_leaves": (("beam",), 16),
    "max_choices": (("forced",), 6),
    "max_steps": (("forced",), 120),
    "max_tokens": (("attention",), 50),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    what = "; ".join(
        f"{name}: {shows}" + (f", from {source}" if source else "") for name, (shows, source) in FIGURES.items()
    )
    add("name", choices=FIGURES, metavar="NAME", help=what)
    add("--input", nargs="+", default=[], type=Path, metavar="FILE", help="what it is made from")
    add("--output", type=Path, metavar="FILE", help="*.png, *.svg or *.pdf; beam and forced: default is the terminal")
    add("--line", type=int, metavar="N", help="input line, from 1 (default: the first that fits)")
    add("--labels", nargs="+", metavar="NAME", help="names of the files' models (default: from their alphas or names)")
    add("--width", type=float, metavar="INCHES", help="at most this wide (default: a page's text, or a column)")
    add("--font", type=Path, metavar="FILE", help="a font file to use before all others")
    add("--alphas", nargs="+", type=float, metavar="ALPHA", help="mappings: which (default: 1 1.25 1.5 2 4)")
    add("--fixed", type=float, metavar="ALPHA", help=f"alpha-grid: the other alpha (default: {OPTIONS['fixed'][1]})")
    for name, shown in (
        ("max_leaves", "beam: strings shown"),
        ("max_choices", "forced: choices per step"),
        ("max_steps", "forced: steps shown"),
        ("max_tokens", "attention: tokens per side"),
    ):
        add(f"--{name}", type=int, metavar="N", help=f"{shown} (default: {OPTIONS[name][1]})")


def run(args: argparse.Namespace) -> int:
    """Draw one figure; prints the file's name, notices and the signatures of what is drawn."""
    _check(args)
    if args.output is None:
        width = min(shutil.get_terminal_size((100, 24)).columns, 160)
        print(_text(args, width))
        return 0
    from onmt_entmax.report.figures import style
    from onmt_entmax.report.figures.draw import draw

    style.check_suffix(args.output)
    drawing = draw(args.name, args)
    style.save(drawing.figure, args.output, drawing.signatures)
    print("\n".join([str(args.output), *drawing.notices, *dict.fromkeys(drawing.signatures)]))
    return 0


def _text(args: argparse.Namespace, width: int) -> str:
    from onmt_entmax.report.steps import read_forced
    from onmt_entmax.report.terminal import forced_text, tree_text
    from onmt_entmax.report.trees import read_tree

    if args.name == "beam":
        return tree_text(read_tree(args.input[0], args.line, args.max_leaves), width)
    forced = read_forced(args.input[0], args.line, args.max_choices, args.max_steps)
    return forced_text(forced, width, bold=sys.stdout.isatty())


def _check(args: argparse.Namespace) -> None:
    """Refuse what does not fit the figure, and fill in the defaults of what does."""
    for name, (figures, default) in OPTIONS.items():
        value, setting = getattr(args, name), name.replace("_", "-")
        shown = " ".join(map(str, value)) if isinstance(value, list) else value
        if value is None:
            setattr(args, name, default)
        elif args.name not in figures:
            rule = f"`figure {args.name}` does not use it: it is for {', '.join(figures)}."
            raise invalid_setting(setting, shown, rule)
        elif name in ("width", "font") and args.name in IN_TERMINAL and args.output is None:
            raise invalid_setting(setting, shown, "It goes with --output: the terminal has its own.")
    source = FIGURES[args.name][1]
    if source and not args.input:
        raise UserError(f"`figure {args.name}` needs --input: {source}.")
    if not source and args.input:
        raise UserError(f"`figure {args.name}` takes no --input.")
    if args.name != "attention":  # it shows maps side by side, and counts nothing
        check_distinct(args.input)
    if args.name in IN_TERMINAL and len(args.input) > 1:
        raise invalid_setting("input", f"{len(args.input)} files", f"`figure {args.name}` shows one input of one file.")
    if args.output is None and args.name not in IN_TERMINAL:
        raise UserError(f"`figure {args.name}` needs --output. {choices(['*.png', '*.svg', '*.pdf'])}")
    for name in ("line", "max_leaves", "max_choices", "max_steps", "max_tokens"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise invalid_setting(name.replace("_", "-"), value, "It must be at least 1.")
    if args.width is not None and not 2 <= args.width <= 40:
        raise invalid_setting("width", args.width, "It must be from 2 to 40 inches.")
    if args.labels is not None and args.input and len(args.labels) != len(args.input):
        raise invalid_setting("labels", f"{len(args.labels)} names", f"One per file is needed: {len(args.input)}.")
    for alpha in args.alphas or ():
        if not 1 <= alpha < math.inf:
            raise invalid_setting("alphas", alpha, "Each must be a number of at least 1: 1 is softmax, 2 sparsemax.")
