"""Blanks, entities, Romanian letters and tokenisers."""

from __future__ import annotations

import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onmt_entmax.errors import UserError
from onmt_entmax.tasks.translation.text import (
    collapse_blanks,
    join_japanese,
    make_tokenizer,
    normalise_romanian,
    unescape_entities,
)


@given(st.text())
def test_blanks_collapse_and_nothing_else_changes(text):
    collapsed = collapse_blanks(text)
    assert "".join(collapsed.split(" ")) == "".join(c for c in text if not c.isspace())
    assert "  " not in collapsed and collapsed == collapsed.strip()
    assert all(c == " " or not c.isspace() for c in collapsed)


def test_every_kind_of_blank():
    assert collapse_blanks("\u3000a\u00a0\u2028b\u0085\t c\r") == "a b c"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("R&amp;D &lt;b&gt; &quot;x&quot; it&apos;s", 'R&D <b> "x" it\'s'),
        ("&amp;lt;", "&lt;"),  # once, not twice
        ("&#91;x&#x5D; &#x1F600;", "[x] \U0001f600"),
        ("&#10;", " "),  # never a new line
        ("&#xD800; &#9999999; &#0;", "&#xD800; &#9999999; &#0;"),  # no characters
        ("AT&T &copy &unknown; &", "AT&T &copy &unknown; &"),
    ],
)
def test_entities(text, expected):
    assert unescape_entities(text) == expected


def test_romanian_letters():
    # cedilla (U+015F, U+0163), comma below (U+0219, U+021B), base letter with combining cedilla or comma below
    text = "\u015fi \u0163ara \u0219i \u021bara s\u0327i t\u0326ara \u0102\u0103\u00c2\u00e2\u00ce\u00ee \u015e\u0162"
    assert normalise_romanian(text, "keep") == text
    comma = "\u0219i \u021bara \u0219i \u021bara s\u0326i t\u0326ara \u0102\u0103\u00c2\u00e2\u00ce\u00ee \u0218\u021a"
    assert normalise_romanian(text, "comma") == comma
    assert normalise_romanian(text, "plain") == "si tara si tara si tara AaAaIi ST"
    assert normalise_romanian("a\u0306i\u0302", "plain") == "ai"
    assert normalise_romanian("é ü ç ñ e\u0301 ģ", "plain") == "é ü ç ñ e\u0301 ģ"  # not Romanian: untouched


@pytest.mark.parametrize(
    "language, text, expected",
    [
        ("de", "Er rief: „Das ist z.B. gut!“", "Er rief : „ Das ist z.B. gut ! “"),
        ("en", "It's R&D, isn't it?", "It 's R & D , isn 't it ?"),
        ("ro", "Prof. X (ieri) n-a venit.", "Prof . X ( ieri ) n-a venit ."),
    ],
)
def test_moses_without_escaping(language, text, expected):
    tokenizer = make_tokenizer("moses", language)
    assert tokenizer.tokenise(text) == expected
    assert tokenizer.tokenise("") == "" and tokenizer.detokenise("") == ""
    assert tokenizer.tokenise("\x01") == ""  # Moses drops control characters


def test_moses_detokenises():
    tokenizer = make_tokenizer("moses", "en")
    text = "It 's R & D ( really ) , isn 't it ?"
    assert tokenizer.detokenise(text) == "It's R & D (really), isn't it?"


def test_japanese_is_joined_except_between_latin_words():
    assert join_japanese("Windows 95 を 使う 。") == "Windows 95を使う。"
    assert join_japanese(" a  b  を 9 ") == "a bを9"
    assert make_tokenizer("given", "ja").detokenise("京都 は 古い") == "京都は古い"
    assert make_tokenizer("given", "en").detokenise("old , old .") == "old, old."
    assert make_tokenizer("none", "ja").detokenise("a b") == "a b"


def test_unknown_tokenizer_and_dictionary():
    with pytest.raises(UserError, match="mecab-ipadic, mecab-unidic-lite, given, none"):
        make_tokenizer("spacy", "de")
    with pytest.raises(UserError, match="`tokenizer`: mecab-juman. Valid choices: moses, mecab-ipadic"):
        make_tokenizer("mecab-juman", "ja")


@pytest.mark.parametrize("missing, package", [("MeCab", "mecab-python3"), ("unidic_lite", "unidic-lite")])
def test_mecab_missing_names_the_package(monkeypatch, missing, package):
    monkeypatch.setitem(sys.modules, "MeCab", types.ModuleType("MeCab"))
    monkeypatch.setitem(sys.modules, missing, None)  # importing it is an ImportError
    with pytest.raises(UserError, match=f"pip install {package}$"):
        make_tokenizer("mecab-unidic-lite", "ja")


def test_mecab_is_given_the_packaged_dictionary(monkeypatch):
    # a stand-in that records the arguments and cuts at every character
    mecab, ipadic = types.ModuleType("MeCab"), types.ModuleType("ipadic")
    arguments = []
    mecab.Tagger = lambda options: (
        arguments.append(options) or types.SimpleNamespace(parse=lambda t: " ".join(t) + " \n")
    )
    ipadic.MECAB_ARGS = '-r "rc" -d "dic"'
    monkeypatch.setitem(sys.modules, "MeCab", mecab)
    monkeypatch.setitem(sys.modules, "ipadic", ipadic)
    tokenizer = make_tokenizer("mecab-ipadic", "ja")
    assert arguments == ['-r "rc" -d "dic" -Owakati']
    assert tokenizer.tokenise("京都") == "京 都" and tokenizer.detokenise("京 都") == "京都"
    assert tokenizer.tokenise("") == ""


@pytest.mark.parametrize("dictionary", ["ipadic", "unidic-lite"])
def test_mecab_itself(dictionary):
    pytest.importorskip("MeCab")
    pytest.importorskip(dictionary.replace("-", "_"))
    tokenizer = make_tokenizer(f"mecab-{dictionary}", "ja")
    tokens = tokenizer.tokenise("京都は古い都です。")
    assert tokens == "京都 は 古い 都 です 。"
    assert tokenizer.detokenise(tokens) == "京都は古い都です。"
