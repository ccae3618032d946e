"""The share of unknown tokens: counted, said, and warned of above a tenth."""

from __future__ import annotations

from onmt_entmax.unknown import UnknownTokens


def test_nothing_counted_says_nothing():
    counts = UnknownTokens()
    assert str(counts) == "" and counts.share("source") is None and counts.too_many == []
    counts.add("source", 0, 0)  # only blank lines
    assert str(counts) == "" and counts.too_many == []


def test_sides_are_counted_apart_and_added_up():
    counts = UnknownTokens()
    counts.add("source", 1, 10)
    counts.add("source", 1, 10)
    counts.add("target", 0, 3)
    assert counts.share("source") == 0.1 and counts.too_many == []  # a tenth is not above a tenth
    assert str(counts) == "Unknown tokens: source 10.0% (2 of 20), target 0.0% (0 of 3)."


def test_more_than_a_tenth_is_asked_about():
    counts = UnknownTokens()
    counts.add("source", 2, 10)
    counts.add("target", 3, 3)
    assert counts.too_many == ["source", "target"]
    assert str(counts).endswith("Is the source and the target text prepared as the model's training text was?")


def test_a_few_unknown_tokens_are_named():
    counts = UnknownTokens()
    counts.add("source", 3, 4, ["x", "y", "x"])
    counts.add("source", 4, 4, ["\u00a0", "u", "v", "w"])
    assert " Some are 'x', 'y', '\\xa0', 'u', 'v'. Is the source text" in str(counts)
