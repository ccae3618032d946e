"""Fenchel-Young losses: the properties that the paper's appendix lists, smoothing, reductions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

from onmt_entmax.entmax import EntmaxLoss, entmax, entmax_loss
from onmt_entmax.entmax.cpu import Cpu
from onmt_entmax.entmax.engine import using
from tests.entmax.test_functional import ALPHAS, entropy, random

TARGET = torch.tensor([0, 2, -100, 4])


def definition(z: torch.Tensor, y: torch.Tensor, alpha: float) -> torch.Tensor:
    """Definition 2 with Omega = -H: H(p) - H(y) + z . (p - y)."""
    p = entmax(z, alpha)
    return entropy(p, alpha) - entropy(y, alpha) + (z * (p - y)).sum(-1)


def smoothed(target: torch.Tensor, d: int, smoothing: float) -> torch.Tensor:
    return (1 - smoothing) * F.one_hot(target, d).double() + smoothing / d


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("d", [7, 600])
def test_is_the_definition_and_its_gradient(alpha, smoothing, d):
    z, target = random(5, d).requires_grad_(), torch.tensor([0, 1, 2, 3, 6])
    loss = entmax_loss(z, target, alpha, "none", label_smoothing=smoothing)
    y = smoothed(target, d, smoothing)
    expected = definition(z.detach(), y, alpha)
    if alpha == 1:  # torch's cross-entropy is a constant above
        expected = expected + entropy(y, 1)
    torch.testing.assert_close(loss.detach(), expected)
    (grad,) = torch.autograd.grad(loss.sum(), z)
    torch.testing.assert_close(grad, entmax(z.detach(), alpha) - y)


def test_alpha_one_is_cross_entropy():
    z = random(4, 6)
    for reduction in ("mean", "sum", "none"):
        for smoothing in (0.0, 0.2):
            torch.testing.assert_close(
                entmax_loss(z, TARGET, 1, reduction, label_smoothing=smoothing),
                F.cross_entropy(z, TARGET, reduction=reduction, label_smoothing=smoothing),
            )
    one = torch.ones(4, 1, dtype=torch.float64)
    torch.testing.assert_close(entmax_loss(z, TARGET, one), F.cross_entropy(z, TARGET))


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_properties(alpha, smoothing):
    a, b, target = random(200, 6, scale=2), random(200, 6, seed=1, scale=2), torch.arange(200) % 6

    def loss(z: torch.Tensor) -> torch.Tensor:
        return entmax_loss(z, target, alpha, "none", label_smoothing=smoothing)

    assert (loss(a) >= -1e-12).all()
    for share in (0.25, 0.5):
        assert (loss(share * a + (1 - share) * b) <= share * loss(a) + (1 - share) * loss(b) + 1e-12).all()
    if alpha > 1:
        # zero exactly where p* is the target: scores that are minus the entropy's gradient there
        y = smoothed(target, 6, smoothing)
        z = (alpha * y ** (alpha - 1) - 1) / (alpha * (alpha - 1))
        assert loss(z).abs().max() < 1e-12
        assert (loss(z + 0.05 * b)[(entmax(z + 0.05 * b, alpha) - y).abs().amax(-1) > 1e-3] > 0).all()


@pytest.mark.parametrize("alpha", ALPHAS)
def test_temperature(alpha):
    # L of t * Omega at z is t L(z / t): p*(z / t) maximises z . p + t H(p), so it can be computed from the definition
    z, t, y = random(6), 2.5, F.one_hot(torch.tensor(2), 6).double()
    p = entmax(z / t, alpha)
    direct = t * entropy(p, alpha) + (z * (p - y)).sum()
    torch.testing.assert_close(t * entmax_loss(z / t, torch.tensor(2), alpha), direct)


@pytest.mark.parametrize("alpha", [1.33, 1.5, 2, 4])
def test_margin_gives_zero_loss(alpha):
    z = torch.zeros(2, 5, dtype=torch.float64)
    z[:, 3] = torch.tensor([1.0001, 0.9]) / (alpha - 1)
    loss = entmax_loss(z, torch.tensor([3, 3]), alpha, "none")
    assert loss[0].abs() < 1e-12 and loss[1] > 1e-6


@pytest.mark.parametrize("alpha", ALPHAS)
def test_hessian_is_the_jacobian_of_entmax(alpha):
    z, step = random(5), 1e-6
    eye = torch.eye(5, dtype=torch.float64) * step
    target = torch.full((5,), 1)

    def gradient(x: torch.Tensor) -> torch.Tensor:
        x = x.requires_grad_()
        return torch.autograd.grad(entmax_loss(x, target, alpha, "sum"), x)[0]

    hessian = (gradient(z + eye) - gradient(z - eye)) / (2 * step)
    jacobian = torch.autograd.functional.jacobian(lambda x: entmax(x, alpha), z)
    torch.testing.assert_close(hessian, jacobian, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradcheck(alpha, reduction, smoothing):
    z = random(4, 5).requires_grad_()
    assert gradcheck(lambda x: entmax_loss(x, TARGET, alpha, reduction, label_smoothing=smoothing), z)
    a = torch.full((4, 1), float(alpha), dtype=torch.float64)
    if alpha > 1:
        a = a.requires_grad_()
        assert gradcheck(lambda x, b: entmax_loss(x, TARGET, b, reduction, label_smoothing=smoothing), (z, a))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("low", [1.05, 1.3])
def test_blocks_equal_the_reference(smoothing, low):
    # the same rows through blocks and at once, with alpha's gradient, sparse and dense blocks, ignored rows
    d = 530
    target = torch.arange(12) * 7
    target[[1, 6, 7, 8]] = -100  # one row of a block, and a whole block
    z = random(12, d) * torch.tensor([0.01, 0.5, 5.0], dtype=torch.float64).repeat(4).sort()[0].unsqueeze(1)
    alpha = torch.linspace(low, 2.3, 12, dtype=torch.float64).unsqueeze(1)
    results = []
    for engine in (Cpu(block_entries=3 * d), "reference"):
        x, a = z.clone().requires_grad_(), alpha.clone().requires_grad_()
        with using(engine):
            loss = entmax_loss(x, target, a, "none", label_smoothing=smoothing)
        results.append((loss.detach(), *torch.autograd.grad(loss, (x, a), random(12, seed=3))))
    for ours, expected in zip(*results):
        torch.testing.assert_close(ours, expected, atol=1e-10, rtol=1e-8)


def test_shapes_dtypes_and_masks():
    z, target = random(2, 3, 5), torch.tensor([[0, 1, 2], [3, 4, 0]])
    torch.testing.assert_close(entmax_loss(z, target), entmax_loss(z.view(6, 5), target.view(6)))
    assert entmax_loss(z, target, reduction="none").shape == (2, 3)
    half = z.to(torch.bfloat16).requires_grad_()
    loss = entmax_loss(half, target)
    assert loss.dtype == torch.float32
    loss.backward()
    assert half.grad.dtype == torch.bfloat16
    masked = torch.tensor([[1.0, float("-inf"), 0.0]], requires_grad=True)
    loss = entmax_loss(masked, torch.tensor([0]), 1.5)
    torch.testing.assert_close(loss, entmax_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), 1.5))
    loss.backward()
    assert masked.grad[0, 1] == 0
    assert entmax_loss(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64), reduction="sum") == 0
    for d in (5, 600):
        all_ignored = entmax_loss(torch.zeros(2, d), torch.tensor([-100, -100]), reduction="sum")
        assert all_ignored == 0


@pytest.mark.parametrize("d", [4, 600])
def test_mistakes(d):
    z = torch.zeros(2, d)
    with pytest.raises(ValueError, match="alpha"):
        entmax_loss(z, torch.tensor([0, 1]), 0.5)
    with pytest.raises(ValueError, match="Valid choices: mean, sum, none"):
        EntmaxLoss(reduction="average")
    with pytest.raises(ValueError, match="label_smoothing"):
        entmax_loss(z, torch.tensor([0, 1]), label_smoothing=1.5)
    with pytest.raises(ValueError, match="shape"):
        entmax_loss(z, torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match="-inf"):
        entmax_loss(torch.full((2, d), float("-inf")), torch.tensor([0, 1]))
