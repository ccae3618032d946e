"""OpenNMT-py's own unit tests, where it ships them: the plugin changes the outcome of none."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

# at its import it reads a file that is only in OpenNMT-py's repository, and ends the process
UNREADABLE = "test_data_prepare.py"


def test_opennmt_pys_own_tests_end_as_without_the_plugin(tmp_path):
    spec = importlib.util.find_spec("onmt")
    folder = Path(spec.submodule_search_locations[0]) / "tests"
    files = sorted(str(path) for path in folder.glob("test_*.py") if path.name != UNREADABLE)
    if not files:
        pytest.skip("this OpenNMT-py came without its tests")
    if importlib.util.find_spec("pyonmttok") is None:
        pytest.skip("without pyonmttok OpenNMT-py cannot be imported unless the plugin stands in for it")
    for name in ("spacy", "fasttext", "ahocorasick"):  # imported at its start, used by few transforms
        if importlib.util.find_spec(name) is None:
            (tmp_path / f"{name}.py").write_text("", encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rA", "--tb=no", "-W", "ignore", *files]
    runs = [
        subprocess.Popen(
            command,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "ONMT_ENTMAX_DISABLE": disabled, "PYTHONWARNINGS": "ignore", "PYTHONPATH": path},
        )
        for disabled in ("1", "0")
    ]
    without, with_plugin = (outcomes(run.communicate()[0]) for run in runs)
    assert sum(outcome == "PASSED" for outcome in without.values()) >= 80
    assert with_plugin == without


def outcomes(text: str) -> dict[str, str]:
    """Of each test how it ended, from pytest's summary."""
    found = re.findall(r"^(PASSED|FAILED|ERROR|SKIPPED) \S*?(test_\w+\.py\S*)", text, re.MULTILINE)
    return {test: outcome for outcome, test in found}
