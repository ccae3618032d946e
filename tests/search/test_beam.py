"""Beam search: against OpenNMT-py's where there are no zeros, and against what must hold with zeros."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_entmax.search.beam import beam_search
from onmt_entmax.search.settings import SearchSettings
from tests.search.checks import same
from tests.search.models import EOS, START, TableScorer, enumerate_strings, random_tables

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside OpenNMT-py
    from onmt.translate import BeamSearch, GNMTGlobalScorer

NEVER = 999  # a token that does not exist, for padding
LONG = 60


def stock_beam(scorer, given_settings, n_best, ratio=0.0):
    """OpenNMT-py's own search over the same distributions, in float64.

    Returns:
        Per sentence all that it finished, best first: (score, tokens with EOS). It would return the first ``n_best``.
    """
    options = given_settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of penalties without effect
        ranking = GNMTGlobalScorer(
            options.length_penalty_weight,
            options.coverage_penalty_weight,
            options.length_penalty,
            options.coverage_penalty,
        )
    beam, batch = options.beam_size, scorer.batch_size
    search = BeamSearch(
        beam,
        batch_size=batch,
        n_best=n_best,
        global_scorer=ranking,
        pad=NEVER,
        bos=START,
        eos=EOS,
        unk=NEVER,
        start=START,
        min_length=options.min_length,
        max_length=options.max_length,
        return_attention=options.has_coverage,
        block_ngram_repeat=options.block_ngram_repeat,
        exclusion_tokens=set(options.exclusion_tokens),
        stepwise_penalty=options.stepwise_penalty,
        ratio=ratio,
        ban_unk_token=False,
    )
    lengths = torch.full((batch,), scorer.src_len)
    search.initialize(torch.zeros(batch, scorer.src_len, 1), lengths)
    search.topk_log_probs = search.topk_log_probs.double()
    states = tuple(part.repeat_interleave(beam, 0) for part in scorer.start())
    sentences = torch.arange(batch).repeat_interleave(beam)
    for _ in range(options.max_length):
        output = scorer.step(search.current_predictions, states, sentences)
        search.advance(output.log_probs, output.attention.unsqueeze(1))
        if any(any(row) for row in search.is_finished_list):
            search.update_finished()
            if search.done:
                break
        states = tuple(part[search.select_indices] for part in output.states)
        sentences = search._batch_offset.repeat_interleave(beam)
    return [[(float(score), tokens.tolist()) for score, tokens, _ in found] for found in search.hypotheses]


def stages(scorer, given_settings, ratio=0.0):
    """The list that this project promises with penalties, from OpenNMT-py's searches for 1, 2, ... hypotheses."""
    lists = [[] for _ in range(scorer.batch_size)]
    for n_best in range(1, given_settings.n_best + 1):
        for found, hypotheses in zip(lists, stock_beam(scorer, given_settings, n_best, ratio)):
            if len(found) < n_best:
                found += [hypothesis for hypothesis in hypotheses if hypothesis not in found]
    return [found[: given_settings.n_best] for found in lists]


class Chain(TableScorer):
    """EOS .9 or 2 at first; after 2 only 2, ``steps`` times in all, then EOS."""

    def __init__(self, steps):
        super().__init__(torch.zeros(1, 3, dtype=torch.float64))
        self.steps = steps

    def step(self, tokens, states, sentences, parents=None, best=None):
        output = super().step(tokens, states, sentences, parents)
        length = output.states[1][:, 0]
        table = torch.zeros(len(tokens), 3, dtype=torch.float64)
        table[length == 1] = torch.tensor([0, 0.9, 0.1], dtype=torch.float64)
        table[(length > 1) & (length <= self.steps), 2] = 1
        table[length > self.steps, EOS] = 1
        return output._replace(tokens=None, log_probs=table.log())


def search_settings(**changes):
    return SearchSettings(START, EOS, **{"beam_size": 4, "n_best": 4, "max_length": LONG, **changes})


def dense_scorer(seed, batch=4, vocab=8):
    return TableScorer(random_tables(seed, vocab, "dense", end=4.0), batch)


def as_stock(result):
    # OpenNMT-py computes coverage penalties in float32
    return [(pytest.approx(found.score, abs=1e-6), [*found.tokens, EOS]) for found in result.hypotheses]


