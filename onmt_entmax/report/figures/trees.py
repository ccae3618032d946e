"""``figure beam`` and ``figure forced``: what a search saw, and what a model allows along a given target."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Optional

from matplotlib.figure import Figure

from onmt_entmax.report.figures import style
from onmt_entmax.report.figures.canvas import LEADING, SIZE, SMALL, Canvas, families
from onmt_entmax.report.steps import Block, Forced
from onmt_entmax.report.text import EOS, columns, join, wrap
from onmt_entmax.report.trees import LEGEND_DROPPED, Layout, Placed, Segment, Tree, lay_out

PAD = 4.0
_LEAST_TEXT = 215.0  # points: a column's width
_OWN_MARKS = "✕…─+%0123456789.<>"


@style.look()
def beam_figure(tree: Tree, width: float = style.PAGE, font: Optional[Path] = None) -> Figure:
    """Draw a search as a tree, its certificate below (Fig. 1 of the paper), at most so many inches wide."""
    canvas = Canvas(families([*_texts(tree), _OWN_MARKS], font), width)
    top = _source(canvas, tree.source)
    layout = lay_out(tree, canvas.measure, canvas.width, PAD)
    leading = LEADING * SIZE * (1.15 if layout.kind == "side" else 1.0)
    baselines = [top + SIZE + row * leading for row in range(layout.rows)]
    for place in layout.placed:
        _edge(canvas, layout, place, baselines)
    for place in layout.placed:
        _segment(canvas, layout, place, baselines)
    y = top + layout.rows * leading + leading
    widest = min(canvas.width, max(canvas.used, _LEAST_TEXT))  # no wider than the tree itself
    y = _paragraph(canvas, y, tree.statement, style.INK if tree.certified else style.WARN, widest)
    for note in layout.notes(tree):
        y = _paragraph(canvas, y, note, style.SOFT, widest)
    return canvas.figure()


@style.look()
def forced_figure(forced: Forced, width: float = style.PAGE, font: Optional[Path] = None) -> Figure:
    """Draw a forced decoding as boxes of choices, the gold token in bold (Fig. 2 of the paper)."""
    texts = [choice.text for block in forced.blocks for choice in block.choices] + (forced.source or [])
    canvas = Canvas(families([*texts, *forced.notes, _OWN_MARKS], font), width)
    y = _source(canvas, forced.source)
    leading = LEADING * SIZE
    inside = canvas.width - 2 * PAD
    boxes = [_box_lines(canvas, block, inside) for block in forced.blocks]
    widths = [max(left + right for _, left, _, right in lines) + 2 * PAD for lines in boxes]
    for line in columns(widths, canvas.width, PAD):
        x, height = 0.0, 0.0
        for index in line:
            lines = boxes[index]
            single = forced.blocks[index].single
            tall = len(lines) * leading + PAD
            face = "#eef3f8" if single else "white"
            canvas.box(x, y, widths[index], tall, face, style.ACCENT if single else "#9a9a9a")
            for number, (text, _, tail, _) in enumerate(lines):
                baseline = y + PAD / 2 + number * leading + 1.1 * SIZE
                gold = text.startswith("\0")
                canvas.text(
                    x + PAD, baseline, text.lstrip("\0"), bold=gold, color=style.INK if gold or tail else style.SOFT
                )
                if tail:
                    canvas.text(x + widths[index] - PAD, baseline, tail, SMALL, style.SOFT, align="right")
            x += widths[index] + PAD
            height = max(height, tall)
        y += height + 1.5 * PAD
    for note in forced.notes:
        y = _paragraph(canvas, y + SMALL, note, style.SOFT, canvas.width) - SMALL
    return canvas.figure()


def _texts(tree: Tree) -> Iterable[str]:
    stack: list[Segment] = [tree.root]
    while stack:
        segment = stack.pop()
        yield tree.text(segment)
        stack += segment.children
    yield from (tree.statement, LEGEND_DROPPED, *tree.notices, *(tree.source or ()))


def _source(canvas: Canvas, source: Optional[list[str]]) -> float:
    """Write the input above a picture; returns where the picture starts."""
    if not source:
        return 0.0
    lines = wrap("Input: " + join(source, False), lambda text: canvas.measure(text, SMALL), canvas.width)
    for number, line in enumerate(lines):
        canvas.text(0, SMALL + number * LEADING * SMALL, line, SMALL, style.SOFT)
    return len(lines) * LEADING * SMALL + PAD


def _paragraph(canvas: Canvas, y: float, text: str, color: str, widest: float) -> float:
    for line in wrap(text, lambda part: canvas.measure(part, SMALL), widest):
        canvas.text(0, y, line, SMALL, color)
        y += LEADING * SMALL
    return y


def _edge(canvas: Canvas, layout: Layout, place: Placed, baselines: list[float]) -> None:
    if place.parent is None:
        return
    parent = layout.placed[place.parent]
    middle = baselines[place.row] - 0.3 * SIZE
    width = canvas.measure(place.segment.label, SMALL)
    if layout.kind == "side":
        stem = parent.x + canvas.measure(parent.lines[0]) + 1.5 * PAD
        end = place.x - 0.75 * PAD
        label_end = end - 1.5 * PAD
        start = stem - PAD if place.row == parent.row else stem
        canvas.line([start, label_end - width - PAD / 2], [middle, middle])
        if place.row != parent.row:
            canvas.line([stem, stem], [baselines[_row_above(layout, place)] - 0.3 * SIZE, middle])
    else:
        label_end = place.x - 2.5 * PAD
        end = place.x - 0.75 * PAD
        stem = place.x - canvas.measure("100.0%") - 3 * PAD
        canvas.line([stem, label_end - width - PAD / 2], [middle, middle], style.FAINT)
        canvas.line([stem, stem], [baselines[parent.row + len(parent.lines) - 1] + 0.2 * SIZE, middle], style.FAINT)
    canvas.line([label_end + PAD / 2, end], [middle, middle])
    canvas.text(label_end, baselines[place.row] - 0.05 * SIZE, place.segment.label, SMALL, style.ACCENT, align="right")


def _row_above(layout: Layout, place: Placed) -> int:
    """Row of the sibling above: overlapping lines would look thicker."""
    return max(other.row for other in layout.placed if other.parent == place.parent and other.row < place.row)


def _segment(canvas: Canvas, layout: Layout, place: Placed, baselines: list[float]) -> None:
    segment = place.segment
    color = style.INK if segment.children or segment.status == "finished" else style.SOFT
    for number, line in enumerate(place.lines):
        row = place.row + number
        if line.endswith(EOS) and color == style.INK:  # the end mark is part of the string, but not its point
            body = line[: -len(EOS)].rstrip(" ")
            canvas.text(place.x, baselines[row], body, color=color)
            x = place.x + (canvas.measure(body) + 0.3 * SIZE if body else 0.0)
            canvas.text(x, baselines[row], EOS, color=style.SOFT)
        elif line:
            canvas.text(place.x, baselines[row], line, color=color)
    if place.total:
        row = place.row + len(place.lines) - 1
        bold = segment.status == "finished"
        canvas.text(layout.width, baselines[row], place.total, SMALL, color, bold, "right")


def _box_lines(canvas: Canvas, block: Block, inside: float) -> list[tuple[str, float, str, float]]:
    """Lines of a box: text (after ``\\0`` where gold), its width, the probability, its width with a gap."""
    lines = []
    for choice in block.choices:
        tail = canvas.measure(choice.percent, SMALL) + 1.5 * PAD if choice.percent else 0.0
        mark, measure = "\0" * choice.gold, functools.partial(canvas.measure, bold=choice.gold)
        for number, part in enumerate(wrap(choice.text, measure, inside - tail)):
            behind = ("", 0.0) if number else (choice.percent, tail)
            lines.append((mark + part, measure(part), *behind))
    if block.more:
        lines.append((block.more, canvas.measure(block.more), "", 0.0))
    return lines
