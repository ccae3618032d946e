"""Subwords: byte pair encoding (Sennrich, Haddow and Birch 2016) by subword-nmt, or sentencepiece; both reversible.

A piece that is not a word's last ends in ``@@``; :func:`undo_bpe` joins them again. Words that would be ambiguous (that
end in ``@@``, or that OpenNMT-py would take for a special token) are spelled out, character by character.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from onmt_entmax.errors import UserError
from onmt_entmax.files import iterate_lines, read_text, write_text, write_whole
from onmt_entmax.tasks.translation.text import import_optional

if TYPE_CHECKING:
    from onmt_entmax.tasks.translation.prepare import Settings

SEPARATOR = "@@"
SPACE = "\u2581"  # what sentencepiece writes for a blank
_SP_UNKNOWN = "\u2585"  # sentencepiece's own sign for unknown characters
RESERVED = frozenset({"<blank>", "<s>", "</s>", "<unk>", "<mask>"})  # OpenNMT-py's special tokens


class Segmenter(Protocol):
    """Cuts tokenised lines into subwords; :func:`undo_subwords` is its inverse."""

    def encode(self, line: str) -> str:
        """Return the pieces of a line, separated by one U+0020."""
        ...


class Bpe:
    """Byte pair encoding with learned merges.

    Args:
        codes: the text of a codes file, as :func:`learn_codes` returns it.
        vocabulary: only pieces among these are produced where possible (subword-nmt's ``--vocabulary``): merges that
            lead to others are undone. ``None``: all merges are used.
    """

    def __init__(self, codes: str, vocabulary: set[str] | None = None):
        apply_bpe = import_optional("subword_nmt.apply_bpe", "subword-nmt", "byte pair encoding")
        # subword-nmt ends the program on a file without merges
        merges = codes.rstrip("\n").count("\n")
        self._bpe = apply_bpe.BPE(io.StringIO(codes), separator=SEPARATOR, vocab=vocabulary) if merges else None
        self._words: dict[str, str] = {}

    def encode(self, line: str) -> str:
        """Return the pieces of a tokenised line, separated by one U+0020; an empty line stays empty."""
        return " ".join(self._word(word) for word in line.split(" ")) if line else ""

    def _word(self, word: str) -> str:
        pieces = self._words.get(word)
        if pieces is None:
            parts = self._bpe.segment_tokens([word]) if self._bpe else None
            if parts is None or parts[-1].endswith(SEPARATOR) or parts[-1] in RESERVED:
                parts = [*(character + SEPARATOR for character in word[:-1]), word[-1]]
            pieces = self._words[word] = " ".join(parts)
        return pieces


def learn_codes(counts: Counter[str], merges: int) -> str:
    """Learn merges from word counts with subword-nmt; returns the text of a codes file.

    Fewer merges are learned when no pair of symbols occurs twice any more.
    """
    learn_bpe = import_optional("subword_nmt.learn_bpe", "subword-nmt", "byte pair encoding")
    # in order of the words: subword-nmt breaks no ties by where a word stood, but its files should not depend on that
    lines = io.StringIO("".join(f"{word} {counts[word]}\n" for word in sorted(counts)))
    codes = io.StringIO()
    if all(len(word) < 2 for word in counts):
        return "#version: 0.2\n"  # nothing to merge: subword-nmt fails on this
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stderr(nowhere):
        learn_bpe.learn_bpe(lines, codes, merges, is_dict=True)
    return codes.getvalue()


def undo_bpe(line: str) -> str:
    """Join pieces that end in ``@@`` with what follows; a line's last one, which a cut translation may have, too."""
    words, word = [], ""
    for piece in line.split(" "):
        if piece.endswith(SEPARATOR):
            word += piece[: -len(SEPARATOR)]
        else:
            words.append(word + piece)
            word = ""
    if word:
        words.append(word)
    return " ".join(words)


class SentencePiece:
    """A sentencepiece unigram model without Unicode normalisation, so that every line comes back as it was.

    Args:
        model: the serialised model.
    """

    def __init__(self, model: bytes):
        sentencepiece = import_optional("sentencepiece", "sentencepiece", "sentencepiece")
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)

    def encode(self, line: str) -> str:
        """Return the pieces of a line; U+2581, sentencepiece's own sign for a blank, must not occur in it."""
        return " ".join(self._processor.encode(line, out_type=str))


def train_sentencepiece(lines: Iterable[str], size: int) -> bytes:
    """Train a sentencepiece unigram model on all lines (without U+2581), long ones too; returns it serialised.

    A small text yields fewer pieces than ``size``. The model does not depend on the number of processors.

    Raises:
        UserError: sentencepiece is missing, or refuses the text or the size.
    """
    sentencepiece = import_optional("sentencepiece", "sentencepiece", "sentencepiece")
    filled = [line for line in lines if line]
    reserved = sum(_SP_UNKNOWN in line for line in filled)
    if reserved:
        print(f"sentencepiece does not learn from {reserved} lines with U+2585, which it reserves.", file=sys.stderr)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(filled),
            model_writer=model,
            vocab_size=size,
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            # longer lines are left out in silence; its own default is 4,192 bytes
            max_sentence_length=max([4192, *(len(line.encode("utf-8")) for line in filled)]),
            num_threads=1,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        raise UserError(f"sentencepiece cannot learn `--merges` {size} pieces from this text: {error}") from None
    return model.getvalue()


