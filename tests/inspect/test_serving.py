"""The command: what it refuses, its address, and that it ends cleanly."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from onmt_entmax import cli
from onmt_entmax.errors import UserError
from onmt_entmax.inspect.loaded import Loaded, check_side_by_side
from onmt_entmax.inspect.serving import listen
from tests.stock import write


def refusal(capsys, *words):
    assert cli.main(["inspect", "--no-browser", *map(str, words)]) == 2
    return capsys.readouterr().err.strip().split("\n")[-1]


def test_mistakes_are_told_on_one_line(entmax_model, tmp_path, capsys):
    (tmp_path / "none.pt").write_bytes(b"none")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for words, says in (
            (["--port", port], f"Invalid setting for `port`: {port}. It is in use; choose another, or 0"),
            (["--port", "65536"], "`port`: 65536. It must be from 0 to 65535."),
            (
                ["--port", 0, "--host", "0.0.0.0"],
                "`host`: 0.0.0.0. Other machines can reach it",
            ),
            (["--port", 0, "--host", "192.0.2.1", "--token", "t"], "`host`: 192.0.2.1. It cannot be listened at"),
            (["--port", 0, "--token", " "], "`token`: ''. It must not be empty."),
            (["--port", 0, "--threads", "0"], "`threads`: 0. It must be at least 1."),
            (["--port", 0, "--prepared", tmp_path], "manifest.json"),
        ):
            assert says in refusal(capsys, "--model", entmax_model, *words)
    assert "not a checkpoint written by OpenNMT-py" in refusal(capsys, "--port", 0, "--model", tmp_path / "none.pt")
    assert "no such file" in refusal(capsys, "--port", 0, "--model", f"{entmax_model}+{tmp_path / 'gone.pt'}")


def test_a_language_model_is_refused_on_one_line(corpus, capsys):
    data = json.dumps({"corpus_1": {"path_src": f"{corpus.folder}/train.src"}})
    words = ["-data", data, "-model_task", "lm", "-encoder_type", "transformer_lm", "-decoder_type", "transformer_lm"]
    words += ["-share_vocab", "-heads", "2", "-hidden_size", "16", "-transformer_ff", "16"]
    model = corpus.train("lm", *words)
    capsys.readouterr()
    said = f"{model}: a language model; only sequence-to-sequence models can be searched here."
    assert refusal(capsys, "--port", 0, "--model", model) == f"onmt_entmax inspect: {said}"


def test_names_without_an_address_are_refused():
    with pytest.raises(UserError, match="`host`: no.such.host.invalid. There is no such address here"):
        listen("no.such.host.invalid", 0)


def test_models_side_by_side_need_one_target_vocabulary(corpus, entmax_model, softmax_model):
    write(corpus.folder / "other", [f"{letter}\t9" for letter in "abcdefgz"])
    other = corpus.train("other", "-tgt_vocab", f"{corpus.folder}/other")
    with pytest.raises(UserError, match=r"its target vocabulary \(16 tokens\) is not that of entmax.*lacks h;"):
        check_side_by_side([Loaded(0, [entmax_model]), Loaded(1, [other])])
    one, two = Loaded(0, [entmax_model]), Loaded(1, [softmax_model])
    two.texts.kind = "raw"
    with pytest.raises(UserError, match="its input is raw, that of entmax_step_150.pt tokens"):
        check_side_by_side([one, two])
    folders = [corpus.folder / "here" / "best", corpus.folder / "there" / "best"]
    for folder in folders:
        folder.mkdir(parents=True)
        shutil.copy(entmax_model, folder / "m.pt")
    alike = [folders[0] / "m.pt", folders[1] / "m.pt", folders[1] / "m.pt", entmax_model]
    several = [Loaded(number, [path]) for number, path in enumerate(alike)]
    check_side_by_side(several)
    there = "there/best/m.pt"
    assert [one.name for one in several] == ["here/best/m.pt", f"{there} (2)", f"{there} (3)", "entmax_step_150.pt"]


def test_an_ensemble_is_one_model(entmax_model, softmax_model):
    both = Loaded(0, [entmax_model, softmax_model])
    told = both.describe()
    assert told["alphas"] == "1.5/1.5+1/1" and told["name"] == "entmax_step_150.pt+softmax_step_60.pt"
    assert told["attention"] == [{"name": "context_attention", "layers": 1, "heads": 1}]
    weights = both.attention(["a", "b"], ["b"], "context_attention", 1, 1, lambda: None)["weights"]
    assert [len(row) for row in weights] == [2, 2]


def test_the_server_answers_and_ends_with_an_interrupt(entmax_model):
    command = [sys.executable, "-m", "onmt_entmax", "inspect", "--model", str(entmax_model), "--port", "0"]
    # what a shell starts in the background ignores interrupts, and so would this process
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        made = subprocess.Popen([*command, "--no-browser"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    with made:
        try:
            line = next(line for line in made.stdout if "Ctrl-C ends" in line)
            address = line.split(": ", 1)[1].split()[0]
            with urllib.request.urlopen(f"{address}api/models", timeout=60) as answer:
                assert json.load(answer)["models"][0]["name"] == "entmax_step_150.pt"
            made.send_signal(signal.SIGINT)
            _, errors = made.communicate(timeout=60)
        finally:
            made.kill()
    assert made.returncode == 0 and "Traceback" not in errors
