"""The files that tables and figures are made from, read strictly; docs/formats.md describes them.

JSON lines are told apart by what their objects hold: metrics (``kind``), certificates, with a tree where ``onmt_entmax
trace`` wrote them (``hypotheses``), and forced decodings (``steps``). A result file is one JSON object with
``signatures``, that of ``onmt_entmax sparsity`` one with ``target_types``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

from onmt_entmax.errors import UserError, choices
from onmt_entmax.files import BLANK_LINE, read_json, read_records
from onmt_entmax.report.text import EOS

CERTIFICATE = ("complete", "optimal", "mass_found", "mass_is_one", "found", "reason")
NODE_STATUS = ("live", "finished", "dropped", "cut", "stopped")


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
        """Alphas of output and attention; the latter is None without attention."""
        return self.rows[-1]["alpha_output"], self.rows[-1]["alpha_attention"]

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


def read_objects(path: Path, may_be_cut: bool = False) -> list[dict[str, Any]]:
    """Read JSON lines (:func:`onmt_entmax.files.read_records`); an empty file is a :class:`UserError`."""
    objects = read_records(path, may_be_cut)
    if not objects:
        raise UserError(f"{path} is empty: nothing to show.")
    return objects


def kind(record: dict[str, Any]) -> Optional[str]:
    """Say what an object is: ``metrics``, ``result``, ``sparsity``, ``trace``, ``certificate``, ``forced`` or None."""
    if "kind" in record and "step" in record:
        return "metrics"
    if isinstance(record.get("signatures"), dict):
        return "result"
    if "target_types" in record and "signature" in record:
        return "sparsity"
    if "line" in record and "hypotheses" in record:
        return "trace" if "tree" in record else "certificate"
    if "line" in record and "steps" in record:
        return "forced"
    return None


def read_metrics(path: Path) -> Metrics:
    """Read ``PREFIX_metrics.jsonl``.

    Raises:
        UserError: no validation in it, or one that lacks a field.
    """
    rows: list[dict[str, Any]] = []
    before = 0.0  # time of the earlier courses of a resumed run
    for row in read_objects(path, may_be_cut=True):
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
    rows[-1].setdefault("alpha_attention", None)
    return Metrics(path, rows)


def read_result(path: Path) -> dict[str, Any]:
    """Read a result file of ``onmt_entmax evaluate``."""
    result = read_json(path)
    if not isinstance(result.get("signatures"), dict) or not result["signatures"]:
        raise UserError(
            f"{path}: no `signatures`; it must be written by `onmt_entmax evaluate ... --json {path.name}`."
        )
    return result


def signature_fields(signature: str) -> dict[str, str]:
    """Take a signature apart: ``acc|set:high|seed:1`` has ``metric`` acc, ``set`` high, ``seed`` 1."""
    metric, *fields = signature.split("|")
    return {"metric": metric, **{key: value for key, _, value in (field.partition(":") for field in fields)}}


def read_examples(path: Path) -> list[dict[str, Any]]:
    """Read what ``trace``, ``force`` or ``-certificates`` wrote.

    Returns:
        One example per input line that is not blank: ``line``, and what there is of ``source``, ``certificate``,
        ``tree``, ``attention`` (``target``, ``weights``: of the best hypothesis) and ``steps``.

    Raises:
        UserError: another kind of file, or an object that breaks the format, with the line it is about.
    """
    examples = []
    for record in read_objects(path):
        if "line" in record and record.get("reason") == BLANK_LINE:
            continue
        what = kind(record)
        if what not in ("trace", "certificate", "forced"):
            raise UserError(f"{path}: no output of `trace`, `force` or `-certificates` (no `hypotheses`, no `steps`).")
        where = f"{path}, input line {record['line']}"
        examples.append(_forced_example(where, record) if what == "forced" else _searched_example(where, record))
    if not examples:
        raise UserError(f"{path}: only blank input lines in it: nothing to show.")
    return examples


def pick(path: Path, line: Optional[int], wanted: Callable[[dict[str, Any]], bool], needs: str) -> dict[str, Any]:
    """Read one example: that of an input line, or the first that has what is needed.

    Args:
        path: of the examples.
        line: number of the input line; None for the first that fits.
        wanted: whether an example has what is needed.
        needs: in words, for the message.
    """
    examples = read_examples(path)
    if line is not None:
        examples = [example for example in examples if example["line"] == line]
        if not examples:
            raise UserError(f"{path}: no input line {line}.")
    found = next((example for example in examples if wanted(example)), None)
    if found is None:
        raise UserError(f"{path}: no example{f' of line {line}' if line else ''} with {needs}.")
    return found


def attention_of(example: dict[str, Any]) -> Optional[tuple[list[str], list[str], list[list[float]]]]:
    """Source tokens, target tokens and weights ``(target, source)`` of an example, or None without attention.

    They come from ``attention``, or from the non-zeros that forced decoding lists in ``steps``.
    """
    if example.get("attention"):
        block = example["attention"]
        return example["source"], block["target"], block["weights"]
    steps = example.get("steps") or []
    if not steps or any(step.get("attention") is None for step in steps):
        return None
    entries = [entry for step in steps for entry in step["attention"]]
    source = example.get("source")
    if source is None:
        if not entries:
            return None
        texts = {entry["position"]: entry["token"] for entry in entries if entry.get("token") is not None}
        source = [texts.get(position, "?") for position in range(1 + max(entry["position"] for entry in entries))]
    weights = [[0.0] * len(source) for _ in steps]
    for row, step in zip(weights, steps):
        for entry in step["attention"]:
            row[entry["position"]] = entry["weight"]
    return source, [step["token"] for step in steps], weights


def _forced_example(where: str, record: dict[str, Any]) -> dict[str, Any]:
    for step in record["steps"]:
        if not all(key in step for key in ("token", "prob", "support", "support_size")):
            raise UserError(f"{where}: an entry of `steps` needs `token`, `prob`, `support` and `support_size`.")
    return record


def _searched_example(where: str, record: dict[str, Any]) -> dict[str, Any]:
    example = {"line": record["line"], "certificate": record}
    missing = [key for key in CERTIFICATE if key not in record]
    if missing:
        raise UserError(f"{where}: the certificate lacks `{missing[0]}`; was it written by an older version?")
    for hypothesis in record["hypotheses"]:
        if not all(key in hypothesis for key in ("tokens", "log_prob", "finished")):
            raise UserError(f"{where}: a hypothesis needs `tokens`, `log_prob` and `finished`.")
    if record.get("source") is not None:
        example["source"] = record["source"]
    if record.get("tree"):
        _check_tree(where, record["tree"])
        example["tree"] = record["tree"]
    best = record["hypotheses"][0] if record["hypotheses"] else {}
    if best.get("attention") and "source" in example:
        target = [*best["tokens"], *([EOS] if best["finished"] else [])]
        widths = {len(row) for row in best["attention"]}
        if len(best["attention"]) != len(target) or widths != {len(example["source"])}:
            raise UserError(
                f"{where}: {len(best['attention'])} rows of {sorted(widths)} attention weights, for {len(target)} "
                f"target and {len(example['source'])} source tokens."
            )
        example["attention"] = {"target": target, "weights": best["attention"]}
    return example


def _check_tree(where: str, nodes: list[dict[str, Any]]) -> None:
    for index, node in enumerate(nodes):
        parent = node.get("parent")
        if (parent is None) != (index == 0) or (parent is not None and not 0 <= parent < index):
            raise UserError(f"{where}: node {index} of `tree` comes before its parent, or has none.")
        if node.get("status") not in NODE_STATUS or not isinstance(node.get("log_prob"), (int, float)):
            raise UserError(f"{where}: node {index} of `tree` needs `log_prob` and a `status`. {choices(NODE_STATUS)}")
