"""The metrics file and files that appear only when whole."""

from __future__ import annotations

import json
import math

import pytest

from onmt_entmax.progress import Clock, duration, steps_per_epoch
from onmt_entmax.report.metrics import MetricsLog, read_rows


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


def test_steps_per_epoch():
    assert steps_per_epoch(10, 4) == 3  # 4 + 4 + 2
    assert steps_per_epoch(8, 4) == 2
    assert steps_per_epoch(100, 4, accum_count=2, world_size=3) == 5  # 24 lines a step


def test_clock_counts_training_only_and_guesses_the_rest():
    now = [100.0]
    clock = Clock(elapsed=50.0, now=lambda: now[0])
    assert clock.left(0, 10) is None
    now[0] = 110.0
    clock.pause()
    now[0] = 130.0
    assert clock.elapsed() == 60.0
    clock.go_on()
    now[0] = 140.0
    assert clock.elapsed() == 70.0
    # 40 seconds with the pause for 8 steps: 5 a step
    assert clock.left(8, 3) == 15.0


def test_duration():
    assert [duration(s) for s in (0.4, 187, 3600, 97445)] == ["0:00:00", "0:03:07", "1:00:00", "1d 03:04:05"]


def test_read_metrics_keeps_unicode_line_separators(tmp_path):
    path = tmp_path / "m_metrics.jsonl"
    MetricsLog(path).append({"step": 1, "signature": "a\u2028b"})
    assert read_rows(path) == [{"step": 1, "signature": "a\u2028b"}]
    assert len(path.read_bytes().split(b"\n")) == 2
    assert json.loads(path.read_bytes())["step"] == 1
