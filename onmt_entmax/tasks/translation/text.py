"""Text of the translation task: blanks, entities, Romanian letters, tokenisers and their inverses.

Nothing here changes a character that its documentation does not name; in particular, no Unicode normalisation is done.
"""

from __future__ import annotations

import importlib
import re
from typing import Callable, Protocol

from onmt_entmax.errors import UserError, choices, invalid_setting

# the five of XML and the three that Moses' escaping adds; anything else, such as "&copy", stays as it is
_NAMED = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'", "nbsp": " "}
_ENTITY = re.compile(r"&(amp|lt|gt|quot|apos|nbsp|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});")

# Sennrich, Haddow and Birch (2016), section 3.1.4: cedillas are how old fonts wrote the comma-below letters
_COMMA = str.maketrans("\u015e\u015f\u0162\u0163", "\u0218\u0219\u021a\u021b")
_PLAIN = str.maketrans("\u0218\u0219\u021a\u021b\u0102\u0103\u00c2\u00e2\u00ce\u00ee", "SsTtAaAaIi")
# the same letters written as a base letter and a combining cedilla, comma below, breve or circumflex
_COMBINING_CEDILLA = re.compile("(?<=[SsTt])\u0327")
_COMBINING = re.compile("(?<=[SsTt])\u0326|(?<=[Aa])[\u0306\u0302]|(?<=[Ii])\u0302")

RAW_TOKENIZERS = ("13a", "ja-mecab", "char")  # sacreBLEU's, for running text
ROMANIAN = ("plain", "comma", "keep")
DICTIONARIES = {"ipadic": "ipadic", "unidic-lite": "unidic_lite"}  # name of the package -> module


def collapse_blanks(text: str) -> str:
    """Make every run of blanks one U+0020 and drop those at the ends.

    A blank is what ``str.isspace`` says: U+00A0, U+3000, U+2028, U+0085, tabs and carriage returns among them, so that
    the tokens written are separated by U+0020 alone and none contains a blank.
    """
    return " ".join(text.split())


def unescape_entities(text: str) -> str:
    """Replace ``&amp; &lt; &gt; &quot; &apos; &nbsp;`` and numeric references, once: ``&amp;lt;`` becomes ``&lt;``."""
    return _ENTITY.sub(_entity, text) if "&" in text else text


def _entity(match: re.Match[str]) -> str:
    name = match.group(1)
    if not name.startswith("#"):
        return _NAMED[name]
    code = int(name[2:], 16) if name[1] in "xX" else int(name[1:])
    # a reference to a line feed would break the line count; to a surrogate or beyond Unicode, the file's encoding
    if code == 10:
        return " "
    return match.group(0) if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF or code == 0 else chr(code)


def normalise_romanian(text: str, form: str = "plain") -> str:
    """Unify the spelling of Romanian letters (Sennrich, Haddow and Birch 2016).

    ``comma`` turns s and t with cedilla into s and t with comma below; ``plain`` does that and then removes the
    diacritics of the five Romanian letters (Ă Â Î Ș Ț, either case) and of no other; ``keep`` does nothing.
    """
    if form == "keep":
        return text
    text = _COMBINING_CEDILLA.sub("\u0326", text.translate(_COMMA))
    return _COMBINING.sub("", text.translate(_PLAIN)) if form == "plain" else text


def join_japanese(line: str) -> str:
    """Write Japanese tokens without blanks, except between two ASCII letters or digits: ``Windows 95 を``."""
    return re.sub("(?<![0-9A-Za-z]) | (?! *[0-9A-Za-z])", "", line)


class Tokenizer(Protocol):
    """Splits a line into tokens separated by U+0020 and back; ``name`` goes into the manifest."""

    name: str

    def tokenise(self, line: str) -> str:
        """Return the tokens of a line, separated by one U+0020."""
        ...

    def detokenise(self, line: str) -> str:
        """Return running text from the tokens of a line."""
        ...


class Moses:
    """The Moses tokeniser of sacremoses, without its HTML escaping (``&`` stays ``&``)."""

    def __init__(self, language: str):
        sacremoses = import_optional("sacremoses", "sacremoses", "Moses tokenisation")
        self.name = f"moses-{language}"
        self._tokenizer = sacremoses.MosesTokenizer(language)
        self._detokenizer = sacremoses.MosesDetokenizer(language)

    def tokenise(self, line: str) -> str:
        """Tokenise; Moses drops control characters, so a line of nothing else becomes empty."""
        return collapse_blanks(self._tokenizer.tokenize(line, escape=False, return_str=True)) if line else ""

    def detokenise(self, line: str) -> str:
        """Join the tokens as Moses does. Not an exact inverse: spacing of rare punctuation may differ."""
        return self._detokenizer.detokenize(line.split(" "), unescape=False) if line else ""


class MeCab:
    """MeCab with a dictionary from the Python package index, for Japanese."""

    def __init__(self, dictionary: str):
        mecab = import_optional("MeCab", "mecab-python3", "Japanese tokenisation with MeCab")
        package = import_optional(DICTIONARIES[dictionary], dictionary, "MeCab's dictionary")
        arguments = getattr(package, "MECAB_ARGS", None) or f'-r "{package.DICDIR}/mecabrc" -d "{package.DICDIR}"'
        self.name = f"mecab-{dictionary}"
        self._tagger = mecab.Tagger(f"{arguments} -Owakati")

    def tokenise(self, line: str) -> str:
        """Tokenise; blanks of the line end a token and vanish."""
        return collapse_blanks(self._tagger.parse(line)) if line else ""

    def detokenise(self, line: str) -> str:
        """Join the tokens with :func:`join_japanese`."""
        return join_japanese(line)


class Given:
    """Text that is tokenised already, or is not to be: kept as it is; ``join`` makes running text of it."""

    def __init__(self, name: str, join: Callable[[str], str] = lambda line: line):
        self.name = name
        self._join = join

    def tokenise(self, line: str) -> str:
        """Return the line."""
        return line

    def detokenise(self, line: str) -> str:
        """Return running text."""
        return self._join(line)


def make_tokenizer(kind: str, language: str) -> Tokenizer:
    """Build a tokeniser from the name that the manifest records.

    Args:
        kind: ``moses``, ``mecab-ipadic``, ``mecab-unidic-lite``, ``given`` (already tokenised) or ``none`` (raw text).
        language: two letters; decides the rules of ``moses`` and how ``given`` is joined.

    Raises:
        UserError: an unknown kind, or an optional package that is not installed.
    """
    if kind == "none":
        return Given("none")
    if kind == "given":
        return Given("given", join_japanese if language == "ja" else Moses(language).detokenise)
    if kind == "moses":
        return Moses(language)
    mecab = {f"mecab-{name}": name for name in DICTIONARIES}
    if kind in mecab:
        return MeCab(mecab[kind])
    raise invalid_setting("tokenizer", kind, choices(["moses", *mecab, "given", "none"]))


def import_optional(module: str, package: str, purpose: str):
    """Import an optional dependency, or say in one line how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(f"{purpose} needs the package {package}: pip install {package}") from None
