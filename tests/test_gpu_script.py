"""benchmarks/gpu.sh: what it refuses, in one line and with exit status 2, before anything is measured."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    "arguments, environment, message",
    [
        (["--device", "tpu"], {}, "Invalid setting for `--device`: tpu. Valid choices: cpu, cuda."),
        (["--fast"], {}, "Unknown argument: --fast. Valid choices: --collect, --device cpu|cuda, --quick."),
        (
            ["--quick"],
            {"PARTS": "mapping speed"},
            "Invalid setting for `PARTS`: speed. Valid choices: "
            "kernels, mapping, inflection, translation, transformer, decoding.",
        ),
        (["--collect"], {"WHEELS": ""}, "Set WHEELS to the folder to fill."),
        (["--quick"], {"PYTHON": "false"}, "false has no PyTorch; name another one: PYTHON=/path/to/python."),
    ],
)
def test_what_it_refuses(tmp_path, arguments, environment, message):
    done = subprocess.run(
        ["bash", str(ROOT / "benchmarks" / "gpu.sh"), *arguments],
        env={**os.environ, "OUT": str(tmp_path / "out"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, f"gpu.sh: {message}\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_reason_is_said():
    command = [sys.executable, "-W", "ignore", str(ROOT / "benchmarks" / "gpu.py"), "check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    # PyTorch's own words, of a build for CPUs or of a missing or old driver
    assert re.match(r"gpu.sh: PyTorch sees no GPU: .{10,}\. `--device cpu --quick` tries", done.stderr)
