"""The grid through its front: two pairs, two seeds, two languages to the final table, killed once; wrong settings."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onmt_entmax.errors import UserError
from tests.installed import needs_installation

pytestmark = [
    needs_installation,
    pytest.mark.skipif(importlib.util.find_spec("snakemake") is None, reason="snakemake is not installed"),
]
ROOT = Path(__file__).parents[2]
CONFIG = """
encoder_type: brnn
decoder_type: rnn
rnn_type: LSTM
global_attention: general
layers: 1
hidden_size: 16
word_vec_size: 16
optim: adam
learning_rate: 0.01
batch_type: sents
batch_size: 16
bucket_size: 512
num_workers: 0
train_steps: 20
valid_steps: 5
report_every: 5
keep_checkpoint: 9
"""
RUNS = [f"runs/{pair}/seed{seed}" for pair in ("1_1", "1.5_2") for seed in (1, 2)]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Every so many rows of the bundled data under the names of the medium setting, and a tiny configuration."""
    folder = tmp_path_factory.mktemp("grid")
    (folder / "corpus").mkdir()
    for language in ("english", "spanish"):
        for split, name, step in (("train", "train-medium", 15), ("dev", "dev", 30), ("test", "test", 30)):
            rows = (ROOT / f"data/inflection/{language}-{split}").read_text(encoding="utf-8").split("\n")[:-1]
            text = "".join(f"{row}\n" for row in rows[::step])
            (folder / "corpus" / f"{language}-{name}").write_text(text, encoding="utf-8")
    (folder / "tiny.yaml").write_text(CONFIG, encoding="utf-8")
    (folder / "tokens.yaml").write_text(CONFIG.replace("sents", "tokens"), encoding="utf-8")
    (folder / "own.yaml").write_text(CONFIG + "train_from: old.pt\n", encoding="utf-8")
    (folder / "text.yaml").write_text(CONFIG.replace("valid_steps: 5", "valid_steps: 1e4"), encoding="utf-8")
    (folder / "empty.yaml").write_text(CONFIG.replace("batch_size: 16", "batch_size: 0"), encoding="utf-8")
    (folder / "untested").mkdir()
    for file in (folder / "corpus").iterdir():
        text = "" if file.name == "english-test" else file.read_text(encoding="utf-8")
        (folder / "untested" / file.name).write_text(text, encoding="utf-8")
    (folder / "broken").mkdir()
    (folder / "broken/manifest.json").write_text('{"setting": ', encoding="utf-8")
    return folder


def words(place: Path, *extra: str) -> list[str]:
    pairs = ["--pairs", "1/1", "1.5/2", "--seeds", "1", "2"]
    files = ["--data", "corpus", "--config", "tiny.yaml", "--output", "out", "--task-name", "bundled"]
    mixed = ["--ensembles", "1.5/2,1/1", "1/1:2,1.5/2:1"]
    return ["inflection", "medium", *pairs, *mixed, *files, "--jobs", "1", "--max-length", "8", *extra]


