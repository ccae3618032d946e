"""The version says which code runs: from git in a checkout, from what it was built from elsewhere."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys

import pytest

import onmt_entmax
from onmt_entmax import cli
from onmt_entmax import version as module

GIT = ["git", "-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false"]
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture
def root(tmp_path):
    """A folder with a copy of the package's version module."""
    (tmp_path / "onmt_entmax").mkdir()
    shutil.copy(module.__file__, tmp_path / "onmt_entmax")
    return tmp_path


def found(root) -> str:
    # runpy gives a fresh module: nothing is remembered
    return runpy.run_path(str(root / "onmt_entmax" / "version.py"))["version"]()


def git(root, *words: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    return subprocess.run(
        [*GIT, *words], cwd=root, env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(root) -> str:
    git(root, "add", "-A")
    git(root, "commit", "-q", "--allow-empty", "-m", "one")
    return git(root, "rev-parse", "--short", "HEAD")


@needs_git
def test_in_a_checkout(root, monkeypatch):
    git(root, "init", "-q")
    assert found(root) == "0.2.0.dev0+unknown"  # no commit yet
    first = commit(root)
    assert found(root) == f"0.2.0.dev1+g{first}"  # one commit, no tag
    git(root, "tag", "v0.1.0")
    git(root, "tag", "another-tag")
    assert found(root) == "0.1.0"
    commit(root)
    third = commit(root)
    assert found(root) == f"0.2.0.dev2+g{third}"  # two commits after 0.1.0
    git(root, "tag", "-a", "v0.2.0", "-m", "release")
    assert found(root) == "0.2.0"
    fourth = commit(root)
    assert found(root) == f"0.2.1.dev1+g{fourth}"  # nobody has said what follows 0.2.0
    (root / "note").write_text("not in the package")
    assert found(root) == f"0.2.1.dev1+g{fourth}"
    with open(root / "onmt_entmax" / "version.py", "a", encoding="utf-8") as file:
        file.write("\n")
    assert found(root) == f"0.2.1.dev1+g{fourth}.dirty"
    monkeypatch.setenv("GIT_DIR", str(root / "another"))  # as inside a hook of another repository
    assert found(root) == f"0.2.1.dev1+g{fourth}.dirty"
    monkeypatch.setenv("PATH", "")  # no git
    assert found(root) == "0.2.0.dev0+unknown"


@needs_git
def test_a_changed_tag_is_not_the_tag(root):
    git(root, "init", "-q")
    first = commit(root)
    git(root, "tag", "v0.2.0")
    (root / "onmt_entmax" / "version.py").write_text((root / "onmt_entmax" / "version.py").read_text() + "\n")
    assert found(root) == f"0.2.1.dev0+g{first}.dirty"


@pytest.mark.parametrize("name", ["onmt_entmax", "onmt-entmax"])
@pytest.mark.parametrize("path", ["PKG-INFO", "onmt_entmax-7.0.dist-info/METADATA"])
def test_built(root, path, name):
    (root / path).parent.mkdir(exist_ok=True)
    (root / path).write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 7.0\n\nVersion: 8.0: text\n")
    assert found(root) == "7.0"


def test_nobody_knows(root):
    (root / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: another\nVersion: 7.0\n")
    assert found(root) == "0.2.0.dev0+unknown"


def test_this_package(capsys):
    assert onmt_entmax.__version__ == module.__version__ == module.version()
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+\+(unknown|g[0-9a-f]{7,}(\.dirty)?))?", module.version())
    for owner in (onmt_entmax, module):
        with pytest.raises(AttributeError, match="no_such_name"):
            owner.no_such_name  # noqa: B018
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"onmt_entmax {module.version()}\n"


def test_importing_the_package_asks_nobody():
    script = "import sys, onmt_entmax, onmt_entmax.autoload; print('onmt_entmax.version' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
