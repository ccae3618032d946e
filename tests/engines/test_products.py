from __future__ import annotations

import pytest
import torch
from torch import nn

from onmt_entmax import engines
from onmt_entmax.engines.cpu import products as module
from onmt_entmax.engines.cpu.decoder import UnrollCompiled
from onmt_entmax.engines.cpu.products import Products, arithmetic, choose, largest_error, products
from onmt_entmax.engines.decoder import EXACT
from onmt_entmax.errors import UserError
from tests.engines.cases import Case


def setting():
    return module._precision()


@pytest.fixture
def rounds(monkeypatch):
    """A machine on which oneDNN rounds to bfloat16, as processors with AMX do."""
    module._choice.cache_clear()
    monkeypatch.setattr(module, "_processor", lambda: module._Processor("AuthenticAMD", 26, frozenset({"avx512f"})))
    monkeypatch.setattr(module, "largest_error", lambda: 1e-4)
    yield
    module._choice.cache_clear()


def test_products_are_as_exact_as_float32_however_they_are_computed():
    before = setting()
    with products("auto") as found:
        assert found.precision == "fp32"
        assert largest_error() <= module.TOLERANCE
        left, right = torch.randn(64, 600), torch.randn(600, 300)
        exact, scale = left.double() @ right.double(), left.double().abs() @ right.double().abs()
        assert float(((left @ right - exact).abs() / scale).max()) <= module.TOLERANCE
    assert setting() == before


def test_error_tells_bfloat16_from_float32():
    # an operand rounded to 8 bits is off by up to 2^-9 of itself; over the terms of a product such errors partly cancel
    left, right = torch.randn(64, 600), torch.randn(600, 300)
    rounded = left.bfloat16().float() @ right.bfloat16().float()
    exact, scale = left.double() @ right.double(), left.double().abs() @ right.double().abs()
    assert float(((rounded - exact).abs() / scale).max()) > 10 * module.TOLERANCE


def test_where_it_would_round_only_bf16_asks_for_it(rounds):
    before = setting()
    with products("auto") as found:
        assert found == Products("PyTorch", "fp32", "oneDNN would round to bfloat16 here (error 1.0e-04)")
        assert setting() == before
    with products("bf16") as found:
        assert (found.library, found.precision, found.name) == ("oneDNN", "bf16", "bf16-oneDNN")
        assert setting() == module._ROUNDING
        with products("auto") as inner:  # a validation's translations, in a training that asked for it
            assert inner is found
        with products("fp32"):
            assert setting() == before
        assert setting() == module._ROUNDING
    assert setting() == before


def test_restored_after_an_error(rounds):
    before = setting()
    with pytest.raises(KeyError), products("bf16"):
        raise KeyError
    assert setting() == before


@pytest.mark.parametrize(
    "vendor, family, flags",
    [
        ("GenuineIntel", 6, {"avx512f"}),
        ("AuthenticAMD", 25, {"avx512f"}),
        ("AuthenticAMD", 26, {"avx2"}),
        ("", 0, set()),
    ],
)
def test_other_processors_stay_with_pytorch(monkeypatch, vendor, family, flags):
    module._choice.cache_clear()
    monkeypatch.setattr(module, "_processor", lambda: module._Processor(vendor, family, frozenset(flags)))
    assert choose("auto").library == "PyTorch"
    module._choice.cache_clear()


@pytest.mark.parametrize("wanted", ["auto", "fp32"])
def test_the_reference_multiplies_as_pytorch_does(rounds, monkeypatch, wanted):
    monkeypatch.setenv("ONMT_ENTMAX_ENGINE", "reference")
    assert choose(wanted) == Products("PyTorch", "fp32", "`ONMT_ENTMAX_ENGINE` is reference")
    with pytest.raises(
        UserError, match="Invalid setting for `matmul_precision`: bf16.*`ONMT_ENTMAX_ENGINE` is reference"
    ):
        choose("bf16")


def test_other_words_are_refused():
    with pytest.raises(
        ValueError, match=r"Invalid setting for `matmul_precision`: fp64\. Valid choices: auto, fp32, bf16\."
    ):
        choose("fp64")


@pytest.fixture
def multiplies_bf16(monkeypatch):
    """A machine that multiplies bfloat16, but on which oneDNN does not round float32, such as AMD's of family 25."""
    module._choice.cache_clear()
    flags = frozenset({"avx512f", "avx512_bf16"})
    monkeypatch.setattr(module, "_processor", lambda: module._Processor("AuthenticAMD", 25, flags))
    monkeypatch.setattr(module, "largest_error", lambda: 2e-7)
    monkeypatch.delenv("ONMT_ENTMAX_ENGINE", raising=False)
    yield
    module._choice.cache_clear()


