"""How the training text is read: readers and buckets that fit, usable lines, weights, alignments, unknown tokens."""

from __future__ import annotations

import logging
import math
from argparse import Namespace

import pytest

from onmt_entmax.errors import UserError
from onmt_entmax.plugin.train.plan import FILES, corpora_state, fit_to_corpora, log_cut_vocabularies
from onmt_entmax.plugin.train.saver import KEY
from onmt_entmax.plugin.train.trainer import SparseTrainer
from onmt_entmax.report.metrics import read_rows
from tests.plugin.train.helpers import config, load, train


def fitted(lines, workers, processes=1, given=(), bucket=262144, resumed=None, weights=None):
    data = {name: {"weight": (weights or {}).get(name, 1)} for name in lines}
    opt = Namespace(data=data, num_workers=workers, bucket_size=bucket)
    fit_to_corpora(opt, lines, processes, given, resumed)
    return opt.num_workers, opt.bucket_size


@pytest.mark.parametrize(
    ("lines", "workers", "processes", "expected"),
    [
        ({"a": 3000}, 2, 1, (2, 1500)),  # each of two readers has half of it
        ({"a": 3000}, 0, 1, (0, 3000)),
        ({"a": 3000}, 2, 3, (2, 500)),
        ({"a": 10**7}, 0, 1, (0, 262144)),
        # blocks of two lines in turn: three lines are enough for two readers, two are not
        ({"a": 3}, 2, 1, (2, 1)),
        ({"a": 2}, 2, 1, (1, 2)),
        ({"a": 1}, 4, 1, (1, 1)),
    ],
)
def test_workers_and_bucket_fit_the_corpus(lines, workers, processes, expected):
    assert fitted(lines, workers, processes) == expected


def test_bucket_counts_the_corpus_that_ends_first():
    # two of a and one of b in turn: b's 23 lines are passed once in 69, a's 57 in 85
    assert fitted({"a": 57, "b": 23}, 0, weights={"a": 2}) == (0, 69)


def test_a_bucket_that_is_given_stays_and_the_right_one_is_named(caplog):
    with caplog.at_level(logging.INFO, logger="onmt"):
        assert fitted({"a": 3000}, 2, given={"bucket_size"}, bucket=3000) == (2, 3000)
        assert "Use 1500, or leave it out" in caplog.text
        caplog.clear()
        assert fitted({"a": 3000}, 2, given={"bucket_size"}, bucket=1500) == (2, 1500)
        assert caplog.text == ""


def test_a_resumed_run_chooses_what_it_had(tmp_path):
    had = {"bucket_size": 262144}
    assert fitted({"a": 3000}, 0, resumed={"data": {"settings": had}}) == (0, 262144)  # of an older version
    (tmp_path / "a").write_text("x\n", encoding="utf-8")
    opt = Namespace(data={"a": {"weight": 1, "path_src": tmp_path / "a"}}, num_workers=0, bucket_size=1)
    for state, chosen in ((corpora_state(opt), 262144), ({"a": {"bytes": [9], "transforms": []}}, 3000)):
        fit_to_corpora(opt, {"a": 3000}, 1, (), {"data": {"settings": {**had, FILES: state}}})
        assert opt.bucket_size == chosen


def test_too_few_lines_for_the_processes():
    with pytest.raises(UserError, match=r"Corpus a has 2 lines, too few for 2 processes \(`world_size`\)"):
        fitted({"a": 2}, 0, processes=2)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("lines", "changes", "reason"),
    [
        ([""] * 8, {}, r"each is blank on one side\."),
        (
            ["a b c d"] * 8,
            {"transforms": "[filtertoolong]", "src_seq_length": 2},
            r"or left out by `transforms` \(filtertoolong\)\.",
        ),
    ],
)
def test_a_corpus_without_a_usable_line_is_one_error(folder, workers, lines, changes, reason):
    for side in ("src", "tgt"):
        (folder / f"a.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    with pytest.raises(UserError, match=f"Corpus a has no line to train on.*: .*{reason}") as caught:
        train(config(folder, num_workers=workers, **changes), folder / "m", 4)
    assert "\n" not in str(caught.value)


def test_blank_targets_are_left_out(folder):
    # three lines are left of four; the batch of four holds them and one of them again, never an unknown token
    (folder / "a.src").write_text("a\nb\nc\nd\n", encoding="utf-8")
    (folder / "a.tgt").write_text("a\n \nc\nd\n", encoding="utf-8")
    yaml = config(folder, batch_size=100, bucket_size=4)
    text = "\n".join(line for line in yaml.read_text(encoding="utf-8").split("\n") if not line.startswith("  b:"))
    yaml.write_text(text, encoding="utf-8")
    total = train(yaml, folder / "m", 2)[KEY]["ranks"][0]["total"]
    assert (total["n_sents"], total["n_words"]) == (6, 12)  # two steps; each sentence is a letter and an end


@pytest.mark.parametrize("weight", ["0.5", "1.5", "-1", "many"])
def test_weights_are_whole_numbers(folder, weight):
    yaml = config(folder)
    yaml.write_text(yaml.read_text(encoding="utf-8").replace("weight: 2", f"weight: {weight}"), encoding="utf-8")
    with pytest.raises(UserError, match=f"`weight` of corpus `a`: {weight}. It is a number of lines"):
        train(yaml, folder / "m", 2)


def test_alignments_have_a_line_for_each_pair(folder):
    (folder / "a.align").write_text("0-0\n" * 56, encoding="utf-8")
    yaml = config(folder)
    text = yaml.read_text(encoding="utf-8").replace("weight: 2", f"weight: 2, path_align: {folder}/a.align")
    yaml.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"a: .*a\.src has 57 lines, but .*a\.align has 56"):
        train(yaml, folder / "m", 2)


