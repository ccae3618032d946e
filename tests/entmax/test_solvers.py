"""The solvers against each other and against the public package, and the rows that are hard for them."""

from __future__ import annotations

import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_entmax.entmax import cpu_blocks, entmax, solvers
from onmt_entmax.entmax.cpu import Cpu, is_narrow
from onmt_entmax.entmax.engine import using
from tests.entmax.test_functional import random

SOLVERS = {1.5: ["sort", "topk", "bisect", "newton", "auto"], 2.0: ["sort", "topk", "bisect", "newton", "auto"]}
CLOSE = {torch.float64: 1e-12, torch.float32: 1e-6}


def ladder(d: int, epsilon: float, shrink: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Scaled scores on which plain Newton needs many steps: each entry falls out one step after the one before."""
    gaps = shrink ** torch.arange(d - 1, dtype=torch.float64)
    s = torch.cat([torch.zeros(1, dtype=torch.float64), -(1 - gaps * 0.999)])
    return (s / epsilon).to(dtype).unsqueeze(0)


def solve(z: torch.Tensor, alpha: float, **options) -> torch.Tensor:
    """Probabilities of rows by Newton's steps with these options."""
    s = (z - z.amax(-1, True)) * (alpha - 1)
    r = solvers.ratios(s, alpha - 1, solvers.newton(s, alpha - 1, **options))
    return r / r.sum(-1, True)


@pytest.mark.parametrize("alpha", [1.1, 1.33, 1.5, 1.75, 2.0, 3.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("d", [1, 2, 40, 300, 2500])
def test_solvers_agree(alpha, dtype, d):
    for scale in (0.01, 0.3, 3.0):
        z = random(6, d, scale=scale, dtype=dtype)
        expected = entmax(z.double(), alpha, solver="bisect")
        for solver in SOLVERS.get(alpha, ["bisect", "newton", "auto"]):
            p = entmax(z, alpha, solver=solver)
            torch.testing.assert_close(p.double(), expected, atol=CLOSE[dtype], rtol=0)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0])
@pytest.mark.parametrize("shrink", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("d", [30, 60, 1000])
def test_ladders(alpha, shrink, d):
    z = ladder(d, alpha - 1, shrink)
    expected = entmax(z, alpha, solver="bisect")
    torch.testing.assert_close(entmax(z, alpha), expected, atol=1e-11, rtol=0)
    # as on a GPU, which is asked at every other step, and with the fixed number of steps that CUDA graphs need
    for check_every in (1, 2, 0):
        for powers in (False, True):
            found = solve(z, alpha, check_every=check_every, powers=powers)
            torch.testing.assert_close(found, expected, atol=1e-11, rtol=0)


@pytest.mark.parametrize("alpha", [1.05, 1.33, 1.5, 2.0, 2.5, 4.0])
@pytest.mark.parametrize("powers", [False, True])
def test_fixed_steps_are_enough(alpha, powers):
    for scale in (0.001, 0.1, 1.0, 30.0):
        z = random(20, 400, scale=scale)
        found = solve(z, alpha, check_every=0, powers=powers)
        torch.testing.assert_close(found, entmax(z, alpha, solver="bisect"), atol=1e-9, rtol=0)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-3, 0, width=32), min_size=1, max_size=40),
    st.sampled_from([1.05, 1.33, 1.5, 2.0]),
    st.booleans(),
    st.booleans(),
)
def test_newton_never_passes_the_solution(scores, alpha, clustered, powers):
    z = torch.tensor([scores], dtype=torch.float64)
    z = z - z.max()
    s = (z**3 if clustered else z) * (alpha - 1)
    solution = solvers.bisect(s, alpha - 1)
    width = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(12):
        _, width = solvers.norm_and_step(s, alpha - 1, width, powers=powers)
        assert width >= solution * (1 - 1e-12)
    # and from below as well: one tangent leads to the right side
    _, width = solvers.norm_and_step(s, alpha - 1, solution * 0.7, powers=powers)
    assert width >= solution * (1 - 1e-12)


@pytest.mark.parametrize("alpha", [1.0, 1.2, 1.5, 2.0, 2.5, "tensor"])
@pytest.mark.parametrize("d", [512, 523])
def test_blocks_mix_every_kind_of_row(alpha, d):
    scale = torch.tensor([0.001, 0.05, 0.4, 5.0], dtype=torch.float64).repeat(4).unsqueeze(1)
    z = random(16, d) * torch.cat([scale[:8].sort(0)[0], scale[8:]])
    z[3, :50] = float("-inf")
    a = torch.linspace(1.1, 2.6, 16, dtype=torch.float64).unsqueeze(1) if alpha == "tensor" else alpha
    with using(Cpu(block_entries=4 * d)):
        p = entmax(z, a)
    expected = torch.softmax(z, -1) if alpha == 1.0 else entmax(z, a, solver="bisect")
    torch.testing.assert_close(p, expected, atol=1e-11, rtol=0)
    assert ((p > 0) == (expected > (0 if alpha == 1.0 else 1e-11))).float().mean() > 0.999


