"""The Python examples of README.md and docs run, in order and file by file, beside a small trained ``best.pt``.

A comment that is a literal, or a tensor, is the value of the expression before it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(path: Path) -> list[tuple[int, str]]:
    """The Python blocks of a file, each with the number of its first line."""
    text = path.read_text(encoding="utf-8")
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in _BLOCK.finditer(text)]


def run(code: str, names: dict[str, object], where: str) -> int:
    """Run an example; returns how many values its comments claim, all of which are right."""
    checked, lines = 0, code.split("\n")
    for statement in ast.parse(code).body:
        if not isinstance(statement, ast.Expr):
            exec(compile(ast.Module([statement], []), where, "exec"), names)
            continue
        value = eval(compile(ast.Expression(statement.value), where, "eval"), names)
        comment = lines[statement.end_lineno - 1][statement.end_col_offset :].strip().lstrip("# ")
        if comment.startswith("tensor("):
            assert repr(value) == comment, where
            checked += 1
            continue
        try:
            expected = ast.literal_eval(comment)
        except (SyntaxError, ValueError):  # words
            continue
        assert value == expected, where
        checked += 1
    return checked


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with ``best.pt``: 1.5-entmax, trained for a few steps on 300 bundled English verbs."""
    from onmt_entmax.cli import main
    from tests.stock import run_main

    folder = tmp_path_factory.mktemp("examples")
    for name in ("english-train", "english-dev", "english-test"):
        rows = (ROOT / "data/inflection" / name).read_text(encoding="utf-8").split("\n")[:300]
        (folder / name).write_text("\n".join(rows).rstrip("\n") + "\n", encoding="utf-8")
    assert main(["prepare", "inflection", "--data", str(folder), "--output", str(folder / "data")]) == 0
    config = folder / "train.yaml"
    parts = (folder / "data/data.yaml", ROOT / "configs/quickstart.yaml")
    config.write_text("".join(part.read_text(encoding="utf-8") for part in parts), encoding="utf-8")
    words = {"save_model": folder / "best", "hidden_size": 16, "word_vec_size": 16, "layers": 1, "num_workers": 0}
    words |= {"train_steps": 30, "valid_steps": 30, "save_checkpoint_steps": 30, "report_every": 30}
    words |= {"generator_function": "entmax15", "global_attention_function": "entmax15"}
    run_main(
        "train", ["-config", str(config), *(part for name, value in words.items() for part in (f"-{name}", str(value)))]
    )
    (folder / "best_step_30.pt").rename(folder / "best.pt")
    return folder


@pytest.mark.parametrize("path", [path for path in FILES if blocks(path)], ids=lambda path: path.name)
def test_python_examples_run(path, folder, monkeypatch):
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    for line, code in blocks(path):
        run(code, names, f"{path.name}, line {line}")


def test_the_examples_are_found_and_their_values_compared(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert {"README.md", "search.md"} <= {path.name for path in FILES if blocks(path)}
    readme = [run(code, {}, "README.md") for _, code in blocks(ROOT / "README.md")]
    assert sum(readme) == 2  # entmax15 and sparsemax of a small vector
    with pytest.raises(AssertionError):
        run("import torch\ntorch.tensor([1.0])  # tensor([2.])\n", {}, "")


def test_tokens_of_the_examples_are_known_to_a_model_of_the_bundled_data(folder, monkeypatch):
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    for _, code in blocks(ROOT / "docs/search.md"):
        run(code, names, "search.md")
    assert names["first"].unknown == [] and names["forced"].unknown == []
