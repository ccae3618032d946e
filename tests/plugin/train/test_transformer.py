"""Learned alphas of a Transformer's heads: trained at a rate of their own, saved, resumed bit for bit, averaged."""

from __future__ import annotations

import json
import sys

import onmt.bin.average_models
import pytest
import torch

from onmt_entmax.entmax import LearnedAlpha
from onmt_entmax.errors import UserError
from onmt_entmax.plugin.train.saver import KEY
from tests.plugin.train.helpers import assert_identical, config, train

CHANGES = {
    "encoder_type": "transformer",
    "decoder_type": "transformer",
    "heads": 2,
    "transformer_ff": 16,
    "position_encoding": "true",
    "global_attention_function": "softmax",
    "self_attention_alpha": 1.5,
    "context_attention_alpha": "learned",
    "learned_alpha_start": 1.3,
    "query_init": 1,  # of equal scores alpha has no gradient
    "param_init": 0,
    "param_init_glorot": "true",
    "attention_dropout": "[0.1]",
    "max_grad_norm": 0,
}
RAW = "decoder.transformer_layers.{}.context_attn.softmax.learned_alpha.raw"


def test_learned_alphas_resume_bit_for_bit(folder, caplog):
    yaml = config(folder, **CHANGES, learned_alpha_rate=5)
    whole = train(yaml, folder / "whole" / "m", 8)
    train(yaml, folder / "parts" / "m", 4)
    # without our options: they come from the checkpoint
    bare = {name: value for name, value in CHANGES.items() if "alpha" not in name}
    yaml = config(folder, **bare)
    further = ("-train_from", f"{folder}/parts/m_step_4.pt", "-learned_alpha_rate", "3")
    parts = train(yaml, folder / "parts" / "m", 8, *further)
    assert "`learned_alpha_rate: 3.0` of the configuration is not used: `reset_optim: none` keeps" in caplog.text
    for key in ("model", "generator", "optim", KEY):
        assert_identical(whole[key], parts[key], skip=("/elapsed", "/kept"))
    for name, value in vars(whole["opt"]).items():
        if "alpha" in name:
            assert getattr(parts["opt"], name) == value, name
    assert [group.get("rate") for group in whole["optim"]["optimizer"]["param_groups"]] == [None, 5.0]
    entry = json.loads((folder / "whole" / "m_metrics.jsonl").read_text(encoding="utf-8").split("\n")[0])
    assert "|alpha:1.5/enc1.5-dec1.5-ctxlearned|" in entry["signature"]
    assert entry["alpha_learned"] and 1 < entry["alpha_attention"] < 2 and entry["alpha_start"] == 1.3
    entries = (folder / "parts" / "m_metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert ["alpha_start" in json.loads(line) for line in entries] == [
        json.loads(line)["step"] <= 4 for line in entries
    ]
    anew = train(yaml, folder / "anew" / "m", 9, *further, "-reset_optim", "keep_states")
    assert [group.get("rate") for group in anew["optim"]["optimizer"]["param_groups"]] == [None, 3.0]
    with pytest.raises(UserError, match=r"`context_attention_alpha`: 1\.5\. The checkpoint .* trained with learned"):
        train(
            config(folder, **{**CHANGES, "context_attention_alpha": 1.5, "learned_alpha_start": "null"}),
            *(folder / "parts" / "m", 9, "-train_from", f"{folder}/parts/m_step_4.pt"),
        )


@pytest.mark.parametrize("rate", [1, 5])
def test_the_first_step_is_of_the_rate_asked_for(folder, rate):
    # Adam's first step moves every parameter that has a gradient by the learning rate, 0.05 here
    checkpoint = train(config(folder, **CHANGES, learned_alpha_rate=rate), folder / "m", 1)
    start = LearnedAlpha(start=1.3).raw.detach()
    for layer in range(2):
        moved = (checkpoint["model"][RAW.format(layer)] - start).abs()
        torch.testing.assert_close(moved, torch.full((2, 1, 1), 0.05 * rate), rtol=1e-2, atol=0)


def test_averaged_checkpoints_have_averaged_alphas(folder, monkeypatch):
    yaml = config(folder, **CHANGES)
    last = train(yaml, folder / "m", 4, "-save_checkpoint_steps", "2")
    paths = [str(folder / f"m_step_{step}.pt") for step in (2, 4)]
    monkeypatch.setattr(sys, "argv", ["average", "-models", *paths, "-output", str(folder / "average.pt")])
    onmt.bin.average_models.main()
    first, average = (torch.load(path, weights_only=False)["model"] for path in (paths[0], folder / "average.pt"))
    name = RAW.format(1)
    torch.testing.assert_close(average[name], (first[name] + last["model"][name]) / 2)
