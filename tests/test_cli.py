"""The command itself: what a subcommand prints arrives whole, whatever the terminal."""

from __future__ import annotations

import io
import sys

import pytest

from onmt_entmax import cli
from onmt_entmax.cli import Parser, build_parser
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


def test_each_subcommand_has_its_two_functions():
    for name in cli.SUBCOMMANDS:
        assert all(map(callable, cli._functions(name)))


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
    monkeypatch.setattr(doctor, "_version", lambda package: "missing" if package == "rapidfuzz" else real(package))
    assert cli.main(["doctor"]) == 1  # OpenNMT-py imports it at its start: not for a transform only
    assert "Missing: rapidfuzz." in capsys.readouterr().out
    monkeypatch.setattr(doctor, "_version", lambda package: "missing" if package == "spacy" else real(package))
    monkeypatch.setenv("ONMT_ENTMAX_ENGINE", "gup")
    assert cli.main(["doctor"]) == 1
    assert "Invalid setting for `ONMT_ENTMAX_ENGINE`: gup." in capsys.readouterr().out
    monkeypatch.setattr(doctor, "_version", lambda package: "missing" if package == "numba" else real(package))
    assert cli.main(["doctor"]) == 1
    assert "Missing: numba." in capsys.readouterr().out


@pytest.mark.parametrize("declared", ["--beam_size", "--beam-size"])
@pytest.mark.parametrize("given", [["--beam_size", "3"], ["--beam-size=3"], ["--beam_size=3"], ["--beam-size", "3"]])
def test_both_spellings_are_one_option(declared, given, capsys):
    parser = Parser(prog="x", allow_abbrev=False)
    parser.add_argument(declared, type=int)
    assert parser.parse_args(given).beam_size == 3
    assert "--beam-size" in parser.format_help() and "beam_size" not in parser.format_help()
    with pytest.raises(SystemExit):
        parser.parse_args(["--beam__size", "3"])


def test_values_keep_their_underscores():
    parser = Parser(prog="x")
    parser.add_argument("--src_text")
    parser.add_argument("rest", nargs="*")
    args = parser.parse_args(["--src-text=a_b", "c_d", "--", "--e_f"])
    assert (args.src_text, args.rest) == ("a_b", ["c_d", "--e_f"])
    assert parser.parse_args(["--src_text", "a_b"]).src_text == "a_b"


def test_subcommands_of_subcommands_too():
    parser = build_parser("evaluate")
    args = parser.parse_args(["evaluate", "inflection", "--gold", "g", "--predictions", "p", "--n_best", "2"])
    assert args.n_best == 2 and args.bootstrap_samples == 1000


def words_of(folder, *words):
    return [word.replace("{}", str(folder)) for word in words]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["force", "--model", "m", "--src", "{}/a", "--tgt", "{}/b", "--output", "{}/./a"],
            "onmt_entmax force: Invalid setting for `output`: {}/./a. It is the input of `src`, which would be",
        ),
        (["force", "--model", "{}/a", "{}/b", "--src-text", "x", "--output", "{}/b"], "the input of `model`"),
        (["table", "1", "--input", "{}/a", "{}/b", "--output", "{}/b"], "the input of `input`"),
        (
            ["evaluate", "inflection", "--gold", "{}/a", "--predictions", "{}/b", "--json", "{}/b"],
            "onmt_entmax evaluate: Invalid setting for `json`: {}/b. It is the input of `predictions`",
        ),
        (
            ["evaluate", "inflection", "--gold", "{}/a", "--predictions", "{}", "--submission", "{}"],
            "Invalid setting for `submission`: {}. It is the input of `predictions`",
        ),
        (["uncertain", "--certificates", "{}/c", "--src", "{}/test.src", "--output", "{}/test"], "the input of `src`"),
        (
            ["heads", "--model", "m", "--src", "{}/a", "--tgt", "{}/b", "--weights", "{}/a"],
            "Invalid setting for `weights`: {}/a. It is the input of `src`",
        ),
    ],
)
def test_no_command_overwrites_its_input(tmp_path, capsys, words, message):
    for name in ("a", "b", "test.src"):
        (tmp_path / name).write_text("x\n", encoding="utf-8")
    assert cli.main(words_of(tmp_path, *words)) == 2
    assert words_of(tmp_path, message)[0] in capsys.readouterr().err
    assert (tmp_path / "a").read_text(encoding="utf-8") == "x\n"


def test_no_command_overwrites_a_file_in_a_folder_that_it_reads(tmp_path, capsys):
    gold, predictions = tmp_path / "gold", tmp_path / "predictions"
    gold.mkdir(), predictions.mkdir()
    (gold / "x.gold").write_text("sing\tsang\tV\n", encoding="utf-8")
    (predictions / "x.pred").write_text("s a n g\n", encoding="utf-8")
    words = ["evaluate", "inflection", "--gold", str(gold), "--predictions", str(predictions), "--json"]
    for _ in range(2):  # its own result, beside what it reads, is written again
        assert cli.main([*words, str(gold / "x.json")]) == 0
    capsys.readouterr()
    for path in (gold / "x.gold", predictions / ".." / "predictions" / "x.pred"):
        before = path.read_bytes()
        assert cli.main([*words, str(path)]) == 2
        assert f"{path} is an input, which would be overwritten" in capsys.readouterr().err
        assert path.read_bytes() == before and not path.with_name(f".{path.name}.part").exists()
