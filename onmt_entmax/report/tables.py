"""Tables 1 to 3 of the paper from result files, the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Optional

from onmt_entmax.errors import UserError
from onmt_entmax.report.metrics import read_metrics
from onmt_entmax.report.readers import kind, read_object, read_objects, wrong_kind
from onmt_entmax.report.text import alpha_name
from onmt_entmax.signatures import parse_signature

MISSING = "–"
Numbers = tuple[Optional[float], Optional[float]]  # non-zeros in attention and output

# The paper's numbers (Peters, Niculae and Martins, ACL 2019), to be shown beside ours.
# Table 1: (output alpha, attention alpha) -> accuracy: high avg., high ens., medium avg., medium ens.
PAPER1 = {
    (1.0, 1.0): (93.15, 94.20, 82.55, 85.68),
    (1.0, 1.5): (92.32, 93.50, 83.20, 85.63),
    (1.0, 2.0): (90.98, 92.60, 83.13, 85.65),
    (1.5, 1.0): (94.36, 94.96, 84.88, 86.38),
    (1.5, 1.5): (94.44, 95.00, 84.93, 86.55),
    (1.5, 2.0): (94.05, 94.74, 84.93, 86.59),
    (2.0, 1.0): (94.59, 95.10, 84.95, 86.41),
    (2.0, 1.5): (94.47, 95.01, 85.03, 86.61),
    (2.0, 2.0): (94.32, 94.89, 84.96, 86.47),
}
PAPER1_UZH = (None, 96.00, None, 86.64)  # Makarov and Clematide (2018), the best submission
PAPER1_TASK = "conll2018.1"
PAPER1_LANGUAGES = {"high": 86, "medium": 102}

# Table 2: alpha -> direction -> tokenised BLEU, its standard deviation over three runs
DIRECTIONS = ("de-en", "en-de", "ja-en", "en-ja", "ro-en", "en-ro")
PAPER2_LINES = {"de": 206112, "ja": 329882, "ro": 612422}  # training sentence pairs, with English
PAPER2 = {
    1.0: ((25.70, 0.15), (21.86, 0.09), (20.22, 0.08), (25.21, 0.29), (29.12, 0.18), (28.12, 0.18)),
    1.5: ((26.17, 0.13), (22.42, 0.08), (20.55, 0.30), (26.00, 0.31), (30.15, 0.06), (28.84, 0.10)),
    2.0: ((24.69, 0.22), (20.82, 0.19), (18.54, 0.11), (23.84, 0.37), (29.20, 0.16), (28.03, 0.16)),
}

# Table 3: alpha -> source words attended to, target words of non-zero probability (de-en validation set)
PAPER3 = {1.0: (24.25, 17993.0), 1.5: (5.55, 16.13), 2.0: (3.75, 7.55)}


@dataclass
class Cell:
    """A number (None where it is missing), its standard deviation over runs, and whether it is its column's best."""

    value: Optional[float] = None
    sd: Optional[float] = None
    best: bool = False

    def text(self) -> str:
        """The number as shown, without emphasis."""
        if self.value is None:
            return MISSING
        return f"{self.value:,.2f}" + ("" if self.sd is None else f" ±{self.sd:.2f}")


@dataclass
class Table:
    """A table for any format.

    Attributes:
        heads: rows of column heads; a head of ``None`` continues the one to its left.
        labels: how many columns at the left are labels.
        rows: label texts, then cells; an empty row is a rule.
        signatures: how the numbers were made.
        notices: what a reader has to know; each once, in order.
    """

    title: str
    heads: list[list[Optional[str]]]
    labels: int
    rows: list[list[Any]]
    signatures: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.notices = list(dict.fromkeys(self.notices))


