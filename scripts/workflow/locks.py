"""Locks of a grid: of its folders, and of this machine's GPUs."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from onmt_entmax.errors import UserError


@contextlib.contextmanager
def locked(path: Path, message: str) -> Iterator[int]:
    """Hold a lock that also its heirs hold: a killed job whose training lives on still has it.

    Raises:
        UserError: ``message``, if another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(message) from None
        yield file.fileno()


@contextlib.contextmanager
def device(gpus: int) -> Iterator[tuple[dict[str, str], list[int]]]:
    """Reserve one of this machine's GPUs; none if ``gpus`` is 0, as on a cluster, whose scheduler has done so.

    Yields:
        The environment that shows this GPU alone, and the locks to hand on.
    """
    if not gpus:
        yield {}, []
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(index) for index in range(gpus)]
    for name in names[:gpus]:
        with contextlib.ExitStack() as stack:
            try:
                lock = stack.enter_context(locked(Path(".gpus", name), ""))
            except UserError:
                continue
            yield {"CUDA_VISIBLE_DEVICES": name}, [lock]
            return
    raise UserError(f"none of the {gpus} GPUs is free: does a training of an earlier, killed grid still run?")