def test_layers_round_in_training_where_only_they_can(multiplies_bf16):
    reason = "`matmul_precision` is bf16: LSTM layers round their operands"
    assert choose("bf16", training=True) == Products("oneDNN", "bf16", reason, by_layers=True)
    assert choose("auto", training=True) == choose("auto")  # nobody is rounded without being asked
    assert choose("fp32", training=True).library == "PyTorch"
    assert choose("bf16").reason == (
        "`matmul_precision` is bf16, but its float32 products are exact to 2.0e-07 here, and what searches and scores "
        "does not round"
    )
    with products("bf16", training=True):
        assert arithmetic() is module.ROUNDED
        with products("fp32"):
            assert arithmetic() is EXACT
        with products("auto"):
            assert arithmetic() is module.ROUNDED
    assert arithmetic() is EXACT


def test_layers_do_not_round_without_instructions_or_compiled_loops(multiplies_bf16, monkeypatch):
    monkeypatch.setattr(engines, "name", lambda *where: "unrolled")
    assert choose("bf16", training=True).reason.endswith("no layers are compiled (numba is missing)")
    module._choice.cache_clear()
    monkeypatch.setattr(module, "_processor", lambda: module._Processor("GenuineIntel", 6, frozenset({"avx512f"})))
    found = choose("bf16", training=True)
    assert (found.precision, found.by_layers) == ("fp32", False)
    assert found.reason.endswith("the processor has no instructions for bfloat16")


def test_rounded_products_are_those_of_rounded_operands():
    # 1 + 2^-9 lies halfway between 1 and the next bfloat16, 1 + 2^-7 is one: ties go to the even one, 1
    left = torch.tensor([[1 + 2**-9, 1 + 2**-7], [3.0, 4.0]])
    right = torch.tensor([[2.0], [1.0]])
    product = torch.tensor([[3 + 2**-7], [10.0]])  # of 1, 1 + 2^-7, 3, 4 with 2 and 1
    kept = product.bfloat16().float()  # the product is rounded once more: near 3 bfloat16 has steps of 2^-6
    multiply = module.ROUNDED
    for first in (left, multiply.operand(left)):
        assert torch.equal(multiply.mm(first, right), kept)
        out = torch.empty(2, 1)
        assert multiply.mm(first, right, out=out) is out and torch.equal(out, kept)
        assert torch.equal(multiply.addmm(torch.ones(2, 1), first, right), 1 + kept)
        assert multiply.addmm(out, first, right, out=out) is out and torch.equal(out, 2 * kept)


def assert_near(exact, rounded):
    """Off by a rounding or a few in a row, each of up to 2^-9 = 0.002, and not the same."""
    for one, other in zip(exact, rounded):
        assert float(((one - other).norm() / one.norm().clamp(min=1e-6)).detach()) < 0.02
    assert not torch.equal(exact[0], rounded[0])


@pytest.mark.parametrize("batch, lengths", [(1, [1]), (4, [7, 7, 3, 1])])
def test_rounding_encoder_is_near_the_exact_one(multiplies_bf16, batch, lengths):
    torch.manual_seed(1)
    rnn = nn.LSTM(24, 16, 2, bidirectional=True, batch_first=True)
    emb, engine = torch.randn(batch, lengths[0], 24), engines.choose(torch.device("cpu"), torch.float32)

    def results():
        inputs = emb.clone().requires_grad_()
        memory, (hidden, cell) = engine.encode(rnn, inputs, torch.tensor(lengths))
        rnn.zero_grad()
        (memory.sin().sum() + hidden.cos().sum() + cell.sin().sum()).backward()
        return [memory.detach(), inputs.grad, *(parameter.grad.clone() for parameter in rnn.parameters())]

    exact = results()
    with products("bf16", training=True):
        assert_near(exact, results())
    assert all(torch.equal(one, other) for one, other in zip(exact, results()))  # and exact again afterwards


@pytest.mark.parametrize("changes", [{}, {"ragged": False}, {"batch": 1}])
def test_rounding_decoder_is_near_the_exact_one(multiplies_bf16, changes):
    case = Case(1.0, **changes)  # softmax: with a sparse mapping a rounding may change the support
    exact = case.run(UnrollCompiled.apply, torch.float32)
    with products("bf16", training=True):
        assert_near(exact, case.run(UnrollCompiled.apply, torch.float32))
