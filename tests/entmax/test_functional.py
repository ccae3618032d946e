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
    entmax,
    entmax15,
    entmax_backward,
    entmax_forward,
    entmax_loss,
    linear_entmax_loss,
    log_entmax,
    log_entmax_topk,
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
@pytest.mark.parametrize("d", [1, 8, 800])
def test_half_precision_is_float32_rounded_once(dtype, alpha, d):
    for mapping in (entmax, log_entmax):
        z, grad = random(4, d, dtype=dtype).requires_grad_(), random(4, d, dtype=dtype, seed=1)
        a = torch.tensor(1.4, dtype=dtype, requires_grad=True) if alpha == "tensor" else alpha
        inputs = (z, a) if alpha == "tensor" else (z,)
        p = mapping(z, a)
        q = mapping(z.float(), a.float() if alpha == "tensor" else a)
        assert p.dtype == dtype and torch.equal(p, q.to(dtype))
        grad = torch.where(p.isfinite(), grad, 0)
        found = torch.autograd.grad(p, inputs, grad)
        for mine, exact in zip(found, torch.autograd.grad(q, inputs, grad.float())):
            assert mine.dtype == dtype and torch.equal(mine, exact)  # which autograd rounds once
    target = torch.arange(4) % d
    loss, exact = entmax_loss(z, target, alpha if alpha != "tensor" else a), z.detach().float().requires_grad_()
    expected = entmax_loss(exact, target, alpha if alpha != "tensor" else a.detach().float())
    torch.testing.assert_close(loss, expected)
    (found,), (grad,) = torch.autograd.grad(loss, z), torch.autograd.grad(expected, exact)
    assert torch.equal(found, grad.to(dtype))


def test_float16_sums_do_not_overflow():
    # sparsemax of 100 zeros: p = .01 each, the gradient g - mean g: 100 * 700 is above 65504
    z = torch.zeros(100, dtype=torch.float16, requires_grad=True)
    grad = torch.full((100,), 700.0, dtype=torch.float16)
    grad[0] = 600  # mean 699
    sparsemax(z).backward(grad)
    assert z.grad.tolist() == [-99.0] + [1.0] * 99


def test_bfloat16_gradient():
    # the relative error of sums in bfloat16 is 0.1, of one rounding at most 2 ** -8
    z, grad = random(4, 800, dtype=torch.bfloat16), random(4, 800, seed=1, dtype=torch.bfloat16)
    for alpha in (1.33, 1.5, 2):
        found, exact = z.clone().requires_grad_(), z.double().requires_grad_()
        entmax(found, alpha).backward(grad)
        entmax(exact, alpha).backward(grad.double())
        error = (found.grad.double() - exact.grad).norm() / exact.grad.norm()
        assert error < 2**-8


def test_log_of_a_probability_that_half_precision_rounds_to_zero():
    # alpha 1.5: thresholds of [0, -x] solve u^2 + (u - x/2)^2 = 1; for u = x/2 + 1e-4 the second entry has p = 1e-8,
    # below float16's smallest number 6e-8, log p = -18.42
    x = 2 * ((1 - 1e-8) ** 0.5 - 1e-4)
    p = torch.tensor([0.0, -x], dtype=torch.float64)
    torch.testing.assert_close(log_entmax(p, 1.5)[1].item(), math.log(1e-8), atol=1e-6, rtol=0)
    z = torch.tensor([0.0, -1.9990234375], dtype=torch.float16)  # the nearest number to -1.9998 below 2
    logs = log_entmax(z, 1.5)
    assert logs.dtype == torch.float16 and logs.isfinite().all()
    assert logs[1] == log_entmax(z.double(), 1.5)[1].half()


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


