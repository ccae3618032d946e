"""Metrics files: one course of a run, whatever happened to it."""

from __future__ import annotations

import pytest

from onmt_entmax.errors import UserError
from onmt_entmax.report.metrics import read_metrics, read_rows
from tests.report import samples


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


def test_rows_of_a_new_file_and_of_another_kind(tmp_path):
    path = tmp_path / "m_metrics.jsonl"
    path.write_text("")
    assert read_rows(path) == []
    with pytest.raises(UserError, match="is empty"):
        read_metrics(path)
    samples.write_lines(path, [samples.draw()])
    with pytest.raises(UserError, match="line 1: not an entry of a metrics file"):
        read_rows(path)
    with pytest.raises(UserError, match="holds certificates of .*Needed: a metrics file of `onmt_train`"):
        read_metrics(path)
