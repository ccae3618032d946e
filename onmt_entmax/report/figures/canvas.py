"""Text in figures: fonts that hold its characters, and a page in points to lay it out on.

Matplotlib tries the fonts of a text one after the other for each character, but knows only those it is told, and draws
an empty box for what none of them holds. Here the installed fonts are looked through for the characters needed.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Optional

from matplotlib import font_manager
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.ft2font import FT2Font
from matplotlib.patches import FancyBboxPatch

from onmt_entmax.errors import UserError
from onmt_entmax.report.figures import style

BASE = ("DejaVu Sans",)  # comes with matplotlib
_CJK = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "FULLWIDTH", "HALFWIDTH", "IDEOGRAPHIC")
_SHOWN = 8  # characters named in the message
SIZE = 8.5  # of the text, in points
SMALL = 7.0
LEADING = 1.45


def families(texts: Iterable[str], font: Optional[Path] = None) -> list[str]:
    """Choose font families that together hold every character of the texts, for matplotlib's ``font.family``.

    Args:
        texts: what will be drawn.
        font: a font file to use before all others.

    Raises:
        UserError: no installed font holds some characters; names them and a package that does.
    """
    chosen: list[str] = []
    if font is not None:
        chosen.append(_add(font))
    chosen += BASE
    seen = {character for text in texts for character in text}
    missing = {one for one in seen if not one.isspace() and unicodedata.category(one) not in ("Cf", "Cc")}
    for family in chosen:
        missing -= _glyphs(font_manager.findfont(family))
    if missing:
        for path in _installed():
            held = missing & _glyphs(path)
            if held:
                chosen.append(_register(path))
                missing -= held
            if not missing:
                break
    if missing:
        raise UserError(_message(sorted(missing)))
    return chosen


def _message(missing: list[str]) -> str:
    names = [f"{char} (U+{ord(char):04X} {unicodedata.name(char, 'unnamed')})" for char in missing[:_SHOWN]]
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    asian = any(unicodedata.name(char, "").startswith(_CJK) for char in missing)
    other = any(not unicodedata.name(char, "").startswith(_CJK) for char in missing)
    packages = " ".join(["fonts-noto-cjk"] * asian + ["fonts-noto-core"] * other)
    return (
        f"No installed font has glyphs for {', '.join(names)}{more}. Install one (Debian, Ubuntu: `apt-get install "
        f"{packages}`; elsewhere the Noto fonts), or name a font file with --font."
    )


def _add(path: Path) -> str:
    if not path.is_file():
        raise UserError(f"Invalid setting for `font`: {path}. It must be a font file (.ttf, .otf or .ttc).")
    try:
        return _register(str(path))
    except (RuntimeError, OSError):
        raise UserError(f"Invalid setting for `font`: {path}. Matplotlib cannot read it as a font.") from None


def _register(path: str) -> str:
    """Make a font known to matplotlib, whose own list may be older than the font; returns its family."""
    for entry in font_manager.fontManager.ttflist:
        if entry.fname == path:
            return entry.name
    font_manager.fontManager.addfont(path)
    return font_manager.fontManager.ttflist[-1].name


@functools.cache
def _glyphs(path: str) -> frozenset[str]:
    try:
        return frozenset(map(chr, FT2Font(path).get_charmap()))
    except (RuntimeError, OSError, ValueError):  # bitmap fonts and the like
        return frozenset()


@functools.lru_cache(maxsize=1)
def _installed() -> tuple[str, ...]:
    """All fonts, those first that suit a figure: regular weight, sans, Noto; a fixed order on every run."""

    def rank(path: str) -> tuple[object, ...]:
        name = Path(path).name.lower()
        odd = any(word in name for word in ("italic", "oblique", "thin", "light", "black", "bold", "condensed"))
        return odd, "mono" in name, "serif" in name and "sans" not in name, not name.startswith("noto"), name, path

    return tuple(sorted(font_manager.findSystemFonts(), key=rank))


class Canvas:
    """A page of at most a given width that grows downwards until it is a figure; all of it inside ``style.look``.

    Args:
        families: font families that hold all characters to be drawn.
        width: in inches.
    """

    def __init__(self, families: Sequence[str], width: float) -> None:
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
                family=list(self.families),
            )  # fmt: skip

        self._draw.append(draw)
        self.height = max(self.height, y + 0.3 * size)
        self.used = max(self.used, x + (self.measure(text, size, bold) if align == "left" else 0.0))

    def line(self, xs: Sequence[float], ys: Sequence[float], color: str = style.SOFT) -> None:
        """Draw a line through points."""
        self._draw.append(lambda axes: axes.plot(xs, ys, color=color, linewidth=0.8, solid_capstyle="round"))

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

    def figure(self) -> Figure:
        """Make the figure: as wide and as high as what is on it."""
        margin = 4.0
        width, height = self.used + 2 * margin, self.height + 2 * margin
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
    return _renderer().get_text_width_height_descent(text, font, False)[0] / 10


@functools.lru_cache(maxsize=1)
def _renderer() -> RendererAgg:
    return RendererAgg(10, 10, 10 * style.POINTS)