def table1(paths: Sequence[Path]) -> Table:
    """Accuracy of inflection by alphas, for single runs (averaged) and ensembles.

    Args:
        paths: files of ``onmt_entmax evaluate inflection --json``. A seed such as ``1+2+3`` means an ensemble; one of
            several alphas (``2/1.5+1.5/1.5``) has a row of its own, and so have smaller ones of a pair of alphas.
    """
    notices: list[str] = []
    found: list[dict[str, str]] = []  # fields of the signatures of what has a place
    runs: dict[tuple[Any, str, bool], dict[str, float]] = {}  # alphas, setting, ensembles -> seed -> accuracy
    mixed: dict[tuple[str, str, str], float] = {}  # alphas, seeds, setting -> accuracy
    first: dict[Any, dict[str, str]] = {}
    for path in paths:
        result = read_object(path, "result")
        about = _about(path, result, "acc")
        if "+" in about.get("alpha", "") and "+" in about.get("seed", ""):
            key = (about["alpha"], about["seed"], about.get("set", "unknown"))
            if key in mixed:
                raise UserError(f"{path}: a second ensemble of alphas {key[0]}, seeds {key[1]}, setting {key[2]}.")
            found.append(about)
            mixed[key] = result["macro"]["acc"]
            continue
        alphas = _alphas(path, about)
        if alphas is None:
            notices.append(f"{path}: alpha {about['alpha']} has no place in this table: left out.")
            continue
        found.append(about)
        setting, seed = about.get("set", "unknown"), about.get("seed", "unknown")
        _check_same(path, about, first.setdefault((alphas, setting), about))
        own = runs.setdefault((alphas, setting, "+" in seed), {})
        if seed in own:
            what = "ensemble of" if "+" in seed else f"run of seed {seed},"
            raise UserError(f"{path}: a second {what} alphas {about['alpha']}, setting {setting}.")
        own[seed] = result["macro"]["acc"]
    for ((output, attention), setting, ensembles), values in runs.items():
        for seed in sorted(values, key=lambda seed: seed.count("+"))[:-1] if ensembles else ():
            mixed[f"{output:g}/{attention:g}", seed, setting] = values.pop(seed)
    known = sorted({*PAPER1, *(alphas for alphas, *_ in runs)})
    columns = [("high", False), ("high", True), ("medium", False), ("medium", True)]
    cells = [[runs.get((alphas, *column), {}).values() for column in columns] for alphas in known]
    ours = [[Cell(fmean(v) if v else None, stdev(v) if len(v) > 1 else None) for v in row] for row in cells]
    others = [[Cell(acc if column == (key[2], True) else None) for column in columns] for key, acc in mixed.items()]
    theirs = [[Cell(value) for value in PAPER1.get(alphas, (None,) * 4)] for alphas in known]
    _mark_best([*ours, *others], theirs)
    rows: list[list[Any]] = []
    before = None
    for (output, attention), own_cells, published in zip(known, ours, theirs):
        label = f"{output:g}" if output != before else ""
        before = output
        rows.append([label, f"{attention:g}", *_beside(own_cells, published)])
    rows += [[], ["UZH", "", *_beside([Cell()] * 4, [Cell(value) for value in PAPER1_UZH])]]
    for (shown, seeds, _), own_cells in zip(mixed, others):
        rows.append([f"ensemble of {members(shown, seeds)}", "", *_beside(own_cells, [Cell()] * 4)])
    heads = [
        ["α", None, "high (avg.)", None, "high (ens.)", None, "medium (avg.)", None, "medium (ens.)", None],
        ["output", "attention", *["ours", "paper"] * 4],
    ]
    title = "Word accuracy (%), averaged over languages; single runs averaged, or an ensemble of them."
    counts = sorted({len(own) for (*_, ensembles), own in runs.items() if not ensembles})
    if counts:
        notices.insert(0, _runs("averages", counts) + ("" if counts == [1] else " ±: sample standard deviation."))
    for (alphas, setting, ensembles), accuracies in sorted(runs.items()):
        if len(accuracies) > 1 and not ensembles:
            each = ", ".join(f"{acc:.2f} (seed {seed})" for seed, acc in sorted(accuracies.items()))
            notices.append(f"Single models, {alphas[0]:g}/{alphas[1]:g} {setting}: {each}.")
    for about in found:
        setting = about.get("set", "unknown")
        if setting not in PAPER1_LANGUAGES:
            notices.append(f"Setting {setting} is not in the paper's table: left out.")
        elif about.get("task") != PAPER1_TASK or about.get("langs") != str(PAPER1_LANGUAGES[setting]):
            notices.append(
                f"Not the paper's data: task {about.get('task')}, {about.get('langs')} languages ({setting}); "
                f"the paper has {PAPER1_TASK} with {PAPER1_LANGUAGES[setting]}."
            )
        if about.get("split") != "test":
            notices.append(f"Split {about.get('split')}; the paper's is test.")
        notices += _recipe(about)
    return Table(title, heads, 2, rows, [about["signature"] for about in found], notices)


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
        result = read_object(path, "result")
        found = result["signatures"]
        if "bleu_raw" in found and "bleu_tok" not in found:
            notices.append(f"{path}: only BLEU on raw text, which has no place in this table ({found['bleu_raw']}).")
            continue
        about = _about(path, result, "bleu_tok")
        signatures.append(about["signature"])
        output, attention = _alphas(path, about) or (None, "learned")
        direction = about.get("dir", "unknown")
        if output != attention or direction not in DIRECTIONS:
            notices.append(f"{path}: alphas {about['alpha']}, direction {direction} have no place in this table.")
            continue
        _check_same(path, about, first.setdefault((output, direction), about))
        for scores in result["runs"]:
            # short trainings may well give several models the same predictions: only other files are suspicious
            other = seen.setdefault((output, direction, scores["sha256"]), path)
            if other != path:
                raise UserError(f"{path}: the predictions {scores['predictions']} are also in {other}.")
            runs.setdefault((output, direction), []).append(scores["bleu_tok"])
        if "seed" in about and about["seed"] != "unknown":
            other = seen.setdefault((output, direction, "seed", about["seed"]), path)
            if other != path:
                raise UserError(f"{path}: a second run of seed {about['seed']}; the first is {other}.")
        lines = PAPER2_LINES[direction.replace("en", "").strip("-")]
        if about.get("split") != "test" or about.get("train") != str(lines):
            notices.append(
                f"Not the paper's data: {direction}, {about.get('split')} set, trained on {about.get('train')} pairs "
                f"(the paper: {lines})."
            )
        notices += _recipe(about)
    alphas = sorted({*PAPER2, *(alpha for alpha, _ in runs)})
    ours, theirs = [], []
    for alpha in alphas:
        cells = [runs.get((alpha, direction), []) for direction in DIRECTIONS]
        ours.append([Cell(fmean(v) if v else None, stdev(v) if len(v) > 1 else None) for v in cells])
        published = PAPER2.get(alpha, ((None, None),) * len(DIRECTIONS))
        theirs.append([Cell(value, sd) for value, sd in published])
    _mark_best(ours, theirs)
    rows: list[list[Any]] = []
    for alpha, own, published in zip(alphas, ours, theirs):
        rows += [[alpha_name(alpha), "ours", *own], ["", "paper", *published]]
    counts = sorted({len(own) for own in runs.values()})
    if counts:
        notices.insert(0, _runs("mean and sample standard deviation", counts))
    title = "Tokenised BLEU; the same mapping in attention and output."
    heads: list[list[Optional[str]]] = [["method", "", *DIRECTIONS]]
    return Table(title, heads, 2, rows, signatures, notices)


