"""Which engine is chosen where, what the log and the errors say, and that model and engines need no OpenNMT-py."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import torch

from onmt_entmax import engines
from onmt_entmax.engines.cpu import Cpu
from onmt_entmax.engines.cpu.decoder import UnrollCompiled
from onmt_entmax.engines.decoder import Plan, UnrollOperations
from onmt_entmax.engines.gpu import Gpu
from onmt_entmax.engines.gpu.decoder import UnrollKernels
from onmt_entmax.engines.ragged import Ragged
from onmt_entmax.engines.unrolled import Unrolled
from onmt_entmax.entmax.engine import why_no_triton
from onmt_entmax.errors import UserError


@pytest.fixture(autouse=True)
def nothing_chosen_yet(monkeypatch):
    monkeypatch.delenv(engines.VARIABLE, raising=False)
    engines._choice.cache_clear()
    yield
    engines._choice.cache_clear()


@pytest.fixture
def no_numba(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)  # as if it were not installed


@pytest.fixture
def no_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    why_no_triton.cache_clear()
    yield
    why_no_triton.cache_clear()


def test_on_a_gpu_with_and_without_triton(monkeypatch, no_triton):
    assert engines.describe("cuda") == (
        "unrolled (float32 on cuda; `gpu` cannot serve there: triton is not installed (pip install triton))"
    )
    engines._choice.cache_clear()
    monkeypatch.setattr(engines, "why_not_gpu", lambda device, dtype: None)
    assert engines.describe("cuda") == "gpu (float32 on cuda, kernels by Triton)"
    assert engines.name("cpu") == "cpu"


def test_auto_takes_what_can_serve(no_triton):
    assert engines.name() == engines.name("cpu", torch.float32) == "cpu"
    for device, dtype in (("cpu", torch.float64), ("cpu", torch.bfloat16), ("cuda", torch.float32)):
        assert engines.name(device, dtype) == "unrolled"


@pytest.mark.parametrize("value", ["auto", ""])
def test_auto_is_the_default(monkeypatch, value):
    monkeypatch.setenv(engines.VARIABLE, value)
    assert engines.name() == "cpu"


def test_reference_everywhere(monkeypatch):
    monkeypatch.setenv(engines.VARIABLE, "reference")
    for device, dtype in (("cpu", torch.float32), ("cpu", torch.float64), ("cuda", torch.float16)):
        assert engines.choose(torch.device(device), dtype) is engines.REFERENCE
    assert engines.describe() == "reference (`ONMT_ENTMAX_ENGINE` is reference)"


def test_without_numba_operations_do_the_same(no_numba):
    assert engines.describe() == (
        "unrolled (float32 on a CPU; `cpu` cannot serve there: numba is not installed (pip install numba))"
    )


@pytest.mark.parametrize(
    "device, dtype, why",
    [("cuda", torch.float32, "float32 on cuda: it serves CPUs only"), ("cpu", torch.float64, "float64 on a CPU: it")],
)
def test_a_named_engine_serves_or_is_an_error(monkeypatch, device, dtype, why):
    monkeypatch.setenv(engines.VARIABLE, "cpu")
    assert engines.name() == "cpu"
    with pytest.raises(UserError, match=rf"Invalid setting for `ONMT_ENTMAX_ENGINE`: cpu\. It cannot compute {why}"):
        engines.choose(torch.device(device), dtype)


def test_a_named_engine_without_numba_is_an_error(monkeypatch, no_numba):
    monkeypatch.setenv(engines.VARIABLE, "cpu")
    with pytest.raises(UserError, match=r"numba is not installed \(pip install numba\)"):
        engines.name()


@pytest.mark.parametrize(
    "value, rule",
    [
        ("fast", "Valid choices: auto, reference, cpu, gpu"),
        ("gpu", "It cannot compute float32 on a CPU: it serves GPUs"),
    ],
)
def test_other_words_are_refused(monkeypatch, value, rule):
    monkeypatch.setenv(engines.VARIABLE, value)
    with pytest.raises(UserError, match=rf"Invalid setting for `ONMT_ENTMAX_ENGINE`: {value}\. {rule}"):
        engines.name()


def test_the_log_says_which_and_why_once(caplog):
    with caplog.at_level(logging.INFO, "onmt.entmax"):
        for _ in range(2):
            engines.name("cpu", torch.float32)
            engines.name("cpu", torch.float64)
    assert [record.getMessage() for record in caplog.records] == [
        "Engine: cpu (float32 on a CPU, loops compiled by numba).",
        "Engine: unrolled (float64 on a CPU; `cpu` cannot serve there: it serves float32 only).",
    ]


def test_what_has_no_kernels_or_loops_is_left_to_operations():
    keys = torch.empty(1, 3, 4)
    plans = [Plan(alpha, None, Ragged.full(1, 1)) for alpha in (2.0, 2.5)]
    assert [engine.function(plans[0], keys) for engine in (Cpu(), Gpu(), Unrolled())] == [
        *(UnrollCompiled, UnrollKernels, UnrollOperations)
    ]
    assert [engine.function(plans[1], keys) for engine in (Cpu(), Gpu(), Unrolled())] == [UnrollOperations] * 3
    assert Gpu().function(plans[0], torch.empty(1, 257, 4)) is UnrollOperations
    ragged = Plan(2.0, None, Ragged.from_lengths(torch.tensor([2, 1]), 2))
    assert Gpu().function(ragged, keys) is UnrollOperations


def test_dtype_is_that_of_autocast():
    x = torch.zeros(1)
    assert engines.computing_dtype(x) == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert engines.computing_dtype(x) == torch.bfloat16


@pytest.mark.parametrize("first", ["model.decoder", "model.encoder", "model.stepping", "engines.cpu.encoder"])
def test_model_and_engines_need_no_opennmt(first):
    script = f"import sys, onmt_entmax.{first}; assert 'onmt' not in sys.modules; import onmt; print('fine')"
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
