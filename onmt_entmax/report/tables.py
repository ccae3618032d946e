"""Tables 1 to 3 of the paper from result files, the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Optional

from onmt_entmax.errors import UserError
from onmt_entmax.files import read_json
from onmt_entmax.report import paper
from onmt_entmax.report.figures.style import alpha_name
from onmt_entmax.report.readers import kind, read_metrics, read_result, signature_fields

MISSING = "–"


@dataclass
class Cell:
    """A number, or its absence.

    Attributes:
        value: None where it is missing.
        sd: standard deviation over runs, or None.
        digits: after the point.
        best: whether it is the best of its column.
    """

    value: Optional[float] = None
    sd: Optional[float] = None
    digits: int = 2
    best: bool = False

    def text(self) -> str:
        """The number as shown, without emphasis."""
        if self.value is None:
            return MISSING
        return f"{self.value:,.{self.digits}f}" + ("" if self.sd is None else f" ±{self.sd:.2f}")


@dataclass
class Table:
    """A table for any format.

    Attributes:
        title: in a sentence.
        heads: rows of column heads; a head of ``None`` continues the one to its left.
        labels: how many columns at the left are labels.
        rows: label texts, then cells; an empty row is a rule.
        signatures: how the numbers were made.
        notices: what a reader must know.
    """

    title: str
    heads: list[list[Optional[str]]]
    labels: int
    rows: list[list[Any]]
    signatures: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def table1(paths: Sequence[Path]) -> Table:
    """Accuracy of inflection by alphas, for single runs (averaged) and ensembles.

    Args:
        paths: files of ``onmt_entmax evaluate inflection --json``. A seed such as ``1+2+3`` means an ensemble.
    """
    found = []
    for path in paths:
        result = read_result(path)
        about = _about(path, result, "acc")
        found.append((path, result["macro"]["acc"], about))
    singles: dict[tuple[Any, str], dict[str, float]] = {}
    ensembles: dict[tuple[Any, str], float] = {}
    first: dict[Any, dict[str, str]] = {}
    for path, value, about in found:
        alphas, setting, seed = _alphas(path, about), about.get("set", "unknown"), about.get("seed", "unknown")
        _check_same(path, about, first.setdefault((alphas, setting), about))
        if "+" in seed:
            if (alphas, setting) in ensembles:
                raise UserError(f"{path}: a second ensemble of alphas {about['alpha']}, setting {setting}.")
            ensembles[alphas, setting] = value
        else:
            runs = singles.setdefault((alphas, setting), {})
            if seed in runs:
                raise UserError(f"{path}: a second run of seed {seed}, alphas {about['alpha']}, setting {setting}.")
            runs[seed] = value
    columns = [("high", False), ("high", True), ("medium", False), ("medium", True)]
    known = {*paper.TABLE1, *(key[0] for key in (*singles, *ensembles))}
    ours: dict[Any, list[Cell]] = {}
    theirs: dict[Any, list[Cell]] = {}
    for alphas in sorted(known):
        ours[alphas] = []
        for setting, ensemble in columns:
            runs = list(singles.get((alphas, setting), {}).values())
            value = ensembles.get((alphas, setting)) if ensemble else (fmean(runs) if runs else None)
            ours[alphas].append(Cell(value))
        theirs[alphas] = [Cell(value) for value in paper.TABLE1.get(alphas, (None,) * 4)]
    for group in (ours, theirs):
        _mark_best(list(group.values()), [True] * 4)
    rows: list[list[Any]] = []
    before = None
    for alphas in sorted(known):
        output, attention = alphas
        label = f"{output:g}" if output != before else ""
        before = output
        rows.append([label, f"{attention:g}", *_beside(ours[alphas], theirs[alphas])])
    rows += [[], ["UZH", "", *_beside([Cell()] * 4, [Cell(value) for value in paper.TABLE1_UZH])]]
    heads = [
        ["α", None, "high (avg.)", None, "high (ens.)", None, "medium (avg.)", None, "medium (ens.)", None],
        ["output", "attention", *["ours", "paper"] * 4],
    ]
    title = "Word accuracy (%), averaged over languages; single runs averaged, or an ensemble of them."
    counts = sorted({len(runs) for runs in singles.values()})
    notices = [_runs("averages", counts)] if counts else []
    for _, _, about in found:
        setting = about.get("set", "unknown")
        if setting not in paper.TABLE1_LANGUAGES:
            notices.append(f"Setting {setting} is not in the paper's table: left out.")
        elif about.get("task") != paper.TABLE1_TASK or about.get("langs") != str(paper.TABLE1_LANGUAGES[setting]):
            notices.append(
                f"Not the paper's data: task {about.get('task')}, {about.get('langs')} languages ({setting}); "
                f"the paper has {paper.TABLE1_TASK} with {paper.TABLE1_LANGUAGES[setting]}."
            )
        if about.get("split") != "test":
            notices.append(f"Split {about.get('split')}; the paper's is test.")
    signatures = [about["signature"] for _, _, about in found]
    return Table(title, heads, 2, rows, signatures, list(dict.fromkeys(notices)))


def table2(paths: Sequence[Path]) -> Table:
    """Tokenised BLEU by mapping and direction, mean and standard deviation over runs.

    Args:
        paths: files of ``onmt_entmax evaluate translation --json``.
    """
    runs: dict[tuple[float, str], list[float]] = {}
    first: dict[Any, dict[str, str]] = {}
    seen: dict[Any, Path] = {}
    signatures, notices = [], []
    for path in paths:
        result = read_result(path)
        found = result["signatures"]
        if "bleu_raw" in found and "bleu_tok" not in found:
            notices.append(f"{path}: only BLEU on raw text, which has no place in this table ({found['bleu_raw']}).")
            continue
        about = _about(path, result, "bleu_tok")
        signatures.append(about["signature"])
        output, attention = _alphas(path, about)
        direction = about.get("dir", "unknown")
        if output != attention or direction not in paper.DIRECTIONS:
            notices.append(f"{path.name}: alphas {about['alpha']}, direction {direction} have no place in this table.")
            continue
        _check_same(path, about, first.setdefault((output, direction), about))
        for scores in result["runs"]:
            # short trainings may well give several models the same predictions: only other files are suspicious
            other = seen.setdefault((output, direction, scores["sha256"]), path)
            if other != path:
                raise UserError(f"{path}: the predictions {scores['predictions']} are also in {other}.")
            runs.setdefault((output, direction), []).append(scores["bleu_tok"])
        lines = paper.TABLE2_LINES[direction.replace("en", "").strip("-")]
        if about.get("split") != "test" or about.get("train") != str(lines):
            notices.append(
                f"Not the paper's data: {direction}, {about.get('split')} set, trained on {about.get('train')} pairs "
                f"(the paper: {lines})."
            )
    alphas = sorted({*paper.TABLE2, *(alpha for alpha, _ in runs)})
    ours, theirs = [], []
    for alpha in alphas:
        cells = [runs.get((alpha, direction), []) for direction in paper.DIRECTIONS]
        ours.append([Cell(fmean(v) if v else None, stdev(v) if len(v) > 1 else None) for v in cells])
        published = paper.TABLE2.get(alpha, ((None, None),) * len(paper.DIRECTIONS))
        theirs.append([Cell(value, sd) for value, sd in published])
    for group in (ours, theirs):
        _mark_best(group, [True] * len(paper.DIRECTIONS))
    rows: list[list[Any]] = []
    for alpha, own, published in zip(alphas, ours, theirs):
        rows += [[alpha_name(alpha), "ours", *own], ["", "paper", *published]]
    counts = sorted({len(own) for own in runs.values()})
    if counts:
        notices.insert(0, _runs("mean and sample standard deviation", counts))
    title = "Tokenised BLEU; the same mapping in attention and output."
    heads: list[list[Optional[str]]] = [["method", "", *paper.DIRECTIONS]]
    return Table(title, heads, 2, rows, signatures, list(dict.fromkeys(notices)))


def table3(paths: Sequence[Path]) -> Table:
    """Mean numbers of non-zeros in attention and output.

    Args:
        paths: files of ``onmt_entmax sparsity --output``, or ``PREFIX_metrics.jsonl``, whose best validation counts.
    """
    found: dict[float, list[tuple[Optional[float], Optional[float]]]] = {}
    signatures, notices = [], []
    for path in paths:
        output, attention, numbers, signature = _sparsity(path)
        signatures.append(signature)
        if output != attention:
            notices.append(f"{path.name}: alphas {output:g}/{attention:g} differ and have no place in this table.")
            continue
        found.setdefault(output, []).append(numbers)
    alphas = sorted({*paper.TABLE3, *found})
    ours, theirs = [], []
    for alpha in alphas:
        own = []
        for side in (0, 1):
            values = [numbers[side] for numbers in found.get(alpha, []) if numbers[side] is not None]
            own.append(Cell(fmean(values) if values else None))
        ours.append(own)
        theirs.append([Cell(value) for value in paper.TABLE3.get(alpha, (None, None))])
    rows = [[alpha_name(a), *_beside(own, published)] for a, own, published in zip(alphas, ours, theirs)]
    notices.append("The paper's numbers are of its German-English validation set, ours of what the signatures name.")
    heads = [["method", "# attended", None, "# target words", None], ["", *["ours", "paper"] * 2]]
    title = "Average number of non-zeros in attention and output."
    return Table(title, heads, 1, rows, signatures, notices)


TABLES = {1: table1, 2: table2, 3: table3}


def _about(path: Path, result: dict[str, Any], metric: str) -> dict[str, str]:
    """The fields of a metric's signature in a result file; the whole signature is under ``signature``."""
    signature = result["signatures"].get(metric)
    values = result.get("macro") if metric == "acc" else result.get("runs")
    if signature is None or not values:
        valid = ", ".join(result["signatures"])
        raise UserError(f"{path}: no `{metric}` in it (it has {valid}). Was it made for another table?")
    return {**signature_fields(signature), "signature": signature}


