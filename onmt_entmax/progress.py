"""How far a run is: durations for people, an estimate of the time left, steps and epochs."""

from __future__ import annotations

import math
import time


def duration(seconds: float) -> str:
    """E.g. ``0:03:07``, or ``2d 03:04:05``."""
    minutes, second = divmod(int(seconds + 0.5), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}d {hour:02}:{minute:02}:{second:02}" if days else f"{hour}:{minute:02}:{second:02}"


def steps_per_epoch(lines: int, batch_size: int, accum_count: int = 1, world_size: int = 1) -> int:
    """Steps in which a run sees as many examples as its corpora have lines, rounded up.

    Ten lines in batches of four are three steps.
    """
    return math.ceil(lines / (batch_size * accum_count * world_size))


class Clock:
    """Measures training time without the pauses (validation, saving), over resumed runs, and guesses what is left.

    Args:
        elapsed: seconds of training before this process.
    """

    def __init__(self, elapsed: float = 0.0, now=time.monotonic) -> None:
        self._now = now
        self._started = self._last = now()
        self._elapsed = elapsed
        self._running = True

    def elapsed(self) -> float:
        """Seconds of training so far."""
        if self._running:
            now = self._now()
            self._elapsed += now - self._last
            self._last = now
        return self._elapsed

    def pause(self) -> None:
        """Stop counting, until :meth:`go_on`."""
        self.elapsed()
        self._running = False

    def go_on(self) -> None:
        """Count again."""
        self._last = self._now()
        self._running = True

    def left(self, done: int, remaining: int) -> float | None:
        """Seconds that ``remaining`` steps will take, pauses included, after ``done`` steps in this process.

        None where it cannot be told because nothing is done yet.
        """
        if done <= 0:
            return None
        return max(remaining, 0) * (self._now() - self._started) / done
