"""Metrics files: one course of a run, whatever happened to it."""

from __future__ import annotations

import json
import math

import pytest

from onmt_entmax.errors import UserError
from onmt_entmax.report.metrics import MetricsLog, read_metrics, read_rows
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


def test_metrics_are_appended_and_truncated(tmp_path):
    path = tmp_path / "m_metrics.jsonl"
    log = MetricsLog(path)
    for step in (5, 10, 15):
        log.append({"step": step, "loss": math.nan if step == 10 else 1.5})
    assert path.read_bytes() == b'{"step": 5, "loss": 1.5}\n{"step": 10, "loss": null}\n{"step": 15, "loss": 1.5}\n'
    MetricsLog(path, after_step=10).append({"step": 11})
    assert [entry["step"] for entry in read_rows(path)] == [5, 10, 11]
    MetricsLog(path)
    assert path.read_bytes() == b""


def test_metrics_survive_a_kill_in_the_middle_of_a_line(tmp_path):
    path = tmp_path / "m_metrics.jsonl"
    path.write_bytes(b'{"step": 5}\n{"step": 1')
    assert read_rows(path) == [{"step": 5}]
    MetricsLog(path, after_step=5)
    assert path.read_bytes() == b'{"step": 5}\n'


def test_metrics_of_something_else_are_named(tmp_path):
    path = tmp_path / "m_metrics.jsonl"
    path.write_bytes(b'nothing\n{"step": 5}\n')
    with pytest.raises(ValueError, match=r"m_metrics.jsonl, line 1: not JSON"):
        read_rows(path)


def test_read_metrics_keeps_unicode_line_separators(tmp_path):
    path = tmp_path / "m_metrics.jsonl"
    MetricsLog(path).append({"step": 1, "signature": "a\u2028b"})
    assert read_rows(path) == [{"step": 1, "signature": "a\u2028b"}]
    assert len(path.read_bytes().split(b"\n")) == 2
    assert json.loads(path.read_bytes())["step"] == 1
