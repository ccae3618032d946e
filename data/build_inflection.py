"""Build the bundled inflection data from our word lists, in the SIGMORPHON format (lemma, form, UniMorph tags).

    python data/build_inflection.py                    # rewrites data/inflection/
    python data/build_inflection.py --output /some/dir

Deterministic: the same lists give the same bytes. README.md in this folder explains the lists, the spelling rules
and the split by lemma.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
SIDES = ("train", "dev", "test")
HELD_OUT_SHARE = 0.1  # of the lemmas of each list, for dev and for test

ENGLISH_TAGS = ("V;NFIN", "V;3;SG;PRS", "V;PST", "V;V.PTCP;PST", "V;V.PTCP;PRS")
SPANISH_TAGS = (
    "V;IND;PRS;1;SG",
    "V;IND;PRS;3;SG",
    "V;IND;PRS;1;PL",
    "V;IND;PST;1;SG;PFV",
    "V;IND;PST;3;SG;PFV",
    "V;IND;PST;3;SG;IPFV",
    "V;IND;FUT;1;SG",
    "V;SBJV;PRS;3;SG",
    "V;SBJV;PRS;1;PL",
    "V.CVB;PRS",
    "V.PTCP;PST;MASC;SG",
)
SPANISH_ENDINGS = {  # in the order of the tags; the future ends in é after the infinitive
    "ar": ("o", "a", "amos", "é", "ó", "aba", "é", "e", "emos", "ando", "ado"),
    "er": ("o", "e", "emos", "í", "ió", "ía", "é", "a", "amos", "iendo", "ido"),
    "ir": ("o", "e", "imos", "í", "ió", "ía", "é", "a", "amos", "iendo", "ido"),
}
FUTURE = SPANISH_TAGS.index("V;IND;FUT;1;SG")
STRESSED_STEM = {SPANISH_TAGS.index(tag) for tag in ("V;IND;PRS;1;SG", "V;IND;PRS;3;SG", "V;SBJV;PRS;3;SG")}
RAISED_STEM = {SPANISH_TAGS.index(tag) for tag in ("V;IND;PST;3;SG;PFV", "V;SBJV;PRS;1;PL", "V.CVB;PRS")}
VOWEL_CHANGES = ("e>ie", "e>i", "o>ue", "o>üe", "u>ue", "i>ie", "i>í", "u>ú")
CHANGES = (*VOWEL_CHANGES, "c>j", "c>z")
ENGLISH_MARKS = ("", "double", "keep-e", "plain-s")


class Verb(NamedTuple):
    lemma: str
    forms: tuple[str, ...]  # in the order of the language's tags
    family: str  # verbs of a family share a side of the split
    stratum: str  # the list it stands in: each list is split by itself


class ListError(ValueError):
    """A line of a word list that cannot be right; the message begins with file and line."""


def english_sounds(lemma: str) -> str:
    """The lemma with the u of qu, a consonant, as w: what the spelling rules look at."""
    return lemma.replace("qu", "kw")


def english_third_person(lemma: str, mark: str = "") -> str:
    sounds = english_sounds(lemma)
    if mark == "plain-s":
        return lemma + "s"
    if re.search(r"[^aeiou]y$", sounds):  # cry, cries; but play, plays
        return lemma[:-1] + "ies"
    if re.search(r"[aeiou]z$", sounds) and doubles(lemma, mark):  # quiz, quizzes
        return lemma + "zes"
    if re.search(r"(s|x|z|sh|ch|[^aeiou]o)$", sounds):  # miss, fix, waltz, wash, watch, echo
        return lemma + "es"
    return lemma + "s"


def doubles(lemma: str, mark: str) -> bool:
    """Whether the final consonant doubles: one syllable, one vowel, one consonant (stop); or a mark."""
    one_syllable = re.fullmatch(r"y?[^aeiouy]*[aeiouy][^aeiouwxyh]", english_sounds(lemma)) is not None
    return one_syllable or mark == "double"


def english_stem(lemma: str, mark: str) -> str:
    """The lemma as it stands before a vowel, its final e and y aside: stopp-, panick-."""
    sounds = english_sounds(lemma)
    if re.search(r"[aeiou]c$", sounds):
        return lemma + "k"
    return lemma + lemma[-1] if doubles(lemma, mark) else lemma


def english_past(lemma: str, mark: str = "") -> str:
    if lemma.endswith("e"):
        return lemma + "d"
    if re.search(r"[^aeiou]y$", english_sounds(lemma)):
        return lemma[:-1] + "ied"
    return english_stem(lemma, mark) + "ed"


def english_present_participle(lemma: str, mark: str = "") -> str:
    if lemma.endswith("ie"):  # die, dying
        return lemma[:-2] + "ying"
    if lemma.endswith("e") and not re.search(r"[eoy]e$", lemma) and mark != "keep-e":  # hope; not see, hoe, dye, singe
        return lemma[:-1] + "ing"
    return english_stem(lemma, mark) + "ing"


def english_verbs(lists: Path) -> Iterator[Verb]:
    name = "english-irregular.tsv"
    for where, fields in read_list(lists / name, 6):
        lemma, past, participle, family, third, present = fields
        if not (past and participle):
            raise ListError(f"{where}: {lemma} needs a past and a past participle")
        # overrun doubles because run does, babysit because sit does
        mark = "double" if family and lemma.endswith(family) and doubles(family, "") else ""
        forms = (
            lemma,
            third or english_third_person(lemma),
            past,
            participle,
            present or english_present_participle(lemma, mark),
        )
        yield Verb(lemma, forms, family or lemma, name)
    name = "english-regular.tsv"
    for where, (lemma, mark, family) in read_list(lists / name, 3):
        if mark not in ENGLISH_MARKS:
            raise ListError(f"{where}: unknown mark {mark}; valid: {', '.join(filter(None, ENGLISH_MARKS))}")
        past = english_past(lemma, mark)
        forms = (lemma, english_third_person(lemma, mark), past, past, english_present_participle(lemma, mark))
        yield Verb(lemma, forms, family or lemma, name)


def replace_last(stem: str, old: str, new: str) -> str:
    before, _, after = stem.rpartition(old)
    return before + new + after


def spanish_join(stem: str, ending: str, theme: str, changes: list[str]) -> str:
    """Stem and ending, with the consonant before the ending spelt so that it keeps its sound."""
    front = ending[0] in "eéií"
    if theme == "ar":
        if front:  # busqué, llegué, averigüé, crucé
            for old, new in (("gu", "gü"), ("c", "qu"), ("g", "gu"), ("z", "c")):
                if stem.endswith(old):
                    return stem.removesuffix(old) + new + ending
        return stem + ending
    if not front:  # distingo, delinco, cojo, venzo, conozco
        if stem.endswith("gu"):
            return stem[:-1] + ending
        if stem.endswith("g"):
            return stem[:-1] + "j" + ending
        if stem.endswith("c"):
            soft = "zc" if re.search(r"[aeiouáéíóú]c$", stem) and "c>z" not in changes else "z"
            return stem[:-1] + soft + ending
    if theme == "ir" and re.search(r"(?<![gq])u$", stem) and ending[0] in "oea":  # construyo, construye
        return stem + "y" + ending
    if ending in ("ió", "iendo"):
        if re.search(r"(ñ|ll)$", stem):  # gruñó, bullendo
            return stem + ending[1:]
        if re.search(r"([aeo]|(?<![gq])u)$", stem):  # leyó, construyendo
            return stem + "y" + ending[1:]
    if ending == "ido" and stem[-1] in "aeo":  # leído
        return stem + "ído"
    return stem + ending


def spanish_forms(where: str, lemma: str, changes: list[str], participle: str) -> tuple[str, ...]:
    """The forms of a verb from its stem, changes of the stem and, where it is irregular, the participle."""
    stem, theme = lemma[:-2], lemma[-2:]
    if theme not in SPANISH_ENDINGS:
        raise ListError(f"{where}: {lemma} does not end in {', '.join(SPANISH_ENDINGS)}")
    for change in changes:
        if change not in CHANGES:
            raise ListError(f"{where}: unknown change {change}; valid: {', '.join(CHANGES)}")
        if change[0] not in stem:
            raise ListError(f"{where}: no {change[0]} in the stem {stem}-")
    vowels = [change.split(">") for change in changes if change in VOWEL_CHANGES]
    forms = []
    for slot, ending in enumerate(SPANISH_ENDINGS[theme]):
        part, tail = stem, ending
        if slot == FUTURE:
            forms.append(lemma + ending)
            continue
        for old, new in vowels:
            if slot in STRESSED_STEM:
                part = replace_last(part, old, new)
            elif slot in RAISED_STEM and theme == "ir" and old in "eo" and new in ("ie", "i", "ue"):
                part = replace_last(part, old, {"e": "i", "o": "u"}[old])  # sintió, pidamos, durmiendo
        if "c>j" in changes and ending in ("í", "ió"):  # conduje, condujo
            part, tail = replace_last(part, "c", "j"), {"í": "e", "ió": "o"}[ending]
        forms.append(spanish_join(part, tail, theme, changes))
    if participle:
        forms[-1] = participle
    return tuple(forms)


def spanish_verbs(lists: Path) -> Iterator[Verb]:
    name = "spanish-irregular.tsv"
    whole: dict[str, Verb] = {}
    for where, fields in read_list(lists / name, len(SPANISH_TAGS) + 2):
        lemma, base = fields[0], fields[1]
        if not any(fields[2:]):  # a prefix and a verb above
            if base not in whole or not lemma.endswith(base):
                raise ListError(f"{where}: {lemma} is no prefix and verb of the lines above")
            prefix = lemma[: -len(base)]
            yield Verb(lemma, tuple(prefix + form for form in whole[base].forms), lemma, name)
            continue
        if not all(fields[:-1]):
            raise ListError(f"{where}: {lemma} needs {len(SPANISH_TAGS)} forms")
        whole[lemma] = Verb(lemma, tuple(fields[1:-1]), fields[-1] or lemma, name)
        yield whole[lemma]
    name = "spanish-changing.tsv"
    for where, (lemma, change, participle, family) in read_list(lists / name, 4):
        changes = change.split(",") if change else []
        yield Verb(lemma, spanish_forms(where, lemma, changes, participle), family or lemma, name)
    name = "spanish-regular.tsv"
    for where, (lemma, family) in read_list(lists / name, 2):
        yield Verb(lemma, spanish_forms(where, lemma, [], ""), family or lemma, name)


LANGUAGES = {"english": (ENGLISH_TAGS, english_verbs), "spanish": (SPANISH_TAGS, spanish_verbs)}


def read_list(path: Path, width: int) -> Iterator[tuple[str, list[str]]]:
    """Lines of a list as ("file, line N", fields), filled up to ``width`` fields; # begins a comment line."""
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line or line.startswith("#"):
            continue
        where, fields = f"{path.name}, line {number}", line.split("\t")
        if len(fields) > width or not fields[0]:
            raise ListError(f"{where}: expected a lemma and at most {width} fields, got {len(fields)}")
        yield where, fields + [""] * (width - len(fields))


