"""The compiled steps in float32 against the operations of PyTorch in float64, function by function and as a whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_entmax import engines
from onmt_entmax.engines.cpu import Cpu, attention, blocks, loops
from onmt_entmax.engines.cpu.cells import cell_forward
from onmt_entmax.engines.cpu.decoder import UnrollCompiled
from onmt_entmax.engines.decoder import UnrollOperations
from onmt_entmax.engines.ragged import Ragged
from onmt_entmax.entmax import entmax
from onmt_entmax.plugin.modules import Encoder
from tests.engines.cases import Case, assert_equal, normal
from tests.model.helpers import embeddings, options

ALPHAS = [1.0, 1.1, 1.33, 1.5, 1.75, 2.0]
NONE = loops.NONE[2]
needs_threads = pytest.mark.skipif(not loops._found(), reason="PyTorch's OpenMP library was not found")
several = pytest.param(2, marks=needs_threads)


def gates_of(*values):
    """Activations of gates that are ``values`` before them: one LSTM unit's four gates for each sentence."""
    gates = np.array(values, np.float32).reshape(4, -1)
    n = gates.shape[1]
    cells, out = (np.empty((1, n), np.float32) for _ in range(2))
    before, read, shift = np.zeros((1, n), np.float32), np.empty((1, n), np.float32), np.zeros(4, np.float32)
    cell_forward(1, shift, gates, cells, before, out, read, 0, NONE, *loops.NO_MASK)
    assert np.array_equal(read, out, equal_nan=True)
    return gates, cells, out


def test_what_is_kept_on_disk_is_named_by_all_of_the_code(tmp_path):
    """Numba looks at a function's own file only; what it calls may stand in another one."""
    kernels = [value for value in (*vars(attention).values(), *vars(blocks).values()) if hasattr(value, "py_func")]
    names = [one.py_func.__qualname__ for one in kernels if one.py_func.__name__ in ("map_row", "_attend_forward")]
    assert names == [f"map_row_{loops.SOURCES}", f"_attend_forward_{loops.SOURCES}"]
    assert loops.SOURCES in attention.map_row._cache._cache_file._index_path  # numba's, and nowhere public
    (tmp_path / "a.py").write_text("one", encoding="utf-8")
    (tmp_path / "b.py").write_text("two", encoding="utf-8")
    before = loops.digest(tmp_path)
    (tmp_path / "b.py").write_text("tw0", encoding="utf-8")
    assert len({before, loops.digest(tmp_path)}) == 2
    (tmp_path / "b.py").write_text("two", encoding="utf-8")
    assert loops.digest(tmp_path) == before


def test_sigmoid_and_tanh_to_the_last_bits():
    x = np.concatenate([np.linspace(-100, 100, 20001), np.linspace(-1, 1, 20001), [-1e30, 1e30, -np.inf, np.inf]])
    x = x.astype(np.float32)
    gates, _, _ = gates_of(x, x, x, x)
    exact = torch.from_numpy(x.astype(np.float64))
    for row, expected in ((0, exact.sigmoid()), (2, exact.tanh())):
        assert np.abs(gates[row] - expected.numpy()).max() < 3e-7
    inside = np.abs(x) < 80  # where the result is a normal number
    relative = gates[0][inside] / exact.sigmoid().numpy()[inside] - 1
    assert np.abs(relative).max() < 4e-7


@pytest.mark.parametrize("place", range(4))
def test_nan_is_not_swallowed(place):
    values = [0.0, 0.0, 0.0, 0.0]
    values[place] = float("nan")
    assert np.isnan(gates_of(*values)[2]).all()


scores = st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=40)