@pytest.mark.parametrize(
    "penalty",
    [
        {"length_penalty": "avg"},
        {"length_penalty": "avg", "length_penalty_weight": 0.5},
        {"length_penalty": "wu", "length_penalty_weight": 0.9},
        {"coverage_penalty": "summary", "coverage_penalty_weight": 0.3},
        {"coverage_penalty": "summary", "coverage_penalty_weight": 0.3, "stepwise_penalty": True},
        {
            "coverage_penalty": "summary",
            "coverage_penalty_weight": 2.0,
            "stepwise_penalty": True,
            "length_penalty": "avg",
        },
        {"length_penalty": "avg", "min_length": 5},
        {"length_penalty": "avg", "block_ngram_repeat": 2, "max_length": 500},
        {"length_penalty": "avg", "block_ngram_repeat": 2, "exclusion_tokens": frozenset({3, 4})},
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", range(6))
def test_equals_stock_with_penalties(penalty, seed):
    # One sentence for n-gram blocking: OpenNMT-py mixes up its n-grams when a sentence leaves the batch.
    scorer = dense_scorer(seed, batch=1 if "block_ngram_repeat" in penalty else 4)
    given_settings = search_settings(**penalty)
    results = beam_search(scorer, given_settings)
    for result, expected in zip(results, stages(scorer, given_settings)):
        assert all(tokens[-1] == EOS for _, tokens in expected)  # none was cut, which we would not call finished
        assert as_stock(result) == expected


@pytest.mark.parametrize("seed", range(6))
def test_equals_stock_with_ratio(seed):
    scorer = dense_scorer(seed)
    given_settings = search_settings(length_penalty="avg", ratio=0.7, source_lengths=[scorer.src_len] * 4)
    results = beam_search(scorer, given_settings)
    for result, expected in zip(results, stages(scorer, given_settings, ratio=0.7)):
        assert as_stock(result) == expected


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), beam=st.integers(1, 6), n_best=st.integers(1, 6))
def test_at_least_stock_without_penalties(seed, beam, n_best):
    n_best = min(n_best, beam)
    scorer, given_settings = dense_scorer(seed), search_settings(beam_size=beam, n_best=n_best)
    results = beam_search(scorer, given_settings)
    for result, expected in zip(results, stock_beam(scorer, given_settings, n_best)):
        assert as_stock(result)[0] == expected[0]
        for ours, (score, _) in zip(result.hypotheses, expected):
            assert ours.score >= score - 1e-9


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["sparse", "peaked", "dense"]),
    penalty=st.sampled_from(["none", "avg", "wu"]),
    certificates=st.booleans(),
)
def test_shorter_lists_are_heads_of_longer_ones(seed, kind, penalty, certificates):
    scorer = TableScorer(random_tables(seed, 6, kind, end=2.0), 3)
    changes = {"beam_size": 5, "length_penalty": penalty, "max_length": 12, "certificates": certificates}
    longest = beam_search(scorer, search_settings(n_best=5, **changes))
    for n_best in range(1, 5):
        for short, long in zip(beam_search(scorer, search_settings(n_best=n_best, **changes)), longest):
            assert short.hypotheses == long.hypotheses[:n_best]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["sparse", "peaked", "dense", "ties"]),
    changes=st.sampled_from(
        [
            {},
            {"certificates": True},
            {"length_penalty": "avg"},
            {"min_length": 3, "banned": [3]},
            {"coverage_penalty": "wu", "coverage_penalty_weight": 0.2, "source_lengths": [3, 2, 3, 1]},
            {"block_ngram_repeat": 1},
            {"forced_prefixes": [[2], [], [3, 4], [2, 2, 2]]},
        ]
    ),
)
def test_a_batch_equals_batches_of_one(seed, kind, changes):
    tables, limits = random_tables(seed, 6, kind), [3, 12, 1, 7]
    batch = beam_search(TableScorer(tables, 4), search_settings(**changes, max_length=limits))
    for index, result in enumerate(batch):
        own = {
            key: [value[index]] if len(value) == 4 else value
            for key, value in changes.items()
            if value is not True and key in ("source_lengths", "forced_prefixes")
        }
        alone = search_settings(**{**changes, **own}, max_length=limits[index])
        assert same(beam_search(TableScorer(tables, 1, first_sentence=index), alone)[0], result)
        prefix = (changes.get("forced_prefixes") or [[]] * 4)[index]
        assert all(len(found.tokens) + found.finished <= limits[index] + len(prefix) for found in result.hypotheses)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["sparse", "peaked", "dense", "ties"]),
    max_rows=st.sampled_from([1, 2, 5]),
    changes=st.sampled_from(
        [{}, {"block_ngram_repeat": 2}, {"coverage_penalty": "summary", "coverage_penalty_weight": 0.2}]
    ),
)
def test_rows_in_turns_give_the_same(seed, kind, max_rows, changes):
    given_settings = search_settings(**changes, max_length=8, return_attention=True)
    tables = random_tables(seed, 6, kind)
    scorer = TableScorer(tables, 3)
    for one, other in zip(
        beam_search(TableScorer(tables, 3), given_settings),
        beam_search(scorer, replace(given_settings, max_rows=max_rows)),
    ):
        assert same(one, other)
        for first, second in zip(one.hypotheses, other.hypotheses):
            assert torch.equal(first.attention, second.attention)
    assert max(scorer.rows) <= max_rows


