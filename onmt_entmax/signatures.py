"""Signatures: how a number was made, e.g. ``acc|task:conll2018.1|set:medium|split:test|seed:1|version:0.1.0``.

A name, then fields ``key:value``, last the version of the code; written and read here and nowhere else.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from onmt_entmax.version import __version__

_ESCAPES = {"%": "%25", "|": "%7C", "\n": "%0A"}
_ESCAPED = {escape: character for character, escape in _ESCAPES.items()}


def signature(name: str | None, fields: Mapping[str, object], version: bool = True) -> str:
    """Write a signature.

    Args:
        name: of the number, e.g. ``acc``; None for a signature of fields only, as those of validations are.
        fields: in order; one whose value is None is a word of its own (``forced``). ``|``, ``%`` and a line feed in a
            value, such as a file's name, are escaped.
        version: whether the version of the code ends it.
    """
    parts = [] if name is None else [name]
    parts += [key if value is None else f"{key}:{_escape(str(value))}" for key, value in fields.items()]
    return "|".join([*parts, *([f"version:{code_version()}"] if version else [])])


def parse_signature(text: str) -> dict[str, str]:
    """Take a signature apart: ``acc|set:high|seed:1`` has ``metric`` acc, ``set`` high, ``seed`` 1.

    A word of its own has the value ``""``; without a name there is no ``metric``.
    """
    name, *rest = text.split("|")
    fields = {} if ":" in name else {"metric": name}
    for part in [*([name] if ":" in name else []), *rest]:
        key, _, value = part.partition(":")
        fields[key] = re.sub("%(?:25|7C|0A)", lambda match: _ESCAPED[match[0]], value)
    return fields


@lru_cache(maxsize=1)
def code_version() -> str:
    """Which code makes the numbers: the version and, in a git checkout, the commit: ``0.1.0+23b724b`` (or ``.dirty``).

    An installed package has the version only.
    """
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists() or not (root / "setup.py").is_file():
        return __version__
    words = ["git", "--no-optional-locks", "-C", str(root), "describe", "--always", "--dirty=.dirty", "--exclude=*"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return __version__
    return f"{__version__}+{found}" if found else __version__


def _escape(value: str) -> str:
    return re.sub(r"[%|\n]", lambda match: _ESCAPES[match[0]], value)
