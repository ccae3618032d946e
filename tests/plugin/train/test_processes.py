"""One process: subnormal numbers count as zero, memory is kept. Several: see test_two_processes.py."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from onmt_entmax.plugin.train import main as training
from onmt_entmax.plugin.train.processes import subnormals, subnormals_are_zero
from onmt_entmax.plugin.train.state import Run
from tests.plugin.train.helpers import config, train

can_flush = torch.set_flush_denormal(True)
torch.set_flush_denormal(False)
needs_flush = pytest.mark.skipif(not can_flush, reason="this processor can't take subnormal numbers for zero")


@needs_flush
@pytest.mark.parametrize("arguments, expected", [((), True), (("-keep_subnormals",), False)])
def test_training_takes_subnormal_numbers_for_zero(folder, monkeypatch, arguments, expected):
    seen = []
    improves = Run.improves

    def note(*args):
        seen.append(subnormals_are_zero())
        return improves(*args)

    monkeypatch.setattr(Run, "improves", note)
    train(config(folder), folder / "m", 4, *arguments)
    assert seen == [expected]
    assert not subnormals_are_zero()


@needs_flush
def test_what_was_set_before_comes_back():
    with subnormals(keep=False):
        with subnormals(keep=False):
            assert subnormals_are_zero()
        assert subnormals_are_zero()
    with pytest.raises(KeyError), subnormals(keep=False):
        raise KeyError
    assert not subnormals_are_zero()


def test_memory_is_kept_once_training_began():
    """A hundred million bytes, written, freed and had again and again: no page of 4,096 must be asked for anew."""
    code = """
import resource, torch
from onmt_entmax.plugin.train.processes import keep_memory
if not keep_memory():
    raise SystemExit(3)
for _ in range(3):
    torch.ones(25_000_000).sum()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(25_000_000).sum()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if found.returncode == 3:
        pytest.skip("this C library has no such setting")
    assert int(found.stdout) < 2_000, found.stderr


def test_training_keeps_memory(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(training, "keep_memory", lambda: asked.append(True))
    train(config(folder), folder / "m", 2)
    assert asked == [True]