def test_every_sentence_has_its_own_length_limit():
    # token 2 for ever: each sentence is cut at its own limit, and nothing finishes
    tables = torch.tensor([[0, 0, 1]], dtype=torch.float64).log()
    results = beam_search(TableScorer(tables, 3), search_settings(max_length=[1, 4, 2]))
    assert [found.tokens for result in results for found in result.hypotheses] == [[2], [2, 2, 2, 2], [2, 2]]
    assert not any(found.finished for result in results for found in result.hypotheses)
    assert [result.certificate.best_dropped_log_prob for result in results] == [0, 0, 0]


def test_only_live_prefixes_have_rows():
    scorer = Chain(3)
    result = beam_search(scorer, search_settings(n_best=2))[0]
    assert scorer.rows == [1, 1, 1, 1]
    assert [(found.tokens, found.log_prob) for found in result.hypotheses] == [
        ([], math.log(0.9)),
        ([2, 2, 2], math.log(0.1)),
    ]
    assert result.certificate.complete and result.certificate.expansions == 4


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["sparse", "peaked", "ties"]),
    penalty=st.sampled_from(["none", "avg"]),
    min_length=st.integers(0, 3),
    banned=st.sampled_from([[], [2], [2, 3, 4]]),
    ngram=st.integers(0, 2),
)
def test_rules_hold_with_zeros(seed, kind, penalty, min_length, banned, ngram):
    scorer = TableScorer(random_tables(seed, 5, kind), 3)
    given_settings = search_settings(
        length_penalty=penalty, min_length=min_length, banned=banned, block_ngram_repeat=ngram, max_length=6
    )
    for result, (finished, cut) in zip(beam_search(scorer, given_settings), enumerate_strings(scorer, 6)):
        assert 1 <= len(result.hypotheses) <= 4
        for found in result.hypotheses:
            string = tuple(found.tokens)
            if found.finished:
                assert found.log_prob == finished[string]
                assert len(string) >= min_length
            else:
                assert len(result.hypotheses) == 1 and math.isfinite(found.log_prob)
                assert any(other[: len(string)] == string for other in [*finished, *cut])
            assert not set(string) & set(banned)
            if ngram:
                grams = [string[i : i + ngram] for i in range(len(string) - ngram + 1)]
                assert len(grams) == len(set(grams))


def test_only_eos_possible_but_too_short():
    tables = torch.tensor([[0, 1, 0]], dtype=torch.float64).log()
    for penalty in ("none", "avg"):
        result = beam_search(TableScorer(tables), search_settings(min_length=2, length_penalty=penalty))[0]
        assert [(found.tokens, found.log_prob, found.finished) for found in result.hypotheses] == [([], 0.0, False)]


def test_dead_end_returns_the_best_prefix():
    # 2 or 3 (banned), then nothing but 3: [2] has probability .6 and no permitted continuation
    tables = torch.tensor([[0, 0, 0.6, 0.4], [0, 0, 0, 1]], dtype=torch.float64).log()

    class Once(TableScorer):
        def step(self, tokens, states, sentences, parents=None, best=None):
            output = super().step(tokens, states, sentences, parents)
            return output._replace(tokens=None, log_probs=self.tables[(tokens != START).long()].clone())

    result = beam_search(Once(tables), search_settings(banned=[3], return_attention=True))[0]
    found = result.hypotheses[0]
    assert (found.tokens, found.finished) == ([2], False)
    assert found.log_prob == math.log(0.6)
    assert found.attention.shape == (1, 3)


