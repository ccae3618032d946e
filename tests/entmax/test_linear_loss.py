"""The fused output layer equals the unfused loss, its gradients and its counts, and keeps no logits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from onmt_entmax.entmax import LinearEntmaxLoss, entmax, entmax_loss, linear_entmax_loss
from onmt_entmax.entmax.cpu import Cpu, LogitsSolver
from onmt_entmax.entmax.engine import using
from tests.entmax.test_functional import random


def case(n: int, d: int, vocab: int, scale: float, dtype: torch.dtype = torch.float64):
    hidden = random(n, d, scale=scale, dtype=dtype).requires_grad_()
    weight = random(vocab, d, seed=1, dtype=dtype).requires_grad_()
    bias = random(vocab, seed=2, scale=scale, dtype=dtype).requires_grad_()
    target = torch.arange(n) * 5 % vocab
    with torch.no_grad():
        target[: n // 3] = (hidden @ weight.t() + bias).argmax(-1)[: n // 3]
    target[1] = target[n // 2] = -1
    return (hidden, weight, bias), target


# several blocks of logits, each of several blocks of rows; all of it without the solver for wide rows; the reference
ENGINES = [Cpu(logits=9 * 600, block_entries=4 * 600), Cpu(logits=9 * 600, wide=1 << 40), "reference"]


@pytest.mark.parametrize("vocab", [40, 600])
@pytest.mark.parametrize("scale", [0.01, 0.4, 3.0])
@pytest.mark.parametrize("alpha", [1, 1.33, 1.5, 2, 2.5])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("engine", ENGINES)
def test_equals_the_unfused_loss(vocab, scale, alpha, smoothing, engine):
    reduction = "sum" if scale == 0.4 else "mean"
    inputs, target = case(24, 6, vocab, scale)
    hidden, weight, bias = inputs
    z = hidden @ weight.t() + bias
    expected = entmax_loss(z, target, alpha, reduction, -1, smoothing)
    with using(engine):
        result = linear_entmax_loss(*inputs, target, alpha, reduction, -1, smoothing, statistics=True)
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
    gradients = []
    solve = LogitsSolver.__call__
    monkeypatch.setattr(LogitsSolver, "__call__", lambda *args: gradients.append(solve(*args)) or gradients[-1])
    (hidden, weight, bias), target = case(24, 6, 600, 1.0)
    scale = torch.tensor([8.0, 0.001, 8.0, 8.0, 0.001, 0.001, 0.3, 8.0], dtype=torch.float64).repeat(3).unsqueeze(1)
    inputs = ((hidden * scale).detach().requires_grad_(), weight, (bias * 0.001).detach().requires_grad_())
    expected = entmax_loss(inputs[0] @ weight.t() + inputs[2], target, alpha, "sum", -1, smoothing)
    with using(Cpu(block_entries=2 * rows * 600)):
        result = linear_entmax_loss(*inputs, target, alpha, "sum", -1, smoothing)
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
        result = linear_entmax_loss(hidden, weight, None, target, alpha, "sum", -1)
    assert not result.loss.requires_grad and result.gold_prob is None and result.sum_of_squares is None
    result = linear_entmax_loss(hidden.detach(), weight, None, target, alpha, "sum", -1)
    expected = entmax_loss(hidden.detach() @ weight.t(), target, alpha, "sum", -1)
    a, b = torch.autograd.grad(result.loss, weight)[0], torch.autograd.grad(expected, weight)[0]
    torch.testing.assert_close(a, b)


@pytest.mark.parametrize("vocab", [30, 700])
def test_ignored_and_missing_rows(vocab):
    (hidden, weight, bias), _ = case(6, 4, vocab, 1.0)
    for rows, target in ((6, torch.full((6,), -1)), (0, torch.zeros(0, dtype=torch.int64))):
        result = linear_entmax_loss(hidden[:rows], weight, bias, target, 1.5, "sum", -1)
        assert result.loss == 0 and result.n_correct == 0 and result.support_size.tolist() == [0] * rows
        for grad in torch.autograd.grad(result.loss, (hidden, weight, bias)):
            assert (grad == 0).all()
    # an ignored row does not matter, whatever is in it
    poisoned = hidden.detach().clone()
    poisoned[2] = float("nan")
    target = torch.tensor([0, 1, -1, 3, 4, 5])
    found = linear_entmax_loss(poisoned.requires_grad_(), weight, bias, target, 1.5, "sum", -1)
    torch.testing.assert_close(found.loss, linear_entmax_loss(hidden, weight, bias, target, 1.5, "sum", -1).loss)
    assert torch.autograd.grad(found.loss, poisoned)[0].isfinite().all()


@pytest.mark.parametrize("vocab", [40, 700])
def test_weight_shared_with_embeddings(vocab):
    weight = random(vocab, 5, seed=1).requires_grad_()
    words, target = torch.tensor([3, 1, 3, 0]), torch.tensor([1, 2, 3, 4])

    def gradient(fused: bool) -> torch.Tensor:
        hidden = torch.tanh(weight[words] * 2)
        if fused:
            loss = linear_entmax_loss(hidden, weight, None, target, reduction="sum").loss
        else:
            loss = entmax_loss(hidden @ weight.t(), target, reduction="sum")
        return torch.autograd.grad(loss, weight)[0]

    torch.testing.assert_close(gradient(True), gradient(False))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [40, 700])
@pytest.mark.parametrize("alpha", [1, 1.5])
@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_half_precision(dtype, vocab, alpha, engine):
    inputs, target = case(8, 4, vocab, 1.0, dtype)
    with using(engine):
        result = linear_entmax_loss(*inputs, target, alpha, "sum", -1, 0.1)
    assert result.loss.dtype == torch.float32
    eps = torch.finfo(dtype).eps
    expected = entmax_loss((inputs[0] @ inputs[1].t()).float() + inputs[2], target, alpha, "sum", -1, 0.1)
    torch.testing.assert_close(result.loss, expected, atol=0, rtol=2 * eps)
    for a, b in zip(torch.autograd.grad(result.loss, inputs), torch.autograd.grad(expected, inputs)):
        assert a.dtype == dtype
        # the logits' gradient is rounded to multiply it, the product is rounded once more
        torch.testing.assert_close(a.float(), b.float(), atol=8 * eps, rtol=4 * eps)


@pytest.mark.parametrize("vocab", [40, 700])
def test_autocast(vocab):
    inputs, target = case(8, 4, vocab, 1.0, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = linear_entmax_loss(*inputs, target, 1.5, "sum", -1)
        assert result.loss.dtype == torch.float32
    expected = linear_entmax_loss(*inputs, target, 1.5, "sum", -1)
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

    with using("auto"), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = linear_entmax_loss(*inputs, target, alpha, "sum", -1)
    entries = sum(tensor.numel() for tensor in saved if all(tensor is not x for x in inputs))
    weights = inputs[1].numel() if scale == 0.01 or alpha == 1 else 0  # dense blocks keep the weight's gradient
    assert entries <= weights + 0.2 * n * vocab
    result.loss.backward()


def test_module_and_mistakes():
    (hidden, weight, bias), target = case(6, 4, 30, 1.0)
    linear = nn.Linear(4, 30).double()
    module = LinearEntmaxLoss(linear, 1.3, "sum", -1, 0.1)
    found = module(hidden, target)
    expected = linear_entmax_loss(hidden, linear.weight, linear.bias, target, 1.3, "sum", -1, 0.1)
    torch.testing.assert_close(found.loss, expected.loss)
    with pytest.raises(ValueError, match="Valid choices: mean, sum"):
        linear_entmax_loss(hidden, weight, bias, target, reduction="none")
    with pytest.raises(ValueError, match="alpha"):
        linear_entmax_loss(hidden, weight, bias, target, 0.9)
    with pytest.raises(ValueError, match="weight"):
        linear_entmax_loss(hidden, weight.t(), bias, target)
    with pytest.raises(ValueError, match="Target"):
        linear_entmax_loss(hidden, weight, bias, target[:3])


@pytest.mark.parametrize("vocab", [1, 40, 700])
@pytest.mark.parametrize("alpha", [1, 1.33, 1.5, 2, 2.5])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_meta_device(vocab, alpha, smoothing):
    """Nothing reads a value: ignored rows cannot be left out, and are masked."""
    hidden, weight = torch.empty(6, 4, device="meta").requires_grad_(), torch.empty(vocab, 4, device="meta")
    weight.requires_grad_()
    target = torch.empty(6, dtype=torch.int64, device="meta")
    for engine in ("auto", "reference"):
        with using(engine):
            result = linear_entmax_loss(hidden, weight, None, target, alpha, label_smoothing=smoothing, statistics=True)
        result.loss.backward()
        assert hidden.grad.shape == (6, 4) and weight.grad.shape == (vocab, 4)
        assert result.support_size.shape == result.gold_prob.shape == result.sum_of_squares.shape == (6,)


@pytest.mark.parametrize("alpha", [1, 1.5, 2.5])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_masked_rows_equal_rows_left_out(alpha, smoothing, engine, monkeypatch):
    """As on a device whose values are not read: what is in an ignored row does not matter there either."""
    (hidden, weight, bias), target = case(12, 4, 40, 1.0)
    expected = linear_entmax_loss(hidden, weight, bias, target, alpha, "mean", -1, smoothing, True)
    gradients = torch.autograd.grad(expected.loss, (hidden, weight, bias))
    poisoned = hidden.detach().clone()
    poisoned[target == -1] = float("nan")
    poisoned.requires_grad_()
    monkeypatch.setattr("onmt_entmax.entmax.linear_loss.free_to_read", lambda x: False)
    with using(engine):
        found = linear_entmax_loss(poisoned, weight, bias, target, alpha, "mean", -1, smoothing, True)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b)
    for a, b in zip(torch.autograd.grad(found.loss, (poisoned, weight, bias)), gradients):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("vocab", [1, 2, 600])
@pytest.mark.parametrize("rows", [1, 2])
def test_sizes_one(vocab, rows):
    """Inputs stay as they are, and a vocabulary of one word has no loss."""
    (hidden, weight, bias), _ = case(4, 1, vocab, 1.0)
    inputs = (hidden[:rows].detach().requires_grad_(), weight, bias)
    before = [x.detach().clone() for x in inputs]
    target = torch.full((rows,), vocab - 1)
    for alpha in (1, 1.33, 1.5, 2):
        found = linear_entmax_loss(*inputs, target, alpha)
        expected = entmax_loss(inputs[0] @ weight.t() + bias, target, alpha)
        torch.testing.assert_close(found.loss, expected, atol=1e-10, rtol=1e-8)
        pairs = zip(torch.autograd.grad(found.loss, inputs), torch.autograd.grad(expected, inputs))
        for a, b in pairs:
            torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-8)
        assert vocab > 1 or found.loss.abs() < 1e-12
    for x, y in zip(inputs, before):
        assert torch.equal(x, y)


@pytest.mark.parametrize("vocab", [40, 700])
@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_rows_that_are_masked_and_targets_that_do_not_exist(vocab, engine):
    (hidden, weight, bias), target = case(6, 4, vocab, 1.0)
    with using(engine):
        with pytest.raises(ValueError, match="-inf"):
            linear_entmax_loss(hidden, weight, torch.full_like(bias, -float("inf")), target, 1.5, "sum", -1)
        with pytest.raises(RuntimeError, match="out of bounds"):
            linear_entmax_loss(hidden, weight, bias, target.clamp(max=3) - 100, 1.5, "sum", -1)
        assert linear_entmax_loss(hidden, weight, bias, torch.full_like(target, -1), 1.5, "mean", -1).loss.isnan()