def table3(paths: Sequence[Path]) -> Table:
    """Mean numbers of non-zeros in attention and output.

    Args:
        paths: files of ``onmt_entmax sparsity --output``, or ``PREFIX_metrics.jsonl``, whose best validation counts.
    """
    found: dict[float, list[tuple[Optional[float], Optional[float]]]] = {}
    first: dict[float, dict[str, str]] = {}
    signatures, notices = [], []
    for path in paths:
        alphas, shown, numbers, signature = _sparsity(path)
        signatures.append(signature)
        if alphas is None or alphas[0] != alphas[1]:
            notices.append(f"{path}: alpha {shown} has no place in this table, where output and attention agree.")
            continue
        found.setdefault(alphas[0], []).append(numbers)
        about = parse_signature(signature)
        other = first.setdefault(alphas[0], about)
        keys = sorted({*about, *other} - {"seed", "step", "alpha", "version", "onmt"})
        differing = [f"{key} ({other.get(key)}, {about.get(key)})" for key in keys if about.get(key) != other.get(key)]
        if differing:
            which = f"{path}: averaged with another run of alpha {alphas[0]:g}, from which it differs in "
            notices.append(f"{which}{', '.join(differing)}.")
        notices += _recipe(about)
    rows = []
    for alpha in sorted({*PAPER3, *found}):
        own = []
        for side in (0, 1):
            values = [numbers[side] for numbers in found.get(alpha, []) if numbers[side] is not None]
            own.append(Cell(fmean(values) if values else None))
        published = [Cell(value) for value in PAPER3.get(alpha, (None, None))]
        rows.append([alpha_name(alpha), *_beside(own, published)])
    counts = sorted({len(own) for own in found.values()})
    if counts:
        notices.insert(0, _runs("averages", counts))
    notices.append("The paper's numbers are of its German-English validation set, ours of what the signatures name.")
    heads = [["method", "# attended", None, "# target words", None], ["", *["ours", "paper"] * 2]]
    title = "Average number of non-zeros in attention and output."
    return Table(title, heads, 1, rows, signatures, notices)


