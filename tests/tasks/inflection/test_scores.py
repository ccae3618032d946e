"""Scores as the shared task counts them, by hand; the bootstrap."""

from __future__ import annotations

import pytest

from onmt_entmax.tasks.inflection.format import Row
from onmt_entmax.tasks.inflection.scores import paired_bootstrap, score


@pytest.mark.parametrize(
    ("form", "guess", "distance"),
    [("a", "", 1), ("abc", "abc", 0), ("kitten", "sitting", 3), ("ab", "ba", 2), ("e\u0301", "\xe9", 2), ("", "a", 1)],
)
def test_known_distances(form, guess, distance):
    # kitten -> sitten -> sittin -> sitting; there is no transposition; composed and decomposed forms differ
    row = Row("x", form, "N")
    assert outcomes([row], [(row, [guess])]) == [(form == guess, distance, form == guess)]


def outcomes(gold, guesses):
    return [tuple(outcome) for outcome in score(gold, guesses)]


def test_last_gold_form_and_last_guess_of_a_pair_are_kept():
    gold = [Row("dive", "dived", "V;PST"), Row("go", "went", "V;PST"), Row("dive", "dove", "V;PST")]
    guesses = [(gold[0], ["dove"]), (gold[1], ["went"]), (gold[2], ["dived"])]
    # two pairs; dive: gold dove (the last), guess dived (the last): dove -> dive -> dived, 2 edits
    assert outcomes(gold, guesses) == [(False, 2, False), (True, 0, True)]


def test_missing_guess_is_the_empty_word():
    assert outcomes([Row("a", "abc", "N"), Row("b", "b", "N")], [(Row("b", "", "N"), ["b"])]) == [
        (False, 3, False),
        (True, 0, True),
    ]


def test_blanks_at_the_ends_of_the_line_do_not_count_those_of_the_form_do():
    # the official scorer strips the line: before the lemma and after the tags
    gold = [Row(" a", "x ", "N\xa0"), Row("b", "y", "N"), Row("c ", "z", " N")]
    guesses = [(Row("a", "", "N"), ["x "]), (Row("b", "", "N"), ["y "]), (Row("c", "", "N"), ["z"])]
    # the third pair is ("c ", " N"): blanks inside the line are part of it, so its guess is missing
    assert outcomes(gold, guesses) == [(True, 0, True), (False, 1, False), (False, 1, False)]


def test_n_best_counts_the_first_and_any():
    gold = [Row("a", "x", "N"), Row("b", "y", "N")]
    assert outcomes(gold, [(gold[0], ["q", "x"]), (gold[1], ["y", "q"])]) == [(False, 1, True), (True, 0, True)]


def test_bootstrap_of_one_clear_difference():
    # a is right on all 100 pairs of x and b on 50; equal on y: macro difference (50 + 0) / 2 = 25
    first = {"x": [True] * 100, "y": [True, False] * 50}
    second = {"x": [True, False] * 50, "y": [True, False] * 50}
    result = paired_bootstrap(first, second, samples=500, seed=3)
    assert result.difference == pytest.approx(25)
    # the x share is binomial(100, .5): sd 5 points, halved by the average over two languages: 95% is about 25 +- 4.9
    assert 18 < result.low < 22 and 28 < result.high < 32
    assert result.p_value == pytest.approx(1 / 501)
    assert result == paired_bootstrap(first, second, samples=500, seed=3)
    assert result != paired_bootstrap(first, second, samples=500, seed=4)


def test_bootstrap_swaps_sign_and_finds_no_difference_between_equals():
    system = {"x": [True, False, True]}
    same = paired_bootstrap(system, system, samples=50)
    assert same == (0, 0, 0, 1)
    other = {"x": [True, True, True]}
    forth, back = paired_bootstrap(system, other, samples=50), paired_bootstrap(other, system, samples=50)
    assert forth.difference == pytest.approx(-100 / 3) and back.difference == pytest.approx(100 / 3)


def test_bootstrap_needs_the_same_languages():
    with pytest.raises(ValueError, match="same languages"):
        paired_bootstrap({"x": [True]}, {"y": [True]})
