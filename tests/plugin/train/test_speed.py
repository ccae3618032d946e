from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch

from onmt_entmax.plugin.train import main as training
from onmt_entmax.plugin.train import optimiser as training_speed
from onmt_entmax.plugin.train.processes import subnormals, subnormals_are_zero
from onmt_entmax.plugin.train.state import Run
from tests.plugin.train.helpers import config, tensors, train

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


def _steps(optimizer_class, steps: int = 5):
    torch.manual_seed(3)
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in ((7, 5), (11,), (1, 2, 3))]
    unused = torch.nn.Parameter(torch.zeros(2))
    optimizer = optimizer_class([*parameters, unused], lr=0.01, betas=(0.8, 0.9))
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape)
        optimizer.step()
    return parameters, optimizer


def test_adam_computes_what_pytorchs_does():
    ours, optimizer = _steps(training_speed.Adam)
    theirs, stock = _steps(torch.optim.Adam)
    for mine, other in zip(ours, theirs):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-7)
    mine, other = tensors(optimizer.state_dict()), tensors(stock.state_dict())
    assert mine.keys() == other.keys()
    for name, value in other.items():
        if torch.is_tensor(value):
            torch.testing.assert_close(mine[name], value, rtol=1e-5, atol=1e-7)
        else:
            assert mine[name] == value, name  # no trace of the kernel that was used


def test_states_go_both_ways():
    for first, second in ((training_speed.Adam, torch.optim.Adam), (torch.optim.Adam, training_speed.Adam)):
        expected, begun = _steps(first)
        state = copy.deepcopy(begun.state_dict())
        parameters = [torch.nn.Parameter(parameter.detach().clone()) for parameter in expected]
        goes_on = second([*parameters, torch.nn.Parameter(torch.zeros(2))], lr=1.0)
        goes_on.load_state_dict(state)
        for optimizer, own in ((begun, expected), (goes_on, parameters)):
            for parameter in own:
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        for mine, other in zip(parameters, expected):
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("method, expected", [("adam", training_speed.Adam), ("sgd", torch.optim.SGD)])
def test_configured_optimizer(folder, monkeypatch, method, expected):
    seen = []
    start = Run.start

    def note(self, saver):
        seen.append(type(saver.optim._optimizer))
        start(self, saver)

    monkeypatch.setattr(Run, "start", note)
    checkpoint = train(config(folder, optim=method, learning_rate=0.01), folder / "m", 2)
    assert seen == [expected]
    assert all(group.get("fused") is None for group in checkpoint["optim"]["optimizer"]["param_groups"])
