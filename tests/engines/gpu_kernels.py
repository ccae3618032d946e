"""The decoder's Triton kernels under Triton's interpreter, against PyTorch's operations in float64.

test_gpu.py runs this file in a process of its own; see tests/entmax/triton_kernels.py, and there for ``KERNELS_ON``.
"""

from __future__ import annotations

import pytest
import torch

from onmt_entmax.engines.decoder import UnrollOperations
from onmt_entmax.engines.gpu.decoder import UnrollKernels
from tests.engines.cases import Case, assert_equal

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in the interpreter
SMALL = {"ragged": False, "batch": 4, "steps": 3, "width": 5, "size": 6}


def both(case, dtype=torch.float32, losses=range(4)):
    """What the kernels find, and the operations with the same dropout: there a step's masks are ``(H, B)``."""
    expected = case.run(UnrollOperations.apply, torch.float64, losses)
    plan, mask = case.plan, case.plan.dropout
    if mask is not None:
        by_step = mask.mask.view(case.layers, plan.ragged.steps, case.size, plan.ragged.batch).transpose(2, 3)
        case.plan = plan._replace(dropout=mask._replace(mask=by_step.reshape(case.layers, -1)))
    found = case.run(UnrollKernels.apply, dtype, losses)
    case.plan = plan
    return found, expected


@pytest.mark.parametrize("alpha", [1.0, 1.05, 1.33, 1.5, 2.0])
def test_steps_equal_operations(alpha):
    """Outputs, attention, last states and all gradients; the first source has no tokens."""
    assert_equal(*both(Case(alpha, **SMALL)))


@pytest.mark.parametrize(
    "changes",
    [{"layers": 1}, {"layers": 3}, {"dropout": False}, {"masked": False}, {"batch": 1}, {"steps": 1}, {"width": 1}],
    ids=str,
)
def test_with_one_thing_less_or_more(changes):
    assert_equal(*both(Case(**{**SMALL, **changes})))


def test_more_than_a_block_of_numbers_and_a_chunk_of_features():
    """300 numbers in blocks of 256; 33 positions, so that 64 of 75 features are read at a time."""
    assert_equal(*both(Case(ragged=False, batch=4, steps=2, width=33, size=75)))


@pytest.mark.parametrize("used", [0, 1, 2, 3], ids=["outputs", "attention", "hidden", "cell"])
def test_only_some_results_used(used):
    assert_equal(*both(Case(**SMALL), losses=[used]))


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 0.1), (torch.float16, 0.02)], ids=str)
def test_half_precision(dtype, tolerance):
    """Results and gradients are rounded at every step; the largest of each is some tenths to tens."""
    found, expected = both(Case(**SMALL), dtype)
    for ours, theirs in zip(found, expected):
        assert ours.dtype == dtype
        scale = max(1.0, theirs.abs().max().item())
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=tolerance * scale)


def test_backward_twice():
    case = Case(**SMALL, dropout=False)
    arguments = [argument.clone().requires_grad_() for argument in case.arguments]
    outputs = UnrollKernels.apply(case.plan, *arguments)[0]
    first, second = (torch.autograd.grad(outputs.sum(), arguments, retain_graph=keep) for keep in (True, False))
    assert all(torch.equal(a, b) for a, b in zip(first, second))


def test_a_sentence_of_nan_leaves_the_others_alone():
    case = Case(**SMALL, dropout=False)
    expected = UnrollKernels.apply(case.plan, *case.arguments)
    case.arguments[1][2, 0, 0] = float("nan")  # of its keys
    found = UnrollKernels.apply(case.plan, *case.arguments)
    others = [0, 1, 3]
    assert found[1][2, 0, :2].isnan().all() and found[0][2].isnan().all()  # its source has two tokens
    assert torch.equal(found[0][others], expected[0][others]) and torch.equal(found[1][others], expected[1][others])
