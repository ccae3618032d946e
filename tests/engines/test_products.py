from __future__ import annotations

import pytest
import torch

from onmt_entmax.engines.cpu import products as module
from onmt_entmax.engines.cpu.products import Products, choose, largest_error, products
from onmt_entmax.errors import UserError


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
