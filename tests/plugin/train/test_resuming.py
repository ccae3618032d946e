"""What a run takes from a checkpoint, what it says of itself, and that no option is passed over in silence."""

from __future__ import annotations

import logging
import os

import pytest
import torch

from onmt_entmax.errors import UserError
from onmt_entmax.files import read_json, write_json
from onmt_entmax.plugin.train.saver import KEY
from onmt_entmax.report.metrics import read_rows
from tests.plugin.train.helpers import config, load, train


@pytest.fixture
def base(folder):
    """A run of four steps."""
    train(config(folder, keep_best="true"), folder / "base" / "m", 4)
    return folder / "base" / "m_step_4.pt"


def said(caplog) -> str:
    return " ".join(record.message for record in caplog.records)


@pytest.mark.parametrize("reset", ["all", "keep_states"])
def test_a_fine_tuning_run_goes_on_with_its_own_rate(folder, base, caplog, reset):
    yaml = config(folder, learning_rate=0.002, decay_method="valid_loss", learning_rate_decay=0.25)
    steps = {"all": 2, "keep_states": 6}[reset]
    tuned = train(yaml, folder / "tuned" / "m", steps, "-train_from", str(base), "-reset_optim", reset)
    assert (tuned["opt"].learning_rate, tuned["opt"].decay_method) == (0.002, "valid_loss")
    path = folder / "tuned" / f"m_step_{steps}.pt"
    with caplog.at_level(logging.INFO, logger="onmt"):
        on = train(yaml, folder / "tuned" / "m", steps + 1, "-train_from", str(path))
    assert f"Learning rate at step {steps + 1}: 0.002 (`learning_rate` 0.002 from the checkpoint" in said(caplog)
    assert [group["lr"] for group in on["optim"]["optimizer"]["param_groups"]] == [0.002]
    assert (on["opt"].learning_rate, on["opt"].learning_rate_decay) == (0.002, 0.25)


def test_a_resumed_run_keeps_the_models_options_and_says_what_it_does_not_use(folder, base, caplog):
    yaml = config(folder, keep_best="true")
    extra = ("-dropout", "0.9", "-layers", "3", "-param_init", "0.5", "-embedding_init", "0.25", "-batch_size", "5")
    with caplog.at_level(logging.INFO, logger="onmt"):
        resumed = train(yaml, folder / "base" / "m", 5, "-train_from", str(base), *extra)
    text = said(caplog)
    assert "`layers: 3` is not used: the checkpoint's model has `enc_layers` 2" in text
    assert "`dropout: [0.9]` is not used: the checkpoint's model has [0.3]" in text
    assert f"`param_init: 0.5` is not used: the weights come from {base}" in text
    assert f"`embedding_init: 0.25` is not used: the weights come from {base}" in text
    assert "Options that differ from those of the checkpoint's run: batch_size 4 -> 5" in text
    opt = resumed["opt"]
    assert (opt.enc_layers, opt.dropout, opt.batch_size, opt.train_from) == (2, [0.3], 5, str(base))
    assert not any(name.startswith("_given") for name in vars(opt))


def test_how_weights_begin_is_not_overridden(folder, base, caplog):
    """``override_opts`` builds the model with the options given, and the checkpoint's weights take their place."""
    extra = ("-train_from", str(base), "-override_opts", "-param_init", "0.5", "-param_init_glorot")
    with caplog.at_level(logging.WARNING, logger="onmt"):
        train(config(folder, keep_best="true"), folder / "base" / "m", 5, *extra)
    text = said(caplog)
    for line in ("param_init: 0.5", "param_init_glorot: True"):
        assert f"`{line}` is not used: the weights come from {base}" in text


def test_the_same_options_are_not_named(folder, base, caplog):
    with caplog.at_level(logging.INFO, logger="onmt"):
        train(config(folder, keep_best="true"), folder / "base" / "m", 5, "-train_from", str(base))
    assert "not used" not in said(caplog) and "differ" not in said(caplog)


def test_another_vocabulary_file_is_named(folder, base, caplog):
    (folder / "other").write_text("h\ng\nf\ne\nd\nc\nb\na\n", encoding="utf-8")
    with caplog.at_level(logging.INFO, logger="onmt"):
        train(config(folder), folder / "base" / "m", 5, "-train_from", str(base), "-src_vocab", str(folder / "other"))
    assert f"`src_vocab: {folder / 'other'}` is not used" in said(caplog) and "tgt_vocab" not in said(caplog)