TABLES = {1: table1, 2: table2, 3: table3}


def members(alphas: str, seeds: str) -> str:
    """An ensemble in words, from its signature: ``1.5/1.5+2/1.5+2/1.5``, ``1+1+2`` is ``1.5/1.5:1, 2/1.5:1+2``."""
    every = seeds.split("+")
    kinds = alphas.split("+")
    kinds = kinds * len(every) if len(kinds) == 1 else kinds
    if len(kinds) != len(every):
        return f"{alphas}, seeds {seeds}"
    groups: dict[str, list[str]] = {}
    for alpha, seed in zip(kinds, every):
        groups.setdefault(alpha, []).append(seed)
    return ", ".join(f"{alpha}:{'+'.join(own)}" for alpha, own in groups.items())


def _about(path: Path, result: dict[str, Any], metric: str) -> dict[str, str]:
    """The fields of a metric's signature in a result file; the whole signature is under ``signature``."""
    signature = result["signatures"].get(metric)
    values = result.get("macro") if metric == "acc" else result.get("runs")
    if signature is None or not values:
        valid = ", ".join(result["signatures"])
        raise UserError(f"{path}: no `{metric}` in it (it has {valid}). Was it made for another table?")
    return {**parse_signature(signature), "signature": signature}


def _recipe(about: dict[str, str]) -> list[str]:
    return [f"Not the paper's training: alpha {about['alpha']}, {about['recipe']}."] if "recipe" in about else []


def _check_same(path: Path, about: dict[str, str], other: dict[str, str]) -> None:
    """Refuse to average what was not measured in the same way."""
    how = ("case", "text", "tok", "romanian")
    for key in ("task", "set", "split", "langs", "dir", "lines", "train", "subwords", "recipe", *how):
        if about.get(key) != other.get(key):
            raise UserError(
                f"{path}: its signature has {key} {about.get(key)}, that of another run of the same cell "
                f"{other.get(key)}. They cannot be averaged."
            )


def _alphas(path: Path, about: dict[str, str]) -> Optional[tuple[float, float]]:
    """Alphas of output and attention in a signature; None where one is learned or missing, or for an ensemble."""
    shown = about.get("alpha", "nothing")
    if "+" in shown or any(part in shown for part in ("/learned", "/none", "/enc", "/dec")):
        return None
    try:
        output, attention = (float(part) for part in shown.split("/"))
    except ValueError:
        raise UserError(f"{path}: its signature says alpha {shown}; evaluate again with --alpha OUT/ATT.") from None
    return output, attention


def _sparsity(path: Path) -> tuple[Optional[tuple[float, float]], str, Numbers, str]:
    """Alphas (None: not two numbers), the same in words, non-zeros in attention and output, signature."""
    what = kind(read_objects(path, may_be_cut=True)[0])
    if what == "sparsity":
        record = read_object(path)
        about = parse_signature(record["signature"])
        numbers = (record.get("source_words"), record["target_types"])
        return _alphas(path, about), about.get("alpha", "nothing"), numbers, record["signature"]
    if what != "metrics":
        raise wrong_kind(path, what, ["sparsity", "metrics"])
    run = read_metrics(path)
    best, (output, attention) = run.best, run.alphas
    shown = f"{output:g}/" + ("none" if attention is None else f"{attention:.4g}") + " (learned)" * run.learned
    alphas = None if attention is None or run.learned else (output, attention)
    numbers = (best.get("support_attention"), best.get("support_output"))
    return alphas, shown, numbers, best.get("signature") or run.signature


def _mark_best(*groups: Sequence[Sequence[Cell]]) -> None:
    """Mark the highest of each column, all of them on a tie at the digits shown; not where only one is there."""
    for rows in groups:
        for column in zip(*rows):
            values = [None if cell.value is None else round(cell.value, 2) for cell in column]
            known = [value for value in values if value is not None]
            for cell, value in zip(column, values):
                cell.best = len(known) > 1 and value == max(known)


def _beside(ours: Sequence[Cell], theirs: Sequence[Cell]) -> list[Cell]:
    return [cell for pair in zip(ours, theirs) for cell in pair]


def _runs(what: str, counts: Sequence[int]) -> str:
    """How many runs of ours there are of each pair of alphas, of which ``what`` is shown."""
    if list(counts) == [1]:
        return "Ours: one run each."
    span = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"Ours: {what} of {span} runs."
