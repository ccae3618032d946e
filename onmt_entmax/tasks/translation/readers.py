"""Readers of the official translation corpora: IWSLT 2017, KFTT, WMT 2016 Romanian, Multi30k, and plain parallel files.

Files are looked for by the end of their path anywhere below the data folder, so an archive may be unpacked as it is.
Entities are undone and blanks collapsed in every segment (:mod:`onmt_entmax.tasks.translation.text`).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

from onmt_entmax.errors import UserError, choices, invalid_setting
from onmt_entmax.files import read_lines
from onmt_entmax.tasks.translation.text import collapse_blanks, unescape_entities

_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg\s*>", re.IGNORECASE | re.DOTALL)
_SEGMENT_START = re.compile(r"<seg\b", re.IGNORECASE)
_MAX_DEPTH = 8


@dataclass(frozen=True)
class Corpus:
    """What is known of one corpus.

    Attributes:
        directions: the valid ``--direction`` values; empty for ``plain``, which takes any two languages.
        dev, test: the default sets, and the valid ones in ``sets``.
        pairs: the number of training pairs of the official data (the paper's number, section 4.2), or ``None``.
    """

    directions: tuple[str, ...]
    sets: tuple[str, ...] = ()
    dev: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    pairs: int | None = None


# the paper names neither its development nor its test sets: these are the usual ones
_IWSLT_TESTS = tuple(f"tst{year}" for year in range(2010, 2018))
_FLICKR = ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco", "test_2018_flickr")
CORPORA = {
    "iwslt17": Corpus(("de-en", "en-de"), ("dev2010", *_IWSLT_TESTS), ("dev2010",), _IWSLT_TESTS[:6], 206_112),
    "kftt": Corpus(("ja-en", "en-ja"), ("dev", "tune", "test"), ("dev",), ("test",), 329_882),
    "wmt16": Corpus(("ro-en", "en-ro"), ("newsdev2016", "newstest2016"), ("newsdev2016",), ("newstest2016",), 612_422),
    "multi30k": Corpus(("de-en", "en-de"), ("val", *_FLICKR), ("val",), ("test_2016_flickr",), 29_000),
    "plain": Corpus(()),
}
KFTT_ORIGINAL_PAIRS = 440_288  # data/orig/kyoto-train: before KFTT's own length filter


@dataclass
class Split:
    """Parallel lines of one split; an empty string is a side that is empty.

    Attributes:
        source, target: the same number of lines, blanks collapsed.
        reference: the target as running text where the corpus has it beside a tokenised form, else ``None``.
        files: the files read, in order.
    """

    source: list[str] = field(default_factory=list)
    target: list[str] = field(default_factory=list)
    reference: list[str] | None = None
    files: list[Path] = field(default_factory=list)


def split_direction(corpus: str, direction: str) -> tuple[str, str]:
    """Return source and target language.

    Raises:
        UserError: the corpus or the direction does not exist.
    """
    if corpus not in CORPORA:
        raise invalid_setting("--corpus", corpus, choices(CORPORA))
    known = CORPORA[corpus].directions
    if known and direction not in known:
        raise invalid_setting("--direction", direction, f"For {corpus}: " + choices(known))
    source, dash, target = direction.partition("-")
    if not (dash and re.fullmatch("[a-z]{2,3}", source) and re.fullmatch("[a-z]{2,3}", target) and source != target):
        raise invalid_setting("--direction", direction, "It must be two different languages, such as de-en.")
    return source, target


def cleaner(corpus: str, unescape: bool) -> Callable[[str], str]:
    """What is done to each line of a corpus before all else: entities undone where it has them, blanks made one."""
    if unescape or corpus in ("iwslt17", "wmt16"):
        return lambda line: collapse_blanks(unescape_entities(line))
    return collapse_blanks


class Reader:
    """Reads the splits of one corpus.

    Args:
        corpus: a name of :data:`CORPORA`.
        direction: such as ``de-en``.
        folder: where the data lie, at any depth.
        original: for ``kftt``: read the untokenised text (``data/orig``) in place of KFTT's own tokens.
        unescape: for ``plain``: undo entities; the official corpora that have them are always undone.
    """

    def __init__(self, corpus: str, direction: str, folder: Path, original: bool = False, unescape: bool = False):
        self.source, self.target = split_direction(corpus, direction)
        self.corpus = corpus
        self.folder = folder
        self.original = original
        self._clean_line = cleaner(corpus, unescape)
        self._index: list[Path] | None = None

    def training(self, names: list[str] | None = None) -> Split:
        """Read the training pairs; ``names`` are file prefixes and only for ``plain``.

        Raises:
            UserError: a missing file (which), invalid UTF-8 (file and line), sides of unequal length (both counts).
        """
        if self.corpus == "plain":
            return self._join(self._plain(name) for name in _needed("--train", names))
        if names:
            raise invalid_setting("--train", " ".join(names), f"{self.corpus} has its own; it is for --corpus plain.")
        if self.corpus == "iwslt17":
            stems = [f"train.tags.{pair}." for pair in self._pairs()]
            return self._pair(*([s + lang for s in stems] for lang in (self.source, self.target)), read=read_tags)
        if self.corpus == "kftt":
            stem = "orig/kyoto-train." if self.original else "tok/kyoto-train.cln."
            return self._pair([stem + self.source], [stem + self.target])
        if self.corpus == "wmt16":
            europarl = self._both("europarl-v8.ro-en.")
            return self._join([self._pair(*europarl), self._pair(*self._both("SETIMES.en-ro.", "SETIMES2.en-ro."))])
        return self._pair(*self._both("raw/train.", "train."))

    def held_out(self, option: str, names: list[str] | None = None) -> Split:
        """Read a development or test split, its sets one after the other.

        Args:
            option: ``--dev`` or ``--test``.
            names: the sets (``plain``: file prefixes); the corpus's default when ``None``.

        Raises:
            UserError: as :meth:`training`, or a set that the corpus does not have.
        """
        corpus = CORPORA[self.corpus]
        if self.corpus == "plain":
            return self._join(self._plain(name) for name in _needed(option, names))
        names = names or list(corpus.dev if option == "--dev" else corpus.test)
        for name in names:
            if name not in corpus.sets:
                raise invalid_setting(option, name, f"For {self.corpus}: " + choices(corpus.sets))
        return self._join(getattr(self, f"_{self.corpus}_set")(name) for name in names)

    def _iwslt17_set(self, name: str) -> Split:
        # tst2016 and tst2017 were given out as sources only: the reference of de-en is the source of en-de
        sides = ([f"IWSLT17.TED.{name}.{pair}.{lang}.xml" for pair in self._pairs()] for lang in self._languages())
        return self._pair(*sides, read=read_segments, crosses=True)

    def _wmt16_set(self, name: str) -> Split:
        def candidates(language: str, kind: str, other: str) -> list[str]:
            forward, backward = f"{self.source}{self.target}", f"{self.target}{self.source}"
            stems = [f"{name}-{forward}-{kind}.{language}.sgm", f"{name}-{backward}-{other}.{language}.sgm"]
            return [*stems, f"{name}.{language}"]

        return self._pair(
            candidates(self.source, "src", "ref"), candidates(self.target, "ref", "src"), read=read_sgm_or_plain
        )

    def _kftt_set(self, name: str) -> Split:
        stem = f"kyoto-{name}."
        original = self._pair(*self._both("orig/" + stem))
        if self.original:
            return original
        split = self._pair(*self._both("tok/" + stem))
        if len(split.target) != len(original.target):
            raise UserError(
                f"{split.files[1]} has {len(split.target)} lines, {original.files[1]} has {len(original.target)}: "
                "the tokens and the text differ."
            )
        return Split(split.source, split.target, original.target, [*split.files, original.files[1]])

    def _multi30k_set(self, name: str) -> Split:
        return self._pair(*self._both(f"raw/{name}.", f"{name}."))

    def _plain(self, prefix: str) -> Split:
        paths = [Path(f"{self.folder / prefix}.{language}") for language in self._languages()]
        return self._read(paths, read_lines)

    def _languages(self) -> tuple[str, str]:
        return self.source, self.target

    def _pairs(self) -> tuple[str, str]:
        return f"{self.source}-{self.target}", f"{self.target}-{self.source}"

    def _both(self, *stems: str) -> tuple[list[str], list[str]]:
        return [stem + self.source for stem in stems], [stem + self.target for stem in stems]

    def _pair(
        self,
        source: list[str],
        target: list[str],
        read: Callable[[Path], list[str]] = read_lines,
        crosses: bool = False,
    ) -> Split:
        """Read the first pair of candidates that lie in one folder; with ``crosses`` each side's first candidate."""
        first = self._find(source), self._find(target)
        if crosses:
            return self._read(list(first), read)
        for names in zip(source, target):
            paths = [path for path in map(self._existing, names) if path is not None]
            if len(paths) == 2 and paths[0].parent == paths[1].parent:
                return self._read(paths, read)
        raise UserError(
            f"{self.folder} has {first[0]} and {first[1]}, which are not a pair: {self.corpus} has both sides in one "
            "folder under one name."
        )

    def _read(self, paths: list[Path], read: Callable[[Path], list[str]]) -> Split:
        source, target = (self._clean(read(path)) for path in paths)
        if len(source) != len(target):
            raise UserError(
                f"{paths[0]} has {len(source)} lines, {paths[1]} has {len(target)}: both sides need as many."
            )
        return Split(source, target, None, paths)

    def _clean(self, lines: list[str]) -> list[str]:
        return [self._clean_line(line) for line in lines]

    @staticmethod
    def _join(parts) -> Split:
        parts = list(parts)
        joined = Split(reference=None if any(part.reference is None for part in parts) else [])
        for part in parts:
            joined.source += part.source
            joined.target += part.target
            joined.files += part.files
            if joined.reference is not None:
                joined.reference += part.reference
        return joined

    def _existing(self, candidate: str) -> Path | None:
        """The file whose path ends with the candidate."""
        if self._index is None:
            self._index = list_files(self.folder)
        end = "/" + candidate
        found = [path for path in self._index if f"/{path.relative_to(self.folder).as_posix()}".endswith(end)]
        if len(found) > 1:
            raise UserError(f"{candidate} is there twice: {found[0]} and {found[1]}. Name a folder with only one.")
        return found[0] if found else None

    def _find(self, candidates: list[str]) -> Path:
        """The file whose path ends with the first candidate that exists."""
        found = next(filter(None, map(self._existing, candidates)), None)
        if found is not None:
            return found
        others = f" (nor {', '.join(candidates[1:])})" if candidates[1:] else ""
        raise UserError(f"{self.folder} lacks the file {candidates[0]}{others}, which {self.corpus} needs.")


def list_files(folder: Path) -> list[Path]:
    """List the files below a folder, at most eight folders deep, in order of their names."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder. --data is the folder with the unpacked corpus.")
    found = []
    for top, folders, names in os.walk(folder, followlinks=True):
        folders.sort()
        if len(Path(top).relative_to(folder).parts) >= _MAX_DEPTH:
            folders.clear()
        found += [Path(top) / name for name in sorted(names)]
    return found


def read_tags(path: Path) -> list[str]:
    """Read IWSLT training text: every line that does not start with ``<``; those that do are metadata."""
    return [line for line in read_lines(path) if not line.startswith("<")]


def read_segments(path: Path) -> list[str]:
    """Read the ``<seg>`` elements of IWSLT's XML or of WMT's SGM, which is not XML.

    Raises:
        UserError: no segment at all, or one that is not closed (file and line).
    """
    text = "\n".join(read_lines(path))
    segments = []
    end = 0
    for match in _SEGMENT.finditer(text):
        # a segment that swallows the next one's start was never closed
        inner = _SEGMENT_START.search(match.group(1))
        if inner or _SEGMENT_START.search(text, end, match.start()):
            raise _not_closed(path, text, match.start() if inner else _SEGMENT_START.search(text, end).start())
        segments.append(match.group(1))
        end = match.end()
    left = _SEGMENT_START.search(text, end)
    if left:
        raise _not_closed(path, text, left.start())
    if not segments:
        raise UserError(f"{path}: no <seg> element; IWSLT's XML and WMT's SGM have one for each sentence.")
    return segments


def read_sgm_or_plain(path: Path) -> list[str]:
    """Read an ``.sgm`` file with :func:`read_segments`, any other as one sentence a line."""
    return read_segments(path) if path.suffix == ".sgm" else read_lines(path)


def _not_closed(path: Path, text: str, position: int) -> UserError:
    number = text.count("\n", 0, position) + 1
    return UserError(f"{path}, line {number}: a <seg> element is not closed.")


def _needed(option: str, names: list[str] | None) -> list[str]:
    if not names:
        raise UserError(f"`{option}` is needed with --corpus plain: the file names below --data, without .LANGUAGE.")
    return names
