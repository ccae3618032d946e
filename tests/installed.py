"""For tests that need the package to be installed, not only importable: stock's console scripts in child processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
_PROBE = "import sys; sys.exit(not any(getattr(f, '__name__', '') == 'RegisteringFinder' for f in sys.meta_path))"


def is_installed() -> bool:
    """Whether a fresh Python has our finder in place, as the ``.pth`` does."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run([sys.executable, "-c", _PROBE], env=environment, cwd="/", check=False).returncode == 0


needs_installation = pytest.mark.skipif(
    not is_installed(), reason="onmt_entmax is not installed in this Python (bash scripts/install.sh)"
)


def call(*words: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess:
    """Run a console script of this environment (or ``python``) and return what it printed."""
    program = sys.executable if words[0] == "python" else str(BIN / str(words[0]))
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        [program, *map(str, words[1:])], cwd=cwd, env=env, capture_output=True, text=True, encoding="utf-8", check=False
    )
