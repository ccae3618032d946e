"""Files around the scoring of inflection: gold rows, predictions, certificates, submissions, checked line by line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, TypeVar

from onmt_entmax.errors import UserError
from onmt_entmax.files import iterate_lines, split_tokens, write_lines
from onmt_entmax.tasks.inflection.format import Row, decode_form, decode_source, find_corpora, read_rows
from onmt_entmax.tasks.results import read_checked_certificates, read_predictions

_OFFICIAL_FILE = re.compile(r"(.+?)-(?:covered-test|test|dev|train(?:-(?:low|medium|high))?)")
_Item = TypeVar("_Item")


class Gold(NamedTuple):
    """The inputs of one language in order; ``scored`` is false where their forms are not known."""

    language: str
    path: Path
    rows: list[Row]
    scored: bool


class Training(NamedTuple):
    """What a model was trained on: the lemmas of each language that is scored, its rows, and the files read."""

    lemmas: dict[str, set[str]]
    rows: int
    files: list[Path]


def read_gold(paths: Sequence[Path]) -> list[Gold]:
    """Read what ``prepare`` wrote as ``LANG.gold`` and ``LANG.covered`` (files or their folders), or official files.

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


def read_training(paths: Sequence[Path], golds: Sequence[Gold], setting: str | None) -> Training:
    """Read the lemmas of the training rows of every language that is scored; rows of others are passed over.

    Args:
        paths: prepared folders or their ``train.src``, folders of official files (as for ``prepare``), or such files.
        golds: the inputs.
        setting: which of a folder's official files; None for those without a setting.

    Raises:
        UserError: bad files, as :func:`read_rows`; a language that has no rows, or that is in two of the files.
    """
    wanted = {gold.language for gold in golds if gold.scored}
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
        elif (path / "train.src").is_file():
            files.append(path / "train.src")
        else:
            corpora = find_corpora([path], setting, option="train")
            files += [corpus.train for language, corpus in corpora.items() if language in wanted]
    found: dict[str, Path] = {}
    lemmas: dict[str, list[str]] = {}
    for path in files:
        for language, own in _lemmas(path).items():
            if language in found:
                raise UserError(f"{path}: {language} is also in {found[language]}.")
            found[language], lemmas[language] = path, own
    missing = sorted(wanted - found.keys())
    if missing:
        have = f"they have {', '.join(sorted(found))}" if found else "they have no language"
        raise UserError(f"{', '.join(map(str, paths))}: no training rows of {', '.join(missing)}; {have}.")
    rows = sum(len(lemmas[language]) for language in wanted)
    return Training({language: set(lemmas[language]) for language in wanted}, rows, files)


def read_guesses(path: Path, golds: Sequence[Gold], n_best: int = 1) -> dict[str, list[list[str]]]:
    """Read the output of ``onmt_translate``.

    Args:
        path: a file for all languages, in the order of ``golds``, or a folder with a file ``LANG`` or ``LANG.pred``
            (any ending) for each of them.
        golds: the inputs.
        n_best: lines per input, the best first.

    Returns:
        Language -> for each input its forms, characters joined and escapes undone.

    Raises:
        UserError: as :func:`onmt_entmax.tasks.results.read_predictions`; a language without a file; alignments behind
            some of the lines only.
    """

    def forms(file: Path, inputs: int) -> list[list[str]]:
        lines = read_predictions(file, inputs, n_best)
        for number, line in enumerate(lines, 1):
            if "|||" in split_tokens(line):  # no character, so never a token of ours
                raise UserError(f"{file}, line {number}: `|||` without the alignments of `-report_align` behind it.")
        decoded = [decode_form(line) for line in lines]
        return [decoded[start : start + n_best] for start in range(0, len(decoded), n_best)]

    return _per_language(path, golds, forms)


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
            _answer(found[0], number, line) for number, line in enumerate(iterate_lines(found[0]), 1)
        ]
    return answers


def write_submission(folder: Path, setting: str | None, golds: Sequence[Gold], guesses: dict) -> None:
    """Write ``LANG-SETTING-out`` files: lemma, first guess, tags, in the order of the inputs."""
    for gold in golds:
        rows = zip(gold.rows, guesses[gold.language])
        # no gold form holds a tab or a line feed, and the format cannot
        lines = ("\t".join((row.lemma, re.sub("[\t\n]", "\ufffd", forms[0]), row.tags)) for row, forms in rows)
        write_lines(folder / "-".join([gold.language, *([setting] if setting else []), "out"]), lines)


def read_certificates(path: Path, golds: Sequence[Gold]) -> dict[str, list[dict[str, Any]]]:
    """Read a certificates file, or a folder of them, one per language; language -> a certificate per input."""
    return _per_language(path, golds, read_checked_certificates)


def _lemmas(path: Path) -> dict[str, list[str]]:
    """Language -> the lemmas of its training rows, without the blanks before them, as the official scorer has them."""
    if path.suffix != ".src":
        rows = read_rows(path)
        return {_language(path): [row.lemma.lstrip() for row in rows]} if rows else {}
    found: dict[str, list[str]] = {}
    for number, line in enumerate(iterate_lines(path), 1):
        try:
            language, lemma, _ = decode_source(line)
        except ValueError as error:
            raise UserError(f"{path}, line {number}: {error}") from None
        found.setdefault(language, []).append(lemma.lstrip())
    return found


def _language(path: Path) -> str:
    match = _OFFICIAL_FILE.fullmatch(path.name)
    return match[1] if match else (path.stem if path.suffix in (".gold", ".covered", ".tsv", ".txt") else path.name)


def _per_language(
    path: Path, golds: Sequence[Gold], read: Callable[[Path, int], list[_Item]]
) -> dict[str, list[_Item]]:
    """Language -> what ``read(file, inputs)`` gives for each of its inputs."""
    if path.is_dir():
        return {gold.language: read(_own_file(path, gold.language), len(gold.rows)) for gold in golds}
    items = iter(read(path, sum(len(gold.rows) for gold in golds)))
    return {gold.language: [next(items) for _ in gold.rows] for gold in golds}


def _own_file(folder: Path, language: str) -> Path:
    found = [path for path in folder.iterdir() if path.is_file() and language in (path.name, path.stem)]
    found = [path for path in found if path.suffix not in (".src", ".gold", ".covered")]
    if len(found) != 1:
        count = "no file" if not found else f"{len(found)} files"
        raise UserError(f"{folder}: {count} for {language} ({language}.pred); one per language is needed.")
    return found[0]


def _answer(path: Path, number: int, line: str) -> Row:
    fields = line.split("\t")
    if len(fields) != 3:
        raise UserError(f"{path}, line {number}: a row has lemma, form and tags, separated by tabs: {line!r}.")
    return Row(*fields)
