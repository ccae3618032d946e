"""Whole runs of the trainer on the meta device: when the host asks the device for a number; and batches that don't fit.

The meta device stands for a GPU: what is read of it is counted, and zeros come back.
"""

from __future__ import annotations

import collections

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from onmt_entmax.errors import UserError
from onmt_entmax.plugin.train.optimiser import Optimizer
from onmt_entmax.plugin.train.saver import KEY
from onmt_entmax.plugin.train.trainer import SparseTrainer
from tests.plugin.train.helpers import config, train
from tests.plugin.train.test_transformer import CHANGES as TRANSFORMER


class Watch(TorchDispatchMode):
    """Counts by step how often the host waits for the device: reading of it, or sending to it and waiting."""

    def __init__(self, step):
        super().__init__()
        self.step, self.count = step, collections.Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = operation.overloadpacket.__name__
        if name == "_local_scalar_dense" and args[0].is_meta:
            self.count[self.step()] += 1
            return args[0].new_zeros((), device="cpu").item()
        if name == "_to_copy":
            target, waits = torch.device(kwargs.get("device") or args[0].device), not kwargs.get("non_blocking")
            self.count[self.step()] += target != args[0].device and waits
            if args[0].is_meta and target.type == "cpu":
                return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        elif name == "copy_":
            self.count[self.step()] += args[0].device != args[1].device and not (args[2:] or kwargs.get("non_blocking"))
        return operation(*args, **kwargs)  # raises where the size of a result is for the device to say


def reads_by_step(folder, monkeypatch, steps, **changes):
    """Run ``onmt_train`` with the model on the meta device: after how many steps the host waited, and how often."""
    for side in ("src", "tgt"):
        for name in ("a", "b", "valid"):
            (folder / f"{name}.{side}").write_text("a b\nc\nd e\n" * 6, encoding="utf-8")
    found = []
    stock_train = SparseTrainer.train

    def on_meta(self, *arguments):
        self.model.to("meta")
        self.optim = Optimizer.from_opt(self.model, self.run.opt)
        self.model_saver.save = lambda step, moving_average: None
        with Watch(lambda: self.optim.training_step - 1) as watch:
            stock_train(self, *arguments)
        found.append(watch.count)

    monkeypatch.setattr(SparseTrainer, "train", on_meta)
    train(config(folder, **changes), folder / "m", 0, "-train_steps", str(steps))
    return {step: count for step, count in found[0].items() if count}


@pytest.mark.parametrize(
    "changes",
    [
        {"normalization": "tokens", "accum_count": "[2]", "accum_steps": "[0]", "label_smoothing": 0.1},
        {"truncated_decoder": 2, "average_decay": 0.01, "layers": 1},
        {**TRANSFORMER, "layers": 1},
    ],
    ids=["recurrent", "truncated", "transformer"],
)
def test_steps_read_nothing_and_reports_once(folder, monkeypatch, changes):
    found = reads_by_step(folder, monkeypatch, 3, report_every=2, valid_steps=100, **changes)
    assert {step: count for step, count in found.items() if step < 3} == {2: 1}
    if "heads" not in changes:  # of a Transformer's heads each measure is read, once
        # at the end words so far; of a validation in three batches its statistics and its measures
        assert found[3] == 3


def test_a_batch_that_does_not_fit_is_left_out(folder, monkeypatch, caplog):
    stock, calls = SparseTrainer._piece, []

    def piece(self, *arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return stock(self, *arguments)

    monkeypatch.setattr(SparseTrainer, "_piece", piece)
    checkpoint = train(config(folder, num_workers=0, valid_steps=100), folder / "m", 3)
    assert len(calls) == 3 and "Step 2: out of memory on the GPU; a batch is left out." in caplog.text
    assert checkpoint[KEY]["ranks"][0]["total"]["n_batchs"] == 2


@pytest.mark.parametrize("coverage", [{}, {"coverage_attn": "true", "lambda_coverage": 1.0}], ids=["", "coverage"])
@pytest.mark.parametrize("size", [1, 2, 3, 20])
def test_truncated_targets_lose_nothing(folder, size, coverage):
    """Hidden states are handed on, so the output layer's gradient is the sum over all tokens, as without pieces."""
    still = {"dropout": "[0.0]", "optim": "sgd", "learning_rate": 1.0, "max_grad_norm": 0, "layers": 1, **coverage}
    whole = train(config(folder, **still), folder / "whole", 1)
    pieces = train(config(folder, truncated_decoder=size, **still), folder / "pieces", 1)
    counts = [one[KEY]["ranks"][0]["total"] for one in (whole, pieces)]
    assert counts[0]["n_words"] == counts[1]["n_words"] > 8
    for name in ("weight", "bias"):
        torch.testing.assert_close(pieces["generator"][name], whole["generator"][name])
    torch.testing.assert_close(counts[1]["loss"], counts[0]["loss"])


def test_only_recurrent_decoders_are_truncated(folder):
    with pytest.raises(UserError, match="`truncated_decoder`: 2. It is for recurrent decoders with an encoder"):
        train(config(folder, **TRANSFORMER, truncated_decoder=2), folder / "m", 1)
