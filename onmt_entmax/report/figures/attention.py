"""``figure attention``: heat maps of attention weights with outlined non-zeros, models side by side (Fig. 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import matplotlib
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from onmt_entmax.errors import UserError
from onmt_entmax.report.figures import style
from onmt_entmax.report.figures.canvas import Canvas, families
from onmt_entmax.report.readers import attention_of
from onmt_entmax.report.text import shorten, visible

MAX_TOKENS = 50
LABEL_CELLS = 18
_CELL = 0.145  # inches, where that fits
_SMALLEST = 0.1


@dataclass
class HeatMap:
    """One model's attention, cut to what is legible; weights are ``(target, source)``, ``label`` names the model."""

    source: list[str]
    target: list[str]
    weights: list[list[float]]
    label: str = ""
    notices: list[str] = field(default_factory=list)

    @property
    def nonzeros(self) -> float:
        """Mean number of source tokens attended to, of the part shown."""
        return sum(weight > 0 for row in self.weights for weight in row) / max(len(self.weights), 1)

    @property
    def caption(self) -> str:
        """What is written below."""
        text = f"{self.nonzeros:.1f} non-zeros per token"
        return f"{self.label}, {text}" if self.label else text


def heat_map_of(example: dict[str, Any], label: str = "", max_tokens: int = MAX_TOKENS) -> HeatMap:
    """Make the heat map of an example with ``attention``, or with ``steps`` that hold some."""
    found = attention_of(example)
    if found is None:
        raise UserError(f"input line {example['line']}: no attention to show.")
    source, target, weights = found
    notices = []
    for name, tokens in (("source", source), ("target", target)):
        if len(tokens) > max_tokens:
            notices.append(f"cut, the first {max_tokens} of {len(tokens)} {name} tokens are shown.")
    names = [[shorten(visible(token), LABEL_CELLS) for token in tokens[:max_tokens]] for tokens in (source, target)]
    shown = [list(row[:max_tokens]) for row in weights[:max_tokens]]
    return HeatMap(names[0], names[1], shown, label, notices)


@style.look()
def attention_figure(maps: Sequence[HeatMap], width: float = style.PAGE, font: Optional[Path] = None) -> Figure:
    """Draw heat maps, one per model: source across, target down, dark is much; non-zero weights are outlined."""
    texts = [text for one in maps for text in [*one.source, *one.target, one.caption, *one.notices]]
    names = families([*texts, "0123456789.,"], font)
    measure = Canvas(names, width).measure
    size = 7.0
    left = [max(measure(token, size) for token in one.target) / style.POINTS + 0.12 for one in maps]
    top = max(measure(token, size) for one in maps for token in one.source) / style.POINTS + 0.1
    captions = [measure(one.caption, size) / style.POINTS for one in maps]
    least = [side + max(_SMALLEST * len(one.source), text) for side, one, text in zip(left, maps, captions)]
    columns = _panels_per_row(least, width)
    rows = [list(range(start, min(start + columns, len(maps)))) for start in range(0, len(maps), columns)]
    widest = min((width - sum(left[i] + 0.15 for i in row)) / sum(len(maps[i].source) for i in row) for row in rows)
    cell = min(_CELL, widest)
    # a small heat map is as wide as what is written below it
    widths = [max(cell * len(one.source), text) for one, text in zip(maps, captions)]
    notes = [
        f"{one.label}: {note}" if one.label else note[0].upper() + note[1:] for one in maps for note in one.notices
    ]
    foot = 0.12 * (len(notes) + bool(notes)) + 0.16
    heights = [top + cell * max(len(maps[i].target) for i in row) + foot for row in rows]
    used = max(sum(left[i] + widths[i] + 0.15 for i in row) for row in rows)
    used = max([used, *(measure(note, 6.5) / style.POINTS + 0.1 for note in notes), 1.2])
    matplotlib.rcParams["font.family"] = names
    figure = Figure(figsize=(used, sum(heights)))
    above = 0.0
    for row, height in zip(rows, heights):
        x = 0.0
        for index in row:
            one = maps[index]
            w, h = cell * len(one.source), cell * len(one.target)
            box = ((x + left[index]) / used, 1 - (above + top + h) / sum(heights), w / used, h / sum(heights))
            _panel(figure.add_axes(box), one, min(size, cell * style.POINTS * 0.95))
            x += left[index] + widths[index] + 0.15
        above += height
    for number, note in enumerate(reversed(notes)):
        y = (0.04 + 0.12 * number) / sum(heights)
        figure.text(0.05 / used, y, note, size=6.5, color=style.WARN)
    return figure


def _panels_per_row(least: Sequence[float], width: float) -> int:
    """As many as fit when each has the least legible width."""
    for columns in range(len(least), 1, -1):
        starts = range(0, len(least), columns)
        if max(sum(part + 0.15 for part in least[start : start + columns]) for start in starts) <= width:
            return columns
    return 1


def _panel(axes, one: HeatMap, size: float) -> None:
    axes.imshow(one.weights, cmap="Greys", vmin=0, vmax=1.15, aspect="auto", interpolation="nearest")
    cells = [
        Rectangle((column - 0.5, row - 0.5), 1, 1)
        for row, weights in enumerate(one.weights)
        for column, weight in enumerate(weights)
        if weight > 0
    ]
    outline = {"facecolor": "none", "edgecolor": style.ACCENT, "linewidth": 0.6, "clip_on": False}
    axes.add_collection(PatchCollection(cells, **outline, zorder=3))  # above the frame, whose edge they may share
    axes.set_xticks(range(len(one.source)), one.source, rotation=90, size=size)
    axes.set_yticks(range(len(one.target)), one.target, size=size)
    axes.tick_params(length=0, pad=2, top=True, labeltop=True, bottom=False, labelbottom=False)
    for spine in axes.spines.values():
        spine.set(visible=True, color=style.FAINT)
    axes.set_xlabel(one.caption, size=7, labelpad=3, loc="left")