def test_a_softmax_asked_for_is_refused(folder, base):
    yaml = config(folder, generator_function="softmax")
    with pytest.raises(UserError, match=r"`generator_alpha`: 1\.0\. The checkpoint .* was trained with 1\.5"):
        train(yaml, folder / "n", 5, "-train_from", str(base))


def test_freezing_later_needs_a_new_state(folder, base):
    yaml = config(folder)
    more = ("-train_from", str(base), "-freeze_encoder")
    with pytest.raises(UserError) as caught:
        train(yaml, folder / "n", 5, *more)
    # of 31 parameters the encoder's LSTM has 16: two layers, two directions, four each
    assert "`freeze_*`" in str(caught.value) and f"The optimizer's state in {base}" in str(caught.value)
    frozen = train(yaml, folder / "n", 5, *more, "-reset_optim", "states")
    assert frozen["opt"].freeze_encoder
    before = load(base)["model"]
    same = {name for name, value in before.items() if torch.equal(value, frozen["model"][name])}
    assert same == {name for name in before if name.startswith("encoder.rnn.")}
    # what was frozen stays so without saying it again
    assert train(yaml, folder / "n", 6, "-train_from", str(folder / "n_step_5.pt"))["opt"].freeze_encoder


def test_moments_of_other_shapes_are_refused(folder, base):
    # PyTorch's kernel for all parameters at once would end the process
    checkpoint = load(base)
    state = checkpoint["optim"]["optimizer"]["state"]
    other = next(number for number in state if state[number]["exp_avg"].dim() != state[0]["exp_avg"].dim())
    state[0], state[other] = state[other], state[0]
    torch.save(checkpoint, folder / "swapped.pt")
    with pytest.raises(UserError, match=r"does not fit: the one numbered 0 has shape \(\d+,\), not \(\d+, \d+\)"):
        train(config(folder), folder / "n", 5, "-train_from", str(folder / "swapped.pt"))


def test_other_stopping_criteria_begin_anew(folder, caplog):
    yaml = config(folder, early_stopping=1, early_stopping_criteria="[accuracy]", valid_steps=1, learning_rate=1000)
    train(yaml, folder / "m", 0)
    last = read_rows(folder / "m_metrics.jsonl")[-1]["step"]
    path = str(folder / f"m_step_{last}.pt")
    with caplog.at_level(logging.INFO, logger="onmt"):
        train(yaml, folder / "m", last + 1, "-train_from", path, "-early_stopping_criteria", "loss")
    assert "loss were not followed before: patience begins anew" in said(caplog)
    assert "Nothing left" not in said(caplog)


def test_only_checkpoints_of_the_run_itself_are_removed(folder):
    yaml = config(folder, save_checkpoint_steps=1, keep_checkpoint=1)
    for name in ("first", "second"):
        (folder / name).mkdir()
    train(yaml, folder / "first" / "m", 2)
    checkpoint = load(folder / "first" / "m_step_2.pt")
    victim = folder / "thesis.pt"
    victim.write_bytes(b"mine")
    checkpoint[KEY]["kept"] = [str(victim), *checkpoint[KEY]["kept"]]
    torch.save(checkpoint, folder / "first" / "m_step_2.pt")
    (folder / "second" / "m_step_1.pt").write_bytes(b"of a third run")
    train(yaml, folder / "second" / "m", 4, "-train_from", str(folder / "first" / "m_step_2.pt"))
    assert victim.read_bytes() == b"mine"
    assert sorted(os.listdir(folder / "first")) == ["m_metrics.jsonl", "m_step_2.pt"]
    assert sorted(os.listdir(folder / "second")) == ["m_metrics.jsonl", "m_step_1.pt", "m_step_4.pt"]


