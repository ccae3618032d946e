from __future__ import annotations

import pytest

from onmt_entmax.cli import main


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "train.src"
    path.write_bytes(b"a\n" * 7 + "b\u2028c\n".encode() + b"\n" + b"no end")  # ten lines
    return path


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        (["--batch-size", "4"], 3),  # 4 + 4 + 2
        (["--batch_size", "4", "--epochs", "10"], 30),
        (["--batch-size", "4", "--epochs", "0.5"], 2),
        (["--batch-size", "1", "--epochs", "1.1"], 11),  # in binary 1.1 * 10 is more than 11
        (["--batch-size", "2", "--accum-count", "2", "--world-size", "2"], 2),  # eight lines a step
        ([], 1),  # OpenNMT-py's 64
    ],
)
def test_steps(text, capsys, arguments, steps):
    assert main(["steps", "--train", str(text), *arguments]) == 0
    out, err = capsys.readouterr()
    assert out == f"{steps}\n"
    assert err.startswith("10 lines / (batch_size ")


def test_configuration(text, tmp_path, capsys):
    config = tmp_path / "train.yaml"
    corpora = f"a: {{path_src: {text}}}, b: {{path_src: {text}}}, valid: {{path_src: missing}}"
    config.write_text(f"data: {{{corpora}}}\nbatch_size: 4\naccum_count: [2]\n", encoding="utf-8")
    assert main(["steps", "--config", str(config)]) == 0
    assert capsys.readouterr().out == "3\n"  # 20 lines, eight a step
    assert main(["steps", "--config", str(config), "--batch-size", "1"]) == 0
    assert capsys.readouterr().out == "10\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("batch_size: 4", "`data` names no training corpus"),
        ("data: {a: {path_src: a.src}}\nbatch_type: tokens", "`batch_type`: tokens"),
        ("data: {a: {path_src: missing.src}}", "missing.src: no such file"),
        ("data: {a: {path_src: a.src}}\nbatch_size: 0", "`batch_size`: 0"),
        ("data: [", "not YAML"),
        ("data: {a: {path_src: a.src}}\nbatch_size: true", "`batch_size`: True"),
        ("data: {a: {path_src: a.src}}\naccum_count: []", "`accum_count`: []"),
        ("data: {a: {path_src: a.src}}\naccum_count: [1, 4]", "`accum_count`: [1, 4]. It changes during the run"),
        ("data: {a: {path_src: }}", "`path_src`: None"),
        ("data: {a: {path_src: a.src, weight: 0}}", "`data` names no training corpus"),
        ("data: {a: text}", "`data` names no training corpus"),
    ],
)
def test_mistakes_in_the_configuration(tmp_path, monkeypatch, capsys, content, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.src").write_bytes(b"a\n")
    (tmp_path / "train.yaml").write_text(content, encoding="utf-8")
    assert main(["steps", "--config", "train.yaml"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_mistakes_on_the_command_line(text, capsys):
    for arguments in ([], ["--train", str(text), "--config", "x.yaml"], ["--train", str(text), "--epochs", "0"]):
        assert main(["steps", *arguments]) == 2
    assert main(["steps", "--train", str(text), "--epochs", "inf"]) == 2
    assert main(["steps", "--train", str(text.parent)]) == 2
    assert "is a folder" in capsys.readouterr().err
