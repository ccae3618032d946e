"""scripts/install.sh says in one line what is wrong, and uses uv where there is no Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
NO_PYTHON = "#!/bin/sh\nexit 1\n"
# says that it is Python 3.13, and has no module
BARE_PYTHON = "#!/bin/sh\ncase $2 in *version_info*) echo 3.13 ;; *) exit 1 ;; esac\n"
UV = '#!/bin/sh\necho "uv $*"\nexit 7\n'


@pytest.fixture
def install(tmp_path):
    """Runs a copy of the script, in a folder with a blank, with commands of ours first on the path."""
    root = tmp_path / "a folder"
    (root / "bin").mkdir(parents=True)
    (root / "scripts").mkdir()
    (root / "onmt_entmax").mkdir()
    shutil.copy(SCRIPTS / "install.sh", root / "scripts")
    for name in ("setup.py", "pyproject.toml", "onmt_entmax/version.py"):
        (root / name).touch()

    def run(commands: dict[str, str], **settings: str) -> tuple[int, str, str]:
        for name in ("python3", *(f"python3.{minor}" for minor in range(9, 15))):
            commands = {name: NO_PYTHON, **commands}
        for name, text in commands.items():
            (root / "bin" / name).write_text(text)
            (root / "bin" / name).chmod(0o755)
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith("ONMT_ENTMAX") and key != "PYTHON"
        }
        environment = {**kept, "PATH": f"{root}/bin:/usr/bin:/bin", **settings}
        done = subprocess.run(
            ["bash", str(root / "scripts" / "install.sh")], env=environment, capture_output=True, text=True
        )
        return done.returncode, done.stdout.replace(str(root), "ROOT"), done.stderr.replace(str(root), "ROOT")

    return run


def refusal(answer: tuple[int, str, str]) -> str:
    status, _, message = answer
    assert status == 2
    assert message.startswith("install.sh: ") and message.count("\n") == 1
    return message


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ONMT_ENTMAX_STACK", "old", "Valid choices: modern, stock."),
        (
            "ONMT_ENTMAX_EXTRAS",
            "test, tests",
            ": tests. Valid choices: transforms, test, docs, workflow, japanese, gpu.",
        ),
        ("ONMT_ENTMAX_EXTRAS", "*", ": *. Valid choices: transforms, test, docs, workflow, japanese, gpu."),
    ],
)
def test_wrong_settings(install, name, value, said):
    message = refusal(install({}, **{name: value}))
    assert f"Invalid setting for {name}: " in message and said in message


@pytest.mark.parametrize("extras", ["", "test", "test,transforms", " workflow ,, japanese\ttest "])
def test_without_python(install, extras):
    message = refusal(install({}, ONMT_ENTMAX_EXTRAS=extras))
    assert "no suitable Python found (the modern stack needs one of: 3.10 3.11 3.12 3.13 3.14)" in message
    assert "apt install python3 python3-venv" in message and "uv" in message


def test_the_python_named_does_not_fit(install):
    message = refusal(install({"bare": BARE_PYTHON, "uv": UV}, PYTHON="bare", ONMT_ENTMAX_STACK="stock"))
    assert "no suitable Python found at bare (the stock stack needs one of: 3.9 3.10 3.11 3.12)" in message


def test_another_python_than_that_of_the_environment(install, tmp_path):
    (tmp_path / "a folder/.venv/bin").mkdir(parents=True)
    commands = {"other": BARE_PYTHON, "../.venv/bin/python": "#!/bin/sh\necho 3.11\n"}
    message = refusal(install(commands, PYTHON="other"))
    assert ".venv was made with another Python than other; name another folder" in message


def test_without_the_venv_module(install):
    message = refusal(install({"python3": BARE_PYTHON}))
    assert "python3 lacks the modules venv and ensurepip" in message and "apt install python3.13-venv" in message


def test_uv_makes_the_environment(install):
    # ours ends with status 7 when it has said what it was asked for
    status, said, _ = install({"uv": UV})
    assert status == 7 and "uv venv --quiet --seed --python 3.12 .venv" in said
    status, said, _ = install({"python3": BARE_PYTHON, "uv": UV})
    assert status == 7 and "uv venv --quiet --seed --python python3 .venv" in said
