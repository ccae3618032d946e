"""Triton's kernels in a process of their own, where its interpreter runs them on a CPU; and life without triton."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from onmt_entmax.entmax import engine, entmax

WORDS = "Invalid setting for `ONMT_ENTMAX_ENGINE`: gpu. It cannot compute float32 on "


@pytest.fixture(autouse=True)
def nothing_known_yet():
    engine.why_no_triton.cache_clear()
    yield
    engine.why_no_triton.cache_clear()


needs_triton = pytest.mark.skipif(engine.why_no_triton() is not None, reason=str(engine.why_no_triton()))

# Compiles for sm_80 and sm_90 without a device: what the interpreter runs, the compiler may refuse.
COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from onmt_entmax.entmax import triton_kernels as kernels

def check(kernel, target, types, constants):
    signature = {**types, **{name: "constexpr" for name in constants}}
    source = ASTSource(kernel, signature=signature, constexprs=constants)
    assert triton.compile(source, target=GPUTarget("cuda", target, 32), options={"num_warps": 1}).asm["cubin"]

forward = {"scores": "*bf16", "alphas": "*fp32", "probs": "*bf16", "d": "i32", "alpha": "fp32"}
names = ("probs", "grads", "alphas", "d_scores", "d_alphas")
backward = {**{name: "*fp32" for name in names}, "d": "i32", "alpha": "fp32"}
names = ("losses", "spreads", "golds", "squares")
rows = {"logits": "*bf16", "out": "*bf16", "targets": "*i64", "counted": "*i8", **{name: "*fp32" for name in names}}
rows = {**rows, "hits": "*i32", "sizes": "*i64", "d": "i32", "alpha": "fp32", "share": "fp32"}
flags = ("masked", "smooth", "sized", "measured", "differentiate")
everything = {**{name: True for name in flags}, "mapping": False}
mapping = {**{name: False for name in flags}, "mapping": True, "differentiate": True}
one = {"d": 1}  # Triton takes an argument of 1 for a constant
for target, kind, double, more in ((80, 0, True, {}), (90, 3, False, {}), (90, 1, False, one)):
    check(kernels.narrow_forward, target, forward, {"kind": kind, "double": double, "block": 64, **more})
    check(kernels.narrow_backward, target, backward, {"kind": kind, "block": 64, **more})
for target, kind, double, more in (
    *((80, 0, True, everything), (90, 1, False, everything), (80, 4, False, everything)),
    *((90, 0, False, mapping), (80, 2, False, mapping), (90, 1, False, {**everything, **one})),
):
    check(kernels.rows_forward, target, rows, {"kind": kind, "double": double, "block": 64, **more})
"""


@needs_triton
def test_kernels_compile_for_gpus(tmp_path):
    env = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", COMPILE]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@needs_triton
def test_kernels_under_the_interpreter():
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    file = Path(__file__).with_name("triton_kernels.py")
    done = subprocess.run([*command, str(file)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def too_old():
    module = ModuleType("triton")
    module.__version__ = "2.3.1"
    return module


@pytest.mark.parametrize(
    "module, reason",
    [
        (None, "triton is not installed (pip install triton)"),
        (too_old(), "triton 2.3.1 is too old (it takes 3.0 or newer)"),
    ],
)
def test_without_triton(monkeypatch, module, reason):
    """None in sys.modules is as if it were not installed."""
    monkeypatch.setitem(sys.modules, "triton", module)
    assert engine.why_not_gpu("cuda", torch.float32) == reason
    monkeypatch.setenv(engine.VARIABLE, "gpu")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(ValueError) as error:
        entmax(torch.zeros(2, 3), 1.5)
    assert str(error.value) == f"{WORDS}a CPU: {reason}."


@pytest.mark.parametrize("device, words", [("meta", "meta"), ("cpu", "a CPU")])
def test_other_devices_are_refused(monkeypatch, device, words):
    monkeypatch.setenv(engine.VARIABLE, "gpu")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError) as error:
        entmax(torch.zeros(2, 3, device=device), 1.5)
    assert str(error.value) == f"{WORDS}{words}: it serves GPUs only."
