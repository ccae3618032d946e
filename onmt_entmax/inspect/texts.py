"""How people write a model's input and output, and how that becomes tokens and comes back.

Three kinds of model: *inflection* (language, tags and lemma; a token is a character), *raw* text through a prepared
folder, and *tokens* as they are. Of the output a half-typed word is told from whole ones, whose tokens are settled.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onmt_entmax.errors import UserError, invalid_setting
from onmt_entmax.files import split_tokens
from onmt_entmax.tasks.inflection.format import decode_form, encode_form, encode_source
from onmt_entmax.tasks.translation.preparation import Preparation
from onmt_entmax.tasks.translation.subwords import RESERVED, SEPARATOR, SPACE, undo_subwords

_BLANKS, _BLANK = re.compile(r"\s+"), re.compile(r"\s")
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # JavaScript can send one, nothing can write it
_LANGUAGE, _TAG = "<lang:", "<tag:"
SHOWN = 5  # tokens named in a message


@dataclass
class Piece:
    """A token of a typed text: where it stands there, and in which of its words."""

    token: str
    start: int
    end: int
    word: int


@dataclass
class Typed:
    """A typed text.

    Attributes:
        pieces: tokens that are settled.
        words: texts and places of the words, the half-typed one excluded.
        head: letters of the half-typed word that are among the pieces (where every letter is a token).
        letters: its letters that are not yet tokens.
        start: where the half-typed word begins.
    """

    pieces: list[Piece] = field(default_factory=list)
    words: list[tuple[str, int, int]] = field(default_factory=list)
    head: str = ""
    letters: str = ""
    start: int = 0


class Spelling:
    """How target tokens spell words.

    Args:
        style: ``bpe`` (pieces that end in ``@@`` go on), ``sentencepiece`` (pieces that begin with U+2581 are first),
            ``characters`` (a blank is a token) or ``words`` (each token is one).
        tokens: of the vocabulary, by index; special ones spell nothing.
    """

    def __init__(self, style: str, tokens: Sequence[str]) -> None:
        self.style = style
        self.special = {index for index, token in enumerate(tokens) if _is_special(token)}
        self.letters = [self.letters_of(token) for token in tokens]
        self.goes_on = [style == "bpe" and token.endswith(SEPARATOR) for token in tokens]
        self.first = [style == "sentencepiece" and token.startswith(SPACE) for token in tokens]
        spelled = [index for index in range(len(tokens)) if index not in self.special]
        self.ending = [token for token in spelled if self.open_ended and self.ends(token)]
        self._fitting = {begun: [token for token in spelled if self.fits(token, begun)] for begun in (False, True)}
        self._sorted = sorted((self.letters[index], index) for index in spelled)
        self._exact: dict[str, list[int]] = {}
        for letters, index in self._sorted:
            self._exact.setdefault(letters, []).append(index)

    def letters_of(self, token: str) -> str:
        """What a token spells."""
        if self.style == "bpe" and token.endswith(SEPARATOR):
            return token[: -len(SEPARATOR)]
        if self.style == "sentencepiece":
            return token.removeprefix(SPACE)
        return decode_form(token) if self.style == "characters" else token

    @property
    def open_ended(self) -> bool:
        """Whether only what follows tells that a word has ended."""
        return self.style in ("sentencepiece", "characters")

    def ends(self, token: int) -> bool:
        """For open-ended spellings: whether a token (not the end of the output) ends the word before it."""
        return self.first[token] if self.style == "sentencepiece" else self.letters[token].isspace()

    def fits(self, token: int, begun: bool) -> bool:
        """Whether a token may stand in a word, or begin one."""
        if token in self.special:
            return False
        if self.style == "sentencepiece":
            return self.first[token] != begun
        return not (self.style == "characters" and self.ends(token))

    def all_pieces(self, begun: bool) -> list[int]:
        """All tokens that may stand in a word, or begin one."""
        return self._fitting[begun]

    def continuing(self, letters: str, begun: bool) -> list[int]:
        """The tokens that may come next where a word goes on with these letters, one at least, or with more."""
        found, place = [], bisect_left(self._sorted, (letters, -1))
        while place < len(self._sorted) and self._sorted[place][0].startswith(letters):
            found.append(self._sorted[place][1])
            place += 1
        for size in range(len(letters)):
            shorter = self._exact.get(letters[:size], ())
            found += [index for index in shorter if self.goes_on[index] or self.open_ended]
        return [index for index in found if self.fits(index, begun)]


class Tokens:
    """Input and output are tokens, separated by blanks.

    Args:
        name: of the checkpoint, for messages.
        source, target: the tokens of its vocabularies, by index.
    """

    kind = "tokens"
    style = "words"
    joiner = "none"

    def __init__(self, name: str, source: Sequence[str], target: Sequence[str]) -> None:
        self.name, self.languages, self.tags = name, list[str](), list[str]()
        self.spelling = Spelling(self.style, target)

    def source(self, given: dict[str, Any]) -> list[str]:
        """Source tokens of an input as the page sends it."""
        return split_tokens(one_line(given, "text"))

    def text(self, tokens: Iterable[str]) -> str:
        """Readable text of output tokens."""
        return " ".join(tokens)

    def words(self, text: str) -> list[tuple[str, int, int]]:
        """The words of a text as the model's spelling has them, and where they stand."""
        return [(match[0], match.start(), match.end()) for match in re.finditer(r"\S+", text)]

    def pieces(self, word: str) -> list[str]:
        """The tokens of a word."""
        return [word]

    def typed(self, text: str) -> Typed:
        """Take a typed text apart; its last word is half typed where no blank follows it."""
        words = self.words(text)
        typed = Typed(words=words, start=len(text))
        if words and not text[-1].isspace():
            typed.letters, typed.start, _ = words.pop()
        for number, (word, start, end) in enumerate(words):
            typed.pieces += self.place(self.pieces(word), start, end, number)
        return typed

    def place(self, tokens: Sequence[str], start: int, end: int, word: int) -> list[Piece]:
        """Tokens of a word as pieces of the text; ``word`` is its number."""
        places = [start]
        for token in tokens:
            places.append(min(places[-1] + len(self.spelling.letters_of(token)), end))
        return [Piece(token, *pair, word) for token, pair in zip(tokens, zip(places, [*places[1:-1], end]))]

    def following(self, typed: Typed, text: str, tokens: Sequence[str]) -> str:
        """What follows a typed text when these tokens follow, which spell its half-typed word again."""
        before, letters = [word for word, _, _ in typed.words], typed.letters
        words = join_words(self.spelling, tokens)
        whole = self._running([*before, *words])
        known = self._running([*before, letters] if letters else before)
        if whole.startswith(known):
            rest = whole[len(known) :]
        else:  # a quotation mark, say, that turned with what follows
            rest = " ".join([words[0][len(letters) :], *words[1:]] if letters else words)
            rest = rest if letters else f" {rest}"
        return rest.lstrip() if not text or text[-1].isspace() else rest

    def _running(self, words: Sequence[str]) -> str:
        return " ".join(words)


