"""Find fonts for what a figure has to show, by the glyphs they hold.

Matplotlib tries the fonts of a text one after the other for each character, but knows only those it is told, and draws
an empty box for what none of them holds. Here the installed fonts are looked through for the characters needed.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Optional

from matplotlib import font_manager
from matplotlib.ft2font import FT2Font

from onmt_entmax.errors import UserError

BASE = ("DejaVu Sans",)  # comes with matplotlib
_CJK = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "FULLWIDTH", "HALFWIDTH", "IDEOGRAPHIC")
_SHOWN = 8  # characters named in the message


def families(texts: Iterable[str], font: Optional[Path] = None) -> list[str]:
    """Choose font families that together hold every character of the texts.

    Args:
        texts: what will be drawn.
        font: a font file to use before all others.

    Returns:
        Families for matplotlib's ``font.family``, in order of preference.

    Raises:
        UserError: no installed font holds some characters; names them and a package that does.
    """
    chosen: list[str] = []
    if font is not None:
        chosen.append(_add(font))
    chosen += BASE
    missing = {character for text in texts for character in text if not _invisible(character)}
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


def _invisible(character: str) -> bool:
    return character.isspace() or unicodedata.category(character) in ("Cf", "Cc")


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