def test_forced_prefix_precedes_the_other_rules():
    scorer = TableScorer(random_tables(5, 6, "dense"), 2)
    prefixes = [[3, 3, 3], []]
    results = beam_search(
        scorer, search_settings(forced_prefixes=prefixes, banned=[3], block_ngram_repeat=1, min_length=1, max_length=5)
    )
    for result, prefix in zip(results, prefixes):
        for found in result.hypotheses:
            assert found.tokens[: len(prefix)] == prefix
            rest = found.tokens[len(prefix) :]
            assert 3 not in rest and len(rest) >= 1 and len(rest) == len(set(rest))
            assert len(rest) + found.finished <= 5


def test_impossible_prefix_is_cut_where_it_becomes_impossible():
    tables = torch.tensor([[0, 0.5, 0.5, 0]], dtype=torch.float64).log()
    result = beam_search(TableScorer(tables), search_settings(forced_prefixes=[[2, 3, 2]]))[0]
    assert [(found.tokens, found.finished) for found in result.hypotheses] == [([2], False)]
    assert result.certificate.reason == "forced prefix has probability zero"


def test_attention_follows_the_hypothesis():
    scorer = TableScorer(random_tables(4, 6, "sparse"), 3)
    lengths = [3, 1, 2]
    results = beam_search(scorer, search_settings(return_attention=True, max_length=8, source_lengths=lengths))
    for index, result in enumerate(results):
        for found in result.hypotheses:
            assert found.attention.shape == (len(found.tokens) + found.finished, lengths[index])
            states = tuple(part[index : index + 1] for part in scorer.start())
            for weights, token in zip(found.attention, [START, *found.tokens]):
                output = scorer.step(torch.tensor([token]), states, torch.tensor([index]))
                states = output.states
                assert torch.equal(weights, output.attention[0, : lengths[index]])


@pytest.mark.parametrize("certificates", [False, True])
def test_certificates_go_on_for_completeness_but_not_for_ever(certificates):
    changes = {"n_best": 1, "certificates": certificates}
    short = Chain(3)
    certificate = beam_search(short, search_settings(**changes))[0].certificate
    # [EOS] settles the list in step 1; [2 2 2 EOS] is seen only by going on
    assert len(short.rows) == (4 if certificates else 1)
    assert certificate.complete == certificates and certificate.optimal
    endless = Chain(10**6)
    certificate = beam_search(endless, search_settings(**changes))[0].certificate
    assert len(endless.rows) == (6 if certificates else 1)  # OVERRUN * (1 + 2)
    assert not certificate.complete and certificate.optimal
    assert certificate.best_dropped_log_prob == math.log(0.1) and certificate.mass_dropped == pytest.approx(0.1)


def test_tree_holds_every_candidate():
    scorer = TableScorer(random_tables(8, 5, "sparse"), 2)
    results = beam_search(scorer, search_settings(return_tree=True, max_length=5, n_best=2, beam_size=2))
    for result, (finished, cut) in zip(results, enumerate_strings(scorer, 5)):
        tree, ended, kinds = result.tree, {}, set()
        for node in tree[1:]:
            string, parent = [node.token], node.parent
            assert tree[parent].status == "live"
            while parent:
                string.append(tree[parent].token)
                parent = tree[parent].parent
            string = tuple(reversed(string))
            kinds.add(node.status)
            if node.status == "finished":
                assert finished[string[:-1]] == node.log_prob
                ended[string[:-1]] = node.log_prob
            elif node.status == "cut":
                assert cut[string] == node.log_prob
        assert len(ended) == result.certificate.found
        # what leaves a live node adds up to it: no candidate is missing
        for index, node in enumerate(tree):
            if node.status == "live":
                children = [math.exp(child.log_prob) for child in tree if child.parent == index]
                assert math.fsum(children) == pytest.approx(math.exp(node.log_prob), abs=1e-12)
        assert kinds <= {"live", "finished", "dropped", "cut", "stopped"} and "dropped" in kinds


def test_probabilities_above_one_are_clamped():
    # float32 rounding: log p = 1e-7 must not make a continuation more probable than its prefix
    tables = torch.tensor([[-math.inf, 1e-7, -math.inf]])
    result = beam_search(TableScorer(tables), search_settings())[0]
    assert result.hypotheses[0].log_prob == 0.0
