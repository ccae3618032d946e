"""Runs of ``onmt_train`` in this process: options, best checkpoint, stop rule, metrics, mistakes on one line."""

from __future__ import annotations

import errno
import json
import logging
import math
import os

import pytest
import torch

from onmt_entmax import files
from onmt_entmax.errors import UserError
from onmt_entmax.files import read_lines
from onmt_entmax.plugin.train.saver import KEY
from onmt_entmax.plugin.train.trainer import SparseTrainer
from onmt_entmax.report.metrics import read_rows
from tests.plugin.train.helpers import config, load, tensors, train
from tests.stock import run_main


def test_rate_follows_validation_loss_and_nothing_else(folder):
    # `start_decay_steps` and `decay_steps` are stock's: they would shrink the rate at every step from the second on
    yaml = config(folder, decay_method="valid_loss", learning_rate_decay=0.5, learning_rate=0.3, valid_steps=2)
    checkpoint = train(yaml, folder / "m", 16, "-start_decay_steps", "2", "-decay_steps", "1")
    entries = read_rows(folder / "m_metrics.jsonl")
    rates = [entry["learning_rate"] for entry in entries]
    expected, rate = [], 0.3
    for i in range(len(entries)):
        expected.append(rate)
        rate *= 0.5 if i > 0 and entries[i]["loss"] > entries[i - 1]["loss"] else 1
    assert rates == pytest.approx(expected)
    assert rate < 0.3  # it did rise, or this tests nothing
    assert checkpoint["optim"]["entmax_schedule"]["scale"] == pytest.approx(rate / 0.3)


def test_best_checkpoint_is_named_and_never_deleted(folder):
    earliest = 16
    for seed in range(1, 9):
        options = {"keep_best": "true", "valid_steps": 2, "save_checkpoint_steps": 2, "keep_checkpoint": 2}
        out = folder / f"out{seed}"
        train(config(folder, learning_rate=0.3, seed=seed, **options), out / "m", 16)
        entries = read_rows(out / "m_metrics.jsonl")
        accuracies = [entry["accuracy"] for entry in entries]
        step = entries[accuracies.index(max(accuracies))]["step"]
        best = json.loads((out / "m_best.json").read_text(encoding="utf-8"))
        assert (best["step"], best["value"]) == (step, max(accuracies))
        assert load(out / "m_best.pt")[KEY]["step"] == step
        names = ["m_best.json", "m_best.pt", "m_metrics.jsonl", "m_step_14.pt", "m_step_16.pt"]
        assert sorted(os.listdir(out)) == names
        earliest = min(earliest, step)
        if earliest < 14:  # it is not among the two that are kept
            return
    raise AssertionError(f"the best step was {earliest} or later with every seed: the test is idle")


def test_keep_checkpoint_counts_over_a_resumed_run(folder):
    yaml = config(folder, save_checkpoint_steps=2, keep_checkpoint=2)
    train(yaml, folder / "out" / "m", 4)
    train(yaml, folder / "out" / "m", 8, "-train_from", str(folder / "out" / "m_step_4.pt"))
    assert sorted(os.listdir(folder / "out")) == ["m_metrics.jsonl", "m_step_6.pt", "m_step_8.pt"]


@pytest.mark.parametrize(
    ("options", "left", "written"),
    [
        ({}, "the model is lost at the end", set()),
        ({"keep_best": "true", "valid_steps": 2}, "only {}/out/m_best.pt", {"m_best.json", "m_best.pt"}),
    ],
)
def test_a_run_that_keeps_no_checkpoint_says_so(folder, caplog, options, left, written):
    with caplog.at_level(logging.WARNING):
        yaml = config(folder, keep_checkpoint=0, save_checkpoint_steps=2, **options)
        with pytest.raises(UserError, match="m_step_2.pt: there is no such file"):
            train(yaml, folder / "out" / "m", 2)
    said = f"`keep_checkpoint` is 0: no {folder}/out/m_step_N.pt is written, {left.format(folder)}; -1 keeps all."
    assert said in [record.getMessage() for record in caplog.records]
    assert set(os.listdir(folder / "out")) == {"m_metrics.jsonl", *written}


