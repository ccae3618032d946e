from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_entmax.entmax import log_entmax, log_entmax_topk


@settings(deadline=None, max_examples=60)
@given(
    alpha=st.sampled_from([1, 1.05, 1.33, 1.5, 2, 2.5, 4]),
    k=st.integers(1, 12),
    d=st.integers(1, 80),
    scale=st.sampled_from([1e-3, 0.3, 2.0, 20.0]),
    seed=st.integers(0, 2**31),
)
def test_largest_entries_equal_those_of_the_whole_row(alpha, k, d, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(7, d, generator=generator, dtype=torch.float64) * scale
    z[3] /= scale  # rows with supports of another size in the same call
    logs, places = log_entmax_topk(z, k, alpha)
    whole = log_entmax(z, alpha)
    assert logs.shape == places.shape == (7, min(k, d))
    torch.testing.assert_close(logs, whole.topk(min(k, d), -1).values, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(logs, whole.gather(1, places), rtol=1e-9, atol=1e-9)
    assert all(len(set(row)) == len(row) for row in places.tolist())


@pytest.mark.parametrize("alpha", [1.0, 1.33, 1.5, 2.0])
def test_masks_ties_and_nan(alpha):
    z = torch.full((4, 40), -math.inf)
    z[0, 7] = 3.0  # one entry that is not masked
    z[1, :20] = 1.0  # more ties than are looked at first
    z[2] = torch.arange(40.0)
    z[3, 0] = math.nan
    logs, places = log_entmax_topk(z, 3, alpha)
    assert logs[0].tolist() == [0, -math.inf, -math.inf] and places[0, 0] == 7
    torch.testing.assert_close(logs[1], torch.full((3,), -math.log(20)))
    assert places[2].tolist() == [39, 38, 37]
    assert logs[3, 0].isnan()


def test_half_precision():
    z = torch.tensor([[4.0, 1.0, 0.0] + [-9.0] * 20]).half()
    logs, _ = log_entmax_topk(z, 2, 2.0)
    assert logs.dtype == torch.float16 and logs.tolist() == [[0, -math.inf]]
