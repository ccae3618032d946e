"""Twenty steps are ten and ten, bit for bit: weights, optimizer, generators, position, schedule, stop rule."""

from __future__ import annotations

import json

import pytest
import torch

from onmt_entmax.plugin.train.saver import KEY
from tests.plugin.train.helpers import assert_identical, config, load, train

# times differ between runs, and so do the names of files
TIMES = ("/elapsed", "/kept")
FOLLOWING = {
    "decay_method": "valid_loss",
    "early_stopping": 50,
    "early_stopping_criteria": "[accuracy, support_output]",
    "keep_best": "true",
}


def both_ways(folder, steps: int, cut: int, *arguments: str, **changes):
    """Checkpoints at ``steps`` of a run that never stopped, and of one that was resumed at ``cut``."""
    yaml = config(folder, **changes)
    whole = train(yaml, folder / "whole" / "m", steps, *arguments)
    train(yaml, folder / "parts" / "m", cut, *arguments)
    parts = train(yaml, folder / "parts" / "m", steps, "-train_from", f"{folder}/parts/m_step_{cut}.pt", *arguments)
    return whole, parts


def assert_same_run(whole, parts) -> None:
    for key in ("model", "generator", "optim", KEY):
        assert_identical(whole[key], parts[key], skip=TIMES)


@pytest.mark.parametrize("cut", [10, 13])
def test_resumed_equals_uninterrupted(folder, cut):
    whole, parts = both_ways(folder, 20, cut, **FOLLOWING)
    assert_same_run(whole, parts)


def test_metrics_are_the_same(folder):
    both_ways(folder, 20, 10, **FOLLOWING)
    entries = []
    for name in ("whole", "parts"):
        lines = (folder / name / "m_metrics.jsonl").read_text(encoding="utf-8").split("\n")
        assert lines.pop() == ""
        entries.append([json.loads(line) for line in lines])
        for entry in entries[-1]:
            del entry["elapsed"], entry["words_per_second"]
    assert [entry["step"] for entry in entries[0]] == [4, 8, 12, 16, 20]
    assert entries[0] == entries[1]
    assert_identical(load(folder / "whole" / "m_best.pt")["model"], load(folder / "parts" / "m_best.pt")["model"])


def test_accumulation_averaging_and_changing_dropout(folder):
    whole, parts = both_ways(
        folder,
        12,
        5,
        accum_count="[2, 3]",
        accum_steps="[0, 7]",
        average_decay=0.2,
        average_every=2,
        dropout="[0.1, 0.5]",
        dropout_steps="[0, 3]",
        attention_dropout="[0.1, 0.1]",
        label_smoothing=0.1,
    )
    assert_same_run(whole, parts)
    raw = parts[KEY]["raw_weights"]
    assert any(not torch.equal(raw[name], parts["model"][name]) for name in parts["model"])


def test_two_runs_with_one_seed_are_identical(folder):
    yaml = config(folder, **FOLLOWING)
    first = train(yaml, folder / "first" / "m", 8)
    second = train(yaml, folder / "second" / "m", 8)
    assert_same_run(first, second)
    # 0 is a seed like any other
    zeros = [train(yaml, folder / name / "m", 2, "-seed", "0") for name in ("zero", "nought")]
    assert_same_run(*zeros)
    other = train(yaml, folder / "other" / "m", 8, "-seed", "8")
    assert any(not torch.equal(first["model"][name], other["model"][name]) for name in first["model"])
