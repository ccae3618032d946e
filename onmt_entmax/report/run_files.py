"""What lies in a run's folder, sorted by kind, with a word about what is missing or broken; runs side by side."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any, Optional

from onmt_entmax.errors import UserError
from onmt_entmax.files import read_lines, read_text
from onmt_entmax.report.metrics import Metrics, read_metrics
from onmt_entmax.report.readers import kind, least_certain, read_examples, read_object, read_objects
from onmt_entmax.signatures import parse_signature

# heading of the overview -> (file, where in it, format); rates are macro averages over languages, in percent
OVERVIEW = {
    "test accuracy %": ("evaluation.json", ("macro", "acc"), ".1f"),
    "attended characters": ("sparsity.json", ("source_words",), ".2f"),
    "output support": ("sparsity.json", ("target_types",), ".2f"),
    "single hypothesis %": ("evaluation.json", ("macro", "single"), ".1f"),
    "complete %": ("evaluation.json", ("macro", "complete"), ".1f"),
    "optimal %": ("evaluation.json", ("macro", "optimal"), ".1f"),
}


Objects = dict[Path, dict[str, Any]]
Examples = dict[Path, list[dict[str, Any]]]


class RunFiles:
    """The files of one run; those of a kind go from the most telling on, see :func:`rank`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metrics: list[Metrics] = []  # one per training
        self.best: Objects = {}  # the notes on best checkpoints
        self.results: Objects = {}
        self.sparsity: Objects = {}
        self.certificates: Examples = {}
        self.traces: Examples = {}
        self.forced: Examples = {}
        self.attention: Examples = {}
        self.settings: dict[Path, str] = {}  # texts of YAML files
        self.notices: list[str] = []  # what is missing or broken, in sentences
        self.used: list[Path] = []  # all files that were read

    def examples(self, count: int) -> list[dict[str, Any]]:
        """The examples to show, the least certain first: searches with trees, or else certificates, or else targets.

        ``NAME.forced.jsonl`` belongs to ``NAME.trace.jsonl``: its ``steps`` and ``log_prob`` join the example of the
        same line, and so does the attention of ``NAME.attention.jsonl``, or whatever follows the first point.
        """
        searched = self.traces or self.certificates or self.forced or self.attention
        beside: dict[tuple[str, int], dict[str, Any]] = {}
        for keys, files in ((("steps", "log_prob"), self.forced), (("attention", "source"), self.attention)):
            for path, examples in files.items():
                for example, key in itertools.product(examples, keys):
                    if key in example:
                        beside.setdefault((_stem(path), example["line"]), {})[key] = example[key]
        joined = []
        for path, examples in searched.items():
            for example in examples:
                joined.append({**beside.get((_stem(path), example["line"]), {}), **example, "file": path.name})
        return least_certain(joined)[:count]


def rank(path: Path, record: Optional[dict[str, Any]] = None) -> tuple[int, str]:
    """Order files of one kind: the test set's before the best checkpoint's, others, and the development set's.

    The signature in the record tells the set, or else the path.
    """
    signatures = (record or {}).get("signatures") or {"": (record or {}).get("signature", "")}
    about = parse_signature(next(iter(signatures.values())))
    words = {about.get("split", ""), *re.split(r"[^a-z]+", f"{about.get('src', '')} {path.name}".lower())}
    order = [{"test"}, {"best"}, set(), {"dev", "valid", "train"}]
    return next((place for place, some in enumerate(order) if some & words), 2), path.name


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
    for files in (run.results, run.sparsity):
        ordered = sorted(files.items(), key=lambda item: rank(*item))
        files.clear()
        files.update(ordered)
    run.certificates = {path: run.certificates[path] for path in sorted(run.certificates, key=rank)}
    for found, missing in (
        (run.metrics, "No metrics file (PREFIX_metrics.jsonl) here: no curves."),
        (run.results, "No result file here (`onmt_entmax evaluate ... --json`): no scores."),
        (run.certificates, "No certificates here (`onmt_translate ... -certificates FILE`): no certificate rates."),
        (
            run.traces,
            "No traces here (`onmt_entmax uncertain`, then `onmt_entmax trace`): no search trees, no attention.",
        ),
    ):
        run.notices += [] if found else [missing]
    return run


def _read(run: RunFiles, path: Path) -> bool:
    """Read one file into its place; returns whether it is of ours."""
    if path.suffix in (".yaml", ".yml"):
        run.settings[path] = read_text(path)
        return True
    what = _kind_of_file(path)
    if what == "metrics":
        run.metrics.append(read_metrics(path))
    objects = {"best": run.best, "result": run.results, "sparsity": run.sparsity}
    examples = {
        "certificate": run.certificates, "trace": run.traces, "forced": run.forced, "attention": run.attention
    }  # fmt: skip
    if what in objects:
        objects[what][path] = read_object(path)
    elif what in examples:
        examples[what][path] = read_examples(path)
    elif what in ("search", "heads"):
        run.notices.append(f"{path.name} is not shown here: `onmt_entmax figure {what}` draws it.")
    return what is not None


def _kind_of_file(path: Path) -> Optional[str]:
    if path.suffix == ".json":
        return kind(read_objects(path)[0])
    lines = [line for line in read_lines(path) if line.strip()]
    if not lines:
        raise UserError(f"{path} is empty: nothing to show.")
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            if line.lstrip().startswith("{"):
                raise UserError(f"{path} is not shown: a line of it is cut off, or no JSON.") from None
            return None
        try:
            what = kind(record)
        except (TypeError, AttributeError):
            return None  # JSON lines of somebody else
        if what is not None:
            return what
    return None


def _stem(path: Path) -> str:
    return path.name.split(".")[0]


def overview_row(folder: Path) -> tuple[list[str], list[str]]:
    """One run's numbers under the headings of ``OVERVIEW``, a dash where there is none, and their signatures.

    Raises:
        UserError: ``evaluation.json`` or ``sparsity.json`` is missing in its folder, or holds something else.
    """
    files = {}
    for name, needed, writer in (
        ("evaluation.json", "result", "evaluate inflection --json"),
        ("sparsity.json", "sparsity", "sparsity --output"),
    ):
        if not (folder / name).is_file():
            raise UserError(f"{folder / name} is missing; `onmt_entmax {writer} {folder / name}` writes it.")
        files[name] = read_object(folder / name, needed)
    cells = []
    for name, keys, form in OVERVIEW.values():
        value: Any = files[name]
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        cells.append("–" if value is None else format(value, form))
    signatures = files["evaluation.json"]["signatures"]
    return cells, [signatures.get("acc", next(iter(signatures.values()))), files["sparsity.json"]["signature"]]
