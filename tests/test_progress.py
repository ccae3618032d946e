"""Steps and epochs, time spent and time left."""

from __future__ import annotations

from onmt_entmax.progress import Clock, duration, steps_per_epoch


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
