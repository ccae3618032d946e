"""Arrows between rooms point one way, and the map in docs/architecture.md names what is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "onmt_entmax"

SMALL = {"errors", "files", "progress", "signatures", "version", "unknown"}  # single files that everybody may use
MAY_USE = {
    "entmax": set(),
    "engines": {"entmax"},
    "model": {"entmax", "engines"},
    "search": {"entmax"},
    "tasks": {"search"},
    "report": {"search", "tasks", "entmax"},
    "plugin": {"entmax", "engines", "model", "search", "report", "autoload"},
    "api": {"search", "plugin"},
    "inspect": {"plugin", "search", "tasks"},
    "commands": {"api", "engines", "inspect", "plugin", "search", "tasks", "report"},
    "cli": {"commands"},
}


def imports(path: Path) -> set[str]:
    """What a file imports, also inside functions, but not for type checkers alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and getattr(branch.test, "id", "") == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@pytest.mark.parametrize("room", sorted(MAY_USE))
def test_arrows_point_one_way(room):
    used = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if room_of(path) != room:
            continue
        for name in imports(path):
            if name.startswith("onmt_entmax."):
                used.setdefault(name.split(".")[1], str(path.relative_to(ROOT)))
    rooms = {path.stem for path in PACKAGE.iterdir()}
    wrong = {other: path for other, path in used.items() if other not in MAY_USE[room] | SMALL | {room}}
    wrong = {other: path for other, path in wrong.items() if other in rooms}  # not a name of the package itself
    assert wrong == {}


def test_every_file_belongs_to_a_room():
    rooms = {room_of(path) for path in PACKAGE.rglob("*.py")}
    assert rooms == {*MAY_USE, *SMALL, "autoload", "__init__", "__main__"}
    for path in PACKAGE.glob("*.py"):
        if path.stem in SMALL:
            used = {name.split(".")[1] for name in imports(path) if name.startswith("onmt_entmax.")}
            assert used <= SMALL, path


def test_only_the_plugin_imports_opennmt_py():
    found = [
        str(path.relative_to(PACKAGE))
        for path in sorted(PACKAGE.rglob("*.py"))
        if room_of(path) not in ("plugin", "__init__")
        and any(name == "onmt" or name.startswith("onmt.") for name in imports(path))
    ]
    assert found == []


def test_the_mathematics_needs_torch_alone():
    for path in sorted((PACKAGE / "entmax").glob("*.py")):
        assert not {name.split(".")[0] for name in imports(path)} & {"numba", "numpy", "onmt"}, path


def test_rooms_are_small():
    for folder in [PACKAGE, *(path for path in PACKAGE.rglob("*") if path.is_dir())]:
        files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(files) <= 15, f"{folder} has {len(files)} files: which of them belong together?"


def test_the_map_names_what_is_there():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for name in set(re.findall(r"`((?:onmt_entmax/|[a-z_]+/)?[\w/]+\.(?:py|sh|md|yaml))`", text)):
        assert (PACKAGE / name).exists() or (ROOT / name).exists(), f"docs/architecture.md names {name}"
    for room in MAY_USE:
        assert f"`{room}" in text or f"{room}/" in text, f"docs/architecture.md does not name {room}"
