"""Modules equal their functions, and what stands under a name of the public package equals the package."""

from __future__ import annotations

import inspect
import itertools

import entmax as public
import pytest
import torch
from torch import nn

from onmt_entmax import entmax as ours
from onmt_entmax.entmax import Entmax, EntmaxLoss, LearnedAlpha, entmax, entmax_loss
from tests.entmax.test_functional import random

TARGET = torch.tensor([0, 3, 1, 3])
NAMES = [name for name in ours.__all__ if hasattr(public, name)]


def test_modules_are_their_functions():
    z = random(4, 5)
    torch.testing.assert_close(Entmax(1.3, dim=0)(z), entmax(z, 1.3, 0))
    torch.testing.assert_close(ours.Entmax15()(z), entmax(z, 1.5))
    torch.testing.assert_close(ours.Sparsemax(dim=0)(z), entmax(z, 2, 0))
    assert repr(Entmax(1.3)) == "Entmax(alpha=1.3, dim=-1)"
    expected = entmax_loss(z, TARGET, 1.3, "sum", 3, 0.1)
    torch.testing.assert_close(EntmaxLoss(1.3, "sum", 3, 0.1)(z, TARGET), expected)


def test_all_names_of_the_public_package():
    missing = {name for name in vars(public) if not name.startswith("_")} - set(ours.__all__)
    modules = {name for name in missing if inspect.ismodule(getattr(public, name))}
    rest = {"BudgetBisect", "NormmaxBisect", "NormmaxBisectLoss", "budget_bisect", "normmax_bisect"}
    assert missing - modules == rest | {"normmax_bisect_loss"}


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_the_package_s(name):
    def arguments(thing):
        found = list(inspect.signature(thing).parameters.items())
        # scores are called X there
        return [("scores" if key == "X" else key, value.default) for key, value in found]

    assert arguments(getattr(ours, name)) == arguments(getattr(public, name))


def settings_of(name):
    """Every kind of keyword that the name takes."""
    known = inspect.signature(getattr(public, name)).parameters
    choices = {
        "dim": (-1, 0, 1),
        "k": (None, 2, 60),
        "n_iter": (60,),
        "reduction": ("elementwise_mean", "sum", "none"),
        "ignore_index": (-100, 3),
        "alpha": (1.3, 2.0, torch.tensor([[1.2], [1.5], [2.0], [2.5]], dtype=torch.float64)),
    }
    choices = {key: values for key, values in choices.items() if key in known}
    for values in itertools.product(*choices.values()):
        found = dict(zip(choices, values))
        # a tensor of this shape fits dim 1 only; of losses with one, the package makes a matrix (n, n)
        if not isinstance(found.get("alpha"), torch.Tensor) or found.get("dim") == 1:
            yield found


@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_the_package_s(name):
    def call(thing, z, keywords):
        target = (TARGET,) if "oss" in name else ()
        return thing(**keywords)(z, *target) if inspect.isclass(thing) else thing(z, *target, **keywords)

    for keywords in settings_of(name):
        z = random(4, 7, scale=2).requires_grad_()
        a, b = (call(getattr(package, name), z, keywords) for package in (ours, public))
        torch.testing.assert_close(a, b, atol=1e-9, rtol=0)
        grad = random(28, seed=1)[: a.numel()].view_as(a)
        (x,), (y,) = torch.autograd.grad(a, z, grad), torch.autograd.grad(b, z, grad)
        torch.testing.assert_close(x, y, atol=1e-6, rtol=0)


def test_gradient_of_alpha_is_the_package_s():
    z = random(3, 5)
    alpha = torch.tensor([[1.3], [1.6], [1.9]], dtype=torch.float64, requires_grad=True)
    grad = random(3, 5, seed=1)
    found = torch.autograd.grad(ours.entmax_bisect(z, alpha), alpha, grad)[0]
    expected = torch.autograd.grad(public.entmax_bisect(z, alpha, n_iter=100), alpha, grad)[0]
    torch.testing.assert_close(found, expected, atol=1e-8, rtol=0)


def test_losses_with_an_alpha_per_row():
    z, alpha = random(4, 6), torch.tensor([[1.0], [1.3], [1.5], [2.0]], dtype=torch.float64)
    found = ours.entmax_bisect_loss(z, TARGET, alpha)
    expected = [entmax_loss(z[i], TARGET[i], float(alpha[i])) for i in range(4)]
    torch.testing.assert_close(found, torch.stack(expected))


def test_alpha_of_a_module_may_be_a_tensor_a_parameter_or_learned():
    z = random(2, 5, dtype=torch.float32)
    fixed = torch.tensor([[1.2], [2.0]])
    module = Entmax(fixed)
    torch.testing.assert_close(module(z), entmax(z, fixed))
    assert not module.state_dict() and module.double().alpha.dtype == torch.float64  # it moves with the Module
    for alpha in (nn.Parameter(torch.tensor(1.4)), LearnedAlpha((2, 1), start=1.4)):
        for module in (Entmax(alpha), EntmaxLoss(alpha)):
            (parameter,) = module.parameters()
            out = module(z).square().sum() if isinstance(module, Entmax) else module(z, torch.tensor([0, 1]))
            (grad,) = torch.autograd.grad(out, parameter)
            assert (grad != 0).all() and grad.isfinite().all()


@pytest.mark.parametrize(
    "make", [ours.Entmax15Loss, ours.SparsemaxLoss, ours.EntmaxBisectLoss, ours.SparsemaxBisectLoss]
)
def test_unknown_reductions_name_the_valid_ones(make):
    with pytest.raises(ValueError, match="`reduction`: average. Valid choices: elementwise_mean, mean, sum, none."):
        make(reduction="average")
    assert make(reduction="mean")(random(4, 5), TARGET).shape == ()


@pytest.mark.parametrize("count", [0, -3, 2.5, "all", True])
def test_wrong_counts_are_errors(count):
    z = torch.zeros(4, 5)
    for make in (
        lambda: ours.entmax15(z, k=count),
        lambda: ours.Sparsemax(k=count),
        lambda: ours.sparsemax_loss(z, TARGET, k=count),
        lambda: ours.EntmaxBisect(n_iter=count),
        lambda: ours.entmax_bisect(z, n_iter=count),
        lambda: ours.SparsemaxBisectLoss(n_iter=count),
    ):
        with pytest.raises(ValueError, match=f"Invalid setting for `(k|n_iter)`: {count}. It must be a whole number"):
            make()


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