def test_unknown_tokens_are_counted_once_and_many_are_a_warning(folder, caplog):
    lines = ["a x x x"] * 57
    (folder / "a.src").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "a.tgt").write_text("a\n" * 57, encoding="utf-8")
    with caplog.at_level(logging.INFO, logger="onmt"):
        train(config(folder, num_workers=2), folder / "m", 2)
    # three of four in corpus a, none of the tokens of b, some of which its transform drops
    found = [record for record in caplog.records if "Unknown tokens" in record.message]
    assert [record.levelname for record in found] == ["WARNING", "INFO"]
    assert f"({57 * 3} of " in found[0].message and "target 0.0%" in found[0].message


def test_a_vocabulary_that_is_cut_is_a_warning(folder, caplog):
    (folder / "large").write_text("".join(f"{token}\t9\n" for token in ["a", "b", "a", *map(str, range(20))]))
    vocabularies = {side: Namespace(ids_to_tokens=["<unk>", "a", "b", *map(str, range(7))]) for side in ("src", "tgt")}
    for own in vocabularies.values():
        own.__class__ = type("Sized", (Namespace,), {"__len__": lambda self: 10})
    opt = Namespace(share_vocab=False, src_vocab=folder / "large", tgt_vocab=folder / "large", src_vocab_size=10)
    opt.tgt_vocab_size, opt.src_words_min_frequency, opt.tgt_words_min_frequency = 11, 0, 0
    with caplog.at_level(logging.INFO, logger="onmt"):
        log_cut_vocabularies(opt, vocabularies)
    assert [record.levelname for record in caplog.records] == ["WARNING"]  # the target's has room left
    assert "`src_vocab_size` is 10: 13 of the 22 tokens of" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="onmt"):
        train(config(folder, src_vocab_size=5), folder / "m", 1)
    assert "`src_vocab_size` is 5: " in caplog.text and "tgt_vocab_size" not in caplog.text


def test_a_run_too_short_for_a_validation_gets_one_at_its_end(folder, caplog):
    yaml = config(folder, valid_steps=100, keep_best="true")
    with caplog.at_level(logging.INFO, logger="onmt"):
        train(yaml, folder / "m", 3)
    assert "No validation was due in 3 steps (`valid_steps` is 100): one at the end." in caplog.text
    assert load(folder / "m_best.pt")[KEY]["step"] == 3
    assert [row["step"] for row in read_rows(folder / "m_metrics.jsonl")] == [3]
    # nothing of it is in the checkpoint, which goes on as if there had been no end
    assert load(folder / "m_step_3.pt")[KEY]["best"] == {"step": 0, "accuracy": None}


def test_a_loss_that_is_no_number_ends_with_a_checkpoint(folder, monkeypatch, caplog):
    validate = SparseTrainer.validate

    def spoiled(self, *args, **kwargs):
        stats = validate(self, *args, **kwargs)
        stats.loss = math.nan
        return stats

    monkeypatch.setattr(SparseTrainer, "validate", spoiled)
    yaml = config(folder, early_stopping=2, early_stopping_criteria="[loss]", valid_steps=2)
    with caplog.at_level(logging.INFO, logger="onmt"):
        train(yaml, folder / "m", 0)
    assert "The validation loss at step 2 is not a number." in caplog.text
    assert "2 validations without progress in loss: stop." in caplog.text
    load(folder / "m_step_4.pt")


def test_progress_says_epoch_and_time_without_an_end(folder, caplog):
    yaml = config(folder, early_stopping=1, early_stopping_criteria="[accuracy]", valid_steps=20, learning_rate=1000)
    with caplog.at_level(logging.INFO, logger="onmt"):
        train(yaml, folder / "m", 0)
    # 80 lines in batches of four: step 5 is a quarter of an epoch
    first = next(record.message for record in caplog.records if record.message.startswith("Step  5"))
    assert first.startswith("Step  5; acc: ") and "; epoch 0.25; 0:00:" in first and first.endswith(" so far;")
