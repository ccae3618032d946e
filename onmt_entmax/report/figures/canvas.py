"""A matplotlib figure in points with the origin at the top left, for pictures that are laid out like text."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import matplotlib
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyBboxPatch

from onmt_entmax.report.figures import style

SIZE = 8.5  # of the text, in points
SMALL = 7.0
LEADING = 1.45


class Canvas:
    """A page of at most a given width that grows downwards until it is turned into a figure."""

    def __init__(self, families: Sequence[str], width: float) -> None:
        """Start a page.

        Args:
            families: font families that hold all characters to be drawn.
            width: in inches.
        """
        self.families = tuple(families)
        self.width = width * style.POINTS
        self.height = 0.0
        self.used = 0.0  # how far to the right anything reaches
        self._draw: list = []

    def measure(self, text: str, size: float = SIZE, bold: bool = False) -> float:
        """Width of a text in points."""
        return _width(text, size, bold, self.families)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = SIZE,
        color: str = style.INK,
        bold: bool = False,
        align: str = "left",
    ) -> None:
        """Write a text whose baseline is ``y`` points below the top."""

        def draw(axes) -> None:
            axes.text(
                x, y, text, size=size, color=color, weight="bold" if bold else "normal", ha=align, va="baseline",
                family=list(self.families), parse_math=False,
            )  # fmt: skip

        self._draw.append(draw)
        self.height = max(self.height, y + 0.3 * size)
        self.used = max(self.used, x + (self.measure(text, size, bold) if align == "left" else 0.0))

    def line(self, xs: Sequence[float], ys: Sequence[float], color: str = style.SOFT, width: float = 0.8) -> None:
        """Draw a line through points."""
        self._draw.append(lambda axes: axes.plot(xs, ys, color=color, linewidth=width, solid_capstyle="round"))

    def box(self, x: float, y: float, width: float, height: float, face: str, edge: str) -> None:
        """Draw a box with round corners; ``y`` is its top."""

        def draw(axes) -> None:
            shape = "round,pad=0,rounding_size=2.5"
            axes.add_patch(
                FancyBboxPatch((x, y), width, height, boxstyle=shape, facecolor=face, edgecolor=edge, linewidth=0.7)
            )

        self._draw.append(draw)
        self.height = max(self.height, y + height)
        self.used = max(self.used, x + width)

    def figure(self, margin: float = 4.0) -> Figure:
        """Make the figure: as wide and as high as what is on it."""
        width, height = self.used + 2 * margin, self.height + 2 * margin
        with matplotlib.rc_context(style.RC):
            figure = Figure(figsize=(width / style.POINTS, height / style.POINTS))
            axes = figure.add_axes((0, 0, 1, 1))
            axes.set_xlim(-margin, width - margin)
            axes.set_ylim(height - margin, -margin)
            axes.set_axis_off()
            for draw in self._draw:
                draw(axes)
        return figure


@functools.lru_cache(maxsize=4096)
def _width(text: str, size: float, bold: bool, families: tuple[str, ...]) -> float:
    if not text:
        return 0.0
    font = FontProperties(family=list(families), size=size, weight="bold" if bold else "normal")
    with matplotlib.rc_context(style.RC):
        return _renderer().get_text_width_height_descent(text, font, False)[0] / 10


@functools.lru_cache(maxsize=1)
def _renderer() -> RendererAgg:
    return RendererAgg(10, 10, 10 * style.POINTS)
