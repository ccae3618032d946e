"""Files around the scoring of inflection: gold rows, predictions, certificates, submissions, checked line by line."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from onmt_entmax.errors import UserError
from onmt_entmax.files import read_lines, write_lines
from onmt_entmax.tasks.inflection.format import Row, decode_form, read_rows

_OFFICIAL_FILE = re.compile(r"(.+?)-(?:covered-test|test|dev|train(?:-(?:low|medium|high))?)")
RATES = ("single", "complete", "optimal", "mass_is_one")


class Gold(NamedTuple):
    """The inputs of one language in order; ``scored`` is false where their forms are not known."""

    language: str
    path: Path
    rows: list[Row]
    scored: bool


def read_gold(paths: Sequence[Path]) -> list[Gold]:
    """Read what ``prepare`` wrote as ``LANG.gold`` and ``LANG.covered``, or official files.

    Args:
        paths: files, or folders of ``.gold`` and ``.covered`` files.

    Returns:
        One entry per language, sorted by language: the order of the lines in the joint ``.src`` file.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = [file for file in path.iterdir() if file.suffix in (".gold", ".covered")]
            if not inside:
                hint = " Its folder `test` or `dev` does." if list(path.glob("*/*.gold")) else ""
                raise UserError(f"{path} holds no LANG.gold.{hint}")
            files += inside
        else:
            files.append(path)
    found: dict[str, Gold] = {}
    for path in files:
        language, covered = _language(path), path.suffix == ".covered" or path.name.endswith("-covered-test")
        if language in found:
            raise UserError(f"{path}: {language} is also in {found[language].path}.")
        rows = read_rows(path, covered)
        if not rows:
            raise UserError(f"{path} has no rows.")
        found[language] = Gold(language, path, rows, not covered)
    if not any(gold.scored for gold in found.values()):
        raise UserError(f"{paths[0]}: no file with forms to score against.")
    return [found[language] for language in sorted(found)]


def read_predictions(path: Path, golds: Sequence[Gold], n_best: int = 1) -> dict[str, list[list[str]]]:
    """Read the output of ``onmt_translate``.

    Args:
        path: a file for all languages, in the order of ``golds``, or a folder with a file ``LANG`` or ``LANG.pred``
            (any ending) for each of them.
        golds: the inputs.
        n_best: lines per input, the best first; a score after a tab (``-with_score``) is ignored.

    Returns:
        Language -> for each input its forms, characters joined and escapes undone.

    Raises:
        UserError: a wrong number of lines, with both counts; a language without a file.
    """
    lines = _per_language(path, golds, n_best)
    predictions = {}
    for language, own in lines.items():
        forms = [decode_form(line.partition("\t")[0]) for _, line in own]
        predictions[language] = [forms[start : start + n_best] for start in range(0, len(forms), n_best)]
    return predictions


def read_submission(folder: Path, golds: Sequence[Gold]) -> dict[str, list[Row]]:
    """Read answers in the shared task's format, ``LANG-SETTING-out`` or ``LANG-out``; rows may be missing."""
    answers = {}
    for gold in golds:
        found = [folder / f"{gold.language}{end}" for end in ("-low-out", "-medium-out", "-high-out", "-out")]
        found = [path for path in found if path.is_file()]
        if len(found) != 1:
            count = "no file" if not found else f"{len(found)} files"
            raise UserError(f"{folder}: {count} {gold.language}-SETTING-out; one is needed.")
        answers[gold.language] = [
            _answer(found[0], number, line) for number, line in enumerate(read_lines(found[0]), 1)
        ]
    return answers


def write_submission(folder: Path, setting: str | None, golds: Sequence[Gold], predictions: dict) -> None:
    """Write ``LANG-SETTING-out`` files: lemma, first guess, tags, in the order of the inputs."""
    for gold in golds:
        rows = zip(gold.rows, predictions[gold.language])
        # no gold form holds a tab or a line feed, and the format cannot
        lines = ("\t".join((row.lemma, re.sub("[\t\n]", "\ufffd", forms[0]), row.tags)) for row, forms in rows)
        write_lines(folder / "-".join([gold.language, *([setting] if setting else []), "out"]), lines)


