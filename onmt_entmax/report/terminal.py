"""Search trees and forced decodings as text, for a terminal of any width."""

from __future__ import annotations

from collections.abc import Sequence

from onmt_entmax.report.layout import LEGEND_DROPPED, Layout, lay_out
from onmt_entmax.report.steps import Block, Forced
from onmt_entmax.report.text import cells, columns, join, wrap
from onmt_entmax.report.trees import Tree

BOLD, RESET = "\033[1m", "\033[0m"


def tree_text(tree: Tree, width: int = 100) -> str:
    """Draw a tree with box characters, its certificate and notices below.

    Args:
        tree: what to draw.
        width: of the terminal, in cells.
    """
    width = max(width, 40)
    layout = lay_out(tree, cells, width, 1)
    lines = _side(layout) if layout.kind == "side" else _indented(layout)
    below = [tree.statement, *([LEGEND_DROPPED] if layout.uses("✕") else []), *tree.notices]
    head = wrap("Input: " + join(tree.source, False), cells, width) if tree.source else []
    return "\n".join(
        [*head, *([""] if head else []), *lines, "", *(part for text in below for part in wrap(text, cells, width))]
    )


def forced_text(forced: Forced, width: int = 100, bold: bool = False) -> str:
    """Draw a forced decoding in columns: the choices at each step, stretches without a choice joined.

    Args:
        forced: what to draw.
        width: of the terminal, in cells.
        bold: mark the gold token by bold type; otherwise by ``>``.
    """
    width = max(width, 40)
    blocks = [_block_lines(block, width - 2, bold) for block in forced.blocks]
    widths = [max(cells(text) for text, _ in block) for block in blocks]
    out = [*wrap("Input: " + join(forced.source, False), cells, width), ""] if forced.source else []
    for line in columns(widths, width - 2, 3):
        for row in range(max(len(blocks[index]) for index in line)):
            parts = []
            for index in line:
                text, gold = blocks[index][row] if row < len(blocks[index]) else ("", False)
                padding = " " * (widths[index] - cells(text))
                parts.append((f"{BOLD}{text}{RESET}" if bold and gold else text) + padding)
            out.append(("│ " + " │ ".join(parts)).rstrip())
        out.append("")
    return "\n".join([*out, *(part for text in forced.notes for part in wrap(text, cells, width))])


def _block_lines(block: Block, width: int, bold: bool) -> list[tuple[str, bool]]:
    marked = not bold and len(block.choices) > 1
    lines: list[tuple[str, bool]] = []
    for choice in block.choices:
        mark = ("> " if choice.gold else "  ") if marked else ""
        tail = f"  {choice.percent}" if choice.percent else ""
        lines += [
            (mark + text if not number else text, choice.gold)
            for number, text in enumerate(wrap(choice.text + tail, cells, width - 2))
        ]
    if block.more:
        lines.append((("  " if marked else "") + block.more, False))
    return lines


def _side(layout: Layout) -> list[str]:
    rows: list[str] = [""] * layout.rows
    groups = _children(layout)

    def put(row: int, x: float, text: str) -> None:
        rows[row] += " " * (int(x) - cells(rows[row])) + text

    for index, place in enumerate(layout.placed):
        put(place.row, place.x, place.lines[0])
        children = [layout.placed[child] for child in groups[index]]
        if not children:
            if place.total:
                put(place.row, layout.total_x or 0, place.total)
            continue
        stem = int(place.x) + cells(place.lines[0])
        starts = {child.row: child for child in children}
        for row in range(place.row, children[-1].row + 1):
            child = starts.get(row)
            if child is None:
                put(row, stem + 1, "│")
                continue
            last = child is children[-1]
            corner = ("┬" if not last else "─") if row == place.row else ("└" if last else "├")
            space = int(child.x) - stem - 6
            put(row, stem + 1, f"{corner} {child.label:>{space}} ─")
    return rows


def _indented(layout: Layout) -> list[str]:
    rows = [""] * layout.rows
    for place in layout.placed:
        for number, text in enumerate(place.lines):
            row = place.row + number
            if place.parent is not None and number == 0:
                label = f"{place.label:>6}"
                rows[row] = " " * max(int(place.x) - 9, 0) + f"{label} ─"
            rows[row] += " " * (int(place.x) - cells(rows[row])) + text
        if place.total:
            row = place.row + len(place.lines) - 1
            rows[row] += " " * (int(layout.total_x or 0) - cells(rows[row])) + place.total
    return rows


def _children(layout: Layout) -> Sequence[list[int]]:
    groups: list[list[int]] = [[] for _ in layout.placed]
    for index, place in enumerate(layout.placed):
        if place.parent is not None:
            groups[place.parent].append(index)
    return groups
