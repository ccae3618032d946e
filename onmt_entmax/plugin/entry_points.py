"""The stock commands' entry points: a user's mistake ends them with one line and exit status 2."""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import Callable

from onmt_entmax.errors import UserError


def running_command() -> str | None:
    """The stock command this process runs (``onmt_train`` ...), or None under somebody's own Python program."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name.startswith("onmt.bin."):
        return "onmt_" + spec.name.rsplit(".", 1)[1]
    name = os.path.basename(sys.argv[0] if sys.argv else "")
    return name if name.startswith("onmt_") and not name.startswith("onmt_entmax") else None


def one_line_errors(function: Callable) -> Callable:
    """Let a stock command end with one line on a :class:`UserError` (status 2) or Ctrl-C (130); programs get both.

    So do threads other than the main one: the server's, which answer.
    """

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except UserError as error:
            command = running_command()
            if command is None or threading.current_thread() is not threading.main_thread():
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


def terminate(stock):
    def terminate(self):
        stock(self)
        translator = getattr(self, "translator", None)
        if translator is not None and translator.out_file is not None:
            translator.out_file.close()  # stock leaves that to the garbage collector

    return terminate