def test_a_run_whose_folder_was_moved_goes_on_counting(folder):
    yaml = config(folder, save_checkpoint_steps=1, keep_checkpoint=2, keep_best="true", valid_steps=2)
    train(yaml, folder / "here" / "m", 2)
    best = load(folder / "here" / "m_best.pt")[KEY]["best"]
    os.rename(folder / "here", folder / "there")
    moved = train(yaml, folder / "there" / "m", 3, "-train_from", str(folder / "there" / "m_step_2.pt"))
    names = ["m_best.json", "m_best.pt", "m_metrics.jsonl", "m_step_2.pt", "m_step_3.pt"]
    assert sorted(os.listdir(folder / "there")) == names
    assert moved[KEY]["best"] == best


def test_another_name_gets_its_own_best_checkpoint(folder, base, caplog):
    checkpoint = load(base)
    checkpoint[KEY]["best"] = {"step": 4, "accuracy": 100.0}  # which nothing beats
    torch.save(checkpoint, base)
    with caplog.at_level(logging.INFO, logger="onmt"):
        train(config(folder, keep_best="true"), folder / "n", 8, "-train_from", str(base))
    assert load(folder / "n_best.pt")[KEY]["step"] == 8
    assert "the best validation of this run is looked for anew" in said(caplog)
    assert [row["step"] for row in read_rows(folder / "n_metrics.jsonl")] == [8]


def test_the_best_checkpoint_is_of_this_course(folder, base, caplog):
    """Another course went on from step 4 and found a better model, which is not one of the run that goes on now."""
    yaml = config(folder, keep_best="true")
    train(yaml, folder / "base" / "m", 8, "-train_from", str(base))
    write_json(folder / "base" / "m_best.json", {**read_json(folder / "base" / "m_best.json"), "step": 8})
    with caplog.at_level(logging.INFO, logger="onmt"):
        train(yaml, folder / "base" / "m", 6, "-train_from", str(base), "-valid_steps", "6", "-learning_rate", "1e-9")
    assert "m_best.pt is of step 8, of another course of this run: the best validation" in said(caplog)
    assert read_json(folder / "base" / "m_best.json")["step"] == 6


def test_the_validation_at_the_end_of_a_short_run_counts(folder):
    yaml = config(folder, keep_best="true", valid_steps=5)
    train(yaml, folder / "m", 3)  # validated after its checkpoint
    best = read_json(folder / "m_best.json")
    assert best["step"] == 3
    write_json(folder / "m_best.json", {**best, "value": 100.0})  # which nothing beats
    resumed = train(yaml, folder / "m", 6, "-train_from", str(folder / "m_step_3.pt"))
    assert resumed[KEY]["best"] == {"step": 3, "accuracy": 100.0}
    assert load(folder / "m_best.pt")[KEY]["step"] == 3


def test_optimizers_are_not_mixed(folder, base):
    with pytest.raises(UserError, match="`optim`: adagrad. `reset_optim: keep_states` keeps the state of adam"):
        train(
            config(folder, optim="adagrad"),
            folder / "n" / "m",
            6,
            "-train_from",
            str(base),
            "-reset_optim",
            "keep_states",
        )


def test_a_released_model_begins_a_new_run(folder, base, caplog):
    released = {name: value for name, value in load(base).items() if name != KEY}
    torch.save({**released, "optim": None}, folder / "released.pt")
    with caplog.at_level(logging.INFO, logger="onmt"):
        new = train(config(folder, keep_best="true"), folder / "n", 4, "-train_from", str(folder / "released.pt"))
    assert "released.pt holds no state of training: a new run begins with its weights." in said(caplog)
    assert new["optim"]["training_step"] == 5 and load(folder / "n_best.pt")[KEY]["step"] == 4


def test_how_a_model_is_trained_is_not_the_checkpoints(folder, base, caplog):
    checkpoint = load(base)
    checkpoint["opt"].model_dtype = "fp16"  # as if it came from a GPU
    torch.save(checkpoint, base)
    with caplog.at_level(logging.INFO, logger="onmt"):
        resumed = train(config(folder), folder / "base" / "m", 8, "-train_from", str(base))
    assert "model_dtype fp16 -> fp32" in said(caplog)
    assert resumed["opt"].model_dtype == "fp32" and "entmax_scaler" not in resumed["optim"]
    assert "|dtype:fp32|" in read_rows(folder / "base" / "m_metrics.jsonl")[-1]["signature"]


