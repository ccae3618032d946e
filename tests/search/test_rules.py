"""Constraints and penalties, against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from onmt_entmax.search.rules import coverage_penalty, length_divisor, repeating_tokens
from onmt_entmax.search.settings import SearchSettings
from tests.search.models import EOS, START


def test_length_divisors():
    # OpenNMT-py counts BOS: two tokens and EOS have length 4
    assert length_divisor(SearchSettings(START, EOS), 3) == 1
    assert length_divisor(SearchSettings(START, EOS, length_penalty="avg", length_penalty_weight=1.0), 3) == 4
    assert length_divisor(SearchSettings(START, EOS, length_penalty="avg", length_penalty_weight=0.5), 3) == 2
    assert (
        length_divisor(SearchSettings(START, EOS, length_penalty="wu", length_penalty_weight=1.0), 3) == 1.5
    )  # (5 + 4) / 6


def test_coverage_with_zeros_is_finite_and_leaves_padding_out():
    coverage = torch.tensor([[0.5, 2.0, 0.0], [0.5, 2.0, 0.0]])
    wu = SearchSettings(START, EOS, coverage_penalty="wu", coverage_penalty_weight=1.0, source_lengths=[2, 3])
    padded, unattended = coverage_penalty(wu, coverage, [2, 3]).tolist()
    assert padded == pytest.approx(math.log(2))
    assert unattended == pytest.approx(math.log(2) + 126 * math.log(2))  # the smallest normal float32 is 2^-126
    summary = SearchSettings(START, EOS, coverage_penalty="summary", coverage_penalty_weight=0.5)
    assert coverage_penalty(summary, coverage, None).tolist() == [0.5, 0.5]  # 0.5 * (2 - 1)


def test_repeating_tokens():
    assert repeating_tokens([2, 3, 2], 2, frozenset()) == {3}
    assert repeating_tokens([2, 3, 4, 2, 3], 3, frozenset()) == {4}
    assert repeating_tokens([2, 3], 1, frozenset()) == {2, 3}
    assert repeating_tokens([2, 3, 2], 2, frozenset({3})) == set()
    assert repeating_tokens([2], 2, frozenset()) == set()
