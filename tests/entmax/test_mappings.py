"""What alpha-entmax is: optimality, Jacobian, limits, masks, dtypes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from onmt_entmax.entmax import (
    Entmax,
    Entmax15,
    LearnedAlpha,
    Sparsemax,
    entmax,
    entmax15,
    entmax_backward,
    entmax_forward,
    log_entmax,
    sparsemax,
)

ALPHAS = [1, 1.05, 1.33, 1.5, 1.75, 2, 2.5, 4]
INF = float("inf")


def random(*shape: int, seed: int = 0, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale).to(dtype)


def entropy(p: torch.Tensor, alpha: float) -> torch.Tensor:
    """Tsallis entropy, Eq. 9."""
    if alpha == 1:
        return -torch.special.xlogy(p, p).sum(-1)
    return (p - p**alpha).sum(-1) / (alpha * (alpha - 1))


def test_known_values():
    # alpha 1.5: z/2 = [.5, 0, -1], support {0, 1}: mean .25, S = .125, tau = .25 - sqrt(.875 / 2)
    tau = 0.25 - math.sqrt(0.4375)
    expected = torch.tensor([(0.5 - tau) ** 2, tau**2, 0.0], dtype=torch.float64)
    torch.testing.assert_close(entmax15(torch.tensor([1.0, 0.0, -2.0], dtype=torch.float64)), expected)
    # sparsemax: support {0, 1}, tau = (1 + .5 - 1) / 2
    torch.testing.assert_close(sparsemax(torch.tensor([1.0, 0.5, -2.0])), torch.tensor([0.75, 0.25, 0.0]))


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("d", [5, 700])
def test_optimality_conditions(alpha, d):
    # H is concave: p is the maximiser iff z_j + dH/dp_j is the same on the support and at most that elsewhere
    z, p = random(4, d), entmax(random(4, d), alpha)
    torch.testing.assert_close(p.sum(-1), torch.ones(4, dtype=torch.float64))
    slope = -p.log() - 1 if alpha == 1 else (1 - alpha * p ** (alpha - 1)) / (alpha * (alpha - 1))
    value = z + slope
    level = torch.where(p > 0, value, -INF).amax(-1, True)
    assert torch.where(p > 0, (value - level).abs(), 0).max() < 1e-9
    assert torch.where(p > 0, -1, value - level).max() < 1e-9


@pytest.mark.parametrize("alpha", ALPHAS)
def test_beats_other_distributions(alpha):
    z = random(6)
    best = entmax(z, alpha)
    others = torch.softmax(random(200, 6, seed=1, scale=3), -1)
    assert (others @ z + entropy(others, alpha) <= best @ z + entropy(best, alpha) + 1e-12).all()


@pytest.mark.parametrize("alpha", ALPHAS)
def test_jacobian_is_proposition_1(alpha):
    z = random(6, scale=1.5)
    p = entmax(z, alpha)
    s = torch.where(p > 0, p ** (2 - alpha), 0)
    expected = torch.diag(s) - torch.outer(s, s) / s.sum()
    torch.testing.assert_close(torch.autograd.functional.jacobian(lambda x: entmax(x, alpha), z), expected)
    grad = random(6, seed=3)
    torch.testing.assert_close(entmax_backward(p, grad, alpha), expected @ grad)
    torch.testing.assert_close(entmax_forward(z, alpha), p)


def test_general_backward_of_separable_regulariser():
    # Prop. 3: the Jacobian is diag(s) - s s^T / sum s with s_j = 1 / g''(p_j) on the support; here differentiated
    # numerically, with g''(t) = t^(alpha-2)
    alpha, z = 1.7, random(5, seed=5)
    p, step = entmax(z, alpha), 1e-6
    eye = torch.eye(5, dtype=torch.float64) * step
    numeric = (entmax(z + eye, alpha) - entmax(z - eye, alpha)).t() / (2 * step)
    s = torch.where(p > 0, 1 / torch.where(p > 0, p, 1) ** (alpha - 2), 0)
    torch.testing.assert_close(numeric, torch.diag(s) - torch.outer(s, s) / s.sum(), atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("alpha", [1.33, 1.5, 2, 4])
def test_jacobian_is_zero_outside_the_support(alpha):
    z = random(30, scale=3)
    p, jacobian = entmax(z, alpha), torch.autograd.functional.jacobian(lambda x: entmax(x, alpha), z)
    assert (p == 0).any()
    assert (jacobian[p == 0] == 0).all() and (jacobian[:, p == 0] == 0).all()


@pytest.mark.parametrize(("alpha", "dim"), [(a, dim) for a in ALPHAS for dim in ((0, 1, -1) if a <= 2 else (1,))])
def test_gradcheck(alpha, dim):
    assert gradcheck(lambda x: entmax(x, alpha, dim), random(2, 3, 4).requires_grad_())
    shape = [2, 3, 4]
    shape[dim] = 1
    a = torch.full(shape, float(alpha), dtype=torch.float64)
    assert gradcheck(lambda x: entmax(x, a, dim), random(2, 3, 4).requires_grad_())
    if alpha > 1:
        assert gradcheck(lambda b: entmax(random(2, 3, 4), b, dim), a.requires_grad_())


def test_gradient_of_alpha_at_one():
    # Correia, Niculae and Martins (2019), the limit: p_j (sum_k p_k u_k^2 - u_j^2) / 2 with u = -log p
    z, grad = random(3, 6), random(3, 6, seed=1)
    alpha = torch.ones(3, 1, dtype=torch.float64, requires_grad=True)
    p = entmax(z, alpha)
    torch.testing.assert_close(p, torch.softmax(z, -1))
    (found,) = torch.autograd.grad(p, alpha, grad)
    u = -torch.log_softmax(z, -1)
    q = torch.softmax(z, -1)
    expected = q * ((q * u * u).sum(-1, True) - u * u) / 2
    torch.testing.assert_close(found, (grad * expected).sum(-1, True))
    # and it is what a small step says
    above = entmax(z, 1 + 1e-6)
    torch.testing.assert_close((above - q) / 1e-6, expected, atol=1e-5, rtol=1e-4)


def test_alpha_per_row_and_broadcast():
    z = random(4, 7, 600)
    alpha = torch.tensor([1.0, 1.2, 1.5, 3.0], dtype=torch.float64).view(4, 1, 1)
    p = entmax(z, alpha)
    for row, a in enumerate([1.0, 1.2, 1.5, 3.0]):
        torch.testing.assert_close(p[row], entmax(z[row], a))
    torch.testing.assert_close(entmax(z, torch.tensor(1.2, dtype=torch.float64)), entmax(z, 1.2))


@pytest.mark.parametrize("epsilon", [1e-3, 1e-5, 1e-8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [9, 800])
def test_continuous_as_alpha_goes_to_one(epsilon, dtype, d):
    z = random(3, d, dtype=dtype)
    difference = (entmax(z, 1 + epsilon) - torch.softmax(z, -1)).abs().max()
    assert difference < 4 * epsilon + 10 * torch.finfo(dtype).eps


@pytest.mark.parametrize("alpha", ALPHAS)
def test_fenchel_young_link_margin(alpha):
    # a margin of 1 / (alpha - 1) makes one entry certain (alpha > 1), and a smaller one does not
    if alpha == 1:
        assert (entmax(torch.tensor([30.0, 0.0]), 1) > 0).all()
        return
    margin = 1 / (alpha - 1)
    p = entmax(torch.tensor([[margin * 1.0001, 0.0], [margin * 0.99, 0.0]], dtype=torch.float64), alpha)
    assert p[0].tolist() == [1.0, 0.0]
    assert p[1, 1] > 0


SCORES = st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(SCORES, st.sampled_from(ALPHAS), st.integers(0, 1000), st.floats(-50, 50))
def test_permutation_shift_and_order(scores, alpha, seed, shift):
    z = torch.tensor(scores, dtype=torch.float64)
    p = entmax(z, alpha)
    assert abs(p.sum().item() - 1) < 1e-12 and (p >= 0).all()
    order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(entmax(z[order], alpha), p[order], atol=1e-12, rtol=1e-9)
    # rounding of the shift is magnified where alpha is large: u^(1/(alpha-1)) is steep at 0
    torch.testing.assert_close(entmax(z + shift, alpha), p, atol=1e-4 if alpha > 2 else 1e-9, rtol=0)
    ranked = p[z.sort().indices]
    assert (ranked.diff() >= -1e-15).all()
    if alpha > 1:
        assert (p[z < z.max() - 1 / (alpha - 1) - 1e-9] == 0).all()


@pytest.mark.parametrize("alpha", [*ALPHAS, "tensor"])
@pytest.mark.parametrize("d", [6, 900])
def test_masked_equals_truncated(alpha, d):
    alpha = torch.tensor([[1.0], [1.4]], dtype=torch.float64) if alpha == "tensor" else alpha
    z, grad = random(2, d), random(2, d, seed=2)
    mask = torch.arange(d) % 3 == 1
    masked = z.masked_fill(mask, -INF).requires_grad_()
    kept = z[:, ~mask].clone().requires_grad_()
    p, q = entmax(masked, alpha), entmax(kept, alpha)
    torch.testing.assert_close(p[:, ~mask], q)
    assert (p[:, mask] == 0).all()
    (a,), (b,) = torch.autograd.grad(p, masked, grad), torch.autograd.grad(q, kept, grad[:, ~mask])
    torch.testing.assert_close(a[:, ~mask], b)
    assert (a[:, mask] == 0).all()


@pytest.mark.parametrize("alpha", [*ALPHAS, torch.tensor(1.3)])
@pytest.mark.parametrize("d", [3, 70, 800])
def test_fully_masked_slice_is_an_error(alpha, d):
    z = torch.zeros(3, d)
    z[1] = -INF
    with pytest.raises(ValueError, match="-inf"):
        entmax(z, alpha)


@pytest.mark.parametrize("alpha", [*ALPHAS, torch.tensor(1.3)])
@pytest.mark.parametrize("d", [3, 70, 800])
def test_nan_row_stays_alone(alpha, d):
    z = random(3, d, dtype=torch.float32)
    z[1, 1] = float("nan")
    p = entmax(z, alpha)
    assert p[1].isnan().all()
    torch.testing.assert_close(p[[0, 2]], entmax(z[[0, 2]], alpha), atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_sizes_one_and_zero(alpha):
    assert entmax(torch.tensor([[3.0], [-1e4]]), alpha).tolist() == [[1.0], [1.0]]
    for shape in ((0, 5), (5, 0), (0, 800)):
        x = torch.zeros(shape, requires_grad=True)
        p = entmax(x, alpha)
        assert p.shape == shape
        p.sum().backward()
        assert x.grad.shape == shape


@pytest.mark.parametrize("alpha", ALPHAS)
def test_ties_and_full_support(alpha):
    for d in (4, 5000):
        torch.testing.assert_close(entmax(torch.full((2, d), 7.0), alpha), torch.full((2, d), 1 / d))
    p = entmax(torch.tensor([1.0, 1.0, -50.0]), alpha)
    torch.testing.assert_close(p, torch.tensor([0.5, 0.5, 0.0]))


@pytest.mark.parametrize("alpha", [1.05, 1.33, 1.5, 2, 4, torch.tensor(1.5)])
@pytest.mark.parametrize("scale", [1e4, 1e-30])
def test_extreme_scores(alpha, scale):
    for d in (10, 2000):
        z = (random(3, d) * scale).to(torch.float32)
        p = entmax(z, alpha)
        exact = entmax(z.double(), alpha)
        assert p.isfinite().all()
        torch.testing.assert_close(p.double(), exact, atol=1e-5, rtol=0)


@pytest.mark.parametrize("alpha", [1.05, 1.33, 1.5, 2, 4])
@pytest.mark.parametrize("scale", [0.001, 0.1, 1.0])
def test_float32_sums_to_one_at_50000(alpha, scale):
    p = entmax(random(2, 50000, scale=scale, dtype=torch.float32), alpha)
    assert (p.double().sum(-1) - 1).abs().max() < 1e-6
    if alpha >= 1.5 and scale == 1.0:
        assert (p == 0).float().mean() > 0.9


def test_a_million_entries():
    p = entmax(random(1, 1_000_000, scale=0.1, dtype=torch.float32), 1.5)
    assert abs(p.double().sum().item() - 1) < 1e-5
    assert 0 < (p > 0).sum() < 1_000_000


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("alpha", [1, 1.33, 1.5, 2, 4, "tensor"])
@pytest.mark.parametrize("d", [8, 800])
def test_half_precision(dtype, alpha, d):
    alpha = torch.tensor(1.4, dtype=dtype) if alpha == "tensor" else alpha
    z = random(4, d, dtype=dtype).requires_grad_()
    p = entmax(z, alpha)
    assert p.dtype == dtype
    torch.testing.assert_close(p.float(), entmax(z.detach().float(), alpha), atol=torch.finfo(dtype).eps, rtol=0)
    p.backward(random(4, d, dtype=dtype, seed=1))
    assert z.grad.dtype == dtype and z.grad.isfinite().all()


@pytest.mark.parametrize("alpha", [1, 1.33, 1.5, 2, 3, 4, "tensor"])
def test_half_precision_gradient_of_tiny_probabilities(alpha):
    # where alpha = 4, p ** (2 - alpha) of a probability below 0.004 is above 65504
    alpha = torch.tensor(1.4) if alpha == "tensor" else alpha
    p = torch.tensor([[0.6, 0.398, 0.002, 0.0]]).half()
    grad = random(1, 4, dtype=torch.float16)
    found = entmax_backward(p, grad, alpha)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.float(), entmax_backward(p.float(), grad.float(), alpha), atol=2e-3, rtol=1e-2)


def test_non_contiguous_and_any_dim():
    z = random(6, 700, 5)
    for alpha in (1.33, 1.5, 2):
        for dim in (0, 1, 2, -1, -2, -3):
            expected = entmax(z.movedim(dim, -1).contiguous(), alpha).movedim(-1, dim)
            torch.testing.assert_close(entmax(z, alpha, dim), expected)
        torch.testing.assert_close(entmax(z[::2, ::3], alpha), entmax(z[::2, ::3].contiguous(), alpha))


def test_log():
    z = random(3, 9, scale=2)
    for alpha in (1, 1.5, 2, torch.tensor(1.3, dtype=torch.float64)):
        torch.testing.assert_close(log_entmax(z, alpha), entmax(z, alpha).log())
        wide = random(3, 900, scale=2)
        torch.testing.assert_close(log_entmax(wide, alpha), entmax(wide, alpha).log())
    x = torch.tensor([1.0, 0.5, -9.0], dtype=torch.float64, requires_grad=True)
    y = log_entmax(x, 2)
    assert y[2] == -INF
    # log sparsemax: p = [.75, .25], dp_0/dz = [.5, -.5, 0]
    (grad,) = torch.autograd.grad(y[0], x)
    torch.testing.assert_close(grad, torch.tensor([2 / 3, -2 / 3, 0.0], dtype=torch.float64))


def test_modules():
    z = random(2, 5)
    torch.testing.assert_close(Entmax(1.3, dim=0)(z), entmax(z, 1.3, 0))
    torch.testing.assert_close(Entmax15()(z), entmax(z, 1.5))
    torch.testing.assert_close(Sparsemax(dim=0)(z), entmax(z, 2, 0))
    assert repr(Entmax(1.3)) == "Entmax(alpha=1.3, dim=-1)"


@pytest.mark.parametrize("alpha", [0.99, 0, -1, float("nan"), float("inf")])
def test_alpha_below_one_is_an_error(alpha):
    with pytest.raises(ValueError, match="alpha"):
        entmax(torch.zeros(3), alpha)
    with pytest.raises(ValueError, match="alpha"):
        Entmax(alpha)
    if alpha < 1:
        with pytest.raises(ValueError, match="alpha"):
            entmax(torch.zeros(3), torch.tensor(alpha))


def test_large_alpha_is_monotone():
    # the public package is jagged at alpha = 10
    others = torch.tensor([0.0, 0.03, -0.02])
    swept = torch.linspace(-0.3, 0.3, 601).unsqueeze(1)
    p = entmax(torch.cat([swept, others.expand(601, 3)], 1), 10.0)
    assert (p[:, 0].diff() >= 0).all()
    assert (p[:, 1:].diff(dim=0) <= 1e-6).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_learned_alpha_stays_inside(dtype):
    learned = LearnedAlpha((3, 1), start=1.5)
    optimizer = torch.optim.SGD(learned.parameters(), lr=50.0)
    for _ in range(200):
        optimizer.zero_grad()
        learned().sum().backward()
        optimizer.step()
    alpha = learned().detach()
    assert (alpha < 1.02).all()
    for pushed in (-1e4, 1e4):
        with torch.no_grad():
            learned.raw.fill_(pushed)
        alpha = learned.to(dtype)()
        assert ((alpha > 1) & (alpha < 2)).all()
    p = entmax(random(3, 5, dtype=dtype), alpha)
    (grad,) = torch.autograd.grad(p.float().square().sum(), alpha)
    assert grad.isfinite().all() and p.isfinite().all()


def test_learned_alpha_has_a_gradient():
    learned = LearnedAlpha((2, 1), start=1.3)
    torch.testing.assert_close(learned(), torch.full((2, 1), 1.3))
    entmax(random(2, 5, dtype=torch.float32), learned()).square().sum().backward()
    assert learned.raw.grad.isfinite().all() and (learned.raw.grad != 0).all()
    with pytest.raises(ValueError, match="start"):
        LearnedAlpha(start=2.0)
