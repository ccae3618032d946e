"""docs/tutorial.md, literally: its files are written and its commands run in an empty folder, with fewer steps."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from onmt_entmax.files import read_lines
from onmt_entmax.search.result import read_certificates

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r'(<!-- not tested: [^\n]+ -->\n)?^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE
)


def test_every_command_runs(tmp_path):
    paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {**os.environ, "PATH": os.pathsep.join(paths), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    commands = 0
    for reason, language, name, text in _BLOCK.findall((ROOT / "docs/tutorial.md").read_text(encoding="utf-8")):
        if name:
            text = text.replace("train_steps: 600", "train_steps: 100")
            (tmp_path / name).write_text(text, encoding="utf-8")
        elif not reason:
            assert language == "bash"
            done = subprocess.run(
                ["bash", "-ec", text], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            commands += 1
    assert commands == 6
    assert len(read_lines(tmp_path / "test.pred")) == len(read_certificates(tmp_path / "test.jsonl")) == 100
    assert (tmp_path / "uncertain.svg").exists()