def test_run_without_a_step_limit_stops_by_itself(folder):
    yaml = config(folder, early_stopping=2, early_stopping_criteria="[accuracy]", valid_steps=2, learning_rate=1000)
    train(yaml, folder / "m", 0)
    entries = read_rows(folder / "m_metrics.jsonl")
    accuracies = [entry["accuracy"] for entry in entries]
    assert len(entries) == accuracies.index(max(accuracies)) + 3
    assert "stop:2xaccuracy" in entries[-1]["signature"]
    checkpoint = load(folder / f"m_step_{entries[-1]['step']}.pt")
    assert checkpoint[KEY]["stop"]["waited"] == 2


@pytest.mark.parametrize(("function", "alpha"), [("softmax", 1.0), ("entmax15", 1.5), ("sparsemax", 2.0)])
def test_metrics_entry(folder, caplog, function, alpha):
    yaml = config(folder, generator_function=function, label_smoothing=0.1)
    with caplog.at_level(logging.INFO, logger="onmt"):
        train(yaml, folder / "m", 8)
    entry = read_rows(folder / "m_metrics.jsonl")[-1]
    assert (entry["step"], entry["kind"], entry["alpha_output"], entry["alpha_attention"]) == (8, "valid", alpha, 2.0)
    # 80 lines in batches of four
    assert (entry["steps_per_epoch"], entry["epoch"]) == (20, 0.4)
    # the letters of the 20 lines, and an end token each
    words = sum(len(line.split(" ")) + 1 for line in (folder / "valid.tgt").read_text(encoding="utf-8").splitlines())
    assert entry["n_words"] == words
    if alpha == 1:
        # validation is not smoothed
        assert entry["perplexity"] == pytest.approx(math.exp(entry["loss"]))
        assert entry["support_output"] == 16  # 8 letters, 4 special tokens, filled up to a multiple of 8
        assert f"Validation perplexity: {entry['perplexity']:g}" in caplog.text
    else:
        assert entry["perplexity"] is None
        assert 1 <= entry["support_output"] <= 16
        assert "perplexity:" not in caplog.text.replace("epsilon-perplexity", "")
    assert f"Validation loss (alpha {alpha:g}): {entry['loss']:g}" in caplog.text
    assert f"loss (alpha {alpha:g}, smoothed): " in caplog.text
    assert 0 <= entry["sparsemax_score"] <= 1 and 0 <= entry["jensen_shannon"] <= math.log(2)


def test_tensorboard_has_the_measures(folder):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    yaml = config(folder, tensorboard="true", tensorboard_log_dir=folder / "board", report_every=2)
    train(yaml, folder / "m", 4)
    (board,) = (folder / "board").iterdir()
    assert load(folder / "m_step_4.pt")["opt"].tensorboard_log_dir_dated == str(board)  # a resumed run writes there too
    events = EventAccumulator(str(board))
    events.Reload()
    entry = read_rows(folder / "m_metrics.jsonl")[-1]
    for name in ("loss", "accuracy", "support_output", "support_attention", "gold_zero", "jensen_shannon", "lr"):
        key = "learning_rate" if name == "lr" else name
        assert events.Scalars(f"valid/{name}")[-1].value == pytest.approx(entry[key], rel=1e-5), name
    tags = events.Tags()["scalars"]
    assert "progress/loss" in tags and "progress/ppl" not in tags and "valid/perplexity" not in tags


def test_learned_alpha_is_reported(folder):
    yaml = config(folder, global_attention_function="entmax", global_attention_alpha="learned")
    train(yaml, folder / "m", 4)
    entry = read_rows(folder / "m_metrics.jsonl")[-1]
    assert entry["alpha_learned"] and entry["alpha_attention"] > 1
    assert "alpha:1.5/learned" in entry["signature"]


