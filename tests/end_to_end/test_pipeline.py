"""The main job through stock's console scripts: prepare, train, decode with certificates, evaluate; bad input too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.installed import call, needs_installation

pytestmark = needs_installation
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Bundled data, prepared, and a 1.5-entmax model trained on it for a few steps."""
    folder = tmp_path_factory.mktemp("run")
    done = call("onmt_entmax", "prepare", "inflection", "--data", ROOT / "data/inflection", "--output", folder / "data")
    assert done.returncode == 0, done.stderr
    assert train(folder, "model", "-generator_function", "entmax15", "-global_attention_function", "entmax15") == (
        0,
        "",
    )
    return folder


def train(folder: Path, name: str, *extra: str) -> tuple[int, str]:
    """Train a tiny model; returns the exit status and what went wrong."""
    config = folder / f"{name}.yaml"
    text = (folder / "data/data.yaml").read_text(encoding="utf-8")
    config.write_text(text + (ROOT / "configs/quickstart.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    words = ["-config", config, "-save_model", folder / name, "-hidden_size", 24, "-word_vec_size", 16]
    words += ["-train_steps", 10, "-valid_steps", 5, "-report_every", 5, "-save_checkpoint_steps", 5]
    words += ["-keep_checkpoint", 9, *extra]
    done = call("onmt_train", *words)
    return done.returncode, "" if done.returncode == 0 else done.stderr


def translate(folder: Path, *extra: object):
    source = folder / "input.src"
    lines = (folder / "data/test.src").read_text(encoding="utf-8").split("\n")[:20]
    source.write_text("".join(f"{line}\n" for line in [*lines[:10], "", *lines[10:]]), encoding="utf-8")
    return call("onmt_translate", "-src", source, "-output", folder / "test.pred", "-max_length", 12, *extra)


def test_decode_with_certificates_and_evaluate(run):
    certificates = run / "test.jsonl"
    done = call(
        "onmt_translate", "-model", run / "model_step_10.pt", "-src", run / "data/test.src", "-max_length", 12,
        "-output", run / "all.pred", "-certificates", certificates, "-batch_size", 64,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Certificates: complete" in done.stderr
    gold = (run / "data/test.src").read_text(encoding="utf-8").count("\n")
    assert certificates.read_text(encoding="utf-8").count("\n") == gold
    done = call(
        "onmt_entmax", "evaluate", "inflection", "--gold", run / "data/test", "--predictions", run / "all.pred",
        "--certificates", certificates, "--json", run / "evaluation.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    macro = json.loads((run / "evaluation.json").read_text(encoding="utf-8"))["macro"]
    assert 0 <= macro["acc"] <= 100 and 0 <= macro["complete"] <= 100


def test_blank_lines_stay_in_place(run):
    assert translate(run, "-model", run / "model_step_10.pt").returncode == 0
    lines = (run / "test.pred").read_text(encoding="utf-8").split("\n")
    assert len(lines) == 22 and lines[10] == "" and lines[21] == ""


def test_resuming_without_the_options_keeps_alpha(run):
    extra = ["-train_from", run / "model_step_10.pt", "-train_steps", 15]
    assert train(run, "resumed", *extra) == (0, "")
    done = call(
        "onmt_entmax", "sparsity", "--model", run / "resumed_step_15.pt", "--src_text", "<tag:V> d r a w",
        "--tgt_text", "d r e w",
    )  # fmt: skip
    assert "alpha:1.5/1.5" in done.stdout
    status, error = train(run, "refused", *extra, "-generator_function", "sparsemax")
    assert status == 2 and "The checkpoint in `train_from` was trained with 1.5" in error


def test_average_and_release_keep_alpha(run):
    models = [run / "model_step_5.pt", run / "model_step_10.pt"]
    done = call("onmt_average_models", "-models", *models, "-output", run / "average.pt")
    assert done.returncode == 0, done.stderr
    done = call("onmt_release_model", "--model", run / "average.pt", "--output", run / "released.pt")
    assert done.returncode == 0, done.stderr
    assert translate(run, "-model", run / "released.pt").returncode == 0
    assert translate(run, "-model", run / "released.pt", run / "model_step_10.pt").returncode == 0


def test_mistakes_end_with_one_line_and_status_2(run, tmp_path):
    evil = tmp_path / "short.pt"
    evil.write_bytes((run / "model_step_10.pt").read_bytes()[:5000])
    before = (run / "test.pred").read_bytes() if (run / "test.pred").exists() else None
    for model, message in ((run / "none.pt", "there is no such file"), (evil, "it is truncated")):
        done = translate(run, "-model", model)
        assert done.returncode == 2
        last = done.stderr.strip().split("\n")[-1]
        assert last.startswith("onmt_translate: Cannot load") and message in last
        assert "Traceback" not in done.stderr
    assert before is None or (run / "test.pred").read_bytes() == before, "a failed command overwrote predictions"
    bad = tmp_path / "bad.src"
    bad.write_bytes(b"a b\n\xff\n")
    done = call("onmt_translate", "-model", run / "model_step_10.pt", "-src", bad, "-output", tmp_path / "out")
    assert done.returncode == 2
    assert "bad.src, line 2: not valid UTF-8" in done.stderr.strip().split("\n")[-1]
