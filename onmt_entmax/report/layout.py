"""Where the segments of a tree go, in any unit: points for a figure, cells for a terminal.

``side``: the first branch continues on its parent's line and the others go below, as in the paper's Fig. 1.
``indented``: one branch per line, wrapped; for trees too wide for the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from onmt_entmax.report.text import Measure, percent, percent_of_log, wrap
from onmt_entmax.report.trees import Segment, Tree

ENDS = {
    "finished": "",
    "live": " ✕",
    "dropped": " ✕",
    "cut": " … (length limit)",
    "stopped": " … (search ended)",
}
LEGEND_DROPPED = "✕ dropped by the search."


@dataclass
class Placed:
    """A segment with its place.

    Attributes:
        segment: what it is.
        lines: its text, on one line or wrapped.
        label: probability of the branch, empty for the root.
        total: probability of the whole prefix, for leaves where it adds something; else empty.
        x: where the text starts.
        row: of its first line, from 0.
        parent: its index in the list, None for the root.
    """

    segment: Segment
    lines: list[str]
    label: str
    total: str
    x: float
    row: int
    parent: Optional[int] = None


@dataclass
class Layout:
    """All segments in their places; ``width`` and ``rows`` are those of the whole."""

    kind: str
    placed: list[Placed] = field(default_factory=list)
    width: float = 0.0
    rows: int = 0
    total_x: Optional[float] = None  # where the column of totals starts

    def uses(self, mark: str) -> bool:
        """Whether any text holds a mark."""
        return any(mark in line for place in self.placed for line in place.lines)


def lay_out(tree: Tree, measure: Measure, width: float, pad: float) -> Layout:
    """Place the segments of a tree: side by side if that fits, else indented.

    Args:
        tree: what to show.
        measure: width of a text.
        width: what is available.
        pad: a small distance, about a character.
    """
    layout = _side(tree, measure, pad)
    return layout if layout.width <= width else _indented(tree, measure, width, pad)


def segment_text(tree: Tree, segment: Segment) -> str:
    """Text of a segment with a mark of how it ended."""
    text = tree.text(segment)
    return text + (ENDS[segment.status] if not segment.children else "")


def shows_totals(tree: Tree) -> bool:
    """Whether the probabilities of whole strings say more than the labels on the branches do."""
    if not tree.root.children or tree.root.hidden:
        return True
    return any(child.children or child.hidden for child in tree.root.children)


def _total(tree: Tree, segment: Segment) -> str:
    return percent_of_log(segment.log_prob) if shows_totals(tree) and not segment.children else ""


def _label(segment: Segment) -> str:
    return "" if segment.branch is None else percent(segment.branch)


def _side(tree: Tree, measure: Measure, pad: float) -> Layout:
    layout = Layout("side")

    def place(segment: Segment, x: float, row: int, parent: Optional[int]) -> int:
        """Place a segment and what follows it; returns the next free row."""
        text = segment_text(tree, segment)
        index = len(layout.placed)
        layout.placed.append(Placed(segment, [text], _label(segment), _total(tree, segment), x, row, parent))
        end = x + measure(text)
        layout.width = max(layout.width, end)
        gap = max((measure(_label(child)) for child in segment.children), default=0.0) + 6 * pad
        for number, child in enumerate(segment.children):
            row = place(child, end + gap, row, index) if number else max(row + 1, place(child, end + gap, row, index))
        return max(row, layout.placed[index].row + 1)

    layout.rows = place(tree.root, 0.0, 0, None)
    _add_totals(layout, measure, pad)
    return layout


def _indented(tree: Tree, measure: Measure, width: float, pad: float) -> Layout:
    layout = Layout("indented")
    totals = max((measure(_total(tree, leaf)) for leaf in tree.root.leaves()), default=0.0)
    available = width - (totals + 2 * pad if totals else 0.0)
    labels = measure("100.0%") + 3 * pad
    step = min(2.5 * pad, 0.4 * available / max(_depth(tree.root), 1))

    def place(segment: Segment, depth: int, row: int, parent: Optional[int]) -> int:
        x = 0.0 if parent is None else (depth - 1) * step + labels + pad
        index = len(layout.placed)
        lines = wrap(segment_text(tree, segment), measure, available - x, tree.characters)
        layout.placed.append(Placed(segment, lines, _label(segment), _total(tree, segment), x, row, parent))
        layout.width = max([layout.width, *(x + measure(line) for line in lines)])
        row += len(lines)
        for child in segment.children:
            row = place(child, depth + 1, row, index)
        return row

    layout.rows = place(tree.root, 0, 0, None)
    _add_totals(layout, measure, pad)
    return layout


def _add_totals(layout: Layout, measure: Measure, pad: float) -> None:
    totals = max(measure(place.total) for place in layout.placed)
    if totals:
        layout.total_x = layout.width + 2 * pad
        layout.width = layout.total_x + totals


def _depth(segment: Segment) -> int:
    return 1 + max((_depth(child) for child in segment.children), default=0)
