"""Two processes over gloo: one validates, both follow; their checkpoint holds the position of both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from onmt_entmax.plugin.train.processes import take_over, train_together
from onmt_entmax.plugin.train.saver import KEY
from onmt_entmax.report.metrics import read_rows
from tests.plugin.train.helpers import assert_identical, config, load
from tests.plugin.train.two_processes import fail, share

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


@pytest.mark.parametrize(("ending", "status"), [("killed", 1), ("mistake", 2)])
def test_a_process_that_fails_ends_all_of_them(capfd, ending, status):
    opt = Namespace(world_size=2, gpu_ranks=[], gpu_backend="nccl", master_ip="localhost", timeout=60, ending=ending)
    take_over(opt)
    assert opt.world_size == 1  # so that stock starts none
    with pytest.raises(SystemExit) as caught:
        train_together(opt, fail)
    assert caught.value.code == status
    said = capfd.readouterr().err
    assert ("rank 1 of 2 processes was ended by SIGKILL" in said) == (ending == "killed")
    assert "Traceback" not in said


def test_all_begin_with_the_weights_of_the_first():
    opt = Namespace(world_size=2, gpu_ranks=[], gpu_backend="nccl", master_ip="localhost", timeout=60)
    take_over(opt)
    assert train_together(opt, share)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc here")
def test_they_end_with_the_process_that_started_them(tmp_path):
    code = f"""
from argparse import Namespace
from pathlib import Path
from tests.plugin.train.two_processes import stay
from onmt_entmax.plugin.train.processes import take_over, train_together
if __name__ == "__main__":
    opt = Namespace(world_size=2, gpu_ranks=[], gpu_backend="nccl", master_ip="localhost", timeout=60)
    opt.folder = Path({str(tmp_path / "pids")!r})
    take_over(opt)
    train_together(opt, stay)
"""
    (tmp_path / "pids").mkdir()
    (tmp_path / "start.py").write_text(code, encoding="utf-8")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    parent = subprocess.Popen([sys.executable, tmp_path / "start.py"], env=env, cwd=ROOT)
    _until(lambda: len(list((tmp_path / "pids").iterdir())) == 2)
    pids = [int(path.name) for path in (tmp_path / "pids").iterdir()]
    parent.kill()
    parent.wait()
    _until(lambda: not any(map(_alive, pids)))


def _until(holds) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def _alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_two_processes_step_as_one_does_on_the_same_lines(folder):
    """Where all lines are alike the mean gradient of two processes is that of one."""
    for name in ("a", "b", "valid"):
        for side, line in (("src", "a b c\n"), ("tgt", "c b a\n")):
            (folder / f"{name}.{side}").write_text(line * 40, encoding="utf-8")
    alone = {"dropout": "[0.0]", "optim": "sgd", "learning_rate": 1.0, "max_grad_norm": 0, "valid_steps": 100}
    alone.update(tokendrop_temperature=1e-9, bucket_size=8)
    models = []
    for processes in ("1", "2"):
        command = [sys.executable, "-W", "ignore", "-m", "onmt.bin.train", "-config", config(folder, **alone)]
        command += ["-world_size", processes, "-save_model", folder / processes, "-train_steps", "2"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        models.append(load(folder / f"{processes}_step_2.pt"))
    for name, value in models[0]["model"].items():
        torch.testing.assert_close(models[1]["model"][name], value, rtol=1e-4, atol=1e-5)
    assert models[1][KEY]["ranks"][0]["total"]["n_words"] == models[0][KEY]["ranks"][0]["total"]["n_words"]


def test_onmt_train_starts_them_without_gpus(folder):
    yaml = config(folder, save_checkpoint_steps=2, valid_steps=2)
    command = [sys.executable, "-W", "ignore", "-m", "onmt.bin.train", "-config", yaml, "-world_size", "2"]
    command += ["-save_model", folder / "m", "-train_steps", "2"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(load(folder / "m_step_2.pt")[KEY]["ranks"]) == 2
    # 80 lines, two processes, four lines each; both validate once
    assert [entry["steps_per_epoch"] for entry in read_rows(folder / "m_metrics.jsonl")] == [10]
    # the first one cannot write: one line, and the status says so
    (folder / "blocked").mkdir()
    (folder / "blocked" / "m_step_2.pt").mkdir()
    command[-3] = folder / "blocked" / "m"
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("onmt_train: Cannot write") == 1 and "Traceback" not in done.stderr
