"""Two processes over gloo: one validates, both follow; their checkpoint holds the position of both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from onmt_entmax.plugin.train.saver import KEY
from onmt_entmax.report.metrics import read_rows
from tests.plugin.train.helpers import assert_identical, load

ROOT = Path(__file__).resolve().parents[3]


def test_two_processes(folder):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "tests.plugin.train.two_processes"]
    processes = [
        subprocess.Popen([*command, str(rank), str(folder)], env=env, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=600)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors[0][-3000:] + errors[1][-3000:]

    whole, parts = load(folder / "whole" / "m_step_8.pt"), load(folder / "parts" / "m_step_8.pt")
    for key in ("model", "generator", "optim", KEY):
        assert_identical(whole[key], parts[key], skip=("/elapsed", "/kept"))
    ranks = whole[KEY]["ranks"]
    assert len(ranks) == 2
    # each draws its own dropout and reads its own lines
    assert not torch.equal(ranks[0]["position"]["random"]["torch"], ranks[1]["position"]["random"]["torch"])
    assert [rank["position"]["data"]["settings"]["rank"] for rank in ranks] == [0, 1]

    entries = read_rows(folder / "stopped" / "m_metrics.jsonl")
    best = max(range(len(entries)), key=lambda i: (entries[i]["accuracy"], -i))
    assert len(entries) == best + 1 + 3  # three validations without a new best
    assert (folder / "stopped" / f"m_step_{entries[-1]['step']}.pt").exists()
    # 80 lines, two processes, four lines each
    assert {entry["steps_per_epoch"] for entry in entries} == {10}

    endings = [json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8"))["ending"] for rank in range(2)]
    assert endings[0].startswith(f"Cannot write {folder}/blocked/m_step_2.pt: ")
    assert endings[1] == "SystemExit 2"
