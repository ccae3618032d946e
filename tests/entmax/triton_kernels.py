"""The Triton kernels under Triton's interpreter, against the reference in float64; test_triton.py runs this file.

It needs a process of its own with ``TRITON_INTERPRET=1``, and triton. Tolerances are a few roundings of the dtype.
With ``KERNELS_ON=cuda`` it runs the kernels on a GPU instead.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from onmt_entmax import engines
from onmt_entmax.entmax import (
    entmax,
    entmax_backward,
    entmax_forward,
    entmax_loss,
    linear_entmax_loss,
    linear_loss,
    log_entmax,
)
from onmt_entmax.entmax import triton as kernels
from onmt_entmax.entmax.engine import engine_for, say_once, using
from onmt_entmax.entmax.linear_loss import Totals, solve_at_once
from onmt_entmax.entmax.losses import smoothed_entropy

DEVICE = os.environ.get("KERNELS_ON", "cpu")

NUMBERS = [1.0, 1.05, 1.33, 1.5, 1.75, 2.0, 2.5]
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in the interpreter


@pytest.fixture(autouse=True)
def gpu_engine(monkeypatch):
    monkeypatch.setenv("ONMT_ENTMAX_ENGINE", "gpu")
    assert kernels.INTERPRETED or DEVICE != "cpu"


@pytest.fixture
def small_chunks(monkeypatch):
    """Rows of more than 8 entries count as wide, and are read 16 entries at a time."""
    for name, size in (("WIDEST", 8), ("CHUNK", 16), ("CHUNK_DOUBLE", 16)):
        monkeypatch.setattr(kernels, name, size)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE)


def tensor(values, **kinds):
    return torch.tensor(values, device=DEVICE, **kinds)


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
        a = tensor(NUMBERS).unsqueeze(1)
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


def check_sizes_and_ladders(alpha, d):
    """Rows of equal entries, ladders (which take Newton long), one entry far above all others, and every 16th so."""
    one = torch.arange(d, device=DEVICE)
    z = torch.stack([torch.zeros_like(one), -one / d, -(2.0**-one), -one * 100.0, 3.0 * (one % 16 == 5)]).float()
    expected = reference(z, alpha, torch.ones_like(z))[0]
    torch.testing.assert_close(entmax_forward(z, alpha).double(), expected, atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("d", [1, 2, 40])
@pytest.mark.parametrize("alpha", [1.33, 1.5, 2.0])
def test_sizes_and_ladders(alpha, d):
    check_sizes_and_ladders(alpha, d)


@pytest.mark.parametrize("alpha, d", [(1.05, 50), (1.5, 9), (1.5, 16), (1.5, 50), (2.0, 17), (2.5, 17)])
def test_sizes_and_ladders_of_wide_rows(small_chunks, alpha, d):
    check_sizes_and_ladders(alpha, d)


def test_by_head_through_autograd():
    """(batch, heads, queries, keys) with one alpha per head: its gradient adds up over the head's rows."""
    z, grad = random(1, 2, 2, 5).float().requires_grad_(), random(1, 2, 2, 5, seed=1).float()
    a = tensor([1.2, 1.8]).view(1, 2, 1, 1).requires_grad_()
    probs = entmax(z, a)
    assert type(engine_for(z)) is kernels.Gpu
    found = torch.autograd.grad(probs, [z, a], grad)
    expected, gradients = reference(z.detach(), a.detach(), grad)
    torch.testing.assert_close(probs.double(), expected, atol=3e-6, rtol=3e-6)
    for ours, theirs in zip(found, gradients):
        torch.testing.assert_close(ours.double(), theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("wide", [False, True])
def test_what_no_row_can_answer_is_nan(request, wide):
    """Nothing but minus infinity, infinity, NaN: never an answer that ignores it; other rows are none the worse."""
    if wide:
        request.getfixturevalue("small_chunks")
    z = torch.zeros(4, 9, device=DEVICE)
    z[0], z[1, 3], z[2, 8] = -float("inf"), float("inf"), float("nan")
    for alpha in (1.5, 1.33):
        probs = kernels.Gpu().entmax(z, alpha)
        assert probs[:3].isnan().all()
        torch.testing.assert_close(probs[3], torch.full((9,), 1 / 9, device=DEVICE))
    found = block_of_logits(kernels.LogitsSolver(), z, tensor([0, 1, 2, 3]), None, 1.5, 0.0)
    assert found["losses"][:1].isnan().all() and found["gradient"][:3].isnan().all()
    assert found["gradient"][3].isfinite().all()


def test_strided_and_empty():
    z = random(5, 2).float()
    torch.testing.assert_close(entmax(z, 1.5, dim=0), entmax(z.t().contiguous(), 1.5).t())
    assert entmax(torch.empty(0, 3, device=DEVICE), 1.5).shape == (0, 3)
    torch.testing.assert_close(entmax_backward(z.t(), z.t(), 2.0), entmax_backward(z.t().contiguous(), z.t(), 2.0))


def block_of_logits(solve, logits, target, counted, alpha, smoothing):
    """What a solver says of a block of logits, with the rows' losses apart: row by row."""
    vocab = logits.shape[1]
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    entropy = smoothed_entropy(vocab, alpha, smoothing) if smoothing > 0 else 0.0
    totals = Totals(target, dtype, smoothing, entropy, True)
    z = logits.clone()
    gradient = solve(z, target, counted, alpha, smoothing, totals, 0, True).residual
    found = {name: getattr(totals, name) for name in ("loss", "plain", "correct", "size", "gold", "squares")}
    return {**found, "losses": torch.stack([totals.loss, totals.plain]), "gradient": gradient}


@pytest.mark.parametrize("dtype, smoothing", [(dtype, 0.1) for dtype in TOLERANCE] + [(torch.float32, 0.0)], ids=str)
@pytest.mark.parametrize("alpha", NUMBERS)
def test_a_block_of_logits(small_chunks, alpha, dtype, smoothing):
    """Against the reference's solver; the fourth row does not count, the second's largest logits are two."""
    logits = (2 * random(5, 40)).to(dtype)
    logits[1, 3] = logits[1, 30] = 9.0
    logits[2, 1:35] = -float("inf") if smoothing == 0 else -9.0
    target, counted = tensor([39, 3, 0, 0, 17]), tensor([[True], [True], [True], [False], [True]])
    found = block_of_logits(kernels.LogitsSolver(), logits, target, counted, alpha, smoothing)
    expected = block_of_logits(solve_at_once, logits.double(), target, counted, alpha, smoothing)
    assert found["gradient"].dtype == dtype
    assert not found["gradient"][3].any() and found["size"][3] == 0
    assert torch.equal(found["size"], expected["size"]) and found["correct"] == expected["correct"]
    for name in ("loss", "plain", "gold", "squares"):
        torch.testing.assert_close(found[name].double(), expected[name], atol=2e-5, rtol=5e-6)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(found["gradient"].double(), expected["gradient"], atol=tolerance, rtol=tolerance)


def test_of_two_largest_logits_the_first_is_predicted(small_chunks):
    """As the reference has it, within a chunk, between chunks, and where both stand at one place of their chunks."""
    logits = torch.zeros(6, 40, device=DEVICE)
    for row, (first, second) in enumerate([(3, 5), (15, 16), (2, 34)] * 2):
        logits[row, [first, second]] = 1.0
    target = tensor([3, 15, 2, 5, 16, 34])  # the first for three rows, then the second
    found = block_of_logits(kernels.LogitsSolver(), logits, target, None, 1.5, 0.0)
    assert found["correct"] == 3


class NothingIsRead(TorchDispatchMode):
    """Raises where the host would wait for a device."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        assert operation.overloadpacket.__name__ not in ("_local_scalar_dense", "nonzero", "masked_select")
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("free", [True, False], ids=["rows left out", "rows masked"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_output_layer(monkeypatch, small_chunks, free, smoothing):
    """Layer and loss, in blocks of two rows, through autograd; elsewhere than on a CPU nothing is read."""
    if not free:
        monkeypatch.setattr(linear_loss, "free_to_read", lambda x: False)
    monkeypatch.setattr(kernels.Gpu, "logits", 100)
    target = tensor([3, -100, 0, 39, 7])

    def run(dtype):
        given = [random(*shape, seed=i).to(dtype).requires_grad_() for i, shape in enumerate([(5, 6), (40, 6), (40,)])]
        found = linear_entmax_loss(*given, target, 1.5, "sum", label_smoothing=smoothing, statistics=True)
        return [*found, *torch.autograd.grad(found.loss, given)]

    with NothingIsRead() if not free else using("gpu"):
        found = run(torch.float32)
    with using("reference"):
        expected = run(torch.float64)
    for ours, theirs in zip(found, expected):
        torch.testing.assert_close(ours.double(), theirs.double(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("alpha", [1.33, 2.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses(small_chunks, alpha, smoothing):
    z, target = random(3, 20), tensor([19, -100, 4])
    found = []
    for engine, dtype in (("gpu", torch.float32), ("reference", torch.float64)):
        with using(engine):
            rows = z.to(dtype).requires_grad_()
            losses = entmax_loss(rows, target, alpha, "none", label_smoothing=smoothing)
            found.append([losses, *torch.autograd.grad(losses, rows, tensor([1.0, 2.0, -3.0], dtype=dtype))])
    for ours, theirs in zip(*found):
        torch.testing.assert_close(ours.double(), theirs, atol=1e-5, rtol=1e-5)


def test_no_rows_and_one_class():
    none = linear_entmax_loss(random(0, 4).float(), random(5, 4).float(), None, tensor([], dtype=torch.int64))
    assert none.support_size.shape == (0,) and none.n_correct == 0
    one = linear_entmax_loss(random(2, 4).float(), random(1, 4).float(), None, tensor([0, 0]), statistics=True)
    assert one.loss == 0 and one.n_correct == 2 and one.gold_prob.tolist() == [1.0, 1.0]


def test_wide_rows_of_their_true_size():
    """More than one real chunk, by the mapping and its logarithm."""
    z = 3 * random(2, 2100)
    with using("reference"):
        expected = entmax(z, 1.5)
    probs = entmax(z.float(), 1.5)
    torch.testing.assert_close(probs.double(), expected, atol=3e-6, rtol=1e-5)
    torch.testing.assert_close(log_entmax(z.float(), 1.5), probs.log())


def test_what_has_no_kernel_the_reference_computes(monkeypatch, caplog):
    """With ``auto`` it says so in the log; where the engine was asked for, it is an error."""
    alpha, target = tensor([[1.3], [1.6]]), tensor([0, 1])
    reason = "its kernels know tensors of alphas for mappings of up to 1024 entries only"
    for compute in (
        lambda: entmax(random(2, 1025).float(), alpha),
        lambda: entmax_loss(random(2, 5).float(), target, alpha),
    ):
        with using("reference"):
            expected = compute()
        with pytest.raises(ValueError, match=rf"^Invalid setting for `ONMT_ENTMAX_ENGINE`: gpu\. .*: {reason}\.$"):
            compute()
        say_once.cache_clear()
        caplog.clear()
        monkeypatch.setattr(kernels, "asked_engine", lambda: "auto")
        with caplog.at_level("INFO", "onmt.entmax"):
            assert torch.equal(compute(), expected)
        assert [record.getMessage() for record in caplog.records] == [
            f"The reference computes entmax, not Triton: {reason}."
        ]
        monkeypatch.setattr(kernels, "asked_engine", lambda: "gpu")


def test_what_it_does_not_know_is_an_error_of_one_line():
    with pytest.raises(
        ValueError, match=r"^Invalid setting for `ONMT_ENTMAX_ENGINE`: gpu\. .* up to 3.0, and this one is 4\.$"
    ):
        entmax(torch.zeros(2, 3, device=DEVICE), 4.0)
    message = r"gpu\. It cannot compute float64 on .*: it serves float32, bfloat16 and float16 only\.$"
    with pytest.raises(ValueError, match=message):
        entmax(torch.zeros(2, 3, dtype=torch.float64, device=DEVICE), 1.5)
    with pytest.raises(ValueError, match=message):
        engines.name(DEVICE, torch.float64)


def test_both_choosers_agree():
    assert engines.name(DEVICE, torch.float32) == engine_for(torch.zeros(1, device=DEVICE)).name == "gpu"
