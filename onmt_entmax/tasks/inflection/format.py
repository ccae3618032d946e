"""Morphological inflection in the SIGMORPHON format, as text that OpenNMT-py can train on and back.

A row ``draw<TAB>drew<TAB>V;PST`` of English becomes the source line ``<lang:english> <tag:V> <tag:PST> d r a w`` and
the target line ``d r e w``. Every character is a token of its own and every other token is longer than one character,
so a tag cannot be taken for a character, nor a ``<`` of a word for the start of a tag. Characters that OpenNMT-py would
split on, strip or misread in a vocabulary file are written ``<u+00a0>``. Nothing is normalised, stripped or dropped:
:func:`decode_source` and :func:`decode_form` give back exactly what went in.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import NamedTuple

from onmt_entmax.errors import UserError, choices, invalid_setting
from onmt_entmax.files import PathLike, read_lines

SETTINGS = ("low", "medium", "high")
UNKNOWN = "\ufffd"  # stands for OpenNMT-py's <unk> in a prediction: one wrong character

_FEATURE_SEPARATOR = "\uffe8"  # OpenNMT-py splits a token there
_BYTE_ORDER_MARK = "\ufeff"
_CHARACTER = re.compile(r"<u\+([0-9a-f]{4,6})>")
_INSIDE = re.compile(r"%\{([0-9a-f]+)\}")
_TRAIN_FILE = re.compile(r"(.+)-train(?:-(low|medium|high))?")


class Row(NamedTuple):
    """One line of a SIGMORPHON file; ``form`` is empty where it is to be predicted."""

    lemma: str
    form: str
    tags: str


class Corpus(NamedTuple):
    """The files of one language; ``test`` has forms, ``covered`` has none; either may be missing."""

    train: Path
    dev: Path
    test: Path | None
    covered: Path | None


def unsafe(character: str) -> bool:
    """Tell whether OpenNMT-py would mangle a character: a blank of any kind, a control, a separator, a surrogate.

    It strips lines of every Unicode blank, and reads a vocabulary line with ``split(None, 1)``.
    """
    category = unicodedata.category(character)
    return (
        character.isspace()
        or category in ("Cc", "Cs", "Zs", "Zl", "Zp")
        or character in _FEATURE_SEPARATOR + _BYTE_ORDER_MARK
    )


class _Tokens(dict):
    """Character -> token, filled as characters are met."""

    def __missing__(self, character: str) -> str:
        token = f"<u+{ord(character):04x}>" if unsafe(character) else character
        self[character] = token
        return token


_TOKENS = _Tokens()


def encode_form(form: str) -> str:
    """Write a word as one token per character, separated by blanks."""
    return " ".join([_TOKENS[character] for character in form])


def decode_form(line: str) -> str:
    """Undo :func:`encode_form`. ``<unk>`` becomes U+FFFD; any other token that is none of ours stays as it is."""
    return "".join([token if len(token) == 1 else _decode_token(token) for token in line.split(" ")])


def encode_source(language: str, lemma: str, tags: str) -> str:
    """Write the input of one row: the language, each of the tags between ``;``, then the characters of the lemma."""
    heads = [f"<lang:{_encode_inside(language)}>", *(f"<tag:{_encode_inside(tag)}>" for tag in tags.split(";"))]
    return " ".join([*heads, *(_TOKENS[character] for character in lemma)])


def decode_source(line: str) -> tuple[str, str, str]:
    """Undo :func:`encode_source`.

    Returns:
        Language, lemma and tags.

    Raises:
        ValueError: the line has no language or no tags.
    """
    language, *tokens = line.split(" ")
    count = 0
    while count < len(tokens) and tokens[count].startswith("<tag:"):
        count += 1
    if not language.startswith("<lang:") or count == 0:
        raise ValueError(f"not an inflection source line (`<lang:...> <tag:...> ...`): {line!r}")
    tags = ";".join(_decode_inside(token[len("<tag:") : -1]) for token in tokens[:count])
    return _decode_inside(language[len("<lang:") : -1]), decode_form(" ".join(tokens[count:])), tags


def encode_row(language: str, row: Row, where: str) -> tuple[str, str]:
    """Encode one row as (source line, target line) and check that both decode to what went in.

    Raises:
        UserError: they do not; ``where`` names the file and line.
    """
    source, target = encode_source(language, row.lemma, row.tags), encode_form(row.form)
    if decode_source(source) != (language, row.lemma, row.tags) or decode_form(target) != row.form:
        raise UserError(f"{where}: the row cannot be written reversibly: {row}.")
    return source, target


def read_rows(path: PathLike, covered: bool = False) -> list[Row]:
    r"""Read lemma, form and tags, separated by tabs.

    Args:
        path: a SIGMORPHON file.
        covered: the forms are missing (``lemma\ttags`` or ``lemma\t\ttags``).

    Raises:
        UserError: invalid UTF-8, a row without three fields, an empty field, a carriage return; with file and line.
    """
    rows = []
    for number, line in enumerate(read_lines(path), 1):
        fields = line.split("\t")
        if covered and len(fields) == 2:
            fields.insert(1, "")
        if len(fields) != 3:
            wanted = "lemma and tags" if covered else "lemma, form and tags"
            raise UserError(
                f"{path}, line {number}: a row has {wanted}, separated by tabs; this one has {_count(fields)}."
            )
        if line.endswith("\r"):
            raise UserError(
                f"{path}, line {number}: it ends with a carriage return. Convert the file to Unix line ends."
            )
        row = Row(*fields)
        for name, value in (("lemma", row.lemma), ("form", row.form), ("tags", row.tags)):
            if not value and not (covered and name == "form"):
                verb = "are" if name == "tags" else "is"
                raise UserError(f"{path}, line {number}: the {name} {verb} empty.")
        rows.append(row)
    return rows


def find_corpora(
    folders: list[Path], setting: str | None, languages: list[str] | None = None, option: str = "data"
) -> dict[str, Corpus]:
    """Find the files of every language, or of those asked for.

    Args:
        folders: each holds ``LANG-train-SETTING`` (or ``LANG-train``), ``LANG-dev``, ``LANG-test``,
            ``LANG-covered-test``, or has folders ``all`` and ``surprise`` (in ``task1`` or not) that do.
        setting: ``low``, ``medium``, ``high``; None for data without settings.
        languages: None for all that have a training and a development file.
        option: what the user gave the folders with, for errors.

    Returns:
        Language -> its files, sorted by language.

    Raises:
        UserError: unknown setting, missing folder, missing or repeated language.
    """
    if setting is not None and setting not in SETTINGS:
        raise invalid_setting("setting", setting, choices(SETTINGS))
    found: dict[str, Corpus] = {}
    settings = set()
    places = [place for folder in folders for place in _places(folder, option)]
    for place in places:
        for path in sorted(place.iterdir()):
            match = _TRAIN_FILE.fullmatch(path.name)
            if not match or not path.is_file():
                continue
            settings.add(match[2])
            dev = place / f"{match[1]}-dev"
            if match[2] != setting or not dev.is_file():
                continue
            if match[1] in found:
                raise UserError(f"{path}: {match[1]} is also in {found[match[1]].train.parent}; give one of the two.")
            test, covered = (place / f"{match[1]}-{end}" for end in ("test", "covered-test"))
            found[match[1]] = Corpus(
                path, dev, test if test.is_file() else None, covered if covered.is_file() else None
            )
    if not found:
        raise _no_languages(places, setting, settings)
    missing = [language for language in languages or [] if language not in found]
    if missing:
        suffix = f"-train-{setting}" if setting else "-train"
        where = ", ".join(str(place) for place in places)
        rule = f"{where} has no {missing[0]}{suffix} with a {missing[0]}-dev."
        raise invalid_setting("languages", " ".join(missing), f"{rule} {choices(sorted(found))}")
    return {language: found[language] for language in sorted(set(languages or found))}


def _places(folder: Path, option: str) -> list[Path]:
    if not folder.is_dir():
        raise invalid_setting(option, folder, "There is no such folder.")
    candidates = [folder, *(folder / name for name in ("all", "surprise", "task1/all", "task1/surprise"))]
    places = [place for place in candidates if place.is_dir() and any(place.glob("*-train*"))]
    if not places:
        raise invalid_setting(
            option, folder, "It holds no LANG-train or LANG-train-SETTING, nor does `all` or `surprise` in it."
        )
    return places


def _no_languages(places: list[Path], setting: str | None, settings: set[str | None]) -> UserError:
    where = ", ".join(str(place) for place in places)
    named = [name for name in SETTINGS if name in settings]
    if setting in settings:
        suffix = f"-train-{setting}" if setting else "-train"
        return UserError(f"{where}: no language has both LANG{suffix} and LANG-dev.")
    if setting is None:
        return invalid_setting("setting", "not given", f"{where} has training files by setting. {choices(named)}")
    if not named:
        return invalid_setting("setting", setting, f"{where} has training files without a setting: leave it out.")
    return invalid_setting("setting", setting, f"Not in {where}. {choices(named)}")


def _count(fields: list[str]) -> str:
    return "1 field" if len(fields) == 1 else f"{len(fields)} fields"


def _decode_token(token: str) -> str:
    match = _CHARACTER.fullmatch(token)
    if match and int(match[1], 16) <= 0x10FFFF:
        return chr(int(match[1], 16))
    return UNKNOWN if token == "<unk>" else token


def _encode_inside(text: str) -> str:
    """Escape inside a tag or a language's name, where ``%`` starts an escape."""
    return "".join(f"%{{{ord(c):x}}}" if c == "%" or unsafe(c) else c for c in text)


def _decode_inside(text: str) -> str:
    return _INSIDE.sub(lambda match: chr(int(match[1], 16)), text)