def _check_same(path: Path, about: dict[str, str], other: dict[str, str]) -> None:
    """Refuse to average what was not measured in the same way."""
    for key in ("task", "set", "split", "langs", "dir", "lines", "train", "subwords"):
        if about.get(key) != other.get(key):
            raise UserError(
                f"{path}: its signature has {key} {about.get(key)}, that of another run of the same cell "
                f"{other.get(key)}. They cannot be averaged."
            )


def _alphas(path: Path, about: dict[str, str]) -> tuple[float, float]:
    try:
        output, attention = (float(part) for part in about.get("alpha", "").split("/"))
    except ValueError:
        raise UserError(
            f"{path}: its signature says alpha {about.get('alpha', 'nothing')}; evaluate again with --alpha OUT/ATT."
        ) from None
    return output, attention


def _sparsity(path: Path) -> tuple[float, float, tuple[Optional[float], Optional[float]], str]:
    if path.suffix == ".jsonl":
        run = read_metrics(path)
        best = run.best
        signature = best.get("signature") or run.signature
        return (*run.alphas, (best.get("support_attention"), best.get("support_output")), signature)
    record = read_json(path)
    if kind(record) != "sparsity":
        raise UserError(f"{path}: neither written by `onmt_entmax sparsity --output` nor a metrics file (.jsonl).")
    alphas = _alphas(path, signature_fields(record["signature"]))
    return (*alphas, (record.get("source_words"), record["target_types"]), record["signature"])


def _mark_best(rows: Sequence[Sequence[Cell]], higher: Sequence[bool]) -> None:
    """Mark the best of each column, all of them on a tie at the digits shown; not where only one is there."""
    for column, up in enumerate(higher):
        cells = [row[column] for row in rows if row[column].value is not None]
        if len(cells) > 1:
            values = [round(cell.value or 0.0, cell.digits) for cell in cells]
            top = max(values) if up else min(values)
            for cell, value in zip(cells, values):
                cell.best = value == top


def _beside(ours: Sequence[Cell], theirs: Sequence[Cell]) -> list[Cell]:
    return [cell for pair in zip(ours, theirs) for cell in pair]


def _runs(what: str, counts: Sequence[int]) -> str:
    """How many runs of ours there are of each pair of alphas, of which ``what`` is shown."""
    if list(counts) == [1]:
        return "Ours: one run each."
    span = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"Ours: {what} of {span} runs."
