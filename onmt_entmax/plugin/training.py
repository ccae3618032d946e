"""Hooks into the trainer: learning-rate schedule, best checkpoint, validation measures, resuming."""

from __future__ import annotations


def install() -> None:
    """Nothing yet beyond stock's trainer."""
