"""The exception for mistakes a user can mend: commands print it on one line and exit with status 2."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral


class UserError(ValueError):
    """Wrong input or a wrong setting. The message names the setting or file, the value and the valid choices."""


def invalid_setting(name: str, value: object, rule: str) -> UserError:
    """Build the error for a setting, ``Invalid setting for `name`: value. rule``; the rule says what is valid."""
    return UserError(f"Invalid setting for `{name}`: {value}. {rule}")


def check_whole(**settings: object) -> None:
    """Refuse settings that are no whole numbers (``beam_size="5"``), which a comparison would end in a traceback."""
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise invalid_setting(name, repr(value), "It must be a whole number.")


def choices(values: Iterable[object]) -> str:
    """Format valid choices for a message: ``Valid choices: a, b, c.``"""
    return "Valid choices: " + ", ".join(str(value) for value in values) + "."
