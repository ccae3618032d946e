"""The one place that chooses: what the environment may say, and that the answer is obeyed."""

from __future__ import annotations

import pytest
import torch

from onmt_entmax.entmax import cpu, entmax, entmax_loss, linear_entmax_loss, log_entmax_topk
from onmt_entmax.entmax.engine import VARIABLE, engine_for, engines, using
from tests.entmax.test_functional import ALPHAS, random


def test_the_environment_is_obeyed(monkeypatch):
    x, elsewhere = torch.zeros(2), torch.zeros(2, device="meta")
    monkeypatch.delenv(VARIABLE, raising=False)
    assert engine_for(x).name == "cpu" and engine_for(elsewhere) is None
    monkeypatch.setenv(VARIABLE, "auto")
    assert engine_for(x).name == "cpu" and engine_for(elsewhere) is None
    monkeypatch.setenv(VARIABLE, "reference")
    assert engine_for(x) is None and engine_for(elsewhere) is None
    monkeypatch.setenv(VARIABLE, "cpu")
    assert engine_for(x).name == "cpu"


@pytest.mark.parametrize("name", ["CPU", "triton"])
def test_a_name_that_does_not_exist(monkeypatch, name):
    monkeypatch.setenv(VARIABLE, name)
    message = f"Invalid setting for `ONMT_ENTMAX_ENGINE`: {name}. Valid choices: auto, reference, cpu, gpu."
    z, target = torch.zeros(2, 3), torch.tensor([0, 1])
    for call in (
        lambda: entmax(z, 1.5),
        lambda: entmax_loss(z, target),
        lambda: linear_entmax_loss(z, torch.zeros(5, 3), None, target),
        lambda: log_entmax_topk(z),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_an_engine_that_cannot_serve_is_an_error(monkeypatch):
    monkeypatch.setenv(VARIABLE, "cpu")
    with pytest.raises(
        ValueError, match="`ONMT_ENTMAX_ENGINE`: cpu. It cannot compute float32 on meta: it serves CPUs"
    ):
        entmax(torch.zeros(2, 3, device="meta"), 1.5)


def test_the_reference_uses_nothing_of_the_engine(monkeypatch):
    monkeypatch.setenv(VARIABLE, "reference")
    monkeypatch.setattr(cpu, "Cpu", None)
    engines.cache_clear()
    for name in ("narrow", "_Losses", "LogitsSolver"):
        monkeypatch.setattr(cpu, name, None)
    z, target = random(3, 600).requires_grad_(), torch.tensor([0, 1, 2])
    entmax(z, 1.5).sum().backward()
    entmax_loss(z, target).backward()
    linear_entmax_loss(z, random(700, 600), None, target).loss.backward()
    log_entmax_topk(z)
    engines.cache_clear()


@pytest.mark.parametrize("alpha", [*ALPHAS, "tensor"])
@pytest.mark.parametrize("d", [1, 2, 40, 600])
def test_engine_and_reference_agree(alpha, d):
    a = torch.tensor([[1.0], [1.2], [1.5], [2.4]], dtype=torch.float64) if alpha == "tensor" else alpha
    z, grad, target = random(4, d, scale=2).requires_grad_(), random(4, d, seed=1), torch.arange(4) % d
    results = []
    for engine in ("cpu", "reference"):
        with using(engine):
            p, loss = entmax(z, a), entmax_loss(z, target, a)
            results.append((p, loss, *torch.autograd.grad(p, z, grad), *torch.autograd.grad(loss, z)))
            if alpha != "tensor":
                results[-1] += (log_entmax_topk(z, a, 3)[0],)
    for ours, expected in zip(*results):
        torch.testing.assert_close(ours, expected, atol=1e-9, rtol=1e-7)