def start(place: Path, *extra: str) -> subprocess.Popen:
    """Start the shell script in a process group of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ONMT_ENTMAX_VENV": str(Path(sys.executable).parents[1])}
    return subprocess.Popen(
        ["bash", str(ROOT / "scripts/reproduce_inflection.sh"), *words(place, *extra)[1:]], cwd=place, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", start_new_session=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(place) -> str:
    """What the second start of the grid said, after the first was killed in its second training."""
    with start(place) as first:
        seen = ""
        for line in first.stdout:
            seen += line
            # the second training has a whole checkpoint and begins to write its next one
            if seen.count("saves step 10") == 2:
                os.killpg(first.pid, signal.SIGKILL)
                break
    out = place / "out"
    done = [name for name in RUNS if (out / name / "trained.json").exists()]
    assert len(done) == 1, seen
    logs = {name: (out / name / "train.log").read_bytes() for name in done}

    with start(place) as second:
        said = second.stdout.read()
    assert second.returncode == 0, said
    assert re.search(r"grid: runs/\S+ goes on from step (5|10)\n", said), said
    assert all((out / name / "train.log").read_bytes() == log for name, log in logs.items()), "trained again"
    return said


def test_grid_to_the_table_killed_once(place, finished):
    said, out = finished, place / "out"
    for name in RUNS:
        trained = json.loads((out / name / "trained.json").read_text(encoding="utf-8"))
        assert trained["last_step"] == 20
        steps = [json.loads(line)["step"] for line in (out / name / "model_metrics.jsonl").read_text().split("\n")[:-1]]
        assert steps == [5, 10, 15, 20]
        # 13 dev rows of English (365 / 30, rounded up), 11 of Spanish (308 / 30)
        certificates = (out / name / "dev.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
        assert [json.loads(line)["line"] for line in certificates] == list(range(1, 25))
        assert (out / name / "dev.pred").read_text(encoding="utf-8").count("\n") == 24

    table = (out / "table1.md").read_text(encoding="utf-8")
    assert table in said and "Ours: averages of 2 runs. ±" in table
    signature = "acc|task:bundled|set:medium|split:test|langs:2|avg:macro|alpha:1.5/2|seed:1+2|steps:20|"
    assert signature in table
    rows = [re.sub(" +", " ", line) for line in table.split("\n")]
    row = next(line for line in rows if "| 84.93 |" in line and "| 86.59 |" in line)  # the paper's 1.5/2
    ours = [json.loads((out / f"runs/1.5_2/seed{seed}/test.json").read_text())["macro"]["acc"] for seed in (1, 2)]
    assert f"{sum(ours) / 2:.2f}" in row
    for name in RUNS:  # what figures.sh and `overview` look for
        assert (out / name / "evaluation.json").read_bytes() == (out / name / "test.json").read_bytes()
        assert json.loads((out / name / "sparsity.json").read_text(encoding="utf-8"))["lines"] == 24
    chosen = json.loads((out / "ensembles/chosen.json").read_text(encoding="utf-8"))
    assert set(chosen["dev"]) == {"1.5_2-1+2,1_1-1+2", "1.5_2-1,1_1-2"}
    assert chosen["dev"][chosen["name"]] == max(chosen["dev"].values())
    (tested,) = (out / "ensembles").glob("*/test.json")  # the best on dev alone
    assert tested.parent.name == chosen["name"]
    result = json.loads(tested.read_text(encoding="utf-8"))
    assert result["comparison"]["other"] == f"{chosen['single']}/test.pred"
    # in table 1, in the list of candidates, and scored with the training rows
    assert f"ensemble of {chosen['name'].replace('_', '/').replace('-', ':').replace(',', ', ')}" in table
    ensembles = (out / "ensembles.md").read_text(encoding="utf-8")
    assert ensembles in said and ensembles.count("split:dev") == 2 and "+1+2|steps:20|" in ensembles + table
    assert result["signatures"]["lemma_seen"] in (out / "ensembles" / chosen["name"] / "decode.log").read_text()
    paragraph = (out / "sparsity.md").read_text(encoding="utf-8")
    assert "| 1.5/2 |" in paragraph and paragraph.count("split:dev") == 4 and "66%" in paragraph


def test_plan_of_a_finished_grid_and_of_a_larger_one(place, finished, capsys, grid, monkeypatch):
    monkeypatch.chdir(place)
    assert grid.main(words(place, "--dry-run")) == 0
    said = capsys.readouterr().out
    assert "train: 4 (4 done)" in said and "ensemble: 2 (2 done)" in said and "time left" not in said
    assert "candidate: 2 (2 done)" in said and "chosen: 1 (1 done)" in said and "so far" not in said
    assert grid.main(words(place, "--dry-run", "--seeds", "1", "2", "3")) == 0
    said = capsys.readouterr().out
    assert "train: 6 (4 done)" in said and "measured in 4 runs of this grid" in said
    assert "time left for decoding" in said and "measured in 4 decodings" in said
    # of single models 4 of 6, 2 ensembles of a pair, and no mixed one: the candidates are others
    assert "6 of 8 results so far:" in said and "Single models, 1/1 medium:" in said
    assert not (place / "out/runs/1_1/seed3").exists()
    assert grid.main(words(place, "--dry-run", "--steps", "40")) == 0
    said = capsys.readouterr().out
    assert "at most 40 steps" in said and "train: 4 (0 done)" in said and "time left for training" in said
    assert grid.main([*words(place), "--", "--dry-run"]) == 0  # Snakemake's own


@pytest.fixture
def grid(monkeypatch):
    """The module behind the shell scripts."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts/workflow"))
    return importlib.import_module("grid")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["inflection", "tiny"], "Invalid setting for `setting`: tiny. Valid choices: low, medium, high."),
        (["translation", "de-fr"], "Invalid setting for `direction`: de-fr. Valid choices: de-en, en-de, ja-en, "),
        (["paraphrase", "medium"], "Invalid setting for `task`: paraphrase. Valid choices: inflection, translation,"),
        (["--languages", "english", "klingon"], "klingon-dev. Valid choices: english, spanish."),
        (["--pairs", "1.5"], "Invalid setting for `pairs`: 1.5. Alphas are at least 1, written OUTPUT/ATTENTION"),
        (["--pairs", "0.5/1"], "Invalid setting for `pairs`: 0.5/1."),
        (["--alphas", "1"], "Invalid setting for `alphas`: 1. It is for alpha-grid"),
        (["--seeds", "one"], "Invalid setting for `seeds`: one. It must be a whole number of at least 0."),
        (["--steps", "0"], "Invalid setting for `steps`: 0. It must be a whole number of at least 1."),
        (["--average", "1"], "Invalid setting for `average`: 1. It must be a whole number of at least 2."),
        (["--average", "3", "--epochs", "2"], "`average`: 3. A training of 2 epochs has as many checkpoints, an epoch"),
        (["--steps", "9", "--epochs", "2"], "--steps and --epochs: give one of the two."),
        (["--data", "nowhere"], "Invalid setting for `data`: nowhere."),
        (["--config", "empty.yaml"], "`batch_size`: 0. In empty.yaml it must be a whole number of at least 1."),
        (["--config", "text.yaml"], "`valid_steps`: '1e4'. In text.yaml it must be a whole number of at least 1."),
        (["--config", "own.yaml"], "own.yaml: `train_from` has no place in a grid's configuration."),
        (["--config", "none.yaml"], "Invalid setting for `config`: none.yaml. There is no such file"),
        (["--gpus", "99"], "Invalid setting for `gpus`: 99. PyTorch sees"),
        (["--profile", "corpus"], "Invalid setting for `profile`: corpus. It has no config.yaml"),
        (["--corpus", "kftt"], "Invalid setting for `corpus`: kftt. It is for translation."),
        (["translation", "de-en", "--task-name", "x"], "Invalid setting for `task-name`: x. It is for inflection."),
        (["--data", "untested"], "english has no test set (english-test), which a grid scores its models on."),
        (["translation", "en-ja", "--corpus", "plain"], "`corpus`: plain. Run `onmt_entmax prepare translation"),
        (["translation", "en-ja", "--corpus", "tatoeba"], "tatoeba. Valid choices: iwslt17, "),
        (["--prepared", "broken"], "manifest.json is no manifest of `onmt_entmax prepare`"),
        (["--config", "tokens.yaml", "--epochs", "2"], "`batch_type`: tokens. Epochs are known for `sents` only: give"),
        (["--raw-tokenizer", "13a"], "Invalid setting for `raw-tokenizer`: 13a. It is for translation."),
        (["translation", "de-en", "--raw-tokenizer", "moses"], "`--raw-tokenizer`: moses. Valid choices: 13a, ja-"),
        (
            ["--ensembles", "1/1:1,1.5/2:4"],
            "`ensembles`: 1/1:1,1.5/2:4. '4' is no seed of this grid. Valid choices: 1, 2.",
        ),
        (["--ensembles", "1/1,2/2"], "2/2 is no pair of this grid. Valid choices: 1/1, 1.5/2."),
        (["--ensembles", "1/1,1/1:2"], "1/1 with seed 2 is in it twice."),
        (["--ensembles", "1/1:1"], "`ensembles`: 1/1:1. It has one member."),
        (["translation", "de-en"], "Invalid setting for `ensembles`: 1.5/2,1/1 1/1:2,1.5/2:1. It is for inflection."),
        (["--prepared", "corpus"], "Invalid setting for `prepared`: corpus. It has no manifest.json"),
    ],
)
def test_mistakes_are_one_line(place, tmp_path, monkeypatch, capsys, grid, changed, message):
    monkeypatch.chdir(place)
    given = words(place, "--output", str(tmp_path / "out"))
    if changed[0] == "translation":
        given = [word for word in given if word not in ("--task-name", "bundled")]
    given = [*changed, *given[2:]] if not changed[0].startswith("-") else [*given, *changed]
    assert grid.main(given) == 2
    error = capsys.readouterr().err
    assert error.startswith("grid: ") and message in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_too_short_a_training_of_prepared_text_is_refused_at_once(place, tmp_path, monkeypatch, capsys, grid):
    monkeypatch.chdir(place)
    (tmp_path / "manifest.json").write_text('{"setting": "medium", "rows": {"train": 160}}', encoding="utf-8")
    given = ["inflection", "medium", "--config", "tiny.yaml", "--prepared", str(tmp_path), "--average", "3"]
    assert grid.main(given) == 2
    assert "`average`: 3. A training of 20 steps has 2, one every 10 steps." in capsys.readouterr().err
    for rows in ("", ', "rows": {}', ', "rows": null'):
        (tmp_path / "manifest.json").write_text(f'{{"setting": "medium"{rows}}}', encoding="utf-8")
        assert grid.main(given) == 2
        assert "manifest.json does not say how many lines of training text there are" in capsys.readouterr().err


