"""Global attention: OpenNMT-py's values at alpha 1, zeros above, masks, empty sources."""

from __future__ import annotations

import pytest
import torch
from onmt.modules import GlobalAttention as StockAttention

from onmt_entmax.model.attention import GlobalAttention

TYPES = ["dot", "general", "mlp"]


def inputs(batch=3, tgt_len=2, src_len=5, dim=4, seed=0):
    torch.manual_seed(seed)
    query = torch.randn(batch, tgt_len, dim, dtype=torch.float64)
    memory = torch.randn(batch, src_len, dim, dtype=torch.float64)
    return query, memory, torch.tensor([5, 2, 1])


def same_weights(attn_type, alpha=1.0, coverage=False, dim=4):
    torch.manual_seed(1)
    stock = StockAttention(dim, coverage=coverage, attn_type=attn_type).double()
    ours = GlobalAttention(dim, coverage=coverage, attn_type=attn_type, alpha=alpha).double()
    ours.load_state_dict(stock.state_dict())
    return stock, ours


@pytest.mark.parametrize("attn_type", TYPES)
@pytest.mark.parametrize("one_step", [False, True])
def test_softmax_equals_stock(attn_type, one_step):
    stock, ours = same_weights(attn_type)
    query, memory, src_len = inputs()
    if one_step:
        query = query[:, 0]
    for found, expected in zip(ours(query, memory, src_len), stock(query, memory, src_len)):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("attn_type", TYPES)
def test_coverage_equals_stock_and_leaves_the_memory_alone(attn_type):
    stock, ours = same_weights(attn_type, coverage=True)
    query, memory, src_len = inputs()
    coverage = torch.rand(3, 5, dtype=torch.float64)
    before = memory.clone()
    output, probs = ours(query, memory, src_len, coverage)
    assert torch.equal(memory, before)
    expected, expected_probs = stock(query, memory, src_len, coverage)  # changes its memory
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(probs, expected_probs)


def test_sparsemax_known_value():
    # one query (1, 0), keys with first coordinates 1.0, 0.6, -3: scores z = (1, .6, -3). Support {0, 1}:
    # tau = (1 + .6 - 1) / 2 = .3, so p = (.7, .3, 0).
    attention = GlobalAttention(2, attn_type="dot", alpha=2.0).double()
    memory = torch.tensor([[[1.0, 5.0], [0.6, 1.0], [-3.0, 0.0]]], dtype=torch.float64)
    _, probs = attention(torch.tensor([[1.0, 0.0]], dtype=torch.float64), memory)
    torch.testing.assert_close(probs, torch.tensor([[0.7, 0.3, 0.0]], dtype=torch.float64))


@pytest.mark.parametrize("attn_type", TYPES)
@pytest.mark.parametrize("alpha", [1.0, 1.33, 1.5, 2.0, 3.0])
def test_masked_equals_truncated(attn_type, alpha):
    _, attention = same_weights(attn_type, alpha)
    query, memory, _ = inputs()
    output, probs = attention(query, memory, torch.tensor([5, 3, 1]))
    short_output, short_probs = attention(query[1:2], memory[1:2, :3])
    torch.testing.assert_close(output[1:2], short_output)
    torch.testing.assert_close(probs[1:2, :, :3], short_probs)
    assert not probs[1, :, 3:].any()
    torch.testing.assert_close(probs.sum(-1), torch.ones(3, 2, dtype=torch.float64))


@pytest.mark.parametrize("attn_type", TYPES)
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_source_of_length_zero_gets_no_attention(attn_type, alpha):
    _, attention = same_weights(attn_type, alpha)
    query, memory, _ = inputs()
    memory.requires_grad_()
    output, probs = attention(query, memory, torch.tensor([5, 0, 2]))
    output.sum().backward()
    assert not probs[1].any()
    assert not memory.grad[1].any()
    assert torch.isfinite(output).all() and torch.isfinite(memory.grad).all()
    torch.testing.assert_close(probs[::2].sum(-1), torch.ones(2, 2, dtype=torch.float64))


@pytest.mark.parametrize("attn_type", TYPES)
def test_sparse_gradients_are_right(attn_type):
    _, attention = same_weights(attn_type, 1.5)
    query, memory, src_len = inputs()
    query.requires_grad_()
    memory.requires_grad_()
    assert torch.autograd.gradcheck(lambda q, m: attention(q, m, src_len), (query, memory), atol=1e-4)


def test_some_attention_is_exactly_zero():
    _, attention = same_weights("general", 2.0)
    query, memory, _ = inputs()
    _, probs = attention(query * 5, memory, torch.tensor([5, 5, 5]))
    assert (probs == 0).any()


@pytest.mark.parametrize("alpha", [0.9, "sharp", float("nan"), float("inf")])
def test_bad_alpha_is_refused(alpha):
    with pytest.raises(ValueError, match="Invalid setting for `global_attention_alpha`"):
        GlobalAttention(4, alpha=alpha)


def test_bad_type_is_refused():
    with pytest.raises(ValueError, match="Valid choices: dot, general, mlp"):
        GlobalAttention(4, attn_type="cosine")
