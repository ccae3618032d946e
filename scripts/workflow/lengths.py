"""How long a training of a grid is: epochs, lines and steps."""

from __future__ import annotations

from pathlib import Path

from onmt_entmax.errors import UserError, invalid_setting
from onmt_entmax.files import read_json
from onmt_entmax.progress import steps_per_epoch
from onmt_entmax.tasks.prepared import MANIFEST


def lengths(grid: dict, lines: int) -> dict[str, int]:
    """Turn epochs into steps.

    Args:
        grid: ``length`` has what is wanted of ``steps``, ``epochs``, ``valid_steps`` and ``valid_epochs``; what is None
            there, ``settings`` says. ``average``, if there, is how many checkpoints are averaged, an epoch apart (of
            batches of tokens ``save_checkpoint_steps``).
        lines: of training text.

    Returns:
        ``train_steps`` (0: until early stopping), ``valid_steps`` and ``save_checkpoint_steps``.

    Raises:
        UserError: too short a training for so many checkpoints.
    """
    settings, epoch = grid["settings"], epoch_steps(grid, lines)
    train_steps, valid_steps = wanted(grid, lines, "train_"), wanted(grid, lines, "valid_")
    if train_steps:
        valid_steps = min(valid_steps, train_steps)
    saved = min(settings.get("save_checkpoint_steps", valid_steps), valid_steps)
    average = grid.get("average")
    if average and settings.get("batch_type", "sents") == "sents":
        saved = epoch
    if average and train_steps and train_steps // saved < average:
        rule = f"A training of {train_steps} steps has {train_steps // saved}, one every {saved} steps."
        raise invalid_setting("average", average, rule)
    if average and train_steps % saved:  # its last checkpoint would be less than an epoch behind the one before
        rule = f"Checkpoints {saved} steps apart are averaged: give a multiple, such as {train_steps // saved * saved}."
        raise invalid_setting("steps", train_steps, rule)
    return {"train_steps": train_steps, "valid_steps": valid_steps, "save_checkpoint_steps": saved}


def wanted(grid: dict, lines: int, kind: str) -> int:
    """The steps of ``kind``, ``train_`` or ``valid_``: as given on the command line, or else by the settings."""
    settings, given = grid["settings"], grid["length"]
    name = kind.replace("train_", "")
    count, epochs = given[f"{name}steps"], given[f"{name}epochs"]
    if count is None and epochs is None:
        return settings[f"{kind}steps"]
    return epochs * epoch_steps(grid, lines) if count is None else count


def epoch_steps(grid: dict, lines: int) -> int:
    """Steps in which a training sees as many sentences as there are lines; batches have to count sentences."""
    settings = grid["settings"]
    accumulated = settings.get("accum_count") or 1
    accumulated = accumulated[-1] if isinstance(accumulated, list) else accumulated
    processes = 1 if grid["gpus"] else settings.get("world_size") or 1
    return steps_per_epoch(lines, settings["batch_size"], accumulated, processes)


def training_lines(data: Path) -> int:
    """Lines of training text, from the manifest of a prepared folder.

    Raises:
        UserError: the manifest does not say.
    """
    path = data / MANIFEST
    manifest = read_json(path)
    try:
        return manifest["rows"]["train"] if "rows" in manifest else manifest["counts"]["train"]["kept"]
    except (KeyError, TypeError):
        raise UserError(f"{path} does not say how many lines of training text there are; make it again.") from None
