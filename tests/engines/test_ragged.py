from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from onmt_entmax.engines.ragged import Ragged

lengths = st.lists(st.integers(1, 6), min_size=1, max_size=5).map(lambda found: sorted(found, reverse=True))


def test_columns_by_hand():
    # three sentences a b c, d e, f: first tokens, second tokens, third ones
    ragged = Ragged.from_lengths(torch.tensor([3, 2, 1]), 3)
    padded = torch.tensor([[1, 2, 3], [4, 5, 0], [6, 0, 0]]).unsqueeze(2)
    assert ragged.rows == [3, 2, 1]
    packed = ragged.pack(padded)
    assert packed.flatten().tolist() == [1, 4, 6, 2, 5, 3]
    assert torch.equal(ragged.unpack(packed), padded)
    assert packed[ragged.mirrored(torch.tensor([3, 2, 1]))].flatten().tolist() == [3, 5, 6, 2, 4, 1]
    assert [part.tolist() for part in ragged.split(packed.t())] == [[[1, 4, 6]], [[2, 5]], [[3]]]


@given(lengths, st.integers(0, 2))
def test_packing_keeps_tokens_and_order(found, more):
    sizes, steps = torch.tensor(found), found[0] + more
    ragged = Ragged.from_lengths(sizes, steps)
    padded = torch.zeros(len(found), steps, 2)
    for sentence, size in enumerate(found):
        padded[sentence, :size] = torch.arange(1, size + 1).unsqueeze(1) + torch.tensor([10 * sentence, 0])
    packed, mirrored = ragged.pack(padded), ragged.mirrored(sizes)
    assert len(packed) == sum(ragged.rows) == sum(found) and len(ragged.rows) == steps
    assert torch.equal(ragged.unpack(packed), padded)
    backwards = ragged.unpack(packed[mirrored])
    for sentence, size in enumerate(found):
        assert torch.equal(backwards[sentence, :size], padded[sentence, :size].flip(0))
    assert torch.equal(mirrored[mirrored], torch.arange(len(packed)))


def test_full_equals_equal_lengths():
    padded = torch.randn(3, 4, 2)
    full, ragged = Ragged.full(3, 4), Ragged.from_lengths(torch.tensor([4, 4, 4]), 4)
    assert full.rows == ragged.rows
    assert torch.equal(full.pack(padded), ragged.pack(padded))
    assert torch.equal(full.unpack(full.pack(padded)), padded)
