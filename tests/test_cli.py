"""The command itself: what a subcommand prints arrives whole, whatever the terminal."""

from __future__ import annotations

import importlib
import io
import sys

import pytest

from onmt_entmax import cli
from tests.report import samples


class Terminal(io.TextIOWrapper):
    """A terminal that knows few characters."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("kind", "encoding", "expected"),
    [
        (io.TextIOWrapper, "ascii", "draw ┬ 66.4% ─ ed".encode()),  # a pipe or a file: UTF-8 in any locale
        (io.TextIOWrapper, "latin-1", "draw ┬ 66.4% ─ ed".encode()),
        (Terminal, "ascii", rb"draw \u252c 66.4% \u2500 ed"),
        (Terminal, "utf-8", "draw ┬ 66.4% ─ ed".encode()),
    ],
)
def test_every_character_is_shown_somehow(kind, encoding, expected, draw_file, monkeypatch):
    bytes_ = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", kind(bytes_, encoding=encoding))
    assert cli.main(["figure", "beam", "--input", str(draw_file)]) == 0
    sys.stdout.flush()
    assert expected in bytes_.getvalue()


@pytest.fixture
def draw_file(tmp_path):
    return samples.write_lines(tmp_path / "draw.jsonl", [samples.draw()])


def test_each_subcommand_is_a_file_under_its_name():
    for name, (module, _) in cli.SUBCOMMANDS.items():
        assert module == f"onmt_entmax.commands.{name}"
        assert {"add_arguments", "run"} <= set(vars(importlib.import_module(module)))


def test_doctor_names_engine_and_missing_parts(monkeypatch, capsys):
    from onmt_entmax.commands import doctor

    monkeypatch.setattr(doctor, "hook_status", lambda: (True, "in place"))
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda package: "missing" if package == "spacy" else real(package))
    monkeypatch.delenv("ONMT_ENTMAX_ENGINE", raising=False)
    assert cli.main(["doctor"]) == 0  # spaCy is not needed
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert rows["engine, cpu"].strip().startswith("cpu (")
    assert "missing, needed only for transform terminology: pip install spacy" in rows["spacy"]
    assert "missing" not in rows["matplotlib"]
    monkeypatch.setenv("ONMT_ENTMAX_ENGINE", "gup")
    assert cli.main(["doctor"]) == 1
    assert "Invalid setting for `ONMT_ENTMAX_ENGINE`: gup." in capsys.readouterr().out
    monkeypatch.setattr(doctor, "_version", lambda package: "missing" if package == "numba" else real(package))
    assert cli.main(["doctor"]) == 1
    assert "Missing: numba." in capsys.readouterr().out
