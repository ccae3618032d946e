"""Fonts are found by the glyphs they hold."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pytest
from matplotlib import font_manager

from onmt_entmax.errors import UserError
from onmt_entmax.report.figures import canvas

SANS = str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")
SERIF = SANS.replace("Sans", "Serif")


@pytest.fixture
def installed(monkeypatch):
    """Pretend that only these fonts are installed, with these glyphs beside matplotlib's own."""

    def pretend(**glyphs: str) -> None:
        real = canvas._glyphs
        paths = {f"/fonts/{name}.ttf": frozenset(held) for name, held in glyphs.items()}
        monkeypatch.setattr(canvas, "_installed", lambda: tuple(paths))
        monkeypatch.setattr(canvas, "_glyphs", lambda path: paths[path] if path in paths else real(path))
        monkeypatch.setattr(canvas, "_register", lambda path: Path(path).stem)

    return pretend


def test_latin_needs_nothing_else(installed):
    installed()
    assert canvas.families(["draw", "été", "✕ … ─ α"]) == ["DejaVu Sans"]


def test_fonts_are_added_until_all_is_covered(installed):
    installed(Kana="これは", Unneeded="xyz", Han="本語", Later="本")
    assert canvas.families(["これは", "日本"[1:]]) == ["DejaVu Sans", "Kana", "Han"]


def test_missing_glyphs_are_named_with_a_package(installed):
    installed()
    with pytest.raises(UserError, match=r"あ \(U\+3042 HIRAGANA LETTER A\).*apt-get install fonts-noto-cjk`"):
        canvas.families(["あ"])
    with pytest.raises(UserError, match=r"U\+0995 BENGALI LETTER KA.*fonts-noto-core`"):
        canvas.families(["ক"])
    with pytest.raises(UserError, match=r"fonts-noto-cjk fonts-noto-core"):
        canvas.families(["あক"])
    with pytest.raises(UserError, match="and 4 more"):
        canvas.families(["あいうえおかきくけこさし"])


def test_a_font_file_comes_first():
    assert canvas.families(["a"], Path(SERIF)) == ["DejaVu Serif", "DejaVu Sans"]


def test_a_wrong_font_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="Invalid setting for `font`"):
        canvas.families(["a"], tmp_path / "none.ttf")
    (tmp_path / "text.ttf").write_text("no font")
    with pytest.raises(UserError, match="cannot read it as a font"):
        canvas.families(["a"], tmp_path / "text.ttf")


def test_glyphs_of_a_file_that_is_no_font(tmp_path):
    path = tmp_path / "bad.ttf"
    path.write_bytes(b"nothing")
    assert canvas._glyphs(str(path)) == frozenset()


def test_a_font_unknown_to_matplotlib_becomes_known(tmp_path):
    copy = tmp_path / "Copy.ttf"
    copy.write_bytes(Path(SERIF).read_bytes())
    before = list(font_manager.fontManager.ttflist)
    try:
        assert canvas._register(str(copy)) == "DejaVu Serif"
        assert any(entry.fname == str(copy) for entry in font_manager.fontManager.ttflist)
    finally:
        font_manager.fontManager.ttflist[:] = before
