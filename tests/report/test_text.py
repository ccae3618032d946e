"""Tokens and numbers as text."""

from __future__ import annotations

import math

import pytest

from onmt_entmax.report.text import (
    cells,
    columns,
    count,
    is_characters,
    join,
    percent,
    percent_of_log,
    shorten,
    visible,
    wrap,
)


@pytest.mark.parametrize(
    ("probability", "shown"),
    [(0, "0%"), (1, "100%"), (0.664, "66.4%"), (0.0004, "<0.1%"), (0.9996, ">99.9%"), (1e-30, "<0.1%")],
)
def test_only_exact_zero_and_one_are_shown_as_such(probability, shown):
    assert percent(probability) == shown


@pytest.mark.parametrize(
    ("log_prob", "shown"),
    [
        (0.0, "100%"),
        (math.log(0.5), "50.0%"),
        (-100 * math.log(10) + 0.1, "1e-98%"),
        (-30.0, "9e-12%"),
        (math.log(0.96e-7), "1e-5%"),
        (-math.inf, "0%"),
    ],
)
def test_tiny_probabilities_keep_their_order_of_magnitude(log_prob, shown):
    assert percent_of_log(log_prob) == shown


def test_blanks_and_controls_become_visible():
    assert visible("a b\u2028c\u00a0") == "a␣b⟨u+2028⟩c⟨u+00a0⟩"
    assert visible("\u2581der") == "␣der"
    assert visible("می\u200cروم") == "می\u200cروم"  # a zero-width non-joiner is part of Persian spelling


def test_characters_are_joined_without_blanks_and_words_with_one():
    assert is_characters(["d", "r", "<u+00a0>", "w", "</s>"])
    assert not is_characters(["the", "a"]) and not is_characters(["</s>"])
    assert is_characters([*"abcdefghi", "<unk>", "averyunlikelytoken0"])
    assert join(["d", "r", "</s>"], True) == "dr </s>"
    assert join(["the", "tree", "</s>"], False) == "the tree </s>"


def test_wide_characters_take_two_cells_and_marks_none():
    assert cells("これ") == 4 and cells("e\u0301") == 1 and cells("abc") == 3


def test_shorten_keeps_both_ends_within_the_width():
    assert shorten("internationalisation", 7) == "int…ion"
    assert cells(shorten("これはとても長い", 7)) <= 7
    assert shorten("short", 7) == "short"


def test_wrap_loses_nothing_and_fits():
    text = "this is a ratherlongwordthatdoesnotfit line"
    lines = wrap(text, cells, 10)
    assert all(cells(line) <= 10 for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert wrap("abcdefgh", cells, 3, anywhere=True) == ["abc", "def", "gh"]


def test_columns_break_where_the_width_ends():
    # 4 + 1 + 4 = 9 fits in 10, a third of 4 does not; 20 is too wide for any line and stands alone
    assert columns([4, 4, 4, 20, 1], 10, 1) == [[0, 1], [2], [3], [4]]


def test_count():
    assert (count(1, "step"), count(17993, "step"), count(2, "prefix", "prefixes")) == (
        "1 step",
        "17,993 steps",
        "2 prefixes",
    )
