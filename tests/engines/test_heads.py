"""Mapping of a Transformer's heads: compiled loops in float32 against entmax in float64, and masks as truncation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_entmax import engines
from onmt_entmax.engines.cpu import Cpu, loops
from onmt_entmax.entmax import entmax
from onmt_entmax.model.heads import HeadMapping

HIDDEN = -1e18  # what OpenNMT-py writes over masked scores
needs_threads = pytest.mark.skipif(not loops._found(), reason="PyTorch's OpenMP library was not found")


def normal(*size, seed=0, scale=2.0):
    return scale * torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def reference(scores, alpha):
    """In float64, rows that are masked as a whole being zero."""
    hidden = scores <= HIDDEN / 2
    empty = hidden.all(-1, keepdim=True)
    probs = entmax(scores.double().masked_fill(hidden & ~empty, -float("inf")), alpha, -1)
    return probs.masked_fill(empty, 0)


def compare(scores, alpha, threads=None):
    """Probabilities and gradients of the loops against the reference's."""
    weights = normal(*scores.shape, seed=1)
    results = []
    for dtype, function in (
        (torch.float32, lambda z, a: Cpu(threads=threads).map_heads(z, a)),
        (torch.float64, reference),
    ):
        z = scores.to(dtype, copy=True).requires_grad_()
        a = alpha.to(dtype, copy=True).requires_grad_() if isinstance(alpha, torch.Tensor) else alpha
        probs = function(z, a)
        (probs * weights.to(dtype)).sum().backward()
        results.append([probs.detach(), z.grad, *([a.grad] if isinstance(a, torch.Tensor) else [])])
    for found, expected in zip(*results):
        torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=5e-6)
    return results[0]


@pytest.mark.parametrize("alpha", [1.01, 1.33, 1.5, 1.75, 2.0])
@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=needs_threads)])
def test_values_and_gradients_are_the_references(alpha, threads):
    scores = normal(3, 2, 5, 37)
    scores[1, :, :, 30:] = HIDDEN
    scores[2, :, 1] = HIDDEN
    probs, gradient = compare(scores, alpha, threads)
    assert not probs[1, :, :, 30:].any() and not gradient[1, :, :, 30:].any()
    assert not probs[2, :, 1].any() and not gradient[2, :, 1].any()


def test_each_head_has_its_own_alpha_and_its_gradient():
    scores = normal(4, 3, 6, 21)
    scores[0, :, :, 12:] = HIDDEN
    compare(scores, torch.tensor([1.01, 1.4, 1.99]).view(3, 1, 1))


@settings(max_examples=25)
@given(
    st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(0, 3), st.integers(1, 8)),
    st.floats(1.02, 1.98),
    st.integers(0, 99),
    st.booleans(),
)
def test_any_shape_and_any_mask(shape, alpha, seed, learned):
    scores = normal(*shape, seed=seed)
    scores[torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.3] = HIDDEN
    compare(scores, torch.full((shape[1], 1, 1), alpha) if learned else alpha)


def test_known_values():
    # alpha 2: (1, 0.5, -2) - tau = (0.75, 0.25); alpha 1.5: entmax15([1, 0, -2]) = [0.8307, 0.1693, 0] (README)
    found = Cpu().map_heads(torch.tensor([[[[1.0, 0.5, -2.0, HIDDEN]]]]), 2.0)
    assert found.flatten().tolist() == pytest.approx([0.75, 0.25, 0, 0])
    found = Cpu().map_heads(torch.tensor([[[[1.0, HIDDEN, 0.0, -2.0]]]]), 1.5)
    assert found.flatten().tolist() == pytest.approx([0.8307, 0, 0.1693, 0], abs=1e-4)


def test_nan_is_not_swallowed():
    scores = normal(1, 1, 1, 5)
    scores[..., 2] = float("nan")
    assert Cpu().map_heads(scores, 1.5).isnan().any()


@pytest.mark.parametrize("engine", [engines.REFERENCE, Cpu()])
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 3.0, "learned"])
def test_masked_equals_truncated(engine, alpha):
    mapping, scores = HeadMapping(2, alpha), normal(2, 2, 3, 7)
    masked = scores.clone()
    masked[..., 4:] = HIDDEN
    with engines.using(engine), torch.no_grad():
        whole, cut = mapping(masked), mapping(scores[..., :4].contiguous())
    torch.testing.assert_close(whole[..., :4], cut)
    assert not whole[..., 4:].any()
    torch.testing.assert_close(whole.sum(-1), torch.ones(2, 2, 3))


def test_alpha_one_is_softmax():
    scores = normal(2, 2, 3, 7)
    scores[0, ..., 5:] = HIDDEN
    assert torch.equal(HeadMapping(2, 1)(scores), scores.softmax(-1))


def test_a_thousand_masked_entries_do_not_overflow():
    scores = torch.full((1, 1, 1, 1000), HIDDEN)
    scores[..., :2] = 0
    for engine in (engines.REFERENCE, Cpu()):
        with engines.using(engine):
            assert HeadMapping(1, 1.5)(scores)[0, 0, 0, :3].tolist() == [0.5, 0.5, 0.0]


def test_gradients_of_the_module():
    mapping = HeadMapping(2, "learned").double()
    scores = normal(2, 2, 2, 4).double().requires_grad_()
    scores.data[0, ..., 3] = HIDDEN

    def function(visible, raw):
        mapping.learned_alpha.raw = raw
        return mapping(torch.cat([visible, scores.detach()[..., 3:]], -1))

    raw = torch.nn.Parameter(mapping.learned_alpha.raw.data + torch.tensor([[[0.5]], [[-0.5]]]))
    assert torch.autograd.gradcheck(function, (scores.detach()[..., :3].requires_grad_(), raw))


def test_alpha_below_one_is_refused():
    with pytest.raises(ValueError, match="`alpha`: 0.9. It must be at least 1"):
        HeadMapping(2, 0.9)


@pytest.mark.parametrize("alpha", [1.01, 1.5, 2.0])
def test_large_scores_keep_their_maximum(alpha):
    scores = torch.tensor([1.7e7, 8.5e6, 0.0]) * torch.tensor([1.0, 1e4, 1e9]).view(1, 1, 3, 1)
    probs, _ = compare(scores, alpha)
    assert torch.equal(probs, torch.tensor([1.0, 0.0, 0.0]).expand(1, 1, 3, 3))