def test_no_home_and_odd_characters_in_paths(place, tmp_path, monkeypatch, capfd, grid):
    monkeypatch.chdir(place)
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    out = tmp_path / "out {x} $y"
    assert grid.main(words(place, "--output", str(out), "--", "--dry-run")) == 0, capfd.readouterr().err
    assert (out / ".cache/snakemake").is_dir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    assert grid.environment(out)["XDG_CACHE_HOME"] == str(tmp_path / "mine")
    # text prepared elsewhere is named by its whole path, which Snakemake cannot take
    assert grid.main(["inflection", "medium", "--config", "tiny.yaml", "--prepared", str(tmp_path / "{x}")]) == 2
    assert "Its path must not have braces" in capfd.readouterr().err


def test_a_failed_grid_shows_what_it_has_and_an_interrupted_one_says_so(place, tmp_path, monkeypatch, capsys, grid):
    monkeypatch.chdir(place)
    result = {"signatures": {"acc": "acc|set:medium|split:test|langs:2|alpha:1/1|seed:2"}, "macro": {"acc": 12.5}}
    path = tmp_path / "runs/1_1/seed2/test.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(result), encoding="utf-8")
    monkeypatch.setattr(grid, "run", lambda *_: 1)
    assert grid.main(words(place, "--output", str(tmp_path))) == 1
    said = capsys.readouterr().out
    # four single models and two ensembles of a pair are wanted; which mixed one is not known before all are there
    assert "1 of 6 results so far:" in said and "12.50" in said and "Ours: one run each." in said

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(grid, "run", interrupted)
    assert grid.main(words(place, "--output", str(tmp_path))) == 130
    assert capsys.readouterr().err == "grid: interrupted; the same command goes on where it was\n"