def test_keep_states_starts_the_schedule_at_the_given_rate(folder, caplog):
    yaml = config(folder, decay_method="valid_loss", learning_rate=0.3, valid_steps=2)
    train(yaml, folder / "m", 16)
    with caplog.at_level(logging.INFO, logger="onmt"):
        resumed = ("-train_from", str(folder / "m_step_16.pt"))
        train(yaml, folder / "n", 18, *resumed, "-reset_optim", "keep_states", "-learning_rate", "0.01")
        train(yaml, folder / "o", 18, *resumed, "-learning_rate", "0.01", "-decay_method", "none")
    assert "Learning rate at step 17: 0.01 (`learning_rate` 0.01 from the configuration, times 1 by" in caplog.text
    assert "`learning_rate: 0.01` of the configuration is not used" in caplog.text
    for run, rate in (("n", "lr:0.01|"), ("o", "lr:0.3|")):
        signature = read_rows(folder / f"{run}_metrics.jsonl")[-1]["signature"]
        assert rate in signature and "|decay:valid_lossx" in signature


def test_reset_all_begins_a_new_run(folder):
    yaml = config(folder)
    train(yaml, folder / "m", 8)
    again = train(yaml, folder / "n", 4, "-train_from", str(folder / "m_step_8.pt"), "-reset_optim", "all")
    assert again[KEY]["step"] == 4 and [e["step"] for e in read_rows(folder / "n_metrics.jsonl")] == [4]
    # the data begins at its first line
    assert again[KEY]["ranks"][0]["position"]["data"]["workers"][0]["mixture"]["read"] == {"a": 0, "b": 0}


def test_nothing_left_to_train(folder, caplog):
    yaml = config(folder)
    train(yaml, folder / "m", 4)
    with caplog.at_level(logging.INFO, logger="onmt"):
        train(yaml, folder / "m", 4, "-train_from", str(folder / "m_step_4.pt"))
    assert "Nothing left to train: the checkpoint is at step 4" in caplog.text


def test_checkpoint_is_plain_data(folder):
    yaml = config(folder, keep_best="true", early_stopping=3, decay_method="valid_loss", average_decay=0.1)
    checkpoint = train(yaml, folder / "m", 4)
    kinds = {type(leaf) for leaf in tensors(checkpoint[KEY]).values()}
    assert kinds <= {torch.Tensor, str, int, float, bool, type(None)}


def test_half_written_checkpoint_of_a_killed_run_is_removed(folder):
    yaml = config(folder)
    train(yaml, folder / "out" / "m", 2)
    (folder / "out" / ".m_step_4.pt.part").write_bytes(b"half")
    (folder / "out" / ".other_step_4.pt.part").write_bytes(b"of another run")
    train(yaml, folder / "out" / "m", 3, "-train_from", str(folder / "out" / "m_step_2.pt"))
    left = [name for name in os.listdir(folder / "out") if name.endswith(".part")]
    assert left == [".other_step_4.pt.part"]