@pytest.mark.parametrize("alpha", [0.99, 0, -1, float("nan"), float("inf")])
def test_alpha_below_one_is_an_error(alpha):
    message = f"Invalid setting for `alpha`: {alpha}.* It must be at least 1"
    z, wrong = torch.zeros(3), torch.tensor([[1.5], [alpha]])
    for call in (
        lambda: entmax(z, alpha),
        lambda: log_entmax(z, alpha),
        lambda: log_entmax_topk(z.view(1, 3), alpha),
        lambda: Entmax(alpha),
        lambda: Entmax(wrong),
        lambda: entmax(z.expand(2, 3), wrong),
        lambda: log_entmax(z.expand(2, 3), wrong),
        lambda: entmax_loss(z.expand(2, 3), torch.tensor([0, 1]), wrong),
    ):
        with pytest.raises(ValueError, match="alpha"):
            call()
    with pytest.raises(ValueError, match=message):
        entmax(z, alpha)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.complex64])
def test_other_numbers_are_errors_that_name_the_dtype(dtype):
    z = torch.ones(2, 3, dtype=dtype)
    for call in (
        lambda: entmax(z),
        lambda: entmax(z, 1),
        lambda: log_entmax(z),
        lambda: log_entmax(z, 1),
        lambda: log_entmax_topk(z),
        lambda: entmax_loss(z, torch.tensor([0, 1])),
        lambda: linear_entmax_loss(z, torch.zeros(5, 3), None, torch.tensor([0, 1])),
    ):
        with pytest.raises(ValueError, match=f"dtype {dtype}"):
            call()


@pytest.mark.parametrize("alpha", [*ALPHAS, torch.tensor(1.3), torch.tensor([1.3])])
def test_a_scalar_is_one_entry(alpha):
    z = torch.tensor(-3.0, requires_grad=True)
    for dim in (0, -1):
        p = entmax(z, alpha, dim)
        assert p.shape == torch.softmax(z, dim).shape == () and p.item() == 1
        assert torch.autograd.grad(p, z)[0] == 0
        assert log_entmax(z, alpha, dim).item() == 0
    with pytest.raises(IndexError):
        entmax(z, alpha, 1)
    with pytest.raises(ValueError, match="-inf"):
        entmax(torch.tensor(-INF), alpha)
    with pytest.raises(ValueError, match="must be"):
        entmax_loss(z, torch.tensor(0), alpha)


@settings(max_examples=60)
@given(st.data())
def test_tensor_alpha_of_any_shape_that_broadcasts(data):
    shape = data.draw(st.lists(st.sampled_from([0, 1, 2, 3, 70]), min_size=1, max_size=3))
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    wanted = list(shape)
    wanted[dim] = 1
    ones = data.draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
    fewer = [1 if one else size for one, size in zip(ones, wanted)]
    while fewer and data.draw(st.booleans()) and fewer[0] == 1:
        fewer = fewer[1:]
    z = random(*shape).requires_grad_()
    alpha = (1.1 + random(*[size or 1 for size in fewer], 1).abs().clamp(max=1.5))[..., 0]
    alpha = alpha[tuple(slice(size) for size in fewer)].requires_grad_()
    p = entmax(z, alpha, dim)
    whole = alpha.expand(wanted)
    assert p.shape == z.shape
    rows = p.movedim(dim, -1).reshape(-1, shape[dim]) if z.numel() else []
    scores = z.movedim(dim, -1).reshape(-1, shape[dim]) if z.numel() else []
    for row, score, a in zip(rows, scores, whole.reshape(-1)):
        torch.testing.assert_close(row, entmax(score, a.item()), atol=1e-9, rtol=0)
    assert [g.shape for g in torch.autograd.grad(p.square().sum(), (z, alpha))] == [z.shape, alpha.shape]


