"""Sampling: zeros are never drawn, and the frequencies are those of the distribution that the settings define."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_entmax.errors import UserError
from onmt_entmax.search.result import IMPOSSIBLE_PREFIX, SAMPLING
from onmt_entmax.search.sampling import draw, sample
from onmt_entmax.search.settings import SearchSettings
from tests.search.models import EOS, START, TableScorer, enumerate_strings, random_tables

DRAWS = 20_000


def within_five_sigma(count, share, draws):
    return abs(count - share * draws) <= 5 * math.sqrt(share * (1 - share) * draws)


def frequencies(probabilities, **options):
    log_probs = torch.tensor([probabilities], dtype=torch.float64).log().expand(DRAWS, -1)
    tokens = draw(log_probs, generator=torch.Generator().manual_seed(1), **options)
    return torch.bincount(tokens, minlength=len(probabilities)).tolist()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.5, 0.3, 0, 0.2]),
        ({"top_k": -1}, [0.5, 0.3, 0, 0.2]),
        ({"top_k": 0}, [0.5, 0.3, 0, 0.2]),
        ({"top_k": 4}, [0.5, 0.3, 0, 0.2]),  # more than the support
        ({"top_k": 99}, [0.5, 0.3, 0, 0.2]),  # more than the vocabulary
        ({"top_k": 2}, [5 / 8, 3 / 8, 0, 0]),
        ({"top_k": 1}, [1, 0, 0, 0]),
        ({"temperature": 0.0}, [1, 0, 0, 0]),
        ({"top_p": 0.4}, [1, 0, 0, 0]),  # .5 overflows .4 and stays in
        ({"top_p": 0.7}, [5 / 8, 3 / 8, 0, 0]),
        ({"top_p": 1.0}, [0.5, 0.3, 0, 0.2]),
        ({"temperature": 0.5}, [25 / 38, 9 / 38, 0, 4 / 38]),  # squares
        ({"temperature": 0.5, "top_p": 0.6}, [1, 0, 0, 0]),  # 25/38 = .66 overflows .6
        ({"top_p": 0.9, "top_k": 2}, [5 / 8, 3 / 8, 0, 0]),
    ],
    ids=str,
)
def test_frequencies(options, expected):
    counts = frequencies([0.5, 0.3, 0, 0.2], **options)
    assert [count == 0 for count in counts] == [share == 0 for share in expected]
    for count, share in zip(counts, expected):
        assert within_five_sigma(count, share, DRAWS)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    top_k=st.integers(-1, 8),
    top_p=st.floats(0, 1),
    temperature=st.sampled_from([0.0, 0.01, 0.7, 1.0, 50.0]),
)
def test_never_draws_a_zero(seed, top_k, top_p, temperature):
    log_probs = random_tables(seed, 6, "sparse", dtype=torch.float32)
    log_probs[:, 2] = torch.where(log_probs[:, 3].isneginf(), log_probs[:, 2], -200.0)  # almost zero is not zero
    tokens = draw(log_probs, top_k, top_p, temperature, torch.Generator().manual_seed(seed))
    assert log_probs.gather(1, tokens.unsqueeze(1)).isfinite().all()


def test_a_forced_prefix_of_probability_zero_is_said():
    tables = torch.tensor([[0, 0.5, 0, 0.5]] * 61).double().log()  # of `[START, EOS, 2, 3]`; 2 is impossible
    given_settings = SearchSettings(START, EOS, beam_size=2, forced_prefixes=[[3, 2], [3]], max_length=3)
    impossible, possible = (one.certificate.reason for one in sample(TableScorer(tables, 2), given_settings))
    assert (impossible, possible) == (IMPOSSIBLE_PREFIX, SAMPLING)


def test_samples_whole_strings_in_proportion():
    scorer = TableScorer(random_tables(11, 4, "sparse", end=3.0), 1)
    finished, cut = enumerate_strings(scorer, 3)[0]
    given_settings = SearchSettings(START, EOS, beam_size=4_000, n_best=4_000, max_length=3)
    result = sample(scorer, given_settings, generator=torch.Generator().manual_seed(2))[0]
    counts = Counter((tuple(found.tokens), found.finished) for found in result.hypotheses)
    expected = {**{(string, True): p for string, p in finished.items()}, **{(s, False): p for s, p in cut.items()}}
    assert set(counts) <= set(expected) and len(expected) > 3
    for outcome, log_prob in expected.items():
        if math.exp(log_prob) > 0.005:
            assert within_five_sigma(counts[outcome], math.exp(log_prob), 4_000)
    for found in result.hypotheses:
        assert found.log_prob == expected[tuple(found.tokens), found.finished]


def test_order_certificate_and_rules():
    scorer = TableScorer(random_tables(2, 5, "sparse"), 3)
    given_settings = SearchSettings(
        START,
        EOS,
        beam_size=5,
        n_best=3,
        max_length=[2, 5, 9],
        min_length=1,
        banned=[3],
        length_penalty="avg",
        return_attention=True,
        forced_prefixes=[[], [2], []],
    )
    for index, result in enumerate(sample(scorer, given_settings, generator=torch.Generator().manual_seed(3))):
        reason = IMPOSSIBLE_PREFIX if index == 1 else SAMPLING  # 2 has probability zero there
        assert result.certificate.reason == reason and result.certificate.optimal is None
        assert len(result.hypotheses) == 3
        order = [(not found.finished, -found.score) for found in result.hypotheses]
        assert order == sorted(order)
        for found in result.hypotheses:
            size = len(found.tokens) + found.finished
            assert 3 not in found.tokens and size <= [2, 6, 9][index]
            assert found.attention is None if size == 0 else found.attention.shape[0] >= size
            if found.finished:
                assert len(found.tokens) >= 1 and found.score == found.log_prob / (size + 1)


def test_nothing_permitted_ends_unfinished():
    tables = torch.tensor([[0, 1, 0]], dtype=torch.float64).log()
    given_settings = SearchSettings(START, EOS, beam_size=1, max_length=5, min_length=1)
    found = sample(TableScorer(tables), given_settings)[0].hypotheses[0]
    assert (found.tokens, found.log_prob, found.finished) == ([], 0.0, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": -2}, "Invalid setting for `random_sampling_topk`: -2. It must be -1 (all tokens), 0 or more."),
        ({"top_p": 1.5}, "Invalid setting for `random_sampling_topp`: 1.5. It must be from 0 (no such rule) to 1."),
        ({"temperature": -1.0}, "Invalid setting for `random_sampling_temp`: -1.0. It must be at least 0."),
    ],
)
def test_refusals(options, message):
    with pytest.raises(UserError) as error:
        sample(TableScorer(random_tables(0, 4)), SearchSettings(START, EOS), **options)
    assert str(error.value) == message