@pytest.mark.parametrize("alpha", [1.2, 1.33, 1.5, 2.0])
def test_rows_with_few_and_many_entries_side_by_side(alpha, monkeypatch):
    """Gathered rows of very different length are solved apart, and come back in their order."""
    generator = torch.Generator().manual_seed(7)
    scores = torch.randn(40, 2048, generator=generator, dtype=torch.float64)
    scores *= torch.tensor([8.0, 3.0, 1.5, 0.7, 8.0]).repeat(8)[:, None]
    kinds = []
    monkeypatch.setattr(
        cpu_blocks,
        "_of_similar_length",
        lambda *args, old=cpu_blocks._of_similar_length: kinds.append(old(*args)) or kinds[-1],
    )
    with using(Cpu(few_entries=0)):
        found = entmax(scores, alpha)
    assert any(len(kind) > 1 for kind in kinds)
    assert all(torch.equal(torch.cat(kind).sort()[0], torch.arange(40)) for kind in kinds)
    expected = entmax(scores, alpha, solver="bisect")
    torch.testing.assert_close(found, expected)
    assert torch.equal(found > 0, expected > 0)


@pytest.mark.parametrize("alpha", [1.001, 1.1, 1.24, 1.26, 1.33, 1.9, 3.0, 10.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_stays_at_the_floor(alpha, dtype):
    """Outside the support, where powers are taken of a floor, probabilities are zero; just inside they are not."""
    epsilon = alpha - 1
    # widths in units of the largest entry's: at, far beyond and just inside the threshold
    inside = max(1e-6, torch.finfo(dtype).tiny ** (0.9 * epsilon))
    s = torch.tensor([[0.0, -1.0, -50.0, -float("inf"), inside - 1]], dtype=dtype)
    r = solvers.ratios(s, epsilon, torch.ones(1, 1, dtype=dtype))
    assert r[0, 0] == 1 and not r[0, 1:4].any()
    assert alpha > 2 or r[0, 4] > 0  # above 2 the last step before the threshold depends on rounding
    norm, following = solvers.norm_and_step(s, epsilon, torch.ones(1, 1, dtype=dtype), None)
    assert float(norm) >= 1 and float(following) <= 1


def test_topk_doubles_until_solved():
    z = random(4, 3000, scale=0.001)
    assert (entmax(z, 1.5) > 0).sum(-1).min() > 2000
    torch.testing.assert_close(entmax(z, 1.5, solver="topk"), entmax(z, 1.5, solver="sort"))


def test_wrong_solvers_are_errors():
    with pytest.raises(ValueError, match="Valid choices: auto, sort, topk, bisect, newton"):
        entmax(torch.zeros(3), 1.5, solver="quick")
    with pytest.raises(ValueError, match="`solver`: sort"):
        entmax(torch.zeros(3), 1.3, solver="sort")


def test_sparsemax_thresholds_peak_at_the_support_size():
    # lemma "tau_nondecr" for alpha = 1.5 (tau over the k largest rises up to the support's size), and sparsemax's twin
    s = random(20, seed=4).sort(descending=True)[0].unsqueeze(0)
    s = (s - s[:, :1]) * 0.5
    size = int((entmax(2 * s, 1.5) > 0).sum())
    taus = [-float(solvers.sort(s[:, :k], 0.5)) for k in range(1, size + 1)]
    assert all(a <= b + 1e-12 for a, b in zip(taus, taus[1:]))


NEW_TORCH = tuple(int(x) for x in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 13)


@pytest.mark.skipif(not NEW_TORCH, reason="fullgraph compilation is promised for torch 2.13 and later")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("alpha,backend", [(1.5, "inductor"), (1.33, "aot_eager")])
def test_compiles_as_one_graph(alpha, backend):
    z, grad = random(4, 9, dtype=torch.float32).requires_grad_(), random(4, 9, seed=1, dtype=torch.float32)
    compiled = torch.compile(lambda x: entmax(x, alpha), fullgraph=True, backend=backend)
    expected = entmax(z, alpha)
    p = compiled(z)
    torch.testing.assert_close(p, expected, atol=1e-6, rtol=0)
    (a,), (b,) = torch.autograd.grad(p, z, grad), torch.autograd.grad(expected, z, grad)
    torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


@pytest.mark.parametrize("alpha", [1.05, 1.33, 1.5, 1.75, 2.0, 2.5, 4.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_rows_of_every_scale(alpha, dtype, monkeypatch):
    """Every scale of scores, the maximum in every part of a row; and never many steps, however the sums round."""
    steps = []
    norm_and_step = solvers.norm_and_step
    monkeypatch.setattr(solvers, "norm_and_step", lambda *args: steps.append(1) or norm_and_step(*args))
    for d in (600, 784, 5000):
        for scale in (1e-4, 1e-2, 0.05, 0.1, 0.3, 1.0, 5.0, 30.0):
            z = random(64, d, scale=scale, seed=d, dtype=dtype)
            z[range(64), torch.arange(64) * (d - 1) // 63] += 2 * scale
            steps.clear()
            p = entmax(z, alpha)
            assert len(steps) <= (40 if alpha <= 2 else 400)
            torch.testing.assert_close(p.double().sum(-1), torch.ones(64, dtype=torch.float64), rtol=0, atol=1e-6)
            torch.testing.assert_close(p, entmax(z, alpha, solver="bisect"), rtol=1e-3, atol=2e-6)


@pytest.mark.parametrize("alpha", [1.05, 1.33, 1.5, 2.0])
def test_a_device_is_asked_rarely(alpha, monkeypatch):
    steps, asked = [], []
    norm_and_step, moves = solvers.norm_and_step, solvers._moves
    monkeypatch.setattr(solvers, "norm_and_step", lambda *args: steps.append(1) or norm_and_step(*args))
    monkeypatch.setattr(solvers, "_moves", lambda *args: asked.append(1) or moves(*args))
    for scale in (0.01, 1.0, 10.0):
        z = random(64, 1000, scale=scale, dtype=torch.float32)
        expected = entmax(z, alpha)
        steps.clear(), asked.clear()
        torch.testing.assert_close(solve(z, alpha, check_every=2), expected, atol=1e-6, rtol=0)
        assert len(steps) <= 10  # in place of the 32 that are enough for any row
        assert len(asked) <= 3


@pytest.mark.parametrize("alpha", [2.5, 3.0, 4.0])
@pytest.mark.parametrize("check_every", [1, 2])
def test_a_norm_that_jumps_ends_with_its_bracket(alpha, check_every, monkeypatch):
    """Above alpha = 2 no width may give a norm of 1 to the last digit; all the same the steps end."""
    steps = []
    norm_and_step = solvers.norm_and_step
    monkeypatch.setattr(solvers, "norm_and_step", lambda *args: steps.append(1) or norm_and_step(*args))
    for seed in range(5):
        z = random(64, 30, seed=seed, dtype=torch.float32)
        expected = entmax(z, alpha, solver="bisect")
        steps.clear()
        found = solve(z.double(), alpha, check_every=check_every)
        torch.testing.assert_close(found.float(), expected, atol=1e-6, rtol=0)
        assert len(steps) <= 100


@pytest.mark.parametrize("alpha", [1.25, 1.33, 1.5, 1.75, 1.99])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shrink", [0.5, 0.9])
def test_narrow_rows_that_newton_is_slow_on(alpha, dtype, shrink):
    for d in (3, 20, solvers.NARROW):
        s = torch.cat([ladder(d, alpha - 1, shrink, dtype), torch.zeros(1, d, dtype=dtype)])
        assert is_narrow(s, alpha)
        p = entmax(s, alpha)
        torch.testing.assert_close(p.double(), entmax(s.double(), alpha, solver="bisect"), atol=CLOSE[dtype], rtol=0)
        torch.testing.assert_close(p.sum(-1), torch.ones(2, dtype=dtype))


@pytest.mark.parametrize("alpha", [1.01, 1.5, 1.75, 2.0, 3.0])
@pytest.mark.parametrize("offset", [1e4, 1e6, 1e15])
def test_wide_rows_of_large_scores(alpha, offset):
    """Where a score is so large that the threshold below it is itself: the maximum is always found."""
    for d in (600, 20_000):
        flat = torch.full((2, d), offset)
        torch.testing.assert_close(entmax(flat, alpha), torch.full_like(flat, 1 / d), rtol=1e-4, atol=0)
        steep = torch.linspace(0, 1, d).repeat(3, 1) * offset
        with using("reference"):
            expected = entmax(steep, alpha)
        torch.testing.assert_close(entmax(steep, alpha), expected)


@pytest.mark.parametrize("alpha", [30.0, 34.0, 50.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_alphas(alpha, dtype):
    assert torch.equal(entmax(torch.tensor([0.0, -1.0], dtype=dtype), alpha), torch.tensor([1.0, 0.0], dtype=dtype))
    half = entmax(torch.zeros(2, dtype=dtype), alpha)
    torch.testing.assert_close(half, torch.full_like(half, 0.5))
    assert entmax(random(50, 30, scale=1e4, dtype=dtype), alpha).sum(-1).allclose(torch.ones(50, dtype=dtype))


@pytest.mark.parametrize("alpha, d", [(20.0, 200), (15.0, 1000), (30.0, 30)])
def test_gradients_of_large_alphas_are_numbers(alpha, d):
    z = torch.zeros(1, d, requires_grad=True)
    learned = torch.tensor(alpha, requires_grad=True)
    for a in (alpha, learned):
        (gradient,) = torch.autograd.grad(entmax(z, a)[0, 0], z)
        # p^(2 - alpha) (1 - 1/d) = d^18 (1 - 1/d) is beyond float32 for d = 200: the largest number stands for it
        assert gradient[0, 0] == torch.finfo(torch.float32).max and gradient[0, 1] < 0
    # equal probabilities stay equal whatever alpha is
    (slope,) = torch.autograd.grad(entmax(z.detach(), learned)[0, 0], learned)
    assert slope.abs() < 1e-9
