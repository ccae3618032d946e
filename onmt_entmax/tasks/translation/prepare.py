"""Preparing translation: parallel text to subwords, vocabularies and a YAML for training.

The output folder holds ``train``, ``dev`` and ``test`` as ``.src`` and ``.tgt`` in subwords; ``dev`` and ``test`` also
as ``.ref`` (running text) and ``.ref.tok`` (tokens), for scoring; the codes, ``vocab.src``, ``vocab.tgt``,
``data.yaml`` and ``manifest.json``. Its files appear only when all of them are done.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from onmt_entmax.errors import UserError, choices, invalid_setting
from onmt_entmax.files import check_output, sha256, write_lines
from onmt_entmax.tasks.prepared import input_name, prepared_folder, write_manifest
from onmt_entmax.tasks.translation.readers import CORPORA, KFTT_ORIGINAL_PAIRS, Reader, Split, split_direction
from onmt_entmax.tasks.translation.subwords import count_pieces, undo_subwords, vocabulary_lines, write_segmenters
from onmt_entmax.tasks.translation.text import DICTIONARIES, ROMANIAN, Tokenizer, make_tokenizer, normalise_romanian
from onmt_entmax.version import version

JAPANESE = ("kftt", "mecab", "none")
SUBWORDS = ("bpe", "sentencepiece", "none")
SPLITS = ("train", "dev", "test")


@dataclass
class Settings:
    """The options of the command; the help of the command explains each.

    ``None`` is the corpus's default, and after :meth:`complete` what is not used.
    """

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
    mecab_dictionary: str | None = None
    romanian: str | None = None
    max_length: int = 0
    subwords: str = "bpe"
    codes: str | None = None
    merges: int | None = None
    vocabulary_threshold: int = 0
    min_frequency: int = 1
    any_size: bool = False

    def complete(self) -> None:
        """Fill in the defaults and check every value; a wrong one is a :class:`UserError` with the valid choices.

        An option that this corpus, this direction or another option leaves without effect is an error, too.
        """
        languages = split_direction(self.corpus, self.direction)
        japanese = "ja" in languages
        wmt16 = self.corpus == "wmt16"
        raw = self.subwords == "sentencepiece"
        self.pretokenised = tuple(self.pretokenised)
        tokens = set(self.pretokenised) == set(SPLITS)
        if self.japanese is None and japanese and not tokens:
            self.japanese = "none" if raw else "kftt" if self.corpus == "kftt" else "mecab"
        for option, value, valid in (
            ("--tokenizer", self.tokenizer, ("moses", "none")),
            ("--japanese", self.japanese, JAPANESE),
            ("--mecab-dictionary", self.mecab_dictionary, DICTIONARIES),
            ("--romanian", self.romanian, ROMANIAN),
            ("--subwords", self.subwords, SUBWORDS),
            ("--codes", self.codes, ("joint", "separate")),
            *(("--pretokenised", split, SPLITS) for split in self.pretokenised),
        ):
            if value is not None and value not in valid:
                raise invalid_setting(option, value, choices(valid))
        # option -> (whether it is used, its default, why it is not used)
        given = self.japanese == "kftt" or tokens
        cut = self.subwords != "none"
        size = 25_000 if wmt16 else 32_000
        for option, (used, default, rule) in {
            "tokenizer": (not given, "none" if raw else "moses", "All of the text comes as tokens already."),
            "mecab_dictionary": (self.japanese == "mecab" and not given, "ipadic", "It is for --japanese mecab."),
            "romanian": ("ro" in languages, "plain", f"Neither language of {self.direction} is Romanian."),
            "codes": (cut, "separate" if wmt16 else "joint", "It is for --subwords bpe or sentencepiece."),
            "merges": (cut, size, "It is for --subwords bpe or sentencepiece."),
        }.items():
            if getattr(self, option) is None:
                setattr(self, option, default if used else None)
            elif not used:
                raise invalid_setting("--" + option.replace("_", "-"), getattr(self, option), rule)
        before: dict[str, str] = {}  # the option that gave a name
        for option in ("train", "dev", "test"):
            for name in getattr(self, option) or []:
                if name in before:
                    where = "given twice" if before[name] == option else f"--{before[name]} already"
                    raise invalid_setting(f"--{option}", name, f"It is {where}.")
                before[name] = option
        for option in ("merges", "min_frequency", "max_length", "vocabulary_threshold"):
            least = 1 if option in ("merges", "min_frequency") else 0
            if getattr(self, option) is not None and getattr(self, option) < least:
                name = "--" + option.replace("_", "-")
                raise invalid_setting(name, getattr(self, option), f"It must be at least {least}.")
        if self.corpus != "plain" and self.pretokenised:
            raise invalid_setting("--pretokenised", " ".join(self.pretokenised), "It is for --corpus plain.")
        if self.corpus != "plain" and self.unescape:
            rule = "It is for --corpus plain; others are unescaped where they need it."
            raise invalid_setting("--unescape", "true", rule)
        if self.any_size and CORPORA[self.corpus].pairs is None:
            raise invalid_setting("--any-size", "true", f"--corpus {self.corpus} has no official size.")
        if self.japanese == "kftt" and self.corpus != "kftt":
            raise invalid_setting("--japanese", "kftt", "Only --corpus kftt has its own tokens; take mecab or none.")
        if self.japanese and tokens:
            raise invalid_setting("--japanese", self.japanese, "All of the text comes as tokens already.")
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


def prepare(settings: Settings, data: Path, output: Path) -> dict:
    """Write the training text of a corpus; see the head of this file.

    Args:
        settings: what to do; defaults are filled in.
        data: the folder with the unpacked corpus.
        output: the folder to write; what an earlier run wrote there and this one does not is removed.

    Returns:
        The manifest: settings, counts at each step, vocabulary sizes, SHA-256 of inputs and outputs, version.

    Raises:
        UserError: bad input or settings; then the output folder is as it was.
    """
    settings.complete()
    reader = Reader(settings.corpus, settings.direction, data, settings.original, settings.unescape)
    languages = {"src": reader.source, "tgt": reader.target}
    splits = {
        "train": reader.training(settings.train),
        "dev": reader.held_out("--dev", settings.dev),
        "test": reader.held_out("--test", settings.test),
    }
    _check_size(settings, len(splits["train"].source))
    prepared = {name: _process(name, split, settings, languages) for name, split in splits.items()}
    with prepared_folder(output) as fresh:
        segmenters = write_segmenters(fresh, settings, prepared["train"].source, prepared["train"].target)
        vocabularies = {}
        for split, lines in prepared.items():
            for side, text in (("src", lines.source), ("tgt", lines.target)):
                pieces = [segmenters[side].encode(line) for line in tqdm(text, f"{split}.{side}", disable=None)]
                _check_reversible(settings.subwords, f"{split}.{side}", text, pieces)
                write_lines(fresh / f"{split}.{side}", pieces)
                if split == "train":
                    vocabulary = vocabulary_lines(count_pieces(pieces), settings.min_frequency)
                    if not vocabulary:
                        rule = f"Nothing in {split}.{side} occurs as often: its vocabulary would be empty."
                        raise invalid_setting("--min-frequency", settings.min_frequency, rule)
                    write_lines(fresh / f"vocab.{side}", vocabulary)
                    vocabularies[side] = len(vocabulary)
            if split != "train":
                write_lines(fresh / f"{split}.ref", lines.reference)
                write_lines(fresh / f"{split}.ref.tok", lines.target)
        about = {
            "task": "translation",
            "corpus": settings.corpus,
            "direction": settings.direction,
            "version": version(),
            "settings": asdict(settings),
            "tokenizers": {side: settings.tokenizer_kind("test", language) for side, language in languages.items()},
            "counts": {split: lines.counts for split, lines in prepared.items()},
            "vocabularies": vocabularies,
            "inputs": {input_name(path, [data]): sha256(path) for split in splits.values() for path in split.files},
        }
        manifest = write_manifest(fresh, output, vocabularies, about)
        for name in (*manifest["outputs"], "manifest.json"):
            for own in splits.values():
                for path in own.files:
                    check_output("output", output / name, "data", path)
        return manifest


@dataclass
class Prepared:
    """Tokenised lines of a split; the reference is running text."""

    source: list[str]
    target: list[str]
    reference: list[str]
    counts: dict[str, int]


def _check_size(settings: Settings, read: int) -> None:
    """Compare the number of training pairs with the official one, as early as it is known."""
    official = KFTT_ORIGINAL_PAIRS if settings.original else CORPORA[settings.corpus].pairs
    if official is None or settings.any_size or read == official:
        return
    less = f"{official - read:,} fewer" if read < official else f"{read - official:,} more"
    raise UserError(
        f"{settings.corpus}: {read:,} training pairs read, the official data have {official:,}: {less}. "
        "Check the download, or go on with --any-size."
    )


def _process(name: str, split: Split, settings: Settings, languages: dict[str, str]) -> Prepared:
    """Normalise, tokenise and filter one split. Test pairs are never dropped, so that scores stay comparable."""
    tokenizers = {side: make_tokenizer(settings.tokenizer_kind(name, lang), lang) for side, lang in languages.items()}

    def tokenise(side: str, lines: list[str]) -> list[str]:
        return [tokens_of(line, tokenizers[side], settings) for line in tqdm(lines, f"tokens of {name}", disable=None)]

    def text(side: str, lines: list[str]) -> list[str]:
        return [normalise_romanian(line, settings.romanian) for line in lines] if languages[side] == "ro" else lines

    source, target = tokenise("src", text("src", split.source)), tokenise("tgt", text("tgt", split.target))
    reference = [""] * len(target)
    if name != "train" and split.reference is not None:
        reference = text("tgt", split.reference)
    elif name != "train":
        reference = text("tgt", split.target)
        if tokenizers["tgt"].name == "given":
            reference = [tokenizers["tgt"].detokenise(line) for line in reference]
    counts = {"read": len(source), "empty": 0}
    if name == "train":
        counts["too_long"] = 0
    kept = []
    for row in zip(source, target, reference):
        if not row[0] or not row[1]:
            counts["empty"] += 1
            if name != "test":
                continue
        if name == "train" and settings.max_length and _longest(row) > settings.max_length:
            counts["too_long"] += 1
            continue
        kept.append(row)
    counts["kept"] = len(kept)
    if not kept:
        raise UserError(f"{name}: no sentence pair is left of the {len(source)} read.")
    return Prepared(*([row[side] for row in kept] for side in range(3)), counts)


def tokens_of(line: str, tokenizer: Tokenizer, settings: Settings) -> str:
    """Tokenise a line, without signs that would be mistaken later; lower-case where the settings say so."""
    # OpenNMT-py takes U+FFE8 for its separator of features and stops; sentencepiece takes U+2581 for a blank
    line = line.replace("\uffe8", "|")
    if settings.subwords == "sentencepiece":
        line = line.replace("\u2581", "_")
    line = tokenizer.tokenise(line)
    return line.lower() if settings.lowercase else line


def _longest(row: tuple[str, str, str]) -> int:
    return max(row[0].count(" "), row[1].count(" ")) + 1


def _check_reversible(kind: str, name: str, lines: list[str], pieces: list[str]) -> None:
    for number, (line, encoded) in enumerate(zip(lines, pieces), 1):
        if undo_subwords(kind, encoded) != line:
            raise UserError(f"{name}, line {number}: {line!r} does not come back from its subwords {encoded!r}.")