def undo_sentencepiece(line: str) -> str:
    """Join pieces and turn U+2581 into blanks."""
    text = line.replace(" ", "").replace(SPACE, " ")
    return text[1:] if text.startswith(" ") else text


def undo_subwords(kind: str, line: str) -> str:
    """Return the tokenised line from its pieces; ``kind`` is ``bpe``, ``sentencepiece`` or ``none``."""
    return {"bpe": undo_bpe, "sentencepiece": undo_sentencepiece}.get(kind, str)(line)


def left_over(kind: str, line: str, known: Container[str] = ()) -> str | None:
    """Return the first token that shows that pieces of another kind are in a tokenised line, or ``None``.

    ``known`` are tokens that do occur, whatever they look like.
    """
    for token in line.split(" "):
        if token in known:
            continue
        if token.endswith(SEPARATOR) or (kind != "none" and SPACE in token):
            return token
    return None


def check_undone(kind: str, lines: Sequence[str], known: Container[str], describe: Callable[[int, str], str]) -> None:
    """Refuse lines of which a tenth have a :func:`left_over`; of fewer, say so on standard error.

    A few come from a model that cut a word short, or from words that look like pieces.

    Args:
        kind: of the subwords that were undone in ``lines``.
        lines: tokenised.
        known: tokens that do occur, whatever they look like.
        describe: the message, from a line's index and its first such token.

    Raises:
        UserError: what ``describe`` says of the first.
    """
    found = [(index, rest) for index, line in enumerate(lines) if (rest := left_over(kind, line, known)) is not None]
    if not found:
        return
    if 10 * len(found) >= len(lines):
        raise UserError(describe(*found[0]))
    print(f"{describe(*found[0])} Scored as written: {len(found)} of {len(lines)} lines.", file=sys.stderr)


def count_pieces(lines: Iterable[str]) -> Counter[str]:
    """Count the tokens of lines whose separator is U+0020."""
    counts: Counter[str] = Counter()
    for line in lines:
        if line:
            counts.update(line.split(" "))
    return counts


def vocabulary_lines(counts: Counter[str], minimum: int) -> list[str]:
    """``token<TAB>count`` lines of what occurs often enough, most frequent first, ties by code point.

    Special tokens are left to OpenNMT-py.
    """
    kept = [(token, count) for token, count in counts.items() if count >= minimum and token not in RESERVED]
    return [f"{token}\t{count}" for token, count in sorted(kept, key=lambda pair: (-pair[1], pair[0]))]


class Whole:
    """No subwords: tokens stay whole."""

    def encode(self, line: str) -> str:
        """Return the line."""
        return line


def write_segmenters(folder: Path, settings: Settings, source: list[str], target: list[str]) -> dict[str, Segmenter]:
    """Learn subwords from tokenised training lines and write the models; returns the segmenters of ``src`` and ``tgt``.

    The folder gets ``bpe.codes`` or ``sentencepiece.model``; with separate codes ``bpe.src.codes`` and so on.
    """
    if settings.subwords == "none":
        return {"src": Whole(), "tgt": Whole()}
    texts = {"": source + target} if settings.codes == "joint" else {".src": source, ".tgt": target}
    if settings.subwords == "sentencepiece":
        models = {name: train_sentencepiece(lines, settings.merges) for name, lines in texts.items()}
        for name, model in models.items():
            write_whole(folder / f"sentencepiece{name}.model", model)
        return {side: SentencePiece(models.get("", models.get(f".{side}"))) for side in ("src", "tgt")}
    counts = {side: count_pieces(lines) for side, lines in (("src", source), ("tgt", target))}
    words = (
        {"": counts["src"] + counts["tgt"]} if settings.codes == "joint" else {f".{s}": c for s, c in counts.items()}
    )
    codes = {name: learn_codes(count, settings.merges) for name, count in words.items()}
    for name, text in codes.items():
        write_text(folder / f"bpe{name}.codes", text)
    segmenters: dict[str, Segmenter] = {}
    for side in ("src", "tgt"):
        text = codes.get("", codes.get(f".{side}"))
        segmenters[side] = Bpe(text, _frequent(Bpe(text), counts[side], settings.vocabulary_threshold))
    return segmenters


def read_segmenter(folder: Path, settings: Settings, side: str) -> Segmenter:
    """One of the segmenters that :func:`write_segmenters` gave, from the files that it wrote."""
    if settings.subwords == "none":
        return Whole()
    name = "" if settings.codes == "joint" else f".{side}"
    if settings.subwords == "sentencepiece":
        path = folder / f"sentencepiece{name}.model"
        if not path.is_file():
            raise UserError(f"There is no {path}, but the manifest says `subwords` sentencepiece.")
        return SentencePiece(path.read_bytes())
    codes = read_text(folder / f"bpe{name}.codes")
    if settings.vocabulary_threshold <= 1:
        return Bpe(codes)
    words = count_pieces(undo_bpe(line) for line in iterate_lines(folder / f"train.{side}"))
    return Bpe(codes, _frequent(Bpe(codes), words, settings.vocabulary_threshold))


def _frequent(bpe: Bpe, words: Counter[str], threshold: int) -> set[str] | None:
    """The pieces of one language that occur at least ``threshold`` times; ``None`` without a threshold."""
    if threshold <= 1:
        return None
    pieces: Counter[str] = Counter()
    for word, count in words.items():
        for piece in bpe.encode(word).split(" "):
            pieces[piece] += count
    return {piece for piece, count in pieces.items() if count >= threshold}
