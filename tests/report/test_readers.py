"""Files are read strictly, with the file and the line in every message."""

from __future__ import annotations

import json

import pytest

from onmt_entmax.errors import UserError
from onmt_entmax.report.readers import (
    attention_of,
    kind,
    pick,
    read_examples,
    read_metrics,
    read_result,
    signature_fields,
)
from tests.report import samples


def test_empty_file_says_so(tmp_path):
    path = tmp_path / "empty.jsonl"
    path.write_text("\n")
    for read in (read_metrics, read_examples, read_result):
        with pytest.raises(UserError, match=r"empty\.jsonl is empty"):
            read(path)


def test_broken_line_is_named(tmp_path):
    path = samples.write_lines(tmp_path / "a.jsonl", [samples.draw()])
    path.write_text(path.read_text() + '{"line": 2, "hypo\n')
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: not JSON"):
        read_examples(path)


def test_metrics_line_cut_short_by_a_kill_is_left_out(tmp_path):
    path = samples.write_lines(tmp_path / "m_metrics.jsonl", samples.metrics_rows(1.5, 1, 90, steps=3))
    path.write_text(path.read_text() + '{"step": 400, "ki')
    run = read_metrics(path)
    assert [row["step"] for row in run.rows] == [100, 200, 300]
    assert run.alphas == (1.5, 1)


def test_best_validation_is_that_of_the_highest_accuracy(tmp_path):
    rows = samples.metrics_rows(1.5, 1.5, 90, steps=3)
    for row, accuracy in zip(rows, (10.0, 30.0, 30.0)):
        row["accuracy"] = accuracy
    run = read_metrics(samples.write_lines(tmp_path / "m_metrics.jsonl", rows))
    assert run.best["step"] == 200  # the first on a tie


def test_resumed_run_keeps_its_last_course_and_its_time(tmp_path):
    rows = samples.metrics_rows(1.5, 1.5, 90, steps=4)
    for row, (step, elapsed) in zip(rows, [(100, 10.0), (200, 20.0), (200, 9.0), (300, 19.0)]):
        row["step"], row["elapsed"] = step, elapsed
    run = read_metrics(samples.write_lines(tmp_path / "m_metrics.jsonl", rows))
    # the clock started again after step 100, at 10 seconds
    assert [(row["step"], row["elapsed"]) for row in run.rows] == [(100, 10.0), (200, 19.0), (300, 29.0)]


def test_metrics_without_a_validation(tmp_path):
    path = samples.write_lines(tmp_path / "m_metrics.jsonl", [{"kind": "train", "step": 1}])
    with pytest.raises(UserError, match="no validation in it"):
        read_metrics(path)


def test_kinds():
    trace = samples.trace(1, samples.DRAW_PATHS, samples.SOURCE)
    result = samples.inflection_result(1.0, "1/1", "1")
    objects = [samples.draw(), trace, samples.TREE_OF_LIFE, samples.metrics_rows(1, 1, 9)[0], result, {"a": 1}]
    assert [kind(each) for each in objects] == ["certificate", "trace", "forced", "metrics", "result", None]


def test_another_kind_of_file_is_refused(tmp_path):
    path = samples.write_lines(tmp_path / "m_metrics.jsonl", samples.metrics_rows(1, 1, 9))
    with pytest.raises(UserError, match="no output of `trace`, `force` or `-certificates`"):
        read_examples(path)


def test_blank_input_lines_are_left_out(tmp_path):
    blank = {"line": 1, "reason": "blank input line"}
    path = samples.write_lines(tmp_path / "a.jsonl", [blank, {**samples.draw(), "line": 2}])
    assert [example["line"] for example in read_examples(path)] == [2]
    with pytest.raises(UserError, match="only blank input lines"):
        read_examples(samples.write_lines(tmp_path / "b.jsonl", [blank]))


def test_pick_names_what_is_missing(draw_file):
    with pytest.raises(UserError, match=r"draw\.jsonl: no input line 7"):
        pick(draw_file, 7, lambda example: True, "a search")
    with pytest.raises(UserError, match=r"no example of line 1 with attention"):
        pick(draw_file, 1, lambda example: "attention" in example, "attention")


@pytest.mark.parametrize("parent", [None, 5, 1])
def test_tree_with_a_wrong_parent_is_refused(tmp_path, parent):
    record = samples.trace(1, samples.DRAW_PATHS, samples.SOURCE)
    record["tree"][1]["parent"] = parent
    with pytest.raises(UserError, match="input line 1: node 1 of `tree` comes before its parent"):
        read_examples(samples.write_lines(tmp_path / "a.jsonl", [record]))


def test_attention_of_another_shape_is_refused(tmp_path):
    record = samples.trace(1, samples.DRAW_PATHS, samples.SOURCE)
    record["hypotheses"][0]["attention"].pop()
    with pytest.raises(UserError, match="6 rows of .8. attention weights, for 7 target and 8 source tokens"):
        read_examples(samples.write_lines(tmp_path / "a.jsonl", [record]))


def test_attention_from_the_nonzeros_of_forced_decoding():
    example = samples.forced(["a", "b"], [{}, {}], ["x", "y", "z"])
    assert attention_of(example) == (["x", "y", "z"], ["a", "b"], [[0.75, 0.25, 0.0], [0.0, 0.75, 0.25]])
    del example["source"]  # then only what is attended to has a name
    assert attention_of(example)[0] == ["x", "y", "z"]
    example["steps"][0]["attention"] = None
    assert attention_of(example) is None


def test_result_without_signatures_is_refused(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"macro": {"acc": 1}}))
    with pytest.raises(UserError, match="no `signatures`"):
        read_result(path)


def test_signature_fields():
    fields = signature_fields("acc|set:high|alpha:1.5/2|train:a:b")
    assert fields == {"metric": "acc", "set": "high", "alpha": "1.5/2", "train": "a:b"}


def test_certificate_of_an_older_version_is_refused(tmp_path):
    record = samples.draw()
    del record["found"]
    with pytest.raises(UserError, match="the certificate lacks `found`"):
        read_examples(samples.write_lines(tmp_path / "a.jsonl", [record]))
