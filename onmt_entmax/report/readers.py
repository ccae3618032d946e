"""The files that tables, figures and the page are made from, told apart by content and read strictly.

docs/formats.md describes them. ``kind`` names what an object is, ``KINDS`` says in words who writes such files and who
reads them, so that a command given the wrong one can say which it is and where it belongs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

from onmt_entmax.errors import UserError, choices
from onmt_entmax.files import BLANK_LINE, iterate_lines, read_json, read_lines, read_records
from onmt_entmax.report.text import EOS, count
from onmt_entmax.search.result import check_certificate

NODE_STATUS = ("live", "finished", "dropped", "cut", "stopped")

# kind -> (what such a file is, what reads it)
KINDS = {
    "metrics": ("a metrics file of `onmt_train`", "`table 3`, `report` and `figure` (four kinds)"),
    "best": ("the note on a best checkpoint (PREFIX_best.json)", "nothing but you"),
    "result": ("a result of `onmt_entmax evaluate --json`", "`table 1`, `table 2`, `overview` and `figure trust`"),
    "search": ("a result of `onmt_entmax evaluate search --json`", "`figure search`"),
    "sparsity": ("a result of `onmt_entmax sparsity`", "`table 3` and `overview`"),
    "certificate": (
        "certificates of `onmt_translate -certificates`", "`figure beam`, `uncertain`, `accept` and `evaluate`"
    ),
    "trace": ("search trees of `onmt_entmax trace`", "`figure beam`, `figure attention` and `uncertain`"),
    "forced": ("forced decodings of `onmt_entmax force`", "`figure forced`, `support-histogram` and `attention`"),
    "attention": ("attention weights of `onmt_translate -attention` or `heads --weights`", "`figure attention`"),
    "heads": ("measures of `onmt_entmax heads --output`", "`figure heads`"),
}  # fmt: skip
EXAMPLES = ("trace", "certificate", "forced", "attention")


def kind(record: dict[str, Any]) -> Optional[str]:
    """Say what an object is: a key of ``KINDS``, or None for a stranger."""
    if "kind" in record and "step" in record:
        return "metrics"
    if "checkpoint" in record and "measure" in record:
        return "best"
    if isinstance(record.get("signatures"), dict):
        return "result"
    if "searches" in record and "signature" in record:
        return "search"
    if "target_types" in record and "signature" in record:
        return "sparsity"
    if "heads" in record and "signature" in record:
        return "heads"
    if "line" in record and "hypotheses" in record:
        if "tree" in record:
            return "trace"
        weighted = all("tokens" in hypothesis and "attention" in hypothesis for hypothesis in record["hypotheses"])
        return "attention" if weighted and "source" in record and "complete" not in record else "certificate"
    if "line" in record and "steps" in record:
        return "forced"
    return None


def wrong_kind(path: Path, found: Optional[str], needed: Iterable[str]) -> UserError:
    """The error for a file of a kind that another command takes; ``needed`` are those that are taken here."""
    wanted = ", or ".join(KINDS[name][0] for name in needed)
    if found is None:
        return UserError(f"{path} is no file of ours that fits here. Needed: {wanted}.")
    what, readers = KINDS[found]
    return UserError(f"{path} holds {what}, for {readers}. Needed: {wanted}.")


def read_objects(path: Path, may_be_cut: bool = False) -> list[dict[str, Any]]:
    """Read JSON lines, or one JSON object over several lines; ``may_be_cut`` leaves out a last line that a kill cut.

    Raises:
        UserError: an empty file, or a line that is no JSON object, with its number.
    """
    try:
        objects = read_records(path, may_be_cut)
    except UserError as error:
        objects = [_whole(path, error)]
    if not objects:
        raise UserError(f"{path} is empty: nothing to show.")
    return objects


def _whole(path: Path, first: UserError) -> dict[str, Any]:
    """One object over all lines; if it is none either, the error that fits the file's looks."""
    try:
        return read_json(path)
    except UserError as error:
        indented = next(iterate_lines(path)).rstrip() in ("{", "[")
        raise (error if indented else first) from None


def read_object(path: Path, needed: Optional[str] = None) -> dict[str, Any]:
    """Read a file that holds one JSON object, of the kind needed."""
    objects = read_objects(path)
    if needed is not None and kind(objects[0]) != needed:
        raise wrong_kind(path, kind(objects[0]), [needed])
    if len(objects) > 1:
        raise UserError(f"{path} holds {len(objects)} JSON objects; one is needed.")
    return objects[0]