class Inflection(Tokens):
    """Language, tags and lemma; the output is a word, a token per character."""

    kind = "inflection"
    style = "characters"

    def __init__(self, name: str, source: Sequence[str], target: Sequence[str]) -> None:
        super().__init__(name, source, target)
        self.languages = sorted(token[len(_LANGUAGE) : -1] for token in source if token.startswith(_LANGUAGE))
        self.tags = sorted(token[len(_TAG) : -1] for token in source if token.startswith(_TAG))

    def source(self, given: dict[str, Any]) -> list[str]:
        """See :class:`Tokens`. Tags come in the order in which they are given."""
        language, lemma, tags = one_line(given, "language"), one_line(given, "lemma"), given.get("tags")
        if not isinstance(tags, list) or not tags or not all(isinstance(tag, str) and tag for tag in tags):
            raise invalid_setting("tags", tags, "It must be a list of at least one tag.")
        if not lemma:
            raise invalid_setting("lemma", "''", "It must not be empty.")
        if language not in self.languages:
            raise invalid_setting("language", language, f"{self.name} knows {', '.join(self.languages[:20])}.")
        return encode_source(language, lemma, ";".join(tags)).split(" ")

    def text(self, tokens: Iterable[str]) -> str:
        """See :class:`Tokens`."""
        return decode_form(" ".join(tokens))

    def typed(self, text: str) -> Typed:
        """See :class:`Tokens`: every character is a token."""
        typed = Typed(words=self.words(text), start=len(text))
        if typed.words and not text[-1].isspace():
            typed.head, typed.start, _ = typed.words.pop()
        for place, character in enumerate(text):
            number = sum(end < place for _, _, end in typed.words)
            typed.pieces.append(Piece(encode_form(character), place, place + 1, number))
        return typed

    def following(self, typed: Typed, text: str, tokens: Sequence[str]) -> str:
        """See :class:`Tokens`; here no letter is spelled again."""
        return self.text(tokens)