@given(scores=scores, alpha=st.sampled_from(ALPHAS))
@settings(deadline=None, max_examples=200)
def test_mapping_of_any_scores(scores, alpha):
    row = np.array(scores, np.float32)
    probs = np.full_like(row, 7)
    attention.map_row(row, alpha, probs)
    expected = entmax(torch.from_numpy(row).double(), alpha).numpy()
    np.testing.assert_allclose(probs, expected, atol=2e-6)
    assert abs(probs.sum(dtype=np.float64) - 1) < 1e-6
    assert not probs[expected == 0][probs[expected == 0] > 1e-6].size


@pytest.mark.parametrize("alpha", ALPHAS)
def test_mapping_of_hard_rows(alpha):
    """Equal scores; a ladder, on which Newton's iteration goes from rung to rung; and NaN, which must not vanish."""
    for row in (np.zeros(500), -np.cumsum(0.6 ** np.arange(60)), -np.arange(300) / 299):
        row = row.astype(np.float32)
        probs = np.empty_like(row)
        attention.map_row(row, alpha, probs)
        np.testing.assert_allclose(probs, entmax(torch.from_numpy(row).double(), alpha).numpy(), atol=2e-6)
    row = np.array([0.0, np.nan, 1.0], np.float32)
    attention.map_row(row, alpha, row[:])
    assert np.isnan(row).all()


def test_transposed():
    matrix, other = normal(37, 50), normal(37, 4, seed=1)
    assert torch.equal(blocks.transposed(matrix), matrix.t())
    assert torch.equal(blocks.transposed(matrix[:, 9:]), matrix[:, 9:].t())
    assert torch.equal(blocks.transposed(matrix.t()[:, 2:]), matrix[2:])  # not contiguous
    assert torch.equal(blocks.transposed(matrix[:, 9:], other), torch.cat([matrix[:, 9:], other], 1).t())
    for parts in ([matrix], [matrix.t()], [matrix[:, 9:], other], [matrix.t()[:, :4].t(), other[:4].t()]):
        assert blocks.transposed(*parts).is_contiguous()


@pytest.mark.parametrize("count", [1, several])
def test_columns_of_blocks(count):
    ragged = Ragged.from_lengths(torch.tensor([4, 4, 2, 1]), 4)  # steps of 4, 3, 2 and 2 sentences
    buffer = blocks.Blocks.of(torch.arange(7 * 11, dtype=torch.float32), ragged)
    expected = torch.cat(buffer.tensors, 1)
    assert expected.shape == (7, 11)
    assert torch.equal(buffer.columns(count), expected)
    assert torch.equal(buffer.columns(count, 2, 5), expected[2:5])


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_unrolled_equals_operations(alpha, layers):
    case = Case(alpha, layers)
    assert_equal(case.run(UnrollCompiled.apply, torch.float32), case.run(UnrollOperations.apply, torch.float64))


@pytest.mark.parametrize(
    "changes", [{"ragged": False}, {"dropout": False}, {"masked": False}, {"batch": 1}, {"size": 16}]
)
def test_unrolled_without_one_thing(changes):
    case = Case(**changes)
    assert_equal(case.run(UnrollCompiled.apply, torch.float32), case.run(UnrollOperations.apply, torch.float64))


@needs_threads
@pytest.mark.parametrize("count", [2, 3, 40])
def test_threads_compute_what_one_does(count):
    """Bit for bit, since no sum is split; also with more threads than units and sentences."""
    case = Case()
    expected = case.run(UnrollCompiled.apply, torch.float32)
    case.plan = case.plan._replace(threads=count)
    assert all(torch.equal(a, b) for a, b in zip(case.run(UnrollCompiled.apply, torch.float32), expected))


def test_gradients_by_few_rows_at_a_time():
    case = Case()
    expected = case.run(UnrollCompiled.apply, torch.float32)
    case.plan = case.plan._replace(block_rows=5)
    for found, value in zip(case.run(UnrollCompiled.apply, torch.float32), expected):
        torch.testing.assert_close(found, value, rtol=1e-5, atol=1e-5)


