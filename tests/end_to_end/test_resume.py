"""A run killed twice with SIGKILL, also while a checkpoint is written, ends where the uninterrupted one does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from onmt_entmax.report.metrics import read_rows
from tests.plugin.train.helpers import config, write_data

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")

# runs onmt_train; KILL names a file, and the process kills itself when it has written so many bytes of it
LAUNCH = """
import os, runpy, signal, sys
import onmt_entmax.autoload
name, _, count = os.environ.get("KILL", "").partition(":")
if name:
    from onmt_entmax import files
    write = files._RememberingFile.write
    written = 0
    def write_and_die(self, data):
        global written
        result = write(self, data)
        if self.file.path.name == name:
            written += len(data)
            if written > int(count):
                self.file._file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
        return result
    files._RememberingFile.write = write_and_die
sys.argv[0] = "onmt_train"
runpy.run_module("onmt.bin.train", run_name="__main__")
"""


def onmt_train(yaml: Path, prefix: Path, *arguments: str, kill: str = "") -> subprocess.CompletedProcess:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "KILL": kill}
    command = [sys.executable, "-c", LAUNCH, "-config", str(yaml), "-save_model", str(prefix), *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, encoding="utf-8", timeout=300, check=False)


def newest(prefix: Path) -> str:
    """The newest checkpoint that lies under its name, which has to be whole."""
    paths = sorted(prefix.parent.glob(f"{prefix.name}_step_*.pt"), key=lambda p: int(p.stem.rsplit("_", 1)[1]))
    return str(paths[-1])


def weights(path: Path) -> dict[str, bytes]:
    checkpoint = torch.load(path, map_location="cpu", weights_only=False)
    parts = {**checkpoint["model"], **{f"generator.{k}": v for k, v in checkpoint["generator"].items()}}
    return {name: value.numpy().tobytes() for name, value in parts.items()}


def test_killed_twice_and_resumed_equals_uninterrupted(tmp_path):
    write_data(tmp_path)
    settings = {"decay_method": "valid_loss", "keep_best": "true", "train_steps": 24}
    yaml = config(tmp_path, valid_steps=5, save_checkpoint_steps=6, **settings)
    whole, killed = tmp_path / "whole" / "m", tmp_path / "killed" / "m"
    assert onmt_train(yaml, whole).returncode == 0

    # dies in the middle of the second checkpoint, of which nothing is to be seen under its name
    first = onmt_train(yaml, killed, kill="m_step_12.pt:5000")
    assert first.returncode == -signal.SIGKILL
    assert newest(killed).endswith("m_step_6.pt")
    assert (tmp_path / "killed" / ".m_step_12.pt.part").stat().st_size > 5000

    # dies at the first byte of the next but one
    second = onmt_train(yaml, killed, "-train_from", newest(killed), kill="m_step_18.pt:0")
    assert second.returncode == -signal.SIGKILL
    assert newest(killed).endswith("m_step_12.pt")

    last = onmt_train(yaml, killed, "-train_from", newest(killed))
    assert last.returncode == 0, last.stderr[-2000:]
    for name in ("m_step_24.pt", "m_best.pt"):
        assert weights(tmp_path / "killed" / name) == weights(tmp_path / "whole" / name), name
    for run in ("whole", "killed"):
        assert [entry["step"] for entry in read_rows(tmp_path / run / "m_metrics.jsonl")] == [5, 10, 15, 20]
    assert not list((tmp_path / "killed").glob(".*.part"))


def test_broken_checkpoint_is_named_on_one_line(tmp_path):
    write_data(tmp_path)
    yaml = config(tmp_path)
    broken = tmp_path / "broken.pt"
    broken.write_bytes(b"PK\x03\x04 half a checkpoint")
    result = onmt_train(yaml, tmp_path / "m", "-train_steps", "2", "-train_from", str(broken))
    assert result.returncode == 2
    said = [line for line in result.stderr.split("\n") if str(broken) in line and " INFO]" not in line]
    assert len(said) == 1 and said[0].startswith("onmt_train: Cannot load ")
    assert "Traceback" not in result.stderr
