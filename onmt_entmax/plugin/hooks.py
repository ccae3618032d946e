"""Small tools for replacing names in OpenNMT-py's modules."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any, Callable

from onmt_entmax.errors import UserError


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> Any:
    """Rebind ``owner.name`` to ``make(stock value)`` and return the stock value.

    Raises:
        AttributeError: ``owner`` has no such name; registration turns this into one clear line.
    """
    stock = owner.__dict__[name] if isinstance(owner, type) and name in owner.__dict__ else getattr(owner, name)
    setattr(owner, name, make(stock))
    return stock


def running_command() -> str | None:
    """The stock command this process runs (``onmt_train`` ...), or None under somebody's own Python program."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name.startswith("onmt.bin."):
        return "onmt_" + spec.name.rsplit(".", 1)[1]
    name = os.path.basename(sys.argv[0] if sys.argv else "")
    return name if name.startswith("onmt_") and not name.startswith("onmt_entmax") else None


def one_line_errors(function: Callable) -> Callable:
    """Let a stock command end with one line on a :class:`UserError` (status 2) or Ctrl-C (130); programs get both."""

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except UserError as error:
            command = running_command()
            if command is None:
                raise
            print(f"{command}: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
            raise SystemExit(2) from error
        except KeyboardInterrupt:
            command = running_command()
            if command is None:
                raise
            print(f"{command}: interrupted", file=sys.stderr, flush=True)
            raise SystemExit(130) from None

    return wrapped