def read_pinned(lists: Path, language: str) -> dict[str, str]:
    pinned = {}
    for where, (name, family, side) in read_list(lists / "pinned.tsv", 3):
        if name not in LANGUAGES or side not in SIDES:
            valid = f"languages: {', '.join(LANGUAGES)}; sides: {', '.join(SIDES)}"
            raise ListError(f"{where}: unknown language {name} or side {side}; {valid}")
        if name == language:
            pinned[family] = side
    return pinned


def split(verbs: list[Verb], pinned: dict[str, str], language: str) -> dict[str, list[Verb]]:
    """Deal whole families to train, dev and test: a tenth of each list to dev and to test, in an order drawn by hash.

    Raises:
        ListError: a lemma stands twice, a family has no verb of its name, or is in two lists.
    """
    by_lemma: dict[str, Verb] = {}
    families: dict[str, list[Verb]] = {}
    for verb in verbs:
        if verb.lemma in by_lemma:
            raise ListError(f"{verb.stratum}: {verb.lemma} stands in the lists twice")
        by_lemma[verb.lemma] = verb
        families.setdefault(verb.family, []).append(verb)
    for family, members in families.items():
        if family not in by_lemma or len({verb.stratum for verb in members}) > 1:
            raise ListError(f"{members[0].stratum}: family {family} of {members[0].lemma} must be a verb of that list")
    missing = [family for family in pinned if family not in families]
    if missing:
        raise ListError(f"pinned.tsv: no {language} family {missing[0]}")

    sides: dict[str, list[Verb]] = {side: [] for side in SIDES}
    for stratum in dict.fromkeys(verb.stratum for verb in verbs):
        names = [name for name, members in families.items() if members[0].stratum == stratum]
        quota = round(HELD_OUT_SHARE * sum(len(families[name]) for name in names))
        room = {"dev": quota, "test": quota}
        # pinned families first; the hash makes the draw the same everywhere, without a random generator
        names.sort(key=lambda name: (name not in pinned, hashlib.sha256(f"{language}:{name}".encode()).digest()))
        for name in names:
            size = len(families[name])
            free = [side for side in room if room[side] >= size]
            side = pinned.get(name) or (max(free, key=room.__getitem__) if free else "train")
            sides[side] += families[name]
            if side in room:
                room[side] -= size
    return sides