def test_a_folder_holds_models_of_one_kind(place, tmp_path, monkeypatch, capsys, grid):
    monkeypatch.chdir(place)
    out = tmp_path / "out"
    out.mkdir()
    args, _ = grid.parse(words(place, "--output", str(out)))
    (out / "grid.json").write_text(json.dumps(grid.settings(args)[0]), encoding="utf-8")
    grid.check_output(grid.settings(args)[0], out)
    for extra, message in (
        (["--languages", "english"], "was made with another data or languages."),
        (["--config", str(ROOT / "configs/quickstart.yaml")], "was made with another configuration."),
        (["--average", "2"], "was made with another --average."),
    ):
        assert grid.main(words(place, "--output", str(out), *extra)) == 2
        assert message in capsys.readouterr().err


def test_a_corpus_that_has_changed_is_refused(place, tmp_path, monkeypatch, capsys, grid):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(place / "corpus", tmp_path / "corpus")
    shutil.copy(place / "tiny.yaml", tmp_path)
    args, _ = grid.parse(words(tmp_path))
    settings, out = grid.settings(args)
    out.mkdir()
    (out / "grid.json").write_text(json.dumps(settings), encoding="utf-8")
    monkeypatch.chdir(out)
    grid.jobs.prepare(settings)
    grid.check_output(settings, out)
    with pytest.raises(UserError, match="`valid-steps`: 7. .*out was made with 5; its models would not be alike."):
        grid.check_output({**settings, "length": {**settings["length"], "valid_steps": 7}}, out)
    with open(tmp_path / "corpus/spanish-dev", "a", encoding="utf-8") as dev:
        dev.write("hablar\thablo\tV;IND;PRS;1;SG\n")
    with pytest.raises(UserError, match=r"out was prepared from another spanish-dev than there is now in .*/corpus\."):
        grid.check_output(settings, out)
    data = tmp_path / "out" / "data"
    grid.jobs._check_unchanged(data, grid.jobs.SEEN)
    with open(data / "train.src", "a", encoding="utf-8") as text:
        text.write("a\n")
    with pytest.raises(UserError, match="data/train.src has changed since `onmt_entmax prepare` wrote it"):
        grid.jobs.train(settings, "1_1", "1")


