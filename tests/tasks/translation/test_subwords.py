"""Subwords: literal segmentations, and every line comes back."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onmt_entmax.errors import UserError
from onmt_entmax.tasks.translation.subwords import (
    Bpe,
    SentencePiece,
    count_pieces,
    learn_codes,
    left_over,
    train_sentencepiece,
    undo_bpe,
    undo_sentencepiece,
    vocabulary_lines,
)

# merges, most frequent first: l+o (5+2+6), then lo+w</w> (5), then e+r</w> and so on
COUNTS = Counter({"low": 5, "lower": 2, "loan": 6})
CODES = learn_codes(COUNTS, 2)

line = st.lists(st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1), max_size=6).map(" ".join)
odd_line = st.lists(st.sampled_from(["low", "@@", "@", "a@@", "@@@", "<s>", "</s>", "<unk>", "lo", "▁"])).map(" ".join)


def test_codes_and_segmentation_by_hand():
    # pairs: (l, o) 13 times; then (lo, w</w>) 5, (lo, a) 6, (a, n</w>) 6: ties go to the greater pair, (lo, a)
    assert CODES == "#version: 0.2\nl o\nlo a\n"
    bpe = Bpe(CODES)
    assert bpe.encode("low loan") == "lo@@ w loa@@ n"
    assert bpe.encode("") == ""


def test_vocabulary_threshold_undoes_merges():
    # "loa@@" is not in the vocabulary: the merge lo+a is undone; "lo@@" is
    assert Bpe(CODES, {"lo@@", "a@@", "n", "w"}).encode("loan low") == "lo@@ a@@ n lo@@ w"


def test_words_that_would_be_ambiguous_are_spelled_out():
    bpe = Bpe(CODES)
    assert bpe.encode("a@@ b") == "a@@ @@@ @ b"
    assert bpe.encode("</s>") == "<@@ /@@ s@@ >"
    # all merges of "<s>" learned: the word would be OpenNMT-py's own token
    merged = Bpe(learn_codes(Counter({"<s>": 10}), 10))
    assert merged.encode("<s> x") == "<@@ s@@ > x"
    assert undo_bpe("a@@ @@@ @ b") == "a@@ b"


@given(st.one_of(line, odd_line))
def test_bpe_comes_back(text):
    bpe = Bpe(CODES)
    pieces = bpe.encode(text)
    assert undo_bpe(pieces) == text
    assert not {"<s>", "</s>", "<unk>", "<blank>"} & set(pieces.split(" "))


def test_undo_of_what_a_model_may_write():
    assert undo_bpe("lo@@ w er@@") == "low er"  # cut in mid-word
    assert undo_bpe("@@ @@ x") == "x"
    assert undo_bpe("@@") == "" and undo_bpe("") == ""


def test_learning_is_quiet_and_does_not_depend_on_order(capfd):
    reordered = Counter({"loan": 6, "lower": 2, "low": 5})
    assert learn_codes(reordered, 1000) == learn_codes(COUNTS, 1000)
    assert learn_codes(Counter({"a": 3, "b": 1}), 5) == "#version: 0.2\n"  # one-letter words: nothing to merge
    assert learn_codes(Counter(), 5) == "#version: 0.2\n"
    assert Bpe("#version: 0.2\n").encode("ab c") == "a@@ b c"  # no merges: characters
    assert Bpe(learn_codes(Counter({"ab": 1}), 5)).encode("ab") == "a@@ b"  # no pair occurs twice
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("ending", ["\u00a0", "\u2028", "\u3000"])
def test_unicode_blanks_are_letters_to_subwords(ending):
    # prepare collapses them before; a token that has one must still not fall apart here
    assert undo_bpe(Bpe(CODES).encode(f"lo{ending}w x")) == f"lo{ending}w x"


@pytest.fixture(scope="module")
def sentencepiece_model():
    return SentencePiece(train_sentencepiece([f"the cat sees {n} old trees" for n in range(50)], 40))


@given(text=line.filter(lambda text: "\u2581" not in text))
def test_sentencepiece_comes_back(sentencepiece_model, text):
    pieces = sentencepiece_model.encode(text)
    assert undo_sentencepiece(pieces) == text
    assert "" not in pieces.split(" ") or pieces == ""


def test_sentencepiece_does_not_normalise(sentencepiece_model):
    text = "ﬁne e\u0301 ㌔ Ａ"  # NFKC would change each of these
    assert undo_sentencepiece(sentencepiece_model.encode(text)) == text


def test_sentencepiece_is_reproducible_and_refuses_impossible_sizes(capfd):
    lines = [f"the cat sees {n} old trees" for n in range(50)]
    assert train_sentencepiece(lines, 40) == train_sentencepiece(lines, 40)
    with pytest.raises(UserError, match="cannot learn `--merges` 3 pieces from this text: .*Vocabulary size"):
        train_sentencepiece(lines, 3)
    assert capfd.readouterr() == ("", "")


def test_left_over_subwords():
    assert left_over("none", "a lo@@ w") == "lo@@"
    assert left_over("sentencepiece", "a lo@@ w") == "lo@@"
    assert left_over("bpe", "▁the cat") == "▁the"
    assert left_over("bpe", "an e-mail to a@b .") is None
    assert left_over("none", "▁") is None


def test_vocabulary_lines():
    counts = count_pieces(["b a b", "", "<unk> c"])
    assert counts == {"b": 2, "a": 1, "<unk>": 1, "c": 1}
    assert vocabulary_lines(counts, 1) == ["b\t2", "a\t1", "c\t1"]
    assert vocabulary_lines(counts, 2) == ["b\t2"]


def test_sentencepiece_learns_from_long_lines(capfd):
    # every line has more than 4,192 bytes, sentencepiece's own limit; z stands in the longest alone
    lines = ["ab cd " * 800 + "e" * number for number in range(8)] + ["xyz " * 2000]
    pieces = SentencePiece(train_sentencepiece(lines, 20)).encode("zab")
    assert undo_sentencepiece(pieces) == "zab"
    assert "z" in train_sentencepiece(lines, 20).decode("utf-8", "ignore")
    assert capfd.readouterr().err == ""


def test_sentencepiece_names_what_it_leaves_out(capfd):
    train_sentencepiece([*(f"the cat sees {n} old trees" for n in range(50)), "a \u2585 b"], 40)
    assert "does not learn from 1 lines with U+2585" in capfd.readouterr().err


@pytest.mark.parametrize("lines", [[], ["\u2585"]])
def test_sentencepiece_without_text_is_one_error(lines):
    with pytest.raises(UserError, match="sentencepiece cannot learn"):
        train_sentencepiece(lines, 40)
