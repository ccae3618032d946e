"""``PREFIX_metrics.jsonl``: one JSON object per validation, in order of steps, also over kills and resumed runs."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

from onmt_entmax.errors import UserError
from onmt_entmax.files import iterate_records, write_whole


def read_metrics(path: str | os.PathLike) -> list[dict]:
    r"""Read a metrics file; a last line that a kill cut short is left out.

    Raises:
        UserError: a line other than the last is no entry of a metrics file, with file and line number.
    """
    entries = []
    for number, entry in iterate_records(path, may_be_cut=True):
        if "step" not in entry:
            raise UserError(f"{path}, line {number}: not an entry of a metrics file.")
        entries.append(entry)
    return entries


class MetricsLog:
    """Appends entries to a metrics file.

    Args:
        path: the file.
        after_step: keep the entries up to this step (that of the checkpoint a run resumes from), drop the others; 0
            starts a new file.
    """

    def __init__(self, path: str | os.PathLike, after_step: int = 0) -> None:
        self.path = Path(path)
        kept = []
        if after_step > 0 and self.path.is_file():
            kept = [entry for entry in read_metrics(self.path) if entry["step"] <= after_step]
        write_whole(self.path, "".join(_line(entry) for entry in kept).encode("utf-8"))

    def append(self, entry: dict) -> None:
        """Write one entry through to the disk. NaN and infinities become null."""
        with open(self.path, "ab") as file:
            file.write(_line(entry).encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())


def _line(entry: dict) -> str:
    return json.dumps({key: _finite(value) for key, value in entry.items()}, allow_nan=False) + "\n"


def _finite(value):
    return None if isinstance(value, float) and not math.isfinite(value) else value
