"""The schedule of the paper, and Adam in one kernel: what PyTorch's computes, with states that go both ways."""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import math
import sys

import pytest
import torch

from onmt_entmax.errors import UserError
from onmt_entmax.plugin.train import optimiser
from onmt_entmax.plugin.train.optimiser import Adam, ValidLossSchedule, _check_kept, _schedule
from onmt_entmax.plugin.train.state import Run
from tests.plugin.train.helpers import config, tensors, train


def scales(losses, decay=0.5):
    schedule = ValidLossSchedule(decay)
    found = []
    for loss in losses:
        schedule.update(loss)
        found.append(schedule(123))
    return found


def test_follows_the_previous_validation_not_the_best_one():
    # 3 -> 2 falls; 2 -> 2.5 rises; 2.5 -> 2.4 falls, though 2 was better; 2.4 -> 2.4 does not rise; 2.4 -> 2.6 rises
    assert scales([3, 2, 2.5, 2.4, 2.4, 2.6]) == [1, 1, 0.5, 0.5, 0.5, 0.25]


def test_loss_that_is_no_number_counts_as_higher():
    # compared with the last number: after 2 and NaN, 1.9 is a fall
    assert scales([2, math.nan, 1.9, math.inf]) == [1, 0.5, 0.5, 0.25]
    assert scales([math.nan, 3]) == [1, 1]


def test_state_is_plain_and_goes_on():
    first = ValidLossSchedule(0.5)
    for loss in (1, 2):
        first.update(loss)
    second = ValidLossSchedule(0.5)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.update(2.5) and second(1) == 0.25


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
    ours, optimizer = _steps(Adam)
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
    for first, second in ((Adam, torch.optim.Adam), (torch.optim.Adam, Adam)):
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


@pytest.mark.skipif(not optimiser._ONE_KERNEL, reason="needs PyTorch 2.4")
@pytest.mark.parametrize("read", [False, True], ids=["new state", "state of a checkpoint"])
def test_one_kernel_elsewhere_than_on_a_cpu(monkeypatch, read):
    """As on a GPU, here on the meta device: one kernel, nothing is read, and the count of steps is moved there."""
    monkeypatch.setattr(optimiser, "_FUSED_ON", ("meta",))
    monkeypatch.setattr(
        sys.modules[torch.optim.Adam.__module__], "_device_dtype_check_for_fused", lambda parameter: None
    )
    called = []
    monkeypatch.setattr(torch, "_fused_adam_", lambda *lists, **settings: called.append(len(lists[0])))
    parameters = [torch.nn.Parameter(torch.empty(shape, device="meta")) for shape in (2, 3)]
    adam = Adam(parameters)
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
        if read:
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            adam.state[parameter] = {"step": torch.tensor(3.0), **moments}
    adam.step()
    assert called == [2]
    assert {adam.state[parameter]["step"].device.type for parameter in parameters} == {"meta"}
    assert adam.param_groups[0]["fused"] is None


@pytest.mark.parametrize("method, expected", [("adam", Adam), ("sgd", torch.optim.SGD)])
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


def test_noam_goes_by_the_decoders_size():
    opt = argparse.Namespace(decay_method="noam", warmup_steps=4, hidden_size=-1, dec_hid_size=16)
    # Vaswani et al. (2017), Eq. 3: 16 ** -0.5 * min(2 ** -0.5, 2 * 4 ** -1.5)
    assert _schedule(opt)(2) == pytest.approx(0.25 * 0.25)


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        ({}, {"optim": "adagrad"}, "`optim`: adagrad. `reset_optim: keep_states` keeps the state of adam; give"),
        (
            {"learned_alpha_rate": 1.0},
            {"learned_alpha_rate": 3.0},
            "`learned_alpha_rate`: 3.0. .* the state of 1.0; give",
        ),
        ({"learned_alpha_rate": 5.0}, {"learned_alpha_rate": 3.0}, None),
        ({"learned_alpha_rate": None}, {"learned_alpha_rate": 1.0}, None),
    ],
)
def test_a_state_that_is_kept_is_of_the_same_optimizer(before, now, message):
    first, second = (argparse.Namespace(**{"optim": "adam", **own}) for own in (before, now))
    with pytest.raises(UserError, match=message) if message else contextlib.nullcontext():
        _check_kept(second, first)