def test_options_without_effect_are_said(folder, caplog):
    changes = {"early_stopping_criteria": "[accuracy]", "warmup_steps": 10, "average_every": 2}
    train(config(folder, **changes), folder / "m", 1)
    assert "`early_stopping_criteria: ['accuracy']` has no effect: `early_stopping` is 0." in caplog.text
    assert "`warmup_steps: 10` has no effect: `decay_method` is none." in caplog.text
    assert "`average_every: 2` has no effect: `average_decay` is 0." in caplog.text
    caplog.clear()
    train(config(folder), folder / "n", 1)
    assert "has no effect" not in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"early_stopping": 3, "early_stopping_criteria": "[speed]"},
            "`early_stopping_criteria`: speed. Valid choices",
        ),
        ({"early_stopping": -1}, "`early_stopping`: -1"),
        ({"decay_method": "valid_loss", "learning_rate_decay": 0}, "`learning_rate_decay`: 0"),
        ({"decay_method": "valid_loss", "valid_steps": 0}, "`valid_steps`: 0"),
        ({"keep_best": "true", "save_format": "safetensors"}, "`save_format`: safetensors"),
        (
            {"keep_best": "true", "parallel_mode": "tensor_parallel", "world_size": 2},
            "`parallel_mode`: tensor_parallel. `keep_best` needs `data_parallel`.",
        ),
        ({"batch_size": 0}, "`batch_size`: 0"),
        ({"model_dtype": "fp16"}, "`model_dtype`: fp16. On a CPU"),
        (
            {"accum_count": "[2]", "accum_steps": "[3]"},
            "`accum_steps`: [3]. The first must be 0, and each above the one",
        ),
        (
            {"dropout": "[0.5, 0.1]", "attention_dropout": "[0.1, 0.1]", "dropout_steps": "[0, 0]"},
            "`dropout_steps`: [0, 0]. The first must be 0, and each",
        ),
        (
            {
                "decoder_type": "cnn",
                "encoder_type": "cnn",
                "coverage_attn": "true",
                "global_attention_function": "softmax",
            },
            "`coverage_attn`: True. `decoder_type` is cnn, which has no coverage",
        ),
        ({"single_pass": "true"}, "`single_pass`: True. OpenNMT-py 3.5 reads without end"),
        ({"optim": "sparseadam"}, "`max_grad_norm`: 5. `optim` is sparseadam: PyTorch has no norm of sparse"),
        ({"optim": "fusedadam"}, "`optim`: fusedadam. A package that it needs is missing: No module named"),
        ({"optim": "adamw8bit"}, "`optim`: adamw8bit. A package that it needs is missing: Install bitsandbytes"),
        ({"quant_type": "bnb_8bit"}, "`quant_type`: bnb_8bit. `quant_layers` names no layers"),
        ({"quant_layers": "[generator]"}, "`quant_layers`: ['generator']. `quant_type` is not set."),
        (
            {"quant_type": "bnb_8bit", "quant_layers": "[generator]"},
            "`quant_type`: bnb_8bit. Install bitsandbytes to use 4/8bit compression",
        ),
        (
            {"early_stopping": 3, "early_stopping_criteria": "[ppl, perplexity]"},
            "`early_stopping_criteria`: perplexity. `generator_alpha` is 1.5",
        ),
        ({"learning_rate": ".inf"}, "`learning_rate`: inf. It must be above 0, and finite"),
        ({"dropout": "[2]"}, "`dropout`: 2.0"),
        ({"accum_count": "[0]"}, "`accum_count`: 0"),
        ({"bucket_size": 0}, "`bucket_size`: 0"),  # was read without end
        ({"num_workers": -1}, "`num_workers`: -1"),
        ({"average_decay": 1.5}, "`average_decay`: 1.5. It must lie in [0, 1]"),
        ({"keep_checkpoint": -2}, "`keep_checkpoint`: -2. It must be at least 0; -1 keeps all"),
        ({"hidden_size": 0}, "`hidden_size`: 0. It must be at least 1; -1"),
        ({"decay_method": "noam", "warmup_steps": 0}, "`warmup_steps`: 0. `decay_method: noam` divides by it"),
        ({"transforms": "[fuzzymatch]"}, "`tm_path`: None. `transforms` has fuzzymatch, which needs a file there"),
        ({"transforms": "[bart]"}, "`mask_length`: subword. `src_subword_type` is none"),
        ({"valid_metrics": "[METEOR]"}, "`valid_metrics`: METEOR. Valid choices: BLEU, TER."),
        ({"world_size": 0}, "`world_size`: 0. It must be at least 1."),
        ({"timeout": 0}, "`timeout`: 0. It must be above 0."),
        ({"train_from": "m.pt", "learned_alpha_rate": -3}, "`learned_alpha_rate`: -3.0. It must be above 0."),
        ({"max_relative_positions": -1, "position_encoding": "true"}, "Cannot use absolute and relative"),
    ],
)
def test_mistakes_are_named(folder, changes, message):
    yaml = config(folder, **changes)
    with pytest.raises(UserError) as caught:
        train(yaml, folder / "m", 2)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_steps_are_not_negative(folder):
    with pytest.raises(UserError, match="`train_steps`: -3. It must be above 0, or 0 for no end"):
        train(config(folder), folder / "m", -3)


