"""Which text ``scripts/figures.sh`` shows, with a command in place of ``onmt_entmax`` that notes what it is given."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts/figures.sh"
NOTES = """#!/usr/bin/env bash
echo "$*" >> "$NOTES"
output=''
while [ $# -gt 0 ]; do
  case "$1" in
    --output) output=$2 ;;
    --src | --tgt) sed "s#^#${1#--}: #" "$2" >> "$NOTES" ;;
  esac
  shift
done
case "$output" in
  '') ;;
  *examples) echo least > "$output.src"; echo certain > "$output.tgt" ;;
  *) echo '{}' > "$output" ;;
esac
"""


@pytest.fixture
def grid(tmp_path):
    """The output of a grid that was made from text elsewhere."""
    stub = tmp_path / "venv/bin/onmt_entmax"
    stub.parent.mkdir(parents=True)
    stub.write_text(NOTES, encoding="utf-8")
    stub.chmod(0o755)
    run, text = tmp_path / "run", tmp_path / "prepared"
    (run / "runs/1_1/seed1").mkdir(parents=True)
    text.mkdir()
    for name in ("model_best.pt", "test.jsonl"):
        (run / "runs/1_1/seed1" / name).write_text("x\n", encoding="utf-8")
    for name in ("dev", "test"):
        for side in ("src", "tgt"):
            (text / f"{name}.{side}").write_text(f"{name} {side}\n", encoding="utf-8")
    (run / "grid.json").write_text(json.dumps({"data": str(text)}), encoding="utf-8")
    return run


def draw(grid: Path, **settings: str) -> tuple[int, str, str]:
    notes = grid.parent / "notes"
    environment = {**os.environ, "ONMT_ENTMAX_VENV": str(grid.parent / "venv"), "NOTES": str(notes), **settings}
    command = ["bash", str(SCRIPT), str(grid)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr, notes.read_text(encoding="utf-8") if notes.exists() else ""


def test_the_text_is_the_grids_own_wherever_it_lies(grid):
    code, said, notes = draw(grid)
    assert code == 0, said
    assert "src: test src\ntgt: test tgt\n" in notes  # `uncertain` chooses in the test set
    assert "src: least\nsrc: dev src\n" in notes  # traced: its choice, and the example
    assert "src: least\nsrc: dev src\nsrc: dev src\ntgt: certain\ntgt: dev tgt\ntgt: dev tgt\n" in notes
    assert "d r a w" not in notes


def test_an_example_of_ones_own(grid):
    code, said, notes = draw(grid, EXAMPLE="h a b l a r", GOLD="h a b l o")
    assert code == 0, said
    assert "src: h a b l a r\nsrc: dev src\ntgt: certain\ntgt: h a b l o\n" in notes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"EXAMPLE": "h a b l a r"}, "EXAMPLE needs GOLD"),
        ({"GOLD": "h a b l o"}, "GOLD needs EXAMPLE"),
        ({"FORMAT": "gif"}, "Invalid setting for FORMAT: gif. Valid choices: png, svg, pdf."),
    ],
)
def test_half_an_example_is_an_error(grid, settings, message):
    code, said, notes = draw(grid, **settings)
    assert (code, notes) == (2, "") and message in said


def test_a_grid_without_its_text_is_an_error(grid):
    (grid.parent / "prepared").rename(grid.parent / "moved")
    code, said, notes = draw(grid)
    assert (code, notes) == (2, "") and f"{grid.parent}/prepared holds no prepared text" in said
