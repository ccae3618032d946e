"""Signatures: how a number was made, e.g. ``acc|task:conll2018.1|set:medium|split:test|seed:1|version:0.2.0``.

A name, then fields ``key:value``, last the version of the code; written and read here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from onmt_entmax.version import version as code_version

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


def _escape(value: str) -> str:
    return re.sub(r"[%|\n]", lambda match: _ESCAPES[match[0]], value)
