"""Training by the reference and by the engine that is taken by default: alike up to rounding, and each said so."""

from __future__ import annotations

import json

import pytest
import torch

from onmt_entmax import engines
from onmt_entmax.engines.cpu import products
from onmt_entmax.plugin.train.saver import KEY
from tests.plugin.train.helpers import config, train


def test_the_reference_trains_the_same_and_going_on_under_another_engine_is_said(folder, monkeypatch, caplog):
    yaml = config(folder, dropout="[0.0]")
    found = {}
    for name in ("reference", "auto"):
        monkeypatch.setenv(engines.VARIABLE, name)
        found[name] = train(yaml, folder / name / "m", 3)
    assert found["reference"][KEY]["engine"] == {"name": "reference", "products": "fp32"}
    assert found["auto"][KEY]["engine"]["name"] == "cpu"
    for name, value in found["reference"]["model"].items():
        # Adam's first steps are the rate times the sign of the gradient: where that is nearly 0, rounding may decide
        assert torch.quantile((found["auto"]["model"][name] - value).abs(), 0.9) < 1e-4, name
    assert "not bit for bit" not in caplog.text
    train(yaml, folder / "auto" / "n", 4, "-train_from", f"{folder}/reference/m_step_3.pt")
    assert "The checkpoint was computed by another engine (name reference, now cpu" in caplog.text


@pytest.mark.parametrize(
    "changes, rounds",
    [
        ({}, True),
        (
            {
                "encoder_type": "transformer",
                "decoder_type": "transformer",
                "heads": 2,
                "transformer_ff": 8,
                "global_attention_function": "softmax",
            },
            False,
        ),
    ],
)
def test_rounded_products_are_said_where_something_rounds(folder, monkeypatch, caplog, changes, rounds):
    monkeypatch.delenv(engines.VARIABLE, raising=False)
    flags = frozenset({"avx512_bf16"})
    monkeypatch.setattr(products, "_processor", lambda: products._Processor("AuthenticAMD", 25, flags))
    monkeypatch.setattr(products, "largest_error", lambda: 2e-7)
    products._choice.cache_clear()
    found = train(config(folder, matmul_precision="bf16", valid_steps=2, **changes), folder / "m", 2)
    products._choice.cache_clear()
    signature = json.loads((folder / "m_metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])["signature"]
    assert found[KEY]["engine"]["products"] == ("bf16-oneDNN" if rounds else "fp32-oneDNN")
    assert ("|matmul:bf16|" in signature) == rounds
    assert ("LSTM layers round their operands" in caplog.text) == rounds
    assert ("this model has none" in caplog.text) != rounds
