"""``onmt_average_models``, ``onmt_release_model``, ``onmt_build_vocab``: what they make, and what they refuse."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace

import pytest
import torch
from onmt.bin.average_models import average_models

from onmt_entmax.errors import UserError
from tests.stock import run_main, write


def model(path, weights, vocabulary=("a", "b"), **options):
    """A checkpoint with one matrix of weights."""
    vocab = {"src": list(vocabulary), "tgt": list(vocabulary), "data_task": "seq2seq", "decoder_start_token": "<s>"}
    checkpoint = {"opt": Namespace(**options), "vocab": vocab, "optim": None, "generator": {"weight": weights}}
    torch.save({**checkpoint, "model": {"decoder.count": torch.tensor(7)}}, path)
    return str(path)


def test_averages_are_means_of_sums_in_float32(tmp_path):
    # float16 knows every fourth number from 4096 on: in it 2048 + 2050 would be 4096 or 4100, and the mean no 2050
    paths = [model(tmp_path / f"{value}.pt", torch.tensor([value]).half()) for value in (2048.0, 2050.0, 2052.0)]
    found = average_models(paths)
    assert found["generator"]["weight"].tolist() == [2050.0] and found["generator"]["weight"].dtype == torch.float16
    assert found["model"]["decoder.count"].item() == 7  # a counter is no weight
    assert average_models(paths[:2], fp32=True)["generator"]["weight"].dtype == torch.float32
    assert average_models(paths[:1])["generator"]["weight"].tolist() == [2048.0]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"generator_alpha": 2.0}, r"`generator_alpha` is 1\.5 in .*one\.pt, but 2\.0 in .*other\.pt"),
        ({"generator_alpha": 1.5, "heads": 4}, "`heads` is 8 in .* but 4 in"),
        ({"generator_alpha": 1.5, "vocabulary": ("b", "a")}, "the src vocabularies of .*one.pt and .*other.pt"),
        ({"generator_alpha": 1.5, "weights": torch.zeros(3)}, r"`weight` is \(2,\) in .* but \(3,\) in"),
    ],
)
def test_models_that_differ_are_not_averaged(tmp_path, other, message):
    one = model(tmp_path / "one.pt", torch.zeros(2), generator_alpha=1.5, heads=8)
    other = model(tmp_path / "other.pt", **{"weights": torch.zeros(2), **other})
    with pytest.raises(UserError, match=f"Models that differ cannot be averaged: {message}"):
        average_models([one, other])


def test_what_only_says_how_models_were_trained_may_differ(tmp_path):
    one, other = (model(tmp_path / f"{k}.pt", torch.full((2,), k), lambda_align=k, query_init=k) for k in (0.0, 1.0))
    assert average_models([one, other])["generator"]["weight"].tolist() == [0.5, 0.5]


def test_an_average_decodes_and_a_released_model_has_no_state_of_training(corpus, entmax_model, tmp_path):
    averaged, released = tmp_path / "averaged.pt", tmp_path / "released.pt"
    run_main("average_models", ["-models", str(entmax_model), str(entmax_model), "-output", str(averaged)])
    run_main("release_model", ["--model", str(entmax_model), "--output", str(released)])
    lines = corpus.sources[:3]
    assert (
        corpus.translate(averaged, lines) == corpus.translate(released, lines) == corpus.translate(entmax_model, lines)
    )
    assert torch.load(entmax_model, weights_only=False)["optim"] is not None
    content = torch.load(released, weights_only=False)
    assert content.keys() == {"model", "generator", "vocab", "opt", "optim"} and content["optim"] is None


class Bomb:
    def __reduce__(self):
        return os.system, ("touch exploded",)


@pytest.mark.parametrize(("command", "option"), [("average_models", "-models"), ("release_model", "--model")])
def test_what_cannot_be_loaded_or_written_is_one_line(command, option, entmax_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model": Bomb()}, "evil.pt")
    write(tmp_path / "text.pt", ["no checkpoint"])
    for name, message in (
        ("evil.pt", r"Refused to load evil\.pt: it would run code"),
        ("text.pt", r"Cannot load text\.pt: it is truncated, or not a checkpoint"),
        ("none.pt", r"Cannot load none\.pt: there is no such file"),
        (".", r"Cannot load \.: it is a folder"),
    ):
        with pytest.raises(UserError, match=message):
            run_main(command, [option, name, "-output", "out.pt"])
    with pytest.raises(UserError, match="Invalid setting for `output`: .*It is a folder"):
        run_main(command, [option, str(entmax_model), "-output", str(tmp_path)])
    with pytest.raises(UserError, match="Unknown option `outptu`. Did you mean `output`"):
        run_main(command, [option, str(entmax_model), "-output", "out.pt", "-outptu"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.pt", "text.pt"]


@pytest.mark.parametrize(("command", "option"), [("average_models", "models"), ("release_model", "model")])
def test_a_model_is_not_overwritten(command, option, tmp_path):
    path = model(tmp_path / "one.pt", torch.zeros(2))
    with pytest.raises(UserError, match=f"`output`: .*It is the input of `{option}`"):
        run_main(command, [f"--{option}", path, "--output", str(tmp_path / "." / "one.pt")])


def test_a_conversion_takes_the_place_of_nothing_else(softmax_model, tmp_path):
    """CTranslate2 removes the folder that it writes to, hidden files too."""
    folder = tmp_path / "run"
    folder.mkdir()
    words = ["--model", str(softmax_model), "--format", "ctranslate2", "--output"]
    for name in ("m.pt", ".hidden"):
        (folder / name).touch()
        with pytest.raises(UserError, match=f"`output`: .*It holds {name}, and would be replaced. Name a new folder"):
            run_main("release_model", [*words, str(folder)])
        (folder / name).unlink()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="`output`: .*It is a file. Name a new folder"):
        run_main("release_model", [*words, str(tmp_path / "file")])


@pytest.mark.parametrize(
    ("name", "words"), [("average_models", ["-m", "evil.pt", "evil.pt"]), ("release_model", ["-m", "evil.pt"])]
)
def test_the_same_as_a_module(name, words, tmp_path):
    torch.save({"opt": Bomb(), "vocab": {}, "model": {}, "generator": {}}, tmp_path / "evil.pt")
    command = [sys.executable, "-m", f"onmt.bin.{name}", *words, "-o", "out.pt"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    said = f"onmt_{name}: Refused to load evil.pt: it would run code (posix system).\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
    assert os.listdir(tmp_path) == ["evil.pt"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-n_sampel", "5"], "Unknown option `n_sampel`.*Did you mean `n_sample`"),
        (["-n_sample", "0"], "Invalid setting for `n_sample`: 0"),
        (["-src_vocab", "{folder}/vocab"], "Invalid setting for `src_vocab`: .*The file exists; `overwrite`"),
    ],
)
def test_build_vocab_uses_every_option_or_refuses_it(corpus, tmp_path, words, message):
    given = [word.format(folder=corpus.folder) for word in words]
    files = ["-save_data", str(tmp_path / "s"), "-src_vocab", str(tmp_path / "v"), "-tgt_vocab", str(tmp_path / "w")]
    with pytest.raises(UserError, match=message):
        run_main("build_vocab", ["-data", corpus.data(), *files, "-n_sample", "-1", *given])
