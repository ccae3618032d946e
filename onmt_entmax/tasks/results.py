"""What the scoring of all tasks shares: predictions, rates of certificates, bootstrap intervals, the printed table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Optional

import numpy as np
from tabulate import tabulate

from onmt_entmax.errors import UserError
from onmt_entmax.files import read_lines, split_tokens
from onmt_entmax.search.result import RATES, rates_of, read_certificates

RATE_HEADS = {rate: f"{rate} %" for rate in RATES}
_SCORE = re.compile(r"-?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|inf)")
_ALIGNMENT = re.compile(r"(?:(.*) )?\|\|\|(?: (?:\d+-\d+ )*\d+-\d+)? ?")


class Comparison(NamedTuple):
    """First minus second system, with a 95% percentile interval and a two-sided p-value."""

    difference: float
    low: float
    high: float
    p_value: float


def training_fields(options: Any) -> dict[str, str]:
    """What the signatures of scores say of a training: ``alpha``, ``seed``, and if given ``steps`` and ``recipe``."""
    more = {key: getattr(options, key) for key in ("steps", "recipe") if getattr(options, key)}
    return {"alpha": options.alpha, "seed": options.seed, **more}


def compare(observed: float, drawn: np.ndarray) -> Comparison:
    """The interval of a paired bootstrap (Koehn, 2004).

    Args:
        observed: the difference of two systems.
        drawn: the same of each resample, shape ``(samples,)``.

    Returns:
        Percentiles, and how often a resample lies at least as far from the difference as the difference lies from zero
        (with one added above and below, so never 0).
    """
    low, high = np.percentile(drawn, [2.5, 97.5])
    # the slack keeps a difference of exactly zero, or one reached up to rounding, on the far side
    far = int((np.abs(drawn - observed) >= abs(observed) - 1e-9).sum())
    return Comparison(observed, float(low), float(high), (far + 1) / (len(drawn) + 1))


def read_predictions(path: Path, inputs: int, n_best: int, of: str = "inputs") -> list[str]:
    """Read the output of ``onmt_translate``, ``n_best`` lines per input.

    Scores behind a tab (``-with_score``) are left out, and so are alignments behind ``|||`` (``-report_align``) where
    every line that is not blank has them.

    Raises:
        UserError: a wrong number of lines, with both counts; JSON lines; a tab without a score behind it.
    """
    lines = read_lines(path)
    check_count(path, len(lines), inputs, n_best, of)
    texts = []
    for number, line in enumerate(lines, 1):
        text, tab, score = line.partition("\t")
        if tab and not _SCORE.fullmatch(score):
            raise UserError(f"{path}, line {number}: {score[:40]!r} behind the tab is no score of `-with_score`.")
        texts.append(text)
    if lines and all(line.startswith('{"') and line.endswith("}") for line in lines):
        raise UserError(f"{path}: JSON; the output of `onmt_translate -output` is needed.")
    aligned = [_ALIGNMENT.fullmatch(text) for text in texts]
    if all(match or not split_tokens(text) for match, text in zip(aligned, texts)):
        return [match[1] or "" if match else text for match, text in zip(aligned, texts)]
    return texts


def check_count(path: Path, lines: int, inputs: int, per_input: int, of: str = "inputs") -> None:
    """Refuse a wrong number of lines, with both counts and, where it fits, the n-best size that it would be."""
    if lines == inputs * per_input:
        return
    wanted = f"{inputs} {of}" + (f" x {per_input} = {inputs * per_input} lines" if per_input > 1 else "")
    hint = f"; that would be --n-best {lines // inputs}" if lines and inputs and lines % inputs == 0 else ""
    raise UserError(f"{path} has {lines} lines for {wanted}{hint}.")


def read_checked_certificates(path: Path, inputs: int) -> list[dict[str, Any]]:
    """Read a certificates file; another number of lines than of inputs is a :class:`UserError`."""
    certificates = read_certificates(path)
    if len(certificates) != inputs:
        raise UserError(f"{path} has {len(certificates)} certificates for {inputs} inputs.")
    return certificates


def certificate_rates(certificates: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The rates of :data:`RATES` in percent, and ``void_certificates``, which count for none of them."""
    counted = [rates_of(certificate) for certificate in certificates]
    rates = {rate: 100 * fmean(row[rate] for row in counted) for rate in RATES}
    return {**rates, "void_certificates": sum(one.get("reason") is not None for one in certificates)}


def layout(corner: str, heads: Mapping[str, str], rows: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """A table for reading: a line per name, numbers with two decimals, ``-`` where there is none.

    ``corner`` is the head of the names, ``heads`` has that of each key of a number.
    """
    cells = [[name, *(_shown(values.get(key)) for key in heads)] for name, values in rows]
    align = ["left", *["right"] * len(heads)]
    return tabulate(cells, [corner, *heads.values()], "plain", colalign=align, disable_numparse=True)


def void_line(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """The sentence about void certificates, if there are any."""
    void = sum(values.get("void_certificates", 0) for values in results)
    return [f"{void} certificates are void (see their `reason`) and count as not certified."] if void else []


def comparison_line(what: str, comparison: Mapping[str, float]) -> str:
    """A comparison in words: difference, interval, p-value."""
    low, high, p = (comparison[key] for key in ("low", "high", "p_value"))
    return f"{what}: {comparison['difference']:+.2f} (95% interval {low:+.2f} to {high:+.2f}, p = {p:.4f})"


def _shown(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.2f}"
