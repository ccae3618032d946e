"""Exact search against the enumeration of every string."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_entmax.errors import UserError
from onmt_entmax.search.beam import beam_search
from onmt_entmax.search.exact import exact_search
from onmt_entmax.search.forced import force
from onmt_entmax.search.paths import StatePool
from onmt_entmax.search.sampling import sample
from onmt_entmax.search.settings import SearchSettings
from tests.search.checks import same
from tests.search.models import EOS, START, TableScorer, enumerate_strings, random_tables

ALL_KINDS = st.sampled_from(["sparse", "peaked", "dense", "ties"])


def search_settings(beam=3, n_best=1, length=6, **more):
    return SearchSettings(START, EOS, beam_size=beam, n_best=n_best, max_length=length, **more)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kind=ALL_KINDS,
    beam=st.integers(1, 5),
    length=st.integers(1, 6),
    end=st.sampled_from([1.0, 5.0, 40.0]),
    mixed=st.booleans(),
)
def test_finds_the_best_in_order(seed, kind, beam, length, end, mixed):
    scorer = TableScorer(random_tables(seed, 4, kind, end=end), 3, mixed)
    n_best = 1 + seed % beam
    results = exact_search(scorer, search_settings(beam, n_best, length), max_queue=5_000)
    for result, (finished, cut) in zip(results, enumerate_strings(scorer, length)):
        best = sorted(finished.values(), reverse=True)[:n_best]
        if best:
            assert [found.log_prob for found in result.hypotheses] == best
            assert all(finished[tuple(found.tokens)] == found.log_prob for found in result.hypotheses)
            assert result.certificate.optimal == (best[0] >= max(cut.values(), default=-math.inf))
        else:
            assert not result.hypotheses[0].finished and not result.certificate.optimal


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), kind=ALL_KINDS, beam=st.integers(1, 5), length=st.integers(1, 5))
def test_whole_support(seed, kind, beam, length):
    scorer = TableScorer(random_tables(seed, 4, kind), 3)
    results = exact_search(scorer, search_settings(beam, 1, length), whole_support=True, max_queue=5_000)
    for result, (finished, cut) in zip(results, enumerate_strings(scorer, length)):
        if finished:
            strings = {tuple(found.tokens): found.log_prob for found in result.hypotheses}
            assert strings == finished
            log_probs = [found.log_prob for found in result.hypotheses]
            assert log_probs == sorted(log_probs, reverse=True)
        assert result.certificate.complete == (not cut)
        assert result.certificate.mass_found == pytest.approx(
            math.fsum(math.exp(log_prob) for log_prob in finished.values()), abs=1e-9
        )


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["sparse", "peaked", "ties"]),
    min_length=st.integers(0, 3),
    ngram=st.integers(0, 2),
    banned=st.sampled_from([[], [2]]),
)
def test_constraints(seed, kind, min_length, ngram, banned):
    scorer = TableScorer(random_tables(seed, 5, kind), 2)
    given_settings = search_settings(2, 2, min_length=min_length, block_ngram_repeat=ngram, banned=banned)
    results = exact_search(scorer, given_settings, max_queue=5_000)
    for result, (finished, _) in zip(results, enumerate_strings(scorer, 6)):
        allowed = []
        for string, log_prob in finished.items():
            grams = [string[i : i + ngram] for i in range(len(string) - ngram + 1)] if ngram else []
            if len(string) >= min_length and not set(string) & set(banned) and len(set(grams)) == len(grams):
                allowed.append(log_prob)
        best = sorted(allowed, reverse=True)[:2]
        assert [found.log_prob for found in result.hypotheses if found.finished] == best
        if min_length or ngram or banned:
            assert result.certificate.optimal is None and result.certificate.reason


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), kind=ALL_KINDS, expansions=st.sampled_from([2, 20, 10_000]))
def test_a_batch_equals_batches_of_one(seed, kind, expansions):
    tables, limits = random_tables(seed, 5, kind), [3, 6, 1, 5]
    batch = exact_search(TableScorer(tables, 4), search_settings(2, 2, limits), expansions)
    for index, result in enumerate(batch):
        alone = TableScorer(tables, 1, first_sentence=index)
        assert same(exact_search(alone, search_settings(2, 2, limits[index]), expansions)[0], result)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), kind=ALL_KINDS, mixed=st.booleans())
def test_rows_in_turns_give_the_same(seed, kind, mixed):
    tables, given_settings = random_tables(seed, 5, kind), search_settings(2, 2, 6)
    scorer = TableScorer(tables, 4, mixed)
    # a queue may be bounded more tightly by what the turn before found: counts of expansions differ
    for one, other in zip(
        exact_search(TableScorer(tables, 4, mixed), given_settings),
        exact_search(scorer, replace(given_settings, max_rows=3)),
    ):
        assert [(found.tokens, found.log_prob) for found in one.hypotheses] == [
            (found.tokens, found.log_prob) for found in other.hypotheses
        ]
        assert one.certificate.certified_n == other.certificate.certified_n
    assert max(scorer.rows) <= 3


def garden_path():
    """A model that misleads narrow beams: the likelier first token (2) spreads over eight strings of .075 each."""
    tables = torch.zeros(3, 12, dtype=torch.float64)
    tables[0, 2], tables[0, 3] = 0.6, 0.4
    tables[1, 4:12] = 1 / 8
    tables[2, EOS] = 1

    class GardenPath(TableScorer):
        def step(self, tokens, states, sentences, parents=None, best=None):
            output = super().step(tokens, states, sentences, parents)
            row = torch.where(tokens == START, 0, torch.where(tokens == 2, 1, 2))
            return output._replace(tokens=None, log_probs=self.tables[row].clone())

    return GardenPath(tables.log(), 2)


def test_finds_what_the_beam_misses():
    narrow = search_settings(beam=1)
    beam = beam_search(garden_path(), narrow)[0]
    assert beam.hypotheses[0].log_prob == math.log(0.6) + math.log(1 / 8)
    assert not beam.certificate.optimal and beam.certificate.margin < 0
    exact = exact_search(garden_path(), narrow)[0]
    assert exact.hypotheses[0].tokens == [3] and exact.hypotheses[0].log_prob == math.log(0.4)
    assert exact.certificate.optimal


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(["sparse", "peaked", "dense"]), beam=st.integers(1, 3))
def test_what_was_found_is_not_counted_as_dropped(seed, kind, beam):
    """The margin bounds the gap to the best other string, and is more than nothing where there is a gap."""
    scorer = TableScorer(random_tables(seed, 4, kind, end=5.0), 3)
    results = exact_search(scorer, search_settings(beam, return_all=True), max_queue=5_000)
    for result, (finished, cut) in zip(results, enumerate_strings(scorer, 6)):
        certificate, best = result.certificate, result.hypotheses[0]
        known = {tuple(found.tokens) for found in result.hypotheses}
        others = [score for string, score in finished.items() if string not in known]
        if certificate.optimal and certificate.margin is not None:
            gap = best.log_prob - max([*others, *cut.values()], default=-math.inf)
            assert certificate.margin <= gap + 1e-9
            assert certificate.margin > 0 or gap < 1e-9


def test_nothing_to_do_where_the_beam_is_certified():
    scorer = garden_path()
    result = exact_search(scorer, search_settings(beam=2))[0]
    assert result.certificate.optimal and result.hypotheses[0].tokens == [3]
    # as many model calls as the beam alone: the queue was never started
    steps = len(scorer.rows)
    scorer.rows.clear()
    beam_search(scorer, search_settings(beam=2))
    assert steps == len(scorer.rows)


def test_stops_at_the_bound_and_says_so():
    result = exact_search(garden_path(), search_settings(beam=1), max_expansions=1)[0]
    certificate = result.certificate
    assert certificate.optimal is False and certificate.complete is False
    assert certificate.expansions == 3 + 1  # the beam's three steps, and the root
    assert result.hypotheses[0].log_prob == math.log(0.6) + math.log(1 / 8)  # the beam's
    # the beam dropped [3] of probability .4, which bounds whatever was missed; the gap is the margin
    assert certificate.best_dropped_log_prob == math.log(0.4)
    assert certificate.margin == math.log(0.6) + math.log(1 / 8) - math.log(0.4)


def test_memory_is_bounded(monkeypatch):
    # V = 40, dense, nearly flat: the queue would hold thousands of prefixes
    generator = torch.Generator().manual_seed(0)
    tables = (torch.rand(61, 40, generator=generator, dtype=torch.float64) + 1).log().log_softmax(-1)
    sizes = []

    class Recorder(StatePool):
        def add(self, states, rows):
            slots = super().add(states, rows)
            sizes.append(len(self))
            return slots

    monkeypatch.setattr("onmt_entmax.search.exact.StatePool", Recorder)
    results = exact_search(TableScorer(tables, 2), search_settings(length=30), 400, whole_support=True, max_queue=50)
    # at most 1.25 * 50 waiting prefixes per sentence, and the rows that a call has just added
    assert max(sizes) <= 2 * (1.25 * 50 + 3)
    assert not any(result.certificate.complete for result in results)
    assert all(result.certificate.best_dropped_log_prob is not None for result in results)


def test_attention():
    scorer = garden_path()
    given_settings = search_settings(beam=1, return_attention=True, source_lengths=[3, 2])
    first, second = (result.hypotheses[0] for result in exact_search(scorer, given_settings))
    assert first.attention.shape == (2, 3) and second.attention.shape == (2, 2)
    states = tuple(part[1:] for part in scorer.start())
    for weights, token in zip(second.attention, [START, 3]):
        output = scorer.step(torch.tensor([token]), states, torch.tensor([1]))
        assert torch.equal(weights, output.attention[0, :2])
        states = output.states


@pytest.mark.parametrize(
    ("changes", "expansions", "message"),
    [
        (
            {"length_penalty": "avg"},
            9,
            "Invalid setting for `length_penalty`: avg. `search` exact needs none: it goes by probability alone.",
        ),
        (
            {"coverage_penalty": "summary", "coverage_penalty_weight": 0.2},
            9,
            "Invalid setting for `coverage_penalty`: summary. `search` exact needs none: it goes by probability alone.",
        ),
        (
            {"ratio": 0.5, "source_lengths": [1]},
            9,
            "Invalid setting for `ratio`: 0.5. `search` exact needs 0: it goes by probability alone.",
        ),
        ({}, 0, "Invalid setting for `max_expansions`: 0. It must be at least 1."),
    ],
)
def test_refusals(changes, expansions, message):
    with pytest.raises(UserError) as error:
        exact_search(TableScorer(random_tables(0, 4)), search_settings(**changes), expansions)
    assert str(error.value) == message


def test_a_model_that_computes_nan_gets_no_certificate():
    tables = random_tables(3, 4)
    tables[:, 1] = math.nan
    scorer, message = TableScorer(tables), "The model computes NaN, and no search can go on"
    for search in (beam_search, exact_search):
        with pytest.raises(UserError, match=message):
            search(scorer, search_settings())
    with pytest.raises(UserError, match=message):
        force(scorer, [[2, 3, 2, 3, 2]], START, EOS)
    with pytest.raises(UserError, match=message):
        sample(scorer, search_settings(), generator=torch.Generator().manual_seed(1))


def test_attention_of_many_strings_is_computed_in_parts():
    """A whole support may hold thousands: no step has more rows than the search has had."""
    scorer = TableScorer(random_tables(3, 5, "dense", end=9.0), 1)
    given = SearchSettings(START, EOS, beam_size=2, max_length=4, return_attention=True)
    result = exact_search(scorer, given, whole_support=True)[0]
    assert len(result.hypotheses) > 20 and max(scorer.rows) <= 2
    assert all(len(found.attention) == len(found.tokens) + 1 for found in result.hypotheses)