def test_only_large_steps_are_shared(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    found = [loops.threads_for(int(count * loops.GRAIN)) for count in (0.5, 1, 2, 3.5, 4, 100)]
    assert found == ([1, 1, 2, 3, 4, 4] if loops._found() else [1] * 6)


def test_without_the_library_one_thread_does_everything(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(loops, "_ENTRY_POINTS", ("no_such_function",))
    loops._found.cache_clear()
    try:
        assert loops.threads_for(10**6) == 1
    finally:
        loops._found.cache_clear()


@needs_threads
def test_arrays_of_another_layout_are_refused():
    """A task reads its arguments from memory; one of another type would be read wrongly."""
    flat, rows, columns = np.zeros(8, np.float32), np.array([2, 2]), np.zeros((2, 4), np.float32)
    blocks.join(2, flat, rows, 2, 0, columns)
    for wrong in (np.zeros((4, 2), np.float32).T, columns.astype(np.float64), np.zeros(8, np.float32)):
        with pytest.raises(TypeError):
            blocks.join(2, flat, rows, 2, 0, wrong)


@pytest.mark.parametrize("losses", [[0], [1], [2], [3]])
def test_gradient_of_each_result_alone(losses):
    case = Case()
    ours = case.run(UnrollCompiled.apply, torch.float32, losses)
    assert_equal(ours, case.run(UnrollOperations.apply, torch.float64, losses))


def test_backward_twice_is_the_same():
    case = Case()
    arguments = [argument.clone().requires_grad_() for argument in case.arguments]
    loss = UnrollCompiled.apply(case.plan, *arguments)[0].sum()
    first = torch.autograd.grad(loss, arguments, retain_graph=True)
    again = torch.autograd.grad(loss, arguments)
    assert all(torch.equal(a, b) for a, b in zip(first, again))


def test_backward_through_the_encoder_twice_is_the_same():
    torch.manual_seed(0)
    encoder = Encoder.from_opt(options(enc_layers=2, enc_hid_size=34, bridge=False), embeddings()).float()
    src = torch.randint(2, 11, (3, 6, 1))
    loss = encoder(src, torch.tensor([6, 4, 2]))[0].square().sum()
    first = torch.autograd.grad(loss, list(encoder.parameters()), retain_graph=True)
    again = torch.autograd.grad(loss, list(encoder.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(first, again))


def test_nan_reaches_every_result_behind_it():
    case = Case(masked=False)
    case.arguments[0][0, 2, 3] = float("nan")  # of the first sentence's third step
    outputs, probs, *_ = UnrollCompiled.apply(case.plan, *case.arguments)
    assert outputs[0, :2].isfinite().all() and outputs[1:].isfinite().all() and probs[0, :2].isfinite().all()
    assert outputs[0, 2:].isnan().all() and probs[0, 2:].isnan().all()


@pytest.mark.parametrize("brnn", [True, False])
@pytest.mark.parametrize("lengths", [[7, 7, 5, 3, 1], [3, 7, 1, 5, 7], [4, 4, 4, 4, 4]])
@pytest.mark.parametrize("count", [1, several])
def test_encoder_equals_operations(brnn, lengths, count):
    results = []
    for dtype, engine in ((torch.float32, Cpu(threads=count)), (torch.float64, engines.REFERENCE)):
        torch.manual_seed(0)
        opt = options(brnn=brnn, enc_layers=2, enc_hid_size=34, bridge=False)
        encoder = Encoder.from_opt(opt, embeddings()).to(dtype)
        src = torch.randint(2, 11, (5, max(lengths), 1), generator=torch.Generator().manual_seed(1))
        with engines.using(engine):
            memory, (hidden, cell), _ = encoder(src, torch.tensor(lengths))
        loss = sum(
            (part * normal(*part.shape, seed=k).to(dtype)).sum() for k, part in enumerate((memory, hidden, cell))
        )
        loss.backward()
        results.append([memory, hidden, cell, *(parameter.grad for parameter in encoder.parameters())])
    assert_equal(*results)