def read_examples(path: Path, kinds: Sequence[str] = EXAMPLES) -> list[dict[str, Any]]:
    """Read what ``trace``, ``force``, ``-certificates`` or ``-attention`` wrote; ``kinds`` are those that are taken.

    Returns:
        One example per input line that is neither blank nor left out by a transform: ``line``, and what there is of
        ``source``, ``certificate``, ``tree``, ``attention`` (``target``, ``weights``: of the best hypothesis) and
        ``steps``.

    Raises:
        UserError: another kind of file, or an object that breaks the format, with the line it is about.
    """
    examples = []
    for record in read_objects(path):
        what = kind(record)
        # an attention file has no `reason` for an input line that was not searched
        void = not record["source"] if what == "attention" else record.get("reason") is not None
        unsearched = record.get("reason") == BLANK_LINE or (void and not record.get("hypotheses", True))
        if "line" in record and unsearched:
            continue
        if what is None or what not in kinds:
            raise wrong_kind(path, what, kinds)
        where = f"{path}, input line {record['line']}"
        examples.append(_READ[what](where, record))
    if not examples:
        raise UserError(f"{path}: no input line in it was searched (blank, or left out): nothing to show.")
    return examples


def pick(
    path: Path, line: Optional[int], kinds: Sequence[str], wanted: Callable[[dict[str, Any]], bool], needs: str
) -> dict[str, Any]:
    """Read one example: that of an input line (None: the first) that has what is ``wanted``, in words ``needs``."""
    examples = read_examples(path, kinds)
    if line is not None:
        examples = [example for example in examples if example["line"] == line]
        if not examples:
            raise UserError(f"{path}: no input line {line}.")
    found = next((example for example in examples if wanted(example)), None)
    if found is None:
        raise UserError(f"{path}: no example{f' of line {line}' if line else ''} with {needs}.")
    return found


def certainty(example: dict[str, Any]) -> float:
    """Log-probability of the best hypothesis; of a forced target where nothing was searched; -inf where neither is."""
    hypotheses = (example.get("certificate") or {}).get("hypotheses")
    if hypotheses:
        return hypotheses[0]["log_prob"] if hypotheses[0]["finished"] else -math.inf
    log_prob = example.get("log_prob")
    return -math.inf if log_prob is None else log_prob


def least_certain(examples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Order examples by the probability of what the model would answer, the lowest first."""
    return sorted(examples, key=lambda example: (certainty(example), example["line"]))


def lines_beside(path: Path, text: Path) -> list[str]:
    """The lines of the text (inputs or targets) that a file of examples is about: as many, and in one order."""
    lines, numbers = read_lines(text), [record.get("line") for record in read_objects(path)]
    inputs = len(numbers)
    for number, given in enumerate(numbers, 1):
        if number != given:
            rule = "all lines are needed, in order."
            raise UserError(f"{path}: its object number {number} is of input line {given}; {rule}")
    if len(lines) != inputs:
        raise UserError(
            f"{text} has {count(len(lines), 'line')}, and {path} speaks of {count(inputs, 'input line')}: "
            "they do not belong together."
        )
    return lines


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
    check_certificate(record, where)
    if record.get("source") is not None:
        example["source"] = record["source"]
    if record.get("tree"):
        _check_tree(where, record["tree"])
        example["tree"] = record["tree"]
    best = record["hypotheses"][0] if record["hypotheses"] else {}
    if best.get("attention") and "source" in example:
        target = [*best["tokens"], *([EOS] if best["finished"] else [])]
        example["attention"] = _attention(where, example["source"], target, best["attention"])
    return example


def _attention_example(where: str, record: dict[str, Any]) -> dict[str, Any]:
    """Of the best hypothesis, whose tokens hold ``</s>`` already."""
    example = {"line": record["line"], "source": record["source"]}
    if "head" in record:
        name = str(record["attention"]).replace("_", " ")
        example["head"] = f"{name}, layer {record['layer']}, head {record['head']}"
    best = record["hypotheses"][0] if record["hypotheses"] else {}
    if best.get("attention"):
        example["attention"] = _attention(where, record["source"], best["tokens"], best["attention"])
    return example


def _attention(where: str, source: list[str], target: list[str], weights: list[list[float]]) -> dict[str, Any]:
    widths = {len(row) for row in weights}
    if len(weights) != len(target) or widths != {len(source)}:
        raise UserError(
            f"{where}: {len(weights)} rows of {sorted(widths)} attention weights, for {len(target)} target and "
            f"{len(source)} source tokens."
        )
    return {"target": target, "weights": weights}


def _check_tree(where: str, nodes: list[dict[str, Any]]) -> None:
    for index, node in enumerate(nodes):
        parent = node.get("parent")
        if (parent is None) != (index == 0) or (parent is not None and not 0 <= parent < index):
            raise UserError(f"{where}: node {index} of `tree` comes before its parent, or has none.")
        if node.get("status") not in NODE_STATUS or not isinstance(node.get("log_prob"), (int, float)):
            raise UserError(f"{where}: node {index} of `tree` needs `log_prob` and a `status`. {choices(NODE_STATUS)}")


_READ = {
    "trace": _searched_example,
    "certificate": _searched_example,
    "forced": _forced_example,
    "attention": _attention_example,
}
