"""The decoder's kernels in a process of their own, where Triton's interpreter runs them; and compiled for GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onmt_entmax.entmax.engine import why_no_triton

pytestmark = pytest.mark.skipif(why_no_triton() is not None, reason=str(why_no_triton()))

# See tests/entmax/test_triton.py: without a device; an argument of 1 is a constant for Triton.
COMPILE = """
import inspect
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from onmt_entmax.engines.gpu import kernels

NUMBERS = "stride column above_stride size count width"
TYPES = {**dict.fromkeys(NUMBERS.split(), "i32"), "scale": "fp32", "alpha": "fp32", "mask": "*i8", "lengths": "*i64"}

def check(name, target, dtype, **constants):
    kernel = getattr(kernels, name)
    names = list(inspect.signature(kernel.fn).parameters)
    signature = {key: "constexpr" if key in constants else TYPES.get(key, dtype) for key in names}
    source = ASTSource(kernel, signature=signature, constexprs=constants)
    assert triton.compile(source, target=GPUTarget("cuda", target, 32), options={"num_warps": 4}).asm["cubin"]

for target, dtype, flag in ((80, "*fp32", True), (90, "*bf16", False)):
    for name in ("cell_forward", "cell_backward", "finish_forward"):
        check(name, target, dtype, masked=flag, block=256)
    check("finish_backward", target, dtype, masked=flag, given=flag, block=256)
for target, dtype, flag, kind in ((80, "*fp32", True, 0), (90, "*fp16", False, 1), (80, "*fp32", True, 4)):
    more = {} if flag else {"width": 1}
    check("attend_forward", target, dtype, kind=kind, rows=32, chunk=64, padded=flag, **more)
    check("attend_backward", target, dtype, kind=kind, rows=32, chunk=64, padded=flag, given=flag, **more)
"""


def run(*command, **environment):
    done = subprocess.run(
        [sys.executable, *command], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-3000:]


def test_kernels_compile_for_gpus(tmp_path):
    run("-W", "ignore", "-c", COMPILE, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))


def test_kernels_under_the_interpreter():
    file = str(Path(__file__).with_name("gpu_kernels.py"))
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--noconftest", file, TRITON_INTERPRET="1")