def read_certificates(path: Path, golds: Sequence[Gold]) -> dict[str, list[dict]]:
    """Read a certificates file (one JSON object per input line) or a folder of them, one per language.

    Raises:
        UserError: a wrong number of lines, a line that is no such object or is out of order; with file and line.
    """
    certificates = {}
    for language, own in _per_language(path, golds, 1).items():
        certificates[language] = [_certificate(where, line) for where, line in own]
    return certificates


def rates_of(certificate: dict) -> dict[str, bool]:
    """What one certificate counts for; ``single``: the whole distribution is one string. Void ones count for none."""
    complete = certificate["complete"] is True
    single = complete and certificate["found"] == 1
    optimal, mass_is_one = certificate["optimal"] is True, certificate["mass_is_one"] is True
    return dict(zip(RATES, (single, complete, optimal, mass_is_one)))


def _language(path: Path) -> str:
    match = _OFFICIAL_FILE.fullmatch(path.name)
    return match[1] if match else (path.stem if path.suffix in (".gold", ".covered", ".tsv", ".txt") else path.name)


def _per_language(path: Path, golds: Sequence[Gold], per_input: int) -> dict[str, list[tuple[str, str]]]:
    """Language -> its lines, each with the words that name it in a message."""
    if path.is_dir():
        return {gold.language: _lines(_own_file(path, gold.language), len(gold.rows), per_input) for gold in golds}
    lines = _lines(path, sum(len(gold.rows) for gold in golds), per_input)
    split, start = {}, 0
    for gold in golds:
        end = start + per_input * len(gold.rows)
        split[gold.language] = lines[start:end]
        start = end
    return split


def _own_file(folder: Path, language: str) -> Path:
    found = [path for path in folder.iterdir() if path.is_file() and language in (path.name, path.stem)]
    found = [path for path in found if path.suffix not in (".src", ".gold", ".covered")]
    if len(found) != 1:
        count = "no file" if not found else f"{len(found)} files"
        raise UserError(f"{folder}: {count} for {language} ({language}.pred); one per language is needed.")
    return found[0]


def _lines(path: Path, inputs: int, per_input: int) -> list[tuple[str, str]]:
    lines = read_lines(path)
    if len(lines) != inputs * per_input:
        wanted = f"{inputs} inputs" if per_input == 1 else f"{inputs} inputs x {per_input} = {inputs * per_input} lines"
        raise UserError(f"{path} has {len(lines)} lines for {wanted}{_hint(len(lines), inputs, per_input)}.")
    return [(f"{path}, line {number}", line) for number, line in enumerate(lines, 1)]


def _hint(lines: int, inputs: int, per_input: int) -> str:
    if lines and lines % inputs == 0 and lines // inputs != per_input:
        return f"; that would be {lines // inputs} per input"
    return ""


def _answer(path: Path, number: int, line: str) -> Row:
    fields = line.split("\t")
    if len(fields) != 3:
        raise UserError(f"{path}, line {number}: a row has lemma, form and tags, separated by tabs: {line!r}.")
    return Row(*fields)


def _certificate(where: str, line: str) -> dict:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({error}).") from None
    if not isinstance(value, dict):
        raise UserError(f"{where}: not a JSON object.")
    missing = [key for key in ("line", "hypotheses", "complete", "optimal", "found", "mass_is_one") if key not in value]
    if missing:
        raise UserError(f"{where}: the certificate lacks `{missing[0]}`.")
    if value["line"] != int(where.rpartition(" ")[2]):
        raise UserError(f"{where}: this certificate is of input line {value['line']}.")
    for hypothesis in value["hypotheses"]:
        if not isinstance(hypothesis, dict) or "prob" not in hypothesis:
            raise UserError(f"{where}: a hypothesis lacks `prob`.")
    return value
