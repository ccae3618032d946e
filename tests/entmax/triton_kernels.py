"""The Triton kernels under Triton's interpreter, against the reference in float64; test_triton.py runs this file.

It needs a process of its own with ``TRITON_INTERPRET=1``, and triton. Tolerances are a few roundings of the dtype.
"""

from __future__ import annotations

import pytest
import torch

from onmt_entmax import engines
from onmt_entmax.entmax import entmax, entmax_backward, entmax_forward, entmax_loss, linear_entmax_loss
from onmt_entmax.entmax import triton as kernels
from onmt_entmax.entmax.engine import engine_for, using

NUMBERS = [1.0, 1.05, 1.33, 1.5, 1.75, 2.0, 2.5]
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@pytest.fixture(autouse=True)
def gpu_engine(monkeypatch):
    monkeypatch.setenv("ONMT_ENTMAX_ENGINE", "gpu")
    assert kernels.INTERPRETED


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def reference(z, alpha, grad):
    """Probabilities and gradients of scores and alpha by the reference in float64."""
    with using("reference"):
        z = z.double().requires_grad_()
        a = alpha.double().requires_grad_() if isinstance(alpha, torch.Tensor) else alpha
        probs = entmax(z, a)
        inputs = [z, a] if isinstance(a, torch.Tensor) else [z]
        return probs, torch.autograd.grad(probs, inputs, grad.double())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("alpha", [*NUMBERS, "rows"])
def test_forward_and_backward(alpha, dtype):
    rows = len(NUMBERS)
    z, grad = (3 * random(rows, 6)).to(dtype), random(rows, 6, seed=1).to(dtype)
    z[1, 4:] = z[2, 1:] = -float("inf")  # masked entries; a row of one
    if alpha == "rows":
        a = torch.tensor(NUMBERS).unsqueeze(1)
    else:
        z, grad, a = z[:3], grad[:3], alpha
    probs = kernels.Gpu().entmax(z, a)
    expected, gradients = reference(z, a, grad)
    assert probs.dtype == dtype
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(probs.double(), expected, atol=tolerance, rtol=tolerance)
    if dtype == torch.float32:  # half precision may round small probabilities to zero
        assert torch.equal(probs > 0, expected > 0)
    found, found_alpha = kernels.Gpu().gradients(expected.to(dtype), grad, a)
    assert found.dtype == dtype
    scale = 4 * tolerance
    if alpha not in (2.5, "rows") or dtype == torch.float32:  # p^(2 - alpha) of a rounded p near 0 is anything
        torch.testing.assert_close(found.double(), gradients[0], atol=scale, rtol=scale)
    assert (found_alpha is None) == (alpha != "rows")
    if alpha == "rows":
        assert found_alpha.shape == (rows, 1)
        torch.testing.assert_close(found_alpha.double(), gradients[1], atol=2 * scale, rtol=scale)


@pytest.mark.parametrize("d", [1, 2, 40])
@pytest.mark.parametrize("alpha", [1.33, 1.5, 2.0])
def test_sizes_and_ladders(alpha, d):
    """Rows of equal entries, ladders (which take Newton long), and one entry far above all others."""
    z = torch.stack([torch.zeros(d), -torch.arange(d) / d, -(2.0 ** -torch.arange(d)), -torch.arange(d) * 100.0])
    expected = reference(z, alpha, torch.ones_like(z))[0]
    torch.testing.assert_close(entmax_forward(z, alpha).double(), expected, atol=3e-6, rtol=1e-5)


def test_by_head_through_autograd():
    """(batch, heads, queries, keys) with one alpha per head: its gradient adds up over the head's rows."""
    z, grad = random(1, 2, 2, 5).float().requires_grad_(), random(1, 2, 2, 5, seed=1).float()
    a = torch.tensor([1.2, 1.8]).view(1, 2, 1, 1).requires_grad_()
    probs = entmax(z, a)
    assert type(engine_for(z)) is kernels.Gpu
    found = torch.autograd.grad(probs, [z, a], grad)
    expected, gradients = reference(z.detach(), a.detach(), grad)
    torch.testing.assert_close(probs.double(), expected, atol=3e-6, rtol=3e-6)
    for ours, theirs in zip(found, gradients):
        torch.testing.assert_close(ours.double(), theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in the interpreter
def test_a_row_of_nothing_but_minus_infinity_is_nan():
    z = torch.full((2, 3), -float("inf"))
    z[1] = 0
    probs = kernels.Gpu().entmax(z, 1.5)
    assert probs[0].isnan().all()
    torch.testing.assert_close(probs[1], torch.full((3,), 1 / 3))


def test_strided_and_empty():
    z = random(5, 2).float()
    torch.testing.assert_close(entmax(z, 1.5, dim=0), entmax(z.t().contiguous(), 1.5).t())
    assert entmax(torch.empty(0, 3), 1.5).shape == (0, 3)
    torch.testing.assert_close(entmax_backward(z.t(), z.t(), 2.0), entmax_backward(z.t().contiguous(), z.t(), 2.0))


def test_what_has_no_kernel_the_reference_computes():
    wide = random(2, 1025).float()
    with using("reference"):
        expected = entmax(wide, 1.5)
    assert torch.equal(entmax(wide, 1.5), expected)
    z, target = random(2, 5).float(), torch.tensor([0, 1])
    with using("reference"):
        loss = entmax_loss(z, target)
    torch.testing.assert_close(entmax_loss(z, target), loss)
    weight = random(4, 5).float()
    torch.testing.assert_close(
        linear_entmax_loss(z, weight, None, target).loss, entmax_loss(z @ weight.t(), target, 1.5), rtol=1e-4, atol=1e-5
    )


def test_what_it_does_not_know_is_an_error_of_one_line():
    with pytest.raises(
        ValueError, match=r"^Invalid setting for `ONMT_ENTMAX_ENGINE`: gpu\. .* up to 3.0, and this one is 4\.$"
    ):
        entmax(torch.zeros(2, 3), 4.0)
    message = r"gpu\. It cannot compute float64 on a CPU: it serves float32, bfloat16 and float16 only\.$"
    with pytest.raises(ValueError, match=message):
        entmax(torch.zeros(2, 3, dtype=torch.float64), 1.5)
    with pytest.raises(ValueError, match=message):
        engines.name("cpu", torch.float64)


def test_both_choosers_agree():
    assert engines.name("cpu", torch.float32) == engine_for(torch.zeros(1)).name == "gpu"