class Raw(Tokens):
    """Running text, made into tokens as the training text was.

    Raises:
        UserError: the folder's vocabulary is not the model's.
    """

    kind = "raw"

    def __init__(self, name: str, source: Sequence[str], target: Sequence[str], preparation: Preparation) -> None:
        self.preparation = preparation
        subwords = preparation.subwords
        self.style = self.joiner = subwords
        if subwords == "none":
            self.style = "words"
        super().__init__(name, source, target)
        for side, tokens in (("src", source), ("tgt", target)):
            known = preparation.vocabulary(side)
            missing = [token for token in tokens if token not in known and not _is_special(token)]
            if missing:
                raise invalid_setting(
                    "prepared",
                    preparation.folder,
                    f"{name} was trained on other text: {len(missing)} of its {len(tokens)} {side} tokens are not in "
                    f"vocab.{side}, such as {', '.join(missing[:SHOWN])}.",
                )

    def source(self, given: dict[str, Any]) -> list[str]:
        """See :class:`Tokens`."""
        tokens = self.preparation.tokens("src", one_line(given, "text"))
        return split_tokens(self.preparation.pieces("src", tokens))

    def text(self, tokens: Iterable[str]) -> str:
        """See :class:`Tokens`."""
        return self.preparation.text("tgt", " ".join(tokens))

    def words(self, text: str) -> list[tuple[str, int, int]]:
        """See :class:`Tokens`; a word's place is where the text has it, whatever the tokeniser changed in it."""
        places, place = [], 0
        lowered = [character.lower() for character in text]
        folded = "".join(lowered)
        origin = [at for at, part in enumerate(lowered) for _ in part] + [len(text)]
        for word in split_tokens(self.preparation.tokens("tgt", text)):
            own = "".join(character.lower() for character in word)  # as the text is lowered, letter by letter
            start = folded.find(own, place)
            if start < 0 or folded[place:start].strip():  # written otherwise: as many letters as it has
                start = place + len(folded[place:]) - len(folded[place:].lstrip())
            end = min(start + len(own), len(folded))
            places.append((word, origin[start], origin[end]))
            place = end
        return places

    def pieces(self, word: str) -> list[str]:
        """See :class:`Tokens`."""
        return split_tokens(self.preparation.pieces("tgt", word))

    def _running(self, words: Sequence[str]) -> str:
        return self.preparation.running("tgt", " ".join(words)) if words else ""


def texts_of(name: str, source: Sequence[str], target: Sequence[str], prepared: Path | None) -> Tokens:
    """How a model's text is written: what its vocabulary and a prepared folder say.

    Raises:
        UserError: a prepared folder that does not fit the model.
    """
    inflection = any(token.startswith(_LANGUAGE) for token in source) and any(t.startswith(_TAG) for t in source)
    if prepared is not None:
        if inflection:
            raise invalid_setting("prepared", prepared, f"{name} inflects: its input needs no preparation.")
        return Raw(name, source, target, Preparation(prepared))
    return (Inflection if inflection else Tokens)(name, source, target)


def whole_characters(text: str) -> str:
    """The text with U+FFFD for every half character."""
    return _HALF_CHARACTER.sub("\ufffd", text)


def one_line(given: dict[str, Any], name: str, collapse: bool = True) -> str:
    """A field that is text, with blanks of other kinds (line ends, tabs) made U+0020, several of them one.

    Without ``collapse`` each stays one character: places in the text are those of the sender.

    Raises:
        UserError: the field is missing, or no text.
    """
    text = given.get(name)
    if not isinstance(text, str):
        raise UserError(f"`{name}` is missing in the input, or is no text.")
    return (_BLANKS if collapse else _BLANK).sub(" ", whole_characters(text))


def join_words(spelling: Spelling, tokens: Sequence[str]) -> list[str]:
    """The words that output tokens spell."""
    line = undo_subwords(spelling.style, " ".join(tokens))
    return line.split(" ") if line else []


def _is_special(token: str) -> bool:
    # the last are those with which OpenNMT-py fills vocabularies up (`vocab_size_multiple`)
    return token in RESERVED or re.fullmatch(r"averyunlikelytoken\d+", token) is not None
