"""``PREFIX_metrics.jsonl``: one JSON object per validation, in order of steps, also over kills and resumed runs.

Training writes it with :class:`MetricsLog`; figures, tables and the page read it with :func:`read_metrics`.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from onmt_entmax.errors import UserError
from onmt_entmax.files import iterate_records, write_whole
from onmt_entmax.report.readers import kind, read_objects, wrong_kind


@dataclass
class Metrics:
    """One run's validations, in order of the step.

    Attributes:
        path: of the file.
        rows: one object per validation; each has ``step``, ``loss``, ``accuracy``, ``elapsed`` and the alphas. A run
            that was resumed has the rows of its last course only, with ``elapsed`` running on.
    """

    path: Path
    rows: list[dict[str, Any]]

    @property
    def alphas(self) -> tuple[float, Optional[float]]:
        """Alphas of output and attention; the latter is None without attention, and the last value if learned."""
        return self.rows[-1]["alpha_output"], self.rows[-1].get("alpha_attention")

    @property
    def learned(self) -> bool:
        """Whether the attention's alpha is a parameter of the model."""
        return bool(self.rows[-1].get("alpha_learned"))

    @property
    def signature(self) -> str:
        """How the numbers were made."""
        return self.rows[-1].get("signature") or f"{self.path.name} (no signature)"

    @property
    def best(self) -> dict[str, Any]:
        """The validation with the highest accuracy, the first of them on a tie: the checkpoint that is used."""
        return max(self.rows, key=lambda row: row["accuracy"])

    def series(self, key: str) -> tuple[list[float], list[float]]:
        """Steps and values of a measure, without the validations that lack it."""
        pairs = [(row["step"], row[key]) for row in self.rows if row.get(key) is not None]
        return [step for step, _ in pairs], [value for _, value in pairs]


def read_rows(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Read a metrics file as it is, without a last line that a kill cut short; a new file has no rows.

    Raises:
        UserError: a line that is no entry of a metrics file, with its number.
    """
    rows = []
    for number, row in iterate_records(path, may_be_cut=True):
        if "step" not in row:
            raise UserError(f"{path}, line {number}: not an entry of a metrics file (no `step`).")
        rows.append(row)
    return rows


def read_metrics(path: Path) -> Metrics:
    """Read the validations of a metrics file.

    Raises:
        UserError: another kind of file; no validation in it, or one that lacks a field.
    """
    rows: list[dict[str, Any]] = []
    before = 0.0  # time of the earlier courses of a resumed run
    objects = read_objects(path, may_be_cut=True)
    if kind(objects[0]) not in ("metrics", None):
        raise wrong_kind(path, kind(objects[0]), ["metrics"])
    for row in objects:
        if row.get("kind") != "valid" or row.get("accuracy") is None:
            continue
        for key in ("step", "accuracy", "elapsed", "alpha_output"):
            if not isinstance(row.get(key), (int, float)):
                raise UserError(f"{path}, step {row.get('step')}: `{key}` is missing; is this a metrics file?")
        kept = [earlier for earlier in rows if earlier["step"] < row["step"]]
        if rows and row["elapsed"] + before < rows[-1]["elapsed"]:
            before = kept[-1]["elapsed"] if kept else 0.0
        rows = [*kept, {**row, "elapsed": row["elapsed"] + before}]
    if not rows:
        raise UserError(f'{path}: no validation in it (objects with `kind` "valid" and an `accuracy`).')
    return Metrics(path, rows)


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
            kept = [entry for entry in read_rows(self.path) if entry["step"] <= after_step]
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