def test_prepared_text_must_be_what_is_asked_for(place, tmp_path, monkeypatch, capsys, grid):
    monkeypatch.chdir(place)
    (tmp_path / "manifest.json").write_text('{"direction": "en-de"}', encoding="utf-8")
    assert grid.main(["translation", "de-en", "--prepared", str(tmp_path), "--config", "tiny.yaml"]) == 2
    assert "Its direction is en-de, not de-en." in capsys.readouterr().err
    given = ["translation", "en-de", "--prepared", str(tmp_path), "--config", "tiny.yaml", "--data", "corpus"]
    assert grid.main(given) == 2
    assert "--prepared and --data: give one of the two." in capsys.readouterr().err
    assert grid.main([*given[:-2], "--task-name", "x"]) == 2
    assert "--prepared and --task-name: give one of the two." in capsys.readouterr().err
    assert grid.main(["alpha-grid", *given[1:-2], "--max-length", "9"]) == 2
    assert "Invalid setting for `max-length`: 9. alpha-grid decodes nothing." in capsys.readouterr().err


def test_a_missing_tokeniser_is_found_out_before_training(place, monkeypatch, capsys, grid):
    monkeypatch.chdir(place)
    monkeypatch.setitem(sys.modules, "MeCab", None)
    given = ["translation", "en-ja", "--config", "tiny.yaml", "--data", "corpus"]
    assert grid.main(given) == 2
    assert "pip install mecab-python3; or choose `--raw-tokenizer char`" in capsys.readouterr().err
    args, _ = grid.parse([*given, "--raw-tokenizer", "char"])
    assert grid.raw_tokenizer(args) == "char"


def test_epochs_become_steps(grid):
    settings = {"batch_size": 16, "train_steps": 20, "valid_steps": 5}
    nothing = {"steps": None, "epochs": None, "valid_steps": None, "valid_epochs": None}
    # 100 rows are 7 batches of 16, for two processes 4
    for wanted, processes, train, valid in (
        ({}, 1, 20, 5),
        ({"epochs": 3}, 1, 21, 5),
        ({"epochs": 3, "valid_epochs": 1}, 1, 21, 7),
        ({"epochs": 3}, 2, 12, 5),
        ({"steps": 4}, 1, 4, 4),
    ):
        one = {"settings": {**settings, "world_size": processes}, "length": {**nothing, **wanted}, "gpus": 0}
        found = grid.jobs.lengths(one, 100)
        assert (found["train_steps"], found["valid_steps"]) == (train, valid)
    assert found["save_checkpoint_steps"] == 4
    one = {"settings": settings, "length": {**nothing, "epochs": 2}, "gpus": 0, "average": 2}
    assert grid.jobs.lengths(one, 100)["save_checkpoint_steps"] == 7  # an epoch
    with pytest.raises(UserError, match="`average`: 3. A training of 14 steps has 2, one every 7 steps."):
        grid.jobs.lengths({**one, "average": 3}, 100)
    with pytest.raises(UserError, match="`steps`: 20. Checkpoints 7 steps apart are averaged: .*such as 14."):
        grid.jobs.lengths({**one, "length": nothing}, 100)