def test_a_folder_that_cannot_be_made_is_one_line(folder):
    (folder / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=r"`save_model`: .*/file/m. Cannot make .*/file: (Not a directory|File exists)"):
        train(config(folder), folder / "file" / "m", 2)


def test_what_follows_validations_needs_them(folder):
    yaml = config(folder, keep_best="true")
    text = yaml.read_text(encoding="utf-8")
    lines = [line for line in text.split("\n") if not line.startswith("  valid:")]
    yaml.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(UserError, match="`keep_best` follows the validations, but `data` has no corpus `valid`"):
        train(yaml, folder / "m", 2)


def test_full_disk_names_the_last_whole_checkpoint(folder, monkeypatch):
    yaml = config(folder, save_checkpoint_steps=2, valid_steps=100)
    write = files._RememberingFile.write

    def full_at_the_second(self, data):
        if self.file.path.name != "m_step_4.pt":
            return write(self, data)
        self.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return len(data)

    monkeypatch.setattr(files._RememberingFile, "write", full_at_the_second)
    with pytest.raises(UserError) as caught:
        train(yaml, folder / "out" / "m", 4)
    path = folder / "out" / "m"
    assert str(caught.value) == (
        f"Cannot write {path}_step_4.pt: No space left on device. The last whole checkpoint is {path}_step_2.pt."
    )
    assert sorted(os.listdir(folder / "out")) == ["m_metrics.jsonl", "m_step_2.pt"]
    load(f"{path}_step_2.pt")


def test_epochs_follow_the_accumulation():
    """1,000 lines in batches of 10: 100 steps an epoch, and from step 200 on, four batches at a time, 25."""
    from argparse import Namespace

    from onmt_entmax.plugin.train.state import Run

    run = object.__new__(Run)
    run.lines, run.counted_from = {"a": 1000}, 0
    run.opt = Namespace(
        batch_type="sents", batch_size=10, accum_count=[1, 4], accum_steps=[0, 200], parallel_mode="data_parallel"
    )
    assert [run.steps_per_epoch(step) for step in (0, 1, 200, 201)] == [100, 100, 100, 25]
    assert [run.epoch(step) for step in (0, 50, 200, 225)] == [0, 0.5, 2, 3]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # stock never closes its /dev/null
def test_scores_of_validation_are_line_by_line(folder, monkeypatch):
    """Blank lines of either side, and a source that is too long, shift nothing."""
    sources = ["a b", "", "c", "d e", "a b c d e f g h", "f"]
    targets = ["b a", "x", "", "e d", "h g f e d c b a", "f"]
    yaml = config(folder, valid_metrics="[BLEU]", transforms="[filtertoolong]", src_seq_length=6, dropout="[0.0]")
    for side, lines in (("src", sources), ("tgt", targets)):
        (folder / f"valid.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    seen = []
    stock = SparseTrainer._eval_handler
    monkeypatch.setattr(
        SparseTrainer, "_eval_handler", lambda self, **given: seen.append(given) or stock(self, **given)
    )
    train(yaml, folder / "m", 4)
    assert seen[0]["texts_ref"] == ["b a", "x", "e d", "h g f e d c b a", "f"]
    predictions = seen[0]["preds"]
    assert [bool(line) for line in (predictions[1], predictions[3])] == [False, False] and len(predictions) == 5
    assert read_rows(folder / "m_metrics.jsonl")[-1]["BLEU"] >= 0
    (folder / "alone.src").write_text("a b\nd e\nf\n", encoding="utf-8")
    words = ["-model", f"{folder}/m_step_4.pt", "-src", f"{folder}/alone.src", "-output", f"{folder}/alone.out"]
    run_main("translate", [*words, "-beam_size", "1"])
    assert read_lines(folder / "alone.out") == [predictions[0], predictions[2], predictions[4]]
