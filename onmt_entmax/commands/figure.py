"""``onmt_entmax figure``: the paper's figures and others, from the files that runs leave behind.

onmt_entmax figure mappings --output mappings.pdf
onmt_entmax figure beam --input draw.jsonl --output draw.svg
onmt_entmax figure forced --input forced.jsonl --line 7
onmt_entmax figure training-speed --input runs/*/model_metrics.jsonl --output speed.png

The suffix of ``--output`` chooses PNG, SVG or PDF; ``beam`` and ``forced`` without it are drawn in the terminal.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

from onmt_entmax.errors import UserError, choices, invalid_setting

# name -> (what it shows, what it is made from)
FIGURES = {
    "mappings": ("alpha-entmax in two dimensions (Fig. 3)", None),
    "beam": ("the search of one input as a tree (Fig. 1)", "output of `trace`, or of `onmt_translate -certificates`"),
    "forced": ("what the model allows along a target (Fig. 2)", "output of `force`"),
    "attention": ("attention weights, non-zeros outlined (Fig. 5)", "output of `trace` or `force`, one per model"),
    "alpha-grid": ("accuracy against one alpha (Fig. 4)", "metrics files"),
    "training-speed": ("accuracy against time (Fig. 6)", "metrics files"),
    "learning-curves": ("loss, accuracy, support sizes by step", "metrics files"),
    "support-histogram": ("how often how many non-zeros", "output of `force`, one per model"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``onmt_entmax figure``."""
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
    add("--fixed", type=float, default=1.5, metavar="ALPHA", help="alpha-grid: the other alpha (default: %(default)s)")
    add("--max_leaves", type=int, default=16, metavar="N", help="beam: strings shown (default: %(default)s)")
    add("--max_choices", type=int, default=6, metavar="N", help="forced: choices per step (default: %(default)s)")
    add("--max_steps", type=int, default=120, metavar="N", help="forced: steps shown (default: %(default)s)")
    add("--max_tokens", type=int, default=50, metavar="N", help="attention: tokens per side (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Draw one figure; prints the file's name, notices and the signatures of what is drawn."""
    _check(args)
    if args.output is None:
        print(_terminal(args))
        return 0
    from onmt_entmax.report.figures import style

    style.check_output(args.output)
    figure, signatures, notices = DRAW[args.name](args)
    style.save(figure, args.output, signatures)
    print("\n".join([str(args.output), *notices, *dict.fromkeys(signatures)]))
    return 0


def _check(args: argparse.Namespace) -> None:
    source = FIGURES[args.name][1]
    if source and not args.input:
        raise UserError(f"`figure {args.name}` needs --input: {source}.")
    if not source and args.input:
        raise UserError(f"`figure {args.name}` takes no --input.")
    if args.name in ("beam", "forced") and len(args.input) > 1:
        raise invalid_setting("input", f"{len(args.input)} files", f"`figure {args.name}` shows one input of one file.")
    if args.output is None and args.name not in ("beam", "forced"):
        raise UserError(f"`figure {args.name}` needs --output. {choices(['*.png', '*.svg', '*.pdf'])}")
    for name in ("line", "max_leaves", "max_choices", "max_steps", "max_tokens"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise invalid_setting(name, value, "It must be at least 1.")
    if args.width is not None and not 2 <= args.width <= 40:
        raise invalid_setting("width", args.width, "It must be from 2 to 40 inches.")
    if args.labels is not None and args.input and len(args.labels) != len(args.input):
        raise invalid_setting("labels", f"{len(args.labels)} names", f"One per file is needed: {len(args.input)}.")
    if any(alpha < 1 for alpha in args.alphas or ()):
        raise invalid_setting("alphas", min(args.alphas), "Each must be at least 1; 1 is softmax, 2 is sparsemax.")


def _example(args: argparse.Namespace, path: Path, key: str, needs: str) -> dict[str, Any]:
    from onmt_entmax.report.readers import pick

    return pick(path, args.line, lambda example: bool(example.get(key)), needs)


def _tree(args: argparse.Namespace):
    from onmt_entmax.report.trees import tree_of

    return tree_of(_example(args, args.input[0], "certificate", "a search"), args.max_leaves)


def _forced(args: argparse.Namespace):
    from onmt_entmax.report.steps import forced_of

    example = _example(args, args.input[0], "steps", "forced decoding")
    return forced_of(example, args.max_choices, args.max_steps)


def _terminal(args: argparse.Namespace) -> str:
    from onmt_entmax.report.terminal import forced_text, tree_text

    width = min(shutil.get_terminal_size((100, 24)).columns, 160)
    if args.name == "beam":
        return tree_text(_tree(args), width)
    return forced_text(_forced(args), width, bold=sys.stdout.isatty())


def _draw_mappings(args: argparse.Namespace):
    from onmt_entmax.report.figures.mappings import ALPHAS, mappings_figure
    from onmt_entmax.report.figures.style import COLUMN

    alphas = args.alphas or ALPHAS
    signature = f"mappings|alphas:{'+'.join(f'{alpha:g}' for alpha in alphas)}|dtype:float64"
    return mappings_figure(alphas, args.width or COLUMN), [signature], []


def _draw_beam(args: argparse.Namespace):
    from onmt_entmax.report.figures.trees import beam_figure

    tree = _tree(args)
    return beam_figure(tree, _page(args), args.font), [_file_signature(args.input[0])], tree.notices


def _draw_forced(args: argparse.Namespace):
    from onmt_entmax.report.figures.trees import forced_figure

    forced = _forced(args)
    return forced_figure(forced, _page(args), args.font), [_file_signature(args.input[0])], forced.notes


def _draw_attention(args: argparse.Namespace):
    from onmt_entmax.report.figures.attention import attention_figure, heat_map_of
    from onmt_entmax.report.readers import attention_of, pick

    labels = args.labels or ([path.stem for path in args.input] if len(args.input) > 1 else [""])
    maps = []
    for path, label in zip(args.input, labels):
        example = pick(path, args.line, lambda example: attention_of(example) is not None, "attention")
        maps.append(heat_map_of(example, label, args.max_tokens))
    notices = [notice for one in maps for notice in one.notices]
    return attention_figure(maps, _page(args), args.font), [_file_signature(path) for path in args.input], notices


def _draw_support_histogram(args: argparse.Namespace):
    from onmt_entmax.report.figures.histogram import support_histogram
    from onmt_entmax.report.readers import read_examples

    labels = args.labels or [path.stem for path in args.input]
    groups: dict[str, Sequence[dict[str, Any]]] = {}
    for path, label in zip(args.input, labels):
        groups[label] = [*groups.get(label, ()), *read_examples(path)]
    return support_histogram(groups, _page(args)), [_file_signature(path) for path in args.input], []


def _draw_runs(draw: Callable[..., Any], page: bool) -> Callable[[argparse.Namespace], Any]:
    """A figure of metrics files; runs of one label are drawn alike."""

    def drawn(args: argparse.Namespace):
        from onmt_entmax.report.figures import curves, style
        from onmt_entmax.report.readers import read_metrics

        runs = [read_metrics(path) for path in args.input]
        width = args.width or (style.PAGE if page else style.COLUMN)
        different = curves.differing_fields(runs)
        notices = [f"The runs differ in more than alpha and seed: {', '.join(different)}."] if different else []
        return draw(args, runs, width), [run.signature for run in runs], notices

    return drawn


def _alpha_grid(args: argparse.Namespace, runs, width: float):
    from onmt_entmax.report.figures.curves import alpha_grid

    return alpha_grid(runs, args.fixed, width)


def _training_speed(args: argparse.Namespace, runs, width: float):
    from onmt_entmax.report.figures.curves import group, training_speed

    return training_speed(group(runs, args.labels), width)


def _learning_curves(args: argparse.Namespace, runs, width: float):
    from onmt_entmax.report.figures.curves import group, learning_curves

    return learning_curves(group(runs, args.labels), width)


def _page(args: argparse.Namespace) -> float:
    from onmt_entmax.report.figures.style import PAGE

    return args.width or PAGE


def _file_signature(path: Path) -> str:
    from onmt_entmax.files import sha256

    return f"file:{path.name}|sha256:{sha256(path)[:16]}"


DRAW: dict[str, Callable[[argparse.Namespace], tuple[Any, list[str], list[str]]]] = {
    "mappings": _draw_mappings,
    "beam": _draw_beam,
    "forced": _draw_forced,
    "attention": _draw_attention,
    "alpha-grid": _draw_runs(_alpha_grid, True),
    "training-speed": _draw_runs(_training_speed, False),
    "learning-curves": _draw_runs(_learning_curves, True),
    "support-histogram": _draw_support_histogram,
}
