"""Fixtures of the report tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report import samples


@pytest.fixture
def draw_file(tmp_path: Path) -> Path:
    """A certificates file with the paper's Fig. 1."""
    return samples.write_lines(tmp_path / "draw.jsonl", [samples.draw()])


@pytest.fixture
def forced_file(tmp_path: Path) -> Path:
    """A forced decoding with attention."""
    return samples.write_lines(tmp_path / "forced.jsonl", [samples.TREE_OF_LIFE])


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A folder with every kind of file that a run leaves behind."""
    return samples.run_folder(tmp_path / "entmax15")