def write_atomically(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(temporary, 0o644)  # mkstemp keeps the file from everyone else
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def build(lists: Path, output: Path) -> dict[str, tuple[int, int]]:
    """Write ``{language}-{side}`` for every language and side; returns the lemmas and rows in each."""
    texts, counts = {}, {}
    for language, (tags, read) in LANGUAGES.items():
        for side, verbs in split(list(read(lists)), read_pinned(lists, language), language).items():
            rows = [
                f"{verb.lemma}\t{form}\t{tag}\n"
                for verb in sorted(verbs, key=lambda verb: verb.lemma)
                for form, tag in zip(verb.forms, tags)
            ]
            texts[f"{language}-{side}"] = "".join(rows)
            counts[f"{language}-{side}"] = (len(verbs), len(rows))
    output.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_atomically(output / name, text)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the bundled inflection data from the word lists.")
    parser.add_argument("--lists", type=Path, default=HERE / "lists", help="folder of the word lists")
    parser.add_argument("--output", type=Path, default=HERE / "inflection", help="folder to write")
    options = parser.parse_args()
    try:
        counts = build(options.lists, options.output)
    except (ListError, OSError, UnicodeDecodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, (lemmas, rows) in counts.items():
        print(f"{name}: {lemmas} lemmas, {rows} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
