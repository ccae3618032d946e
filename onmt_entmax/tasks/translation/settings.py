"""The options of ``onmt_entmax prepare translation``, their defaults and their checks."""

from __future__ import annotations

from dataclasses import dataclass

from onmt_entmax.errors import choices, invalid_setting
from onmt_entmax.tasks.translation.readers import split_direction
from onmt_entmax.tasks.translation.text import DICTIONARIES, ROMANIAN

JAPANESE = ("kftt", "mecab", "none")
SUBWORDS = ("bpe", "sentencepiece", "none")
SPLITS = ("train", "dev", "test")


@dataclass
class Settings:
    """The options of the command; ``None`` is the corpus's default. The help of the command explains each."""

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