def test_another_number_of_processes_is_named_once(folder, base, caplog):
    checkpoint = load(base)
    checkpoint[KEY]["ranks"] *= 2  # as two processes would have left it
    torch.save(checkpoint, base)
    with caplog.at_level(logging.INFO, logger="onmt"):
        train(config(folder, keep_best="true"), folder / "base" / "m", 5, "-train_from", str(base))
    assert said(caplog).count("The checkpoint is of 2 processes, this run has 1: the data is read from the begin") == 1
    # speed and epochs count from there: not what two processes had seen
    checkpoint[KEY]["seen"] = {"words": 10**9, "elapsed": 1.0}
    torch.save(checkpoint, base)
    yaml = config(folder, batch_type="tokens", batch_size=30, valid_steps=1, accum_count="[1]")
    train(yaml, folder / "base" / "m", 6, "-train_from", str(base))
    row = read_rows(folder / "base" / "m_metrics.jsonl")[-1]
    assert row["words_per_second"] > 0 and row["epoch"] == 6 / row["steps_per_epoch"]
    # 80 lines; a batch of at most 30 tokens has two lines of 9 letters and two ends, or more and shorter ones
    assert 10 <= row["steps_per_epoch"] <= 40


def test_unfreezing_with_a_new_state_is_done_and_said(folder, caplog):
    train(config(folder, freeze_encoder="true"), folder / "m", 2)
    path = str(folder / "m_step_2.pt")
    with caplog.at_level(logging.INFO, logger="onmt"):
        free = train(
            config(folder, freeze_encoder="false"), folder / "m", 3, "-train_from", path, "-reset_optim", "states"
        )
    assert "`freeze_encoder` is False, and was True in the checkpoint's run." in said(caplog)
    name = "encoder.rnn.weight_ih_l0"
    assert not free["opt"].freeze_encoder and not torch.equal(load(path)["model"][name], free["model"][name])


def test_new_betas_are_taken_with_keep_states(folder, base):
    yaml = config(folder, adam_beta1=0.5, adam_beta2=0.7)
    kept = train(yaml, folder / "base" / "m", 5, "-train_from", str(base))
    assert kept["optim"]["optimizer"]["param_groups"][0]["betas"] == (0.9, 0.999)
    other = train(yaml, folder / "n", 5, "-train_from", str(base), "-reset_optim", "keep_states")
    assert other["optim"]["optimizer"]["param_groups"][0]["betas"] == (0.5, 0.7)


def test_other_validation_data_begin_the_comparison_anew(folder, base, caplog):
    checkpoint = load(base)
    checkpoint[KEY]["best"] = {"step": 4, "accuracy": 100.0}  # which nothing beats
    torch.save(checkpoint, base)
    rest = ("-train_from", str(base))
    train(config(folder, keep_best="true"), folder / "base" / "m", 8, *rest)
    assert load(folder / "base" / "m_step_8.pt")[KEY]["best"]["accuracy"] == 100.0
    for side in ("src", "tgt"):
        with open(folder / f"valid.{side}", "a", encoding="utf-8") as file:
            file.write("a b\n")
    with caplog.at_level(logging.INFO, logger="onmt"):
        train(config(folder, keep_best="true"), folder / "base" / "m", 8, *rest)
    assert "The validation data is not what it was at the checkpoint: best validation" in said(caplog)
    assert load(folder / "base" / "m_best.pt")[KEY]["step"] == 8


def test_the_vocabulary_is_the_checkpoints_also_with_other_transforms(folder, base, caplog):
    (folder / "other").write_text("h\ng\nf\ne\nd\nc\nb\na\n", encoding="utf-8")
    before = load(base)["vocab"]["src"]
    more = ("-train_from", str(base), "-src_vocab", str(folder / "other"), "-transforms", "filtertoolong")
    with caplog.at_level(logging.INFO, logger="onmt"):
        on = train(config(folder), folder / "base" / "m", 5, *more)
    assert on["vocab"]["src"] == before and f"`src_vocab: {folder / 'other'}` is not used" in said(caplog)
    with pytest.raises(
        UserError, match="`transforms`: .*They need '.*which the vocabulary of .* lacks: add `update_vo"
    ):
        train(config(folder), folder / "n", 5, *more[:2], "-transforms", "prefix", "-src_prefix", "<new>")
