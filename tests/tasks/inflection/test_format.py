"""Inflection rows as text: reversible for every string, in tokens that OpenNMT-py leaves alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onmt_entmax.errors import UserError
from onmt_entmax.tasks.inflection.format import (
    Row,
    decode_form,
    decode_source,
    encode_form,
    encode_source,
    find_corpora,
    read_rows,
)

# every character there is, surrogates too, with those that matter drawn more often
TEXT = st.text(st.one_of(st.characters(), st.sampled_from("<>%{};:u+ \t\n\r\x85\xa0\u2028\u3000\uffe8\ufeff\0tag")))


def test_known_lines():
    assert encode_source("english", "draw", "V;PST") == "<lang:english> <tag:V> <tag:PST> d r a w"
    assert encode_form("a b\u00a0") == "a <u+0020> b <u+00a0>"
    assert encode_form("\U0001d173") == "\U0001d173"
    assert encode_source("x y", "<", " N;50%") == "<lang:x%{20}y> <tag:%{20}N> <tag:50%{25}> <"


@given(TEXT)
def test_forms_round_trip(form):
    assert decode_form(encode_form(form)) == form


@given(TEXT, TEXT, TEXT)
def test_sources_round_trip(language, lemma, tags):
    assert decode_source(encode_source(language, lemma, tags)) == (language, lemma, tags)


@given(TEXT, TEXT, TEXT)
def test_different_rows_have_different_sources(lemma, tags, other):
    if lemma != other:
        assert encode_source("l", lemma, tags) != encode_source("l", other, tags)
    assert len(encode_source("l", lemma, tags).split(" ")) == 1 + len(tags.split(";")) + len(lemma)


@given(TEXT, TEXT)
def test_tokens_survive_what_opennmt_does_to_them(lemma, tags):
    # it strips lines, splits a token at U+FFE8, and splits a vocabulary line at the first Unicode blank
    line = encode_source("l", lemma, tags)
    assert line.strip() == line
    for token in line.split(" "):
        assert token and "\uffe8" not in token
        assert f"{token}\t7".split(None, 1) == [token, "7"]
        assert token.encode("utf-8").decode("utf-8") == token


@pytest.mark.parametrize("special", ["<s>", "</s>", "<blank>", "<unk>", "<lang:x>", "<tag:N>", "<u+0020>"])
def test_words_that_look_like_tokens_stay_words(special):
    tokens = encode_source("l", special, "N").split(" ")
    assert tokens[2:] == list(special)
    assert decode_form(encode_form(special)) == special


def test_predictions_decode_leniently():
    assert decode_form("") == ""
    assert decode_form("a <unk> b") == "a\ufffdb"
    assert decode_form("<u+ffffff> <s>") == "<u+ffffff><s>"


def test_source_without_tags_is_no_source():
    with pytest.raises(ValueError, match="not an inflection source line"):
        decode_source("a b c")


def test_rows_keep_blanks_duplicates_and_odd_line_separators(tmp_path):
    path = tmp_path / "x-train"
    content = "a\tb \tN\na\tb\u2028\xa0c\tN\na\te\u0301\t N\n"
    path.write_text(content, encoding="utf-8", newline="\n")
    assert read_rows(path) == [Row("a", "b ", "N"), Row("a", "b\u2028\xa0c", "N"), Row("a", "e\u0301", " N")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tb\tN\na\tN\n", r"x, line 2: a row has lemma, form and tags, separated by tabs; this one has 2 fields"),
        ("a\tb\tN\n\n", r"x, line 2: .* has 1 field\."),
        ("a\tb\tN\tM\n", r"x, line 1: .* has 4 fields"),
        ("a\t\tN\n", r"x, line 1: the form is empty"),
        ("\tb\tN\n", r"x, line 1: the lemma is empty"),
        ("a\tb\tN\na\tb\t\n", r"x, line 2: the tags are empty"),
        ("a\tb\tN\r\r\n", r"x, line 1: it ends with a carriage return"),
    ],
)
def test_bad_rows_are_named(tmp_path, content, message):
    (tmp_path / "x").write_bytes(content.encode())
    with pytest.raises(UserError, match=message):
        read_rows(tmp_path / "x")


def test_covered_rows_have_two_fields_or_an_empty_form(tmp_path):
    (tmp_path / "x").write_bytes(b"a\tN\nb\t\tV\n")
    assert read_rows(tmp_path / "x", covered=True) == [Row("a", "", "N"), Row("b", "", "V")]


@pytest.fixture
def corpus(tmp_path):
    for name in (
        "all/a-train-low", "all/a-train-medium", "all/a-dev", "all/a-test", "all/a-covered-test",
        "surprise/a-b-train-medium", "surprise/a-b-dev", "surprise/a-b-covered-test",
        "surprise/nodev-train-medium", "surprise/nodev-test", "all/other.txt",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\ty\tN\n")
    return tmp_path


def test_corpora_are_found_in_both_folders(corpus):
    found = find_corpora([corpus], "medium", None)
    assert list(found) == ["a", "a-b"]
    assert (found["a"].test.name, found["a"].covered.name) == ("a-test", "a-covered-test")
    assert (found["a-b"].test, found["a-b"].covered.name) == (None, "a-b-covered-test")
    assert list(find_corpora([corpus], "low", None)) == ["a"]
    assert list(find_corpora([corpus / "surprise"], "medium", ["a-b"])) == ["a-b"]


@pytest.mark.parametrize(
    ("setting", "languages", "message"),
    [
        ("huge", None, r"Invalid setting for `setting`: huge. Valid choices: low, medium, high\."),
        ("high", None, r"Invalid setting for `setting`: high. Not in .* Valid choices: low, medium\."),
        (None, None, r"`setting`: not given\. .* has training files by setting\. Valid choices: low, medium\."),
        ("medium", ["a", "elvish"], r"`languages`: elvish\. .* no elvish-train-medium .* Valid choices: a, a-b\."),
        ("medium", ["nodev"], r"`languages`: nodev\. .* Valid choices: a, a-b\."),
    ],
)
def test_missing_data_is_named_with_the_choices(corpus, setting, languages, message):
    with pytest.raises(UserError, match=message):
        find_corpora([corpus], setting, languages)


def test_data_without_settings_and_wrong_folders(tmp_path):
    with pytest.raises(UserError, match=r"`data`: .*holds no LANG-train"):
        find_corpora([tmp_path], None, None)
    with pytest.raises(UserError, match="no such folder"):
        find_corpora([tmp_path / "nowhere"], None, None)
    for name in ("a-train", "a-dev"):
        (tmp_path / name).write_text("x\ty\tN\n")
    assert list(find_corpora([tmp_path], None, None)) == ["a"]
    with pytest.raises(UserError, match="without a setting: leave it out"):
        find_corpora([tmp_path], "medium", None)
    with pytest.raises(UserError, match="a is also in"):
        find_corpora([tmp_path, tmp_path], None, None)


def test_rows_from_another_system_keep_the_blanks_of_their_fields(tmp_path):
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbf a\tb \tN\r\n")
    assert read_rows(tmp_path / "x") == [Row(" a", "b ", "N")]