@pytest.mark.parametrize("shape", [(3,), (2, 3, 4), (5, 1, 1, 1), (3, 1)])
def test_tensor_alpha_that_does_not_broadcast(shape):
    with pytest.raises(ValueError, match=r"broadcast to \(2, 3, 1\)"):
        entmax(torch.zeros(2, 3, 4), torch.full(shape, 1.5) if shape != (3, 1) else torch.full((4, 1), 1.5))
    with pytest.raises(ValueError, match=r"broadcast to \(2, 1\)"):
        entmax_loss(torch.zeros(2, 4), torch.tensor([0, 1]), torch.full((3,), 1.5))


@pytest.mark.parametrize("alpha", [*ALPHAS, "tensor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_meta_device(alpha, dtype):
    """A step forward and back that never reads a value."""
    a = torch.empty(4, 1, device="meta").requires_grad_() if alpha == "tensor" else alpha
    for d in (1, 20, 1000, 5000):
        z = torch.empty(4, d, device="meta", dtype=dtype).requires_grad_()
        loss = entmax_loss(z, torch.empty(4, dtype=torch.int64, device="meta"), a, label_smoothing=0.1)
        (entmax(z, a).sum() + log_entmax(z, a).sum() + loss).backward()
        assert z.grad.shape == (4, d) and z.grad.dtype == dtype
    if alpha == "tensor":
        assert a.grad.shape == (4, 1)
    else:
        logs, places = log_entmax_topk(z, alpha, 3)
        assert logs.shape == places.shape == (4, 3)


@pytest.mark.parametrize("alpha", [1, 1.33, 1.5, 2])
@pytest.mark.parametrize("shape", [(1, 1), (1, 600), (600, 1), (2, 40)])
def test_inputs_stay_as_they_are(alpha, shape):
    z, grad = random(*shape), random(*shape, seed=1)
    x = z.clone().requires_grad_()
    p = entmax(x, alpha)
    before = p.detach().clone()
    p.backward(grad)
    log_entmax(x.detach(), alpha), log_entmax_topk(x, alpha, 2), entmax_loss(x, torch.zeros(shape[0]).long(), alpha)
    assert torch.equal(x, z) and torch.equal(grad, random(*shape, seed=1)) and torch.equal(p, before)


def test_large_alpha_is_monotone():
    # the public package is jagged at alpha = 10
    others = torch.tensor([0.0, 0.03, -0.02])
    swept = torch.linspace(-0.3, 0.3, 601).unsqueeze(1)
    p = entmax(torch.cat([swept, others.expand(601, 3)], 1), 10.0)
    assert (p[:, 0].diff() >= 0).all()
    assert (p[:, 1:].diff(dim=0) <= 1e-6).all()


@settings(max_examples=60)
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
    logs, places = log_entmax_topk(z, alpha, k)
    whole = log_entmax(z, alpha)
    assert logs.shape == places.shape == (7, min(k, d))
    torch.testing.assert_close(logs, whole.topk(min(k, d), -1).values, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(logs, whole.gather(1, places), rtol=1e-9, atol=1e-9)
    assert all(len(set(row)) == len(row) for row in places.tolist())


@pytest.mark.parametrize("alpha", [1.0, 1.33, 1.5, 2.0])
def test_largest_entries_with_masks_ties_and_nan(alpha):
    z = torch.full((4, 40), -INF)
    z[0, 7] = 3.0  # one entry that is not masked
    z[1, :20] = 1.0  # more ties than are looked at first
    z[2] = torch.arange(40.0)
    z[3, 0] = math.nan
    logs, places = log_entmax_topk(z, alpha, 3)
    assert logs[0].tolist() == [0, -INF, -INF] and places[0, 0] == 7
    torch.testing.assert_close(logs[1], torch.full((3,), -math.log(20)))
    assert places[2].tolist() == [39, 38, 37]
    assert logs[3, 0].isnan()


def test_largest_entries_in_half_precision():
    z = torch.tensor([[4.0, 1.0, 0.0] + [-9.0] * 20]).half()
    logs, _ = log_entmax_topk(z, 2.0, 2)
    assert logs.dtype == torch.float16 and logs.tolist() == [[0, -INF]]
