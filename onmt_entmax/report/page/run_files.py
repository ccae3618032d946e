"""What lies in a run's folder, sorted by kind, with a word about what is missing or broken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from onmt_entmax.commands.uncertain import least_certain
from onmt_entmax.errors import UserError
from onmt_entmax.files import read_json, read_lines, read_text
from onmt_entmax.report.readers import Metrics, kind, read_examples, read_metrics


@dataclass
class RunFiles:
    """The files of one run.

    Attributes:
        folder: where they lie.
        metrics: the training runs, one per metrics file.
        results: file -> result of ``onmt_entmax evaluate``.
        sparsity: file -> numbers of ``onmt_entmax sparsity``.
        certificates: file -> examples of ``onmt_translate -certificates``.
        traces: file -> examples of ``onmt_entmax trace``.
        forced: file -> examples of ``onmt_entmax force``.
        settings: file -> text of a YAML file.
        notices: what is missing or broken, in sentences.
        used: all files that were read.
    """

    folder: Path
    metrics: list[Metrics] = field(default_factory=list)
    results: dict[Path, dict[str, Any]] = field(default_factory=dict)
    sparsity: dict[Path, dict[str, Any]] = field(default_factory=dict)
    certificates: dict[Path, list[dict[str, Any]]] = field(default_factory=dict)
    traces: dict[Path, list[dict[str, Any]]] = field(default_factory=dict)
    forced: dict[Path, list[dict[str, Any]]] = field(default_factory=dict)
    settings: dict[Path, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    used: list[Path] = field(default_factory=list)

    def examples(self, count: int) -> list[dict[str, Any]]:
        """The examples to show, the least certain first: searches with trees, or else certificates, or else targets.

        ``NAME.forced.jsonl`` belongs to ``NAME.trace.jsonl``: its ``steps`` join the example of the same line.
        """
        searched = self.traces or self.certificates or self.forced
        steps = {(_stem(path), e["line"]): e["steps"] for path, examples in self.forced.items() for e in examples}
        joined = []
        for path, examples in searched.items():
            for example in examples:
                own = steps.get((_stem(path), example["line"]))
                joined.append({**example, "file": path.name, **({"steps": own} if own else {})})
        return least_certain(joined)[:count]


def read_run(folder: Path) -> RunFiles:
    """Read every file of ours in a folder; one that is broken becomes a notice.

    Raises:
        UserError: no such folder, or nothing of ours in it.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is {'a file' if folder.exists() else 'not there'}; a run's folder is needed.")
    run = RunFiles(folder)
    for path in sorted(folder.iterdir()):
        if path.suffix not in (".jsonl", ".json", ".yaml", ".yml") or not path.is_file():
            continue
        try:
            if _read(run, path):
                run.used.append(path)
        except UserError as error:
            run.notices.append(str(error))
    if not run.used:
        inside = sorted({path.parent for path in folder.glob("*/*_metrics.jsonl")})
        hint = f" Its folders {', '.join(path.name for path in inside)} do." if inside else ""
        broken = f" {' '.join(run.notices)}" if run.notices else ""
        raise UserError(f"{folder} holds no metrics, results, certificates or traces of a run.{hint}{broken}")
    run.notices += _missing(run)
    return run


def _read(run: RunFiles, path: Path) -> bool:
    """Read one file into its place; returns whether it is of ours."""
    if path.suffix in (".yaml", ".yml"):
        run.settings[path] = read_text(path)
        return True
    what = _kind_of_file(path)
    if what == "metrics":
        run.metrics.append(read_metrics(path))
    elif what == "result":
        run.results[path] = read_json(path)
    elif what == "sparsity":
        run.sparsity[path] = read_json(path)
    elif what in ("certificate", "trace", "forced"):
        places = {"certificate": run.certificates, "trace": run.traces, "forced": run.forced}
        places[what][path] = read_examples(path)
    return what is not None


def _kind_of_file(path: Path) -> Optional[str]:
    if path.suffix == ".json":
        return kind(read_json(path))
    lines = [line for line in read_lines(path) if line.strip()]
    if not lines:
        raise UserError(f"{path} is empty: nothing to show.")
    for line in lines:
        try:
            what = kind(json.loads(line))
        except (ValueError, TypeError, AttributeError):
            return None  # JSON lines of somebody else, or no JSON at all
        if what is not None:
            return what
    return None


def _missing(run: RunFiles) -> Iterator[str]:
    if not run.metrics:
        yield "No metrics file (PREFIX_metrics.jsonl) here: no curves."
    if not run.results:
        yield "No result file here (`onmt_entmax evaluate ... --json`): no scores."
    if not run.certificates:
        yield "No certificates here (`onmt_translate ... -certificates FILE`): no certificate rates."
    if not run.traces:
        yield "No traces here (`onmt_entmax uncertain`, then `onmt_entmax trace`): no search trees, no attention."


def _stem(path: Path) -> str:
    return path.name.split(".")[0]
