"""Which version of this code runs; setup.py reads it without importing the package.

In a checkout git is asked, once, when somebody wants to know: ``0.2.0`` at the tag ``v0.2.0``, else the next version
with the number of commits since the last tag and the commit, ``0.2.0.dev12+gabc1234``, and ``.dirty`` with uncommitted
changes in the package. An installed package, or an unpacked archive of it, says what it was built from.
"""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

NEXT = "0.2.0"  # the release being worked on
UNKNOWN = f"{NEXT}.dev0+unknown"  # neither git nor metadata know

_PACKAGE = Path(__file__).resolve().parent


@functools.cache
def version() -> str:
    """The version of the code that runs."""
    root = _PACKAGE.parent
    return (_from_git(root) if (root / ".git").exists() else _from_metadata(root)) or UNKNOWN


def _from_git(root: Path) -> str | None:
    commit = _git(root, "rev-parse", "--short", "HEAD")
    if commit is None:
        return None
    dirty = ".dirty" if _git(root, "status", "--porcelain", "--untracked-files=no", "--", _PACKAGE.name) else ""
    # vTAG-COMMITS-gCOMMIT
    tag, _, commits = (
        (_git(root, "describe", "--tags", "--long", "--match", "v[0-9]*") or "").rpartition("-")[0].rpartition("-")
    )
    if tag and commits == "0" and not dirty:
        return tag[1:]
    if not tag:
        commits = _git(root, "rev-list", "--count", "HEAD") or "0"
    return f"{_following(tag[1:])}.dev{commits}+g{commit}{dirty}"


def _following(released: str) -> str:
    """:data:`NEXT`, or where nobody has raised that since the release, one more than it in the last place."""
    if released != NEXT:
        return NEXT
    *front, last = released.split(".")
    return ".".join([*front, str(int(last) + 1)])


def _git(root: Path, *words: str) -> str | None:
    # hooks of git set GIT_DIR and others for the repository that they run in
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment["GIT_OPTIONAL_LOCKS"] = "0"  # somebody else may be at work there
    try:
        done = subprocess.run(["git", *words], cwd=root, env=environment, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _from_metadata(root: Path) -> str | None:
    # an unpacked archive has the one, an installed package the other beside it
    for path in (root / "PKG-INFO", *root.glob(f"{_PACKAGE.name}-*.dist-info/METADATA")):
        if path.is_file():
            head = path.read_text(encoding="utf-8").partition("\n\n")[0]
            fields = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
            # some versions of setuptools write the name with a hyphen
            if fields.get("Name", "").replace("-", "_") == _PACKAGE.name:
                return fields.get("Version")
    return None


def __getattr__(name: str) -> str:
    if name == "__version__":
        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