def test_weights_are_averaged_over_the_last_epochs(grid, place, tmp_path, monkeypatch):
    import torch

    monkeypatch.chdir(place)
    args, _ = grid.parse(words(place, "--output", str(tmp_path), "--average", "2", "--epochs", "3"))
    settings, _ = grid.settings(args)
    settings["settings"]["keep_checkpoint"] = 1
    monkeypatch.chdir(tmp_path)
    grid.jobs.prepare(settings)
    epoch = 23  # 362 rows in batches of 16
    grid.jobs.train(settings, "1.5_2", "1")
    grid.jobs.decode(settings, "1.5_2", "1")
    folder = tmp_path / "runs/1.5_2/seed1"
    last = [folder / f"model_step_{number * epoch}.pt" for number in (2, 3)]
    kept = [folder / f"model_step_{number * epoch}.pt" for number in (1, 2, 3)]
    assert sorted(folder.glob("model_step_*.pt")) == sorted(kept)
    # what an early stop leaves between two epochs is no member of the mean
    shutil.copy(last[1], folder / f"model_step_{3 * epoch + 5}.pt")
    grid.jobs._average(folder, 2, epoch)
    (folder / f"model_step_{3 * epoch + 5}.pt").unlink()
    checkpoints = [torch.load(path, weights_only=False) for path in [*last, folder / "model_average.pt"]]
    weights = [checkpoint["generator"]["weight"] for checkpoint in checkpoints]
    assert torch.allclose((weights[0] + weights[1]) / 2, weights[2], atol=1e-7)
    assert not torch.equal(weights[1], weights[2])
    result = json.loads((folder / "test.json").read_text(encoding="utf-8"))
    assert f"|steps:{3 * epoch}|recipe:mean of 2 checkpoints|" in result["signatures"]["acc"]
    assert "runs/1.5_2/seed1/model_average.pt" in (folder / "decode.log").read_text(encoding="utf-8")
    grid.jobs.sparsity(settings, "1.5_2", "1")
    measured = json.loads((folder / "sparsity.json").read_text(encoding="utf-8"))
    assert "|alpha:1.5/2|recipe:mean of 2 checkpoints|" in measured["signature"]
    # its validations, every 5 steps, end at 65
    assert grid.jobs._summary(folder, 3 * epoch)["last_step"] == 3 * epoch
    kept[0].unlink(), last[0].unlink()
    with pytest.raises(UserError, match="`average`: 2. runs/1.5_2/seed1 has 1 whole checkpoints."):
        grid.jobs.train(settings, "1.5_2", "1")
    manifest = tmp_path / "data/manifest.json"
    about = json.loads(manifest.read_text(encoding="utf-8"))
    about["outputs"]["train.src"] = "0" * 64  # prepared again, in another way
    manifest.write_text(json.dumps(about), encoding="utf-8")
    with pytest.raises(UserError, match="runs/1.5_2/seed1 was trained on another train.src than .*/data has now: give"):
        grid.jobs.train(settings, "1.5_2", "1")


def test_scores_say_how_long_was_trained(grid, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain, other = "measure:valid|smoothing:0|average:0", "measure:valid|smoothing:0.1|average:0.001"
    for seed, last, signature in ((1, 20, plain), (2, 20, plain), (3, 35, plain), (4, 20, other)):
        (tmp_path / f"runs/1_1/seed{seed}").mkdir(parents=True)
        trained = json.dumps({"last_step": last, "signature": signature})
        (tmp_path / f"runs/1_1/seed{seed}/trained.json").write_text(trained, encoding="utf-8")
    said = []
    monkeypatch.setattr(grid.jobs, "call", lambda words, log, **_: said.append(list(map(str, words))))
    own = {"data": "data", "raw_tokenizer": "13a", "settings": {"encoder_type": "brnn"}}
    for seeds, steps in (([1, 2], "20"), ([1, 3], "20,35")):
        grid.jobs.evaluate({**own, "seeds": seeds}, "1_1")
        assert said[-1][said[-1].index("--steps") + 1] == steps
        assert "--recipe" not in said[-1]
    grid.jobs.evaluate({**own, "seeds": [4], "settings": {"encoder_type": "transformer"}}, "1_1")
    assert said[-1][said[-1].index("--recipe") + 1] == "encoder transformer, smoothing 0.1, average 0.001"


def test_newest_whole_checkpoint(grid, tmp_path, capsys):
    import torch

    for step in (5, 10, 100):
        torch.save({"step": step}, tmp_path / f"model_step_{step}.pt")
    assert grid.jobs.newest_checkpoint(tmp_path).name == "model_step_100.pt"
    cut = tmp_path / "model_step_100.pt"
    cut.write_bytes(cut.read_bytes()[:-30])
    for _ in range(2):
        assert grid.jobs.newest_checkpoint(tmp_path).name == "model_step_10.pt"
    assert capsys.readouterr().out == f"grid: {cut} is not whole: passed over\n"


def test_a_gpu_each(grid, tmp_path, monkeypatch):
    assert [grid.jobs.own_gpus({"gpus": 2, "cluster": cluster}) for cluster in (False, True)] == [2, 0]
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")  # a pod with two GPUs is one machine
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    with grid.jobs.device(2) as (first, _), grid.jobs.device(2) as (second, _):
        assert (first, second) == ({"CUDA_VISIBLE_DEVICES": "4"}, {"CUDA_VISIBLE_DEVICES": "7"})
        with pytest.raises(ValueError, match="none of the 2 GPUs is free"), grid.jobs.device(2):
            pass
    with grid.jobs.device(2) as (again, _):
        assert again == {"CUDA_VISIBLE_DEVICES": "4"}
