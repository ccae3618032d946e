"""The options of ``onmt_entmax prepare translation``, their defaults and their checks."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from onmt_entmax.errors import choices, invalid_setting
from onmt_entmax.tasks.translation.readers import CORPORA, split_direction
from onmt_entmax.tasks.translation.text import DICTIONARIES, ROMANIAN

JAPANESE = ("kftt", "mecab", "none")
SUBWORDS = ("bpe", "sentencepiece", "none")
SPLITS = ("train", "dev", "test")


@dataclass
class Settings:
    """The options of the command; ``None`` is the corpus's default. ``add_arguments`` explains each."""

    corpus: str
    direction: str
    train: list[str] | None = None
    dev: list[str] | None = None
    test: list[str] | None = None
    pretokenised: tuple[str, ...] = ()
    unescape: bool = False
    lowercase: bool = False
    tokenizer: str | None = None
    japanese: str | None = None
    mecab_dictionary: str = "ipadic"
    romanian: str = "plain"
    max_length: int = 0
    subwords: str = "bpe"
    codes: str | None = None
    merges: int | None = None
    vocabulary_threshold: int = 0
    min_frequency: int = 1
    any_size: bool = False

    def complete(self) -> None:
        """Fill in the defaults and check every value; a wrong one is a :class:`UserError` with the valid choices."""
        japanese = "ja" in split_direction(self.corpus, self.direction)
        wmt16 = self.corpus == "wmt16"
        raw = self.subwords == "sentencepiece"
        self.tokenizer = self.tokenizer or ("none" if raw else "moses")
        if self.japanese is None and japanese:
            self.japanese = "none" if raw else "kftt" if self.corpus == "kftt" else "mecab"
        self.codes = self.codes or ("separate" if wmt16 else "joint")
        self.merges = (25_000 if wmt16 else 32_000) if self.merges is None else self.merges
        self.pretokenised = tuple(self.pretokenised)
        for option, value, valid in (
            ("--tokenizer", self.tokenizer, ("moses", "none")),
            ("--japanese", self.japanese or "none", JAPANESE),
            ("--mecab-dictionary", self.mecab_dictionary, DICTIONARIES),
            ("--romanian", self.romanian, ROMANIAN),
            ("--subwords", self.subwords, SUBWORDS),
            ("--codes", self.codes, ("joint", "separate")),
            *(("--pretokenised", split, SPLITS) for split in self.pretokenised),
        ):
            if value not in valid:
                raise invalid_setting(option, value, choices(valid))
        for option in ("merges", "min_frequency", "max_length", "vocabulary_threshold"):
            least = 1 if option in ("merges", "min_frequency") else 0
            if getattr(self, option) < least:
                name = "--" + option.replace("_", "-")
                raise invalid_setting(name, getattr(self, option), f"It must be at least {least}.")
        if self.corpus != "plain" and self.pretokenised:
            raise invalid_setting("--pretokenised", " ".join(self.pretokenised), "It is for --corpus plain.")
        if self.japanese == "kftt" and self.corpus != "kftt":
            raise invalid_setting("--japanese", "kftt", "Only --corpus kftt has its own tokens; take mecab or none.")
        if self.japanese and not japanese:
            raise invalid_setting("--japanese", self.japanese, f"Neither language of {self.direction} is Japanese.")
        if self.vocabulary_threshold and self.subwords != "bpe":
            raise invalid_setting("--vocabulary-threshold", self.vocabulary_threshold, "It is for --subwords bpe.")

    def tokenizer_kind(self, split: str, language: str) -> str:
        """Return the kind of tokeniser (:func:`make_tokenizer`) for one side of a split."""
        if self.japanese == "kftt" or split in self.pretokenised:
            return "given"
        if language != "ja":
            return self.tokenizer
        return f"mecab-{self.mecab_dictionary}" if self.japanese == "mecab" else "none"

    @property
    def original(self) -> bool:
        """Whether KFTT's untokenised text is to be read in place of its tokens."""
        return self.corpus == "kftt" and self.japanese != "kftt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``onmt_entmax prepare translation``."""
    add = parser.add_argument
    add("--corpus", required=True, metavar="NAME", help=", ".join(CORPORA))
    add("--direction", required=True, metavar="SRC-TGT", help="such as de-en; plain takes any two languages")
    add("--data", required=True, type=Path, metavar="FOLDER", help="the unpacked corpus, at any depth below")
    add("--output", required=True, type=Path, metavar="FOLDER", help="where the text goes")
    add("--train", nargs="+", metavar="PREFIX", help="plain: files below --data, without .LANGUAGE")
    add("--dev", nargs="+", metavar="SET", help="sets of the corpus; plain: prefixes; " + _default_sets("dev"))
    add("--test", nargs="+", metavar="SET", help="like --dev; " + _default_sets("test"))
    add("--pretokenised", nargs="+", default=(), metavar="SPLIT", help="plain: which of train, dev, test are tokenised")
    add("--unescape", action="store_true", help="plain: undo &amp; &quot; &#91; ...; always done for iwslt17 and wmt16")
    add("--lowercase", action="store_true", help="lower-case all tokens; scores are then caseless")
    add("--tokenizer", metavar="NAME", help="moses, none; not for Japanese (default: moses; for sentencepiece none)")
    add("--japanese", metavar="NAME", help="kftt (its own tokens), mecab, none (default: kftt or mecab; as above)")
    add("--mecab-dictionary", default="ipadic", metavar="NAME", help=", ".join(DICTIONARIES))
    add("--romanian", default="plain", metavar="FORM", help="plain: no diacritics; comma: cedilla to comma; keep")
    add(
        "--max-length", type=int, default=0, metavar="N", help="drop training pairs with a side above N tokens; 0: none"
    )
    add("--subwords", default="bpe", metavar="KIND", help=", ".join(SUBWORDS))
    add("--codes", metavar="KIND", help="joint or separate for each language (default: joint; for wmt16 separate)")
    add("--merges", type=int, metavar="N", help="merges, or sentencepiece's size (default: 32000; for wmt16 25000)")
    add("--vocabulary-threshold", type=int, default=0, metavar="N", help="BPE: undo merges to pieces rarer than N")
    add("--min-frequency", type=int, default=1, metavar="N", help="leave tokens rarer than N out of the vocabularies")
    add("--any-size", action="store_true", help="accept another number of training pairs than the official one")


def _default_sets(kind: str) -> str:
    defaults = ((name, getattr(corpus, kind)) for name, corpus in CORPORA.items())
    return "default: " + ", ".join(f"{name} {' '.join(sets)}" for name, sets in defaults if sets)
