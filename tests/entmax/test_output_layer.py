"""The fused output layer equals the unfused loss, its gradients and its counts, and keeps no logits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from onmt_entmax.entmax import OutputLayerLoss, blocks, entmax, entmax_loss, linear_entmax_loss
from onmt_entmax.entmax import linear_loss as output_layer
from tests.entmax.test_mappings import random


def case(n: int, d: int, vocab: int, scale: float, dtype: torch.dtype = torch.float64):
    hidden = random(n, d, scale=scale, dtype=dtype).requires_grad_()
    weight = random(vocab, d, seed=1, dtype=dtype).requires_grad_()
    bias = random(vocab, seed=2, scale=scale, dtype=dtype).requires_grad_()
    target = torch.arange(n) * 5 % vocab
    with torch.no_grad():
        target[: n // 3] = (hidden @ weight.t() + bias).argmax(-1)[: n // 3]
    target[1] = target[n // 2] = -1
    return (hidden, weight, bias), target


@pytest.fixture
def small_blocks(monkeypatch):
    """Several blocks of logits, each of several blocks of rows."""
    monkeypatch.setattr(output_layer, "LOGITS", 9 * 600)
    monkeypatch.setattr(blocks, "BLOCK_ENTRIES", 4 * 600)


@pytest.mark.parametrize("vocab", [40, 600])
@pytest.mark.parametrize("scale", [0.01, 0.4, 3.0])
@pytest.mark.parametrize("alpha", [1, 1.33, 1.5, 2, 2.5])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_equals_the_unfused_loss(vocab, scale, alpha, smoothing, reduction, small_blocks):
    inputs, target = case(24, 6, vocab, scale)
    hidden, weight, bias = inputs
    z = hidden @ weight.t() + bias
    expected = entmax_loss(z, target, alpha, reduction, -1, smoothing)
    result = linear_entmax_loss(*inputs, target, alpha, -1, smoothing, reduction, statistics=True)
    torch.testing.assert_close(result.loss, expected)
    # 2.5 stands for what comes after the loss; twice, as gradients accumulate
    for _ in range(2):
        ours = torch.autograd.grad(result.loss * 2.5, inputs, retain_graph=True)
        for a, b in zip(ours, torch.autograd.grad(expected * 2.5, inputs, retain_graph=True)):
            torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-8)
    kept, p = target != -1, entmax(z.detach(), alpha)
    assert result.n_correct == ((z.argmax(-1) == target) & kept).sum()
    assert result.support_size.tolist() == ((p > 0).sum(-1) * kept).tolist()
    gold = p.gather(1, target.clamp(min=0).unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(result.gold_prob, gold * kept)
    torch.testing.assert_close(result.sum_of_squares, p.square().sum(-1) * kept)
    torch.testing.assert_close(result.plain_loss, entmax_loss(z, target, alpha, "sum", -1).detach())
    assert not any(value.requires_grad for value in result[1:])


@pytest.mark.parametrize("alpha", [1.33, 1.5, 2])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [2, 7, 100])  # of a block that is solved at once
def test_sparse_and_dense_rows_in_one_block(alpha, smoothing, rows, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_ENTRIES", 2 * rows * 600)
    gradients = []
    solve = output_layer.solve_in_blocks
    monkeypatch.setattr(output_layer, "solve_in_blocks", lambda *args: gradients.append(solve(*args)) or gradients[-1])
    (hidden, weight, bias), target = case(24, 6, 600, 1.0)
    scale = torch.tensor([8.0, 0.001, 8.0, 8.0, 0.001, 0.001, 0.3, 8.0], dtype=torch.float64).repeat(3).unsqueeze(1)
    inputs = ((hidden * scale).detach().requires_grad_(), weight, (bias * 0.001).detach().requires_grad_())
    expected = entmax_loss(inputs[0] @ weight.t() + inputs[2], target, alpha, "sum", -1, smoothing)
    result = linear_entmax_loss(*inputs, target, alpha, -1, smoothing)
    torch.testing.assert_close(result.loss, expected)
    for a, b in zip(torch.autograd.grad(result.loss, inputs), torch.autograd.grad(expected, inputs)):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-8)
    (found,) = gradients
    sparse = set(found.support.rows.tolist())
    assert sparse and len(found.rows) > 0, "nothing was mixed: the test is idle"
    assert sparse.isdisjoint(found.rows.tolist()) and len(sparse) + len(found.rows) == 22
    assert found.residual.shape == (len(found.rows), 600)


@pytest.mark.parametrize("alpha", [1, 1.5])
def test_without_bias_gradients_or_statistics(alpha):
    (hidden, weight, _), target = case(8, 4, 700, 2.0)
    with torch.no_grad():
        result = linear_entmax_loss(hidden, weight, None, target, alpha, -1)
    assert not result.loss.requires_grad and result.gold_prob is None and result.sum_of_squares is None
    result = linear_entmax_loss(hidden.detach(), weight, None, target, alpha, -1)
    expected = entmax_loss(hidden.detach() @ weight.t(), target, alpha, "sum", -1)
    a, b = torch.autograd.grad(result.loss, weight)[0], torch.autograd.grad(expected, weight)[0]
    torch.testing.assert_close(a, b)


@pytest.mark.parametrize("vocab", [30, 700])
def test_ignored_and_missing_rows(vocab):
    (hidden, weight, bias), _ = case(6, 4, vocab, 1.0)
    for rows, target in ((6, torch.full((6,), -1)), (0, torch.zeros(0, dtype=torch.int64))):
        result = linear_entmax_loss(hidden[:rows], weight, bias, target, 1.5, -1)
        assert result.loss == 0 and result.n_correct == 0 and result.support_size.tolist() == [0] * rows
        for grad in torch.autograd.grad(result.loss, (hidden, weight, bias)):
            assert (grad == 0).all()
    # an ignored row does not matter, whatever is in it
    poisoned = hidden.detach().clone()
    poisoned[2] = float("nan")
    target = torch.tensor([0, 1, -1, 3, 4, 5])
    found = linear_entmax_loss(poisoned.requires_grad_(), weight, bias, target, 1.5, -1)
    torch.testing.assert_close(found.loss, linear_entmax_loss(hidden, weight, bias, target, 1.5, -1).loss)
    assert torch.autograd.grad(found.loss, poisoned)[0].isfinite().all()


@pytest.mark.parametrize("vocab", [40, 700])
def test_weight_shared_with_embeddings(vocab):
    weight = random(vocab, 5, seed=1).requires_grad_()
    words, target = torch.tensor([3, 1, 3, 0]), torch.tensor([1, 2, 3, 4])

    def gradient(fused: bool) -> torch.Tensor:
        hidden = torch.tanh(weight[words] * 2)
        if fused:
            loss = linear_entmax_loss(hidden, weight, None, target).loss
        else:
            loss = entmax_loss(hidden @ weight.t(), target, reduction="sum")
        return torch.autograd.grad(loss, weight)[0]

    torch.testing.assert_close(gradient(True), gradient(False))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [40, 700])
@pytest.mark.parametrize("alpha", [1, 1.5])
def test_half_precision(dtype, vocab, alpha):
    inputs, target = case(8, 4, vocab, 1.0, dtype)
    result = linear_entmax_loss(*inputs, target, alpha, -1)
    assert result.loss.dtype == torch.float32
    expected = entmax_loss((inputs[0] @ inputs[1].t() + inputs[2]).float(), target, alpha, "sum", -1)
    torch.testing.assert_close(result.loss, expected, atol=0.1, rtol=0.02)
    for a, b in zip(torch.autograd.grad(result.loss, inputs), torch.autograd.grad(expected, inputs)):
        assert a.dtype == dtype
        torch.testing.assert_close(a.float(), b.float(), atol=0.1, rtol=0.1)


@pytest.mark.parametrize("vocab", [40, 700])
def test_autocast(vocab):
    inputs, target = case(8, 4, vocab, 1.0, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = linear_entmax_loss(*inputs, target, 1.5, -1)
        assert result.loss.dtype == torch.float32
    expected = linear_entmax_loss(*inputs, target, 1.5, -1)
    torch.testing.assert_close(result.loss, expected.loss, atol=0.1, rtol=0.03)
    for a, b in zip(torch.autograd.grad(result.loss, inputs), torch.autograd.grad(expected.loss, inputs)):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, atol=0.15, rtol=0.2)


@pytest.mark.parametrize("alpha", [1, 1.33, 1.5, 2])
@pytest.mark.parametrize("scale", [0.01, 3.0])
def test_keeps_no_logits(alpha, scale):
    n, vocab = 40, 2000
    inputs, target = case(n, 8, vocab, scale)
    saved = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = linear_entmax_loss(*inputs, target, alpha, -1)
    entries = sum(tensor.numel() for tensor in saved if all(tensor is not x for x in inputs))
    weights = inputs[1].numel() if scale == 0.01 or alpha == 1 else 0  # dense blocks keep the weight's gradient
    assert entries <= weights + 0.2 * n * vocab
    result.loss.backward()


def test_module_and_mistakes():
    (hidden, weight, bias), target = case(6, 4, 30, 1.0)
    linear = nn.Linear(4, 30).double()
    module = OutputLayerLoss(linear, 1.3, -1, 0.1, "mean")
    found = module(hidden, target)
    expected = linear_entmax_loss(hidden, linear.weight, linear.bias, target, 1.3, -1, 0.1, "mean")
    torch.testing.assert_close(found.loss, expected.loss)
    with pytest.raises(ValueError, match="Valid choices: sum, mean"):
        linear_entmax_loss(hidden, weight, bias, target, reduction="none")
    with pytest.raises(ValueError, match="alpha"):
        linear_entmax_loss(hidden, weight, bias, target, 0.9)
    with pytest.raises(ValueError, match="weight"):
        linear_entmax_loss(hidden, weight.t(), bias, target)
    with pytest.raises(ValueError, match="Target"):
        linear_entmax_loss(hidden, weight, bias, target[:3])
