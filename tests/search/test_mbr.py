"""Minimum Bayes risk: expected utilities by hand, what a certificate says of the choice, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import CHRF

from onmt_entmax.errors import UserError
from onmt_entmax.search import mbr
from onmt_entmax.search.beam import beam_search
from onmt_entmax.search.exact import exact_search
from onmt_entmax.search.mbr import check_decision, decide, utilities
from onmt_entmax.search.result import (
    SAMPLING,
    Certificate,
    Hypothesis,
    SearchResult,
    certificate_record,
)
from onmt_entmax.search.sampling import sample
from onmt_entmax.search.settings import SearchSettings
from tests.search.models import EOS, START, TableScorer, random_tables

LETTERS = "abcdefgh"


def result(*found: tuple[str, float], **certificate) -> SearchResult:
    """Strings of letters with their probabilities, best first."""
    hypotheses = [
        Hypothesis([LETTERS.index(letter) for letter in text], math.log(prob), math.log(prob), True)
        for text, prob in found
    ]
    return SearchResult(hypotheses, Certificate(found=len(hypotheses), **certificate))


def texts(one: SearchResult) -> list[str]:
    return ["".join(LETTERS[token] for token in hypothesis.tokens) for hypothesis in one.hypotheses]


def decided(one: SearchResult, utility: str = "edit", n_best: int | None = None) -> SearchResult:
    return decide(one, LETTERS.__getitem__, utility, n_best)


# the most probable string is like no other; the rest are alike
FOUND = result(("ab", 0.4), ("cd", 0.3), ("ce", 0.2), ("cde", 0.1), complete=True, certified_n=4, optimal=True)


def test_expected_edit_utility_by_hand():
    ranked = decided(FOUND)
    assert texts(ranked) == ["cd", "cde", "ce", "ab"]
    # cd: itself 0.3, ce half of 0.2 (one of two letters), cde two thirds of 0.1 (one of three is missing)
    # cde: 0.1 and two thirds of 0.5; ce: 0.2, half of 0.3, two thirds of 0.1; ab: itself alone
    expected = [0.3 + 0.1 + 0.2 / 3, 0.1 + 1 / 3, 0.2 + 0.15 + 0.2 / 3, 0.4]
    assert [one.score for one in ranked.hypotheses] == pytest.approx([100 * value for value in expected])
    assert [round(math.exp(one.log_prob), 6) for one in ranked.hypotheses] == [0.3, 0.1, 0.2, 0.4]


def test_chrf_by_hand():
    scores = utilities("chrf", ["cd", "ce", "cde"])
    # cd for ce: of 1-grams half, of 2-grams none: precision and recall 1/4
    assert scores[0, 1] == pytest.approx(25)
    # cd for cde: precision 1, recall the mean of 2/3 and 1/2: 5 * 7/12 / (4 + 7/12) = 35/55, recall counting four times
    assert scores[0, 2] == pytest.approx(100 * 35 / 55)
    assert scores[2, 0] == pytest.approx(100 * 35 / 40)  # 5 * 7/12 / (4 * 7/12 + 1)
    assert utilities("chrf", [[], ["a"]]).tolist() == [[100, 0], [0, 100]]
    # whole words, however they are cut
    assert utilities("chrf", [["ca@@", "t"], ["cat"], ["\u2581ca", "t"]]) == pytest.approx(np.full((3, 3), 100))
    # cde for ce: 1-grams 2/3 and 1, 2-grams none: 5 * 1/6 / (4/3 + 1/2) = 5/11
    best = decided(FOUND, "chrf").hypotheses[0]
    assert best.tokens == [2, 3, 4] and best.score == pytest.approx(100 * (0.1 + 0.3 * 0.875 + 0.2 * 5 / 11))


@given(st.lists(st.lists(st.text("ab é", min_size=1, max_size=5), max_size=5), min_size=1, max_size=4))
def test_chrf_is_that_of_sacrebleu(texts):
    metric, scores = CHRF(), utilities("chrf", texts)
    for row, own in enumerate(texts):
        for column, other in enumerate(texts):
            expected = metric.sentence_score(" ".join(own), [" ".join(other)]).score
            assert scores[row, column] == pytest.approx(100 if row == column else expected)


def test_probabilities_are_renormalised_and_a_single_string_is_certain():
    half = result(("ab", 0.2), ("cd", 0.15), ("ce", 0.1), ("cde", 0.05))
    assert [one.score for one in decided(half).hypotheses] == pytest.approx(
        [one.score for one in decided(FOUND).hypotheses]
    )
    tiny = result(("ab", 1e-300), ("cd", 1e-301))
    assert [one.score for one in decided(tiny).hypotheses] == pytest.approx([100 / 1.1, 10 / 1.1])
    assert decided(result(("a", 0.1))).hypotheses[0].score == 100


def test_the_certificate_is_that_of_the_list():
    moved = decided(FOUND).certificate
    assert (moved.optimal, moved.certified_n, moved.complete) == (False, 0, True)  # cd is not the mode
    assert moved.mbr == {"utility": "edit", "candidates": 4, "exact": True}
    # a: 0.6 + 0.1 / 2 (one of two letters); ab: 0.1 + 0.6 / 2 = 0.4; c: 0.3: only the first place stays
    kept = decided(result(("a", 0.6), ("c", 0.3), ("ab", 0.1), complete=False, certified_n=2, optimal=True))
    assert texts(kept) == ["a", "ab", "c"]
    assert (kept.certificate.optimal, kept.certificate.certified_n, kept.certificate.mbr["exact"]) == (True, 1, False)
    # a list may be no longer than what is certified, and nothing certified stays so
    assert decided(result(("a", 0.6), ("c", 0.3), complete=True, certified_n=2), n_best=1).certificate.certified_n == 1
    assert decided(result(("a", 0.6), ("c", 0.3), certified_n=0, optimal=False)).certificate.optimal is False
    void = decided(result(("ab", 0.4), ("cd", 0.3), ("ce", 0.3), reason="min_length 1")).certificate
    assert (void.optimal, void.certified_n, void.mbr["exact"]) == (None, None, False)
    assert FOUND.certificate.mbr is None  # the search's own stays as it was


def test_records_say_how_the_choice_was_made():
    record = certificate_record(decided(FOUND, n_best=2), 1, LETTERS.__getitem__)
    assert record["mbr"] == {"utility": "edit", "candidates": 4, "exact": True}
    assert [entry["expected_utility"] for entry in record["hypotheses"]] == pytest.approx([46.6667, 43.3333], abs=1e-4)
    plain = certificate_record(FOUND, 1, LETTERS.__getitem__)
    assert "mbr" not in plain and "expected_utility" not in plain["hypotheses"][0]


def test_only_the_most_probable_are_compared_and_then_nothing_is_exact(monkeypatch):
    monkeypatch.setattr(mbr, "MOST", 2)
    few = decided(FOUND)
    # the others are listed behind them, as all are asked for
    assert texts(few) == ["ab", "cd", "ce", "cde"]
    record = certificate_record(few, 1, LETTERS.__getitem__)
    assert ["expected_utility" in entry for entry in record["hypotheses"]] == [True, True, False, False]
    assert few.certificate.mbr == {"utility": "edit", "candidates": 2, "exact": False}


def test_without_a_finished_hypothesis_there_is_no_choice():
    prefix = SearchResult([Hypothesis([0, 1], -1.0, -1.0, False)], Certificate(complete=False, optimal=False))
    same = decided(prefix)
    assert same.hypotheses == [Hypothesis([0, 1], -1.0, -math.inf, False)]
    assert same.certificate.mbr == {"utility": "edit", "candidates": 0, "exact": False}
    assert "expected_utility" not in certificate_record(same, 1, LETTERS.__getitem__)["hypotheses"][0]


def test_drawn_hypotheses_count_as_often_as_they_were_drawn():
    # ab is the more probable string, but was drawn once; cd twice
    drawn = decided(result(("ab", 0.4), ("cd", 0.3), ("cd", 0.3), reason=SAMPLING))
    assert texts(drawn) == ["cd", "ab"]
    assert [one.score for one in drawn.hypotheses] == pytest.approx([200 / 3, 100 / 3])
    assert drawn.certificate.mbr == {"utility": "edit", "candidates": 2, "exact": False}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("best", "chrf", 5, "none"), "`decision`: best. Valid choices: map, mbr."),
        (("mbr", "bleu", 5, "none"), "`mbr_utility`: bleu. Valid choices: chrf, edit."),
        (("mbr", "chrf", 1, "none"), "`beam_size`: 1. `decision` mbr chooses among hypotheses"),
        (("mbr", "chrf", 5, "avg"), "`length_penalty`: avg. `decision` mbr needs none"),
        (("mbr", "chrf", 5, "none", "wu"), "`coverage_penalty`: wu. `decision` mbr needs none"),
        (("mbr", "chrf", 5, "none", "none", 0.5), "`ratio`: 0.5. `decision` mbr needs 0"),
    ],
)
def test_what_cannot_be_combined(settings, message):
    with pytest.raises(UserError, match=message):
        check_decision(*settings)
    check_decision("map", "chrf", 1, "avg", "wu", 0.5)


@given(st.integers(0, 2**16), st.integers(2, 4), st.sampled_from(["sparse", "peaked", "dense"]))
def test_every_search_gives_all_that_it_finished(seed, beam_size, kind):
    tables = random_tables(seed, 5, kind, end=2.0)
    settings = SearchSettings(START, EOS, beam_size=beam_size, n_best=beam_size, max_length=5, return_all=True)
    torch.manual_seed(seed)
    for search in (beam_search, exact_search, sample):
        for one in search(TableScorer(tables, 2), settings):
            finished = [hypothesis for hypothesis in one.hypotheses if hypothesis.finished]
            assert len(finished) == one.certificate.found
            ranked = decide(one, str, "edit", None)
            expected = finished or one.hypotheses  # samples that were cut are no candidates
            assert {tuple(h.tokens) for h in ranked.hypotheses} == {tuple(h.tokens) for h in expected}
            scores = [hypothesis.score for hypothesis in ranked.hypotheses]
            assert not finished or (
                scores == sorted(scores, reverse=True) and 0 <= scores[-1] <= scores[0] <= 100 + 1e-9
            )
            about = ranked.certificate
            assert about.mbr["exact"] == (about.complete is True)
            if about.optimal:  # the mode came first, and is the mode of the search
                assert ranked.hypotheses[0].tokens == one.hypotheses[0].tokens and one.certificate.optimal
