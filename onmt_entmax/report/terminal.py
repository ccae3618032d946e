"""Search trees and forced decodings as text, for a terminal of any width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from onmt_entmax.report.steps import Block, Forced
from onmt_entmax.report.table_formats import BOLD, RESET
from onmt_entmax.report.text import cells, columns, join, wrap
from onmt_entmax.report.trees import Layout, Tree, lay_out


def tree_text(tree: Tree, width: int = 100) -> str:
    """Draw a tree with box characters for a terminal of so many cells, its certificate and notices below."""
    width = max(width, 40)
    layout = lay_out(tree, cells, width, 1)
    lines = _side(layout) if layout.kind == "side" else _indented(layout)
    return _page(tree.source, [*lines, ""], [tree.statement, *layout.notes(tree)], width)


def forced_text(forced: Forced, width: int = 100, bold: bool = False) -> str:
    """Draw a forced decoding in columns: the choices at each step, stretches without a choice joined.

    The gold token is marked by bold type, or else by ``>``; ``width`` is the terminal's, in cells.
    """
    width = max(width, 40)
    blocks = [_block_lines(block, width - 2, bold) for block in forced.blocks]
    widths = [max(cells(text) for text, _ in block) for block in blocks]
    out = []
    for line in columns(widths, width - 2, 3):
        for row in range(max(len(blocks[index]) for index in line)):
            parts = []
            for index in line:
                text, gold = blocks[index][row] if row < len(blocks[index]) else ("", False)
                padding = " " * (widths[index] - cells(text))
                parts.append((f"{BOLD}{text}{RESET}" if bold and gold else text) + padding)
            out.append(("│ " + " │ ".join(parts)).rstrip())
        out.append("")
    return _page(forced.source, out, forced.notes, width)


def _page(source: Optional[list[str]], picture: list[str], notes: Sequence[str], width: int) -> str:
    """The input above a picture, and what is to be said of it below."""
    head = [*wrap("Input: " + join(source, False), cells, width), ""] if source else []
    return "\n".join([*head, *picture, *(part for text in notes for part in wrap(text, cells, width))])


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

    def put(row: int, x: float, text: str) -> None:
        rows[row] += " " * (int(x) - cells(rows[row])) + text

    for index, place in enumerate(layout.placed):
        put(place.row, place.x, place.lines[0])
        children = [child for child in layout.placed if child.parent == index]
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
            put(row, stem + 1, f"{corner} {child.segment.label:>{space}} ─")
    return rows


def _indented(layout: Layout) -> list[str]:
    rows = [""] * layout.rows
    for place in layout.placed:
        for number, text in enumerate(place.lines):
            row = place.row + number
            if place.parent is not None and number == 0:
                rows[row] = " " * max(int(place.x) - 9, 0) + f"{place.segment.label:>6} ─"
            rows[row] += " " * (int(place.x) - cells(rows[row])) + text
        if place.total:
            row = place.row + len(place.lines) - 1
            rows[row] += " " * (int(layout.total_x or 0) - cells(rows[row])) + place.total
    return rows
