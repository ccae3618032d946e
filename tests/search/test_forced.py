"""Forced scoring and completions against enumeration and hand-made tables."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_entmax.files import json_line
from onmt_entmax.search.forced import Sparsity, attend, complete_prefix, force, step_records
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
    # per step three types; of the six steps, EOS included, two have probability zero, one of them the unknown word 0
    results = force(TableScorer(FLAT, 3), [[2, 4], [0], []], START, EOS)
    counts = Sparsity(unknown=0)
    for result in results:
        counts.add(result)
    attended = [len(step.attention) for result in results for step in result.steps]
    assert counts.numbers() == {
        "steps": 6,
        "target_types": 3.0,
        "source_words": sum(attended) / 6,
        "lines": 3,
        "impossible_lines": 2,
        "gold_zero": 2 / 6,
        "gold_zero_unknown": 1 / 6,
    }
    nothing = Sparsity(unknown=0).numbers()
    assert nothing["steps"] == nothing["lines"] == 0
    assert nothing["target_types"] is nothing["source_words"] is nothing["gold_zero"] is None


def test_steps_as_json():
    result = force(TableScorer(FLAT, src_len=2), [[4, 0]], START, EOS, max_support=1)[0]
    first, second, last = step_records(result, "abcde".__getitem__, ["e", "never seen"], ["x", "y"], unknown=0)
    assert (first["token"], first["log_prob"], first["prob"], first["support_size"]) == ("e", None, 0.0, 3)
    assert first["support"] == [{"token": "b", "prob": 0.5}]
    assert (second["token"], second["unknown"], first["unknown"]) == ("never seen", True, False)
    assert (last["token"], last["log_prob"], last["unknown"]) == ("b", math.log(0.5), False)
    assert first["attention"][0]["token"] in ("x", "y")
    assert json_line({"steps": [first, second, last]})  # JSON has neither NaN nor infinity


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
