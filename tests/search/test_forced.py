"""Forced scoring and completions against enumeration and hand-made tables."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_entmax.files import json_line
from onmt_entmax.search.forced import (
    attend,
    complete_prefix,
    force,
    force_from_log_probs,
    forced_record,
    sparsity,
)
from onmt_entmax.search.settings import SearchSettings
from tests.search.models import EOS, START, TableScorer, enumerate_strings, random_tables

# whatever the prefix: EOS .5, token 2 .375, token 3 .125, BOS and token 4 impossible
FLAT = torch.tensor([[0, 0.5, 0.375, 0.125, 0]], dtype=torch.float64).log()


def test_support_and_impossible_token():
    result = force(TableScorer(FLAT), [[2, 4, 3]], START, EOS)[0]
    assert [step.token for step in result.steps] == [2, 4, 3, EOS]
    assert result.log_prob is None and result.impossible_at == 1
    for step in result.steps:
        assert step.support_size == 3
        assert [token for token, _ in step.support] == [EOS, 2, 3]
        assert [prob for _, prob in step.support] == pytest.approx([0.5, 0.375, 0.125])
    assert [step.log_prob for step in result.steps] == pytest.approx(
        [math.log(0.375), None, math.log(0.125), math.log(0.5)]
    )


def test_possible_target():
    result = force(TableScorer(FLAT), [[2, 3]], START, EOS)[0]
    assert result.impossible_at is None
    assert result.log_prob == pytest.approx(math.log(0.375 * 0.125 * 0.5))


def test_empty_targets():
    empty, other = force(TableScorer(FLAT, 2), [[], [2]], START, EOS)
    assert [step.token for step in empty.steps] == [EOS] and empty.log_prob == math.log(0.5)
    assert [step.token for step in other.steps] == [2, EOS]
    nothing = force(TableScorer(FLAT), [[]], START, None)[0]
    assert nothing.steps == [] and nothing.log_prob == 0.0


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(["sparse", "dense"]))
def test_agrees_with_enumeration(seed, kind):
    scorer = TableScorer(random_tables(seed, 4, kind), 3)
    strings = [(), (2,), (3, 2), (2, 2, 3), (0, 3)]
    for shift in range(3):
        targets = [strings[(index + shift) % len(strings)] for index in range(3)]
        results = force(scorer, targets, START, EOS, max_support=2)
        for result, target, (finished, _) in zip(results, targets, enumerate_strings(scorer, 4)):
            assert result.log_prob == finished.get(target)
            assert (result.impossible_at is None) == (target in finished)
            assert all(len(step.support) == min(2, step.support_size) for step in result.steps)


def test_teacher_forcing_gives_the_same():
    scorer = TableScorer(random_tables(6, 5), 2)
    targets, lengths = [[2, 3], [4]], [2, 3]
    expected = force(scorer, targets, START, EOS, source_lengths=lengths)
    log_probs, attention = torch.full((2, 3, 5), -math.inf, dtype=torch.float64), torch.zeros(2, 3, 3).double()
    states = scorer.start()
    for step, tokens in enumerate([[START, START], [2, 4], [3, EOS]]):
        output = scorer.step(torch.tensor(tokens), states, torch.arange(2))
        log_probs[:, step], attention[:, step], states = output.log_probs, output.attention, output.states
    assert force_from_log_probs(log_probs, [[2, 3, EOS], [4, EOS]], attention, lengths) == expected


def test_attention_support_leaves_padding_and_zeros_out():
    scorer = TableScorer(random_tables(6, 5), 2)
    results = force(scorer, [[2, 3], [4]], START, EOS, source_lengths=[2, 3])
    positions = [[[position for position, _ in step.attention] for step in result.steps] for result in results]
    rows = attend(scorer, [[2, 3], [4]], [0, 1], START, EOS)
    expected = [
        [[position for position in range(length) if weights[position] > 0] for weights in part]
        for part, length in zip(rows, [2, 3])
    ]
    assert positions == expected
    assert all(weight > 0 for result in results for step in result.steps for _, weight in step.attention)


def test_sparsity():
    # three steps, three types each; attended words counted from the same result
    results = force(TableScorer(FLAT, 2), [[2], []], START, EOS)
    counts = sparsity(results)
    attended = [len(step.attention) for result in results for step in result.steps]
    assert counts == {"steps": 3, "target_types": 3.0, "source_words": sum(attended) / 3}
    assert sparsity([]) == {"steps": 0, "target_types": None, "source_words": None}


def test_json():
    result = force(TableScorer(FLAT, src_len=2), [[4]], START, EOS, max_support=1)[0]
    record = forced_record(result, 5, "abcde".__getitem__, ["x", "y"])
    assert {key: record[key] for key in ("line", "log_prob", "impossible_at")} == {
        "line": 5,
        "log_prob": None,
        "impossible_at": 0,
    }
    first, second = record["steps"]
    assert (first["token"], first["log_prob"], first["prob"], first["support_size"]) == ("e", None, 0.0, 3)
    assert first["support"] == [{"token": "b", "prob": 0.5}]
    assert (second["token"], second["log_prob"]) == ("b", math.log(0.5))
    assert first["attention"][0]["token"] in ("x", "y")
    assert json_line(forced_record(result, 5, str))  # JSON has neither NaN nor infinity


def test_completions():
    scorer = TableScorer(random_tables(9, 5, "sparse"), 2)
    given_settings = SearchSettings(START, EOS, beam_size=5, n_best=5, max_length=4, certificates=True)
    prefixes = [[4], []]
    for completion, prefix, (finished, _) in zip(
        complete_prefix(scorer, prefixes, given_settings), prefixes, enumerate_strings(scorer, 5)
    ):
        continuations = [string for string in finished if list(string[: len(prefix)]) == prefix]
        possible = {string[len(prefix)] if len(string) > len(prefix) else EOS for string in continuations}
        assert possible <= {token for token, _ in completion.next_tokens}
        assert math.fsum(prob for _, prob in completion.next_tokens) == pytest.approx(1)
        assert completion.prefix.impossible_at is None and len(completion.prefix.steps) == len(prefix)
        for found in completion.result.hypotheses:
            assert found.tokens[: len(prefix)] == prefix


def test_completion_of_an_impossible_prefix():
    completion = complete_prefix(TableScorer(FLAT), [[2, 4]], SearchSettings(START, EOS))[0]
    assert completion.next_tokens == [] and completion.prefix.impossible_at == 1
    assert completion.result.certificate.reason == "forced prefix has probability zero"
