"""Checkpoints that appear under their name only when whole, with all that an exact continuation needs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import onmt.models.model_saver
import torch
from onmt.inputters.inputter import vocabs_to_dict
from onmt.modules.lora import lora_state_dict
from onmt.utils.logging import logger

from onmt_entmax.files import link_or_copy, write_stream
from onmt_entmax.plugin.checkpoints import KEY
from onmt_entmax.plugin.train.processes import from_first, is_first, on_first, world_size

StockModelSaver = onmt.models.model_saver.ModelSaver


@contextmanager
def weights_in_place(model, weights) -> Iterator[None]:
    """Give the model other weights (the moving average, in the order of its parameters) for the time of the block."""
    if not weights:
        yield
        return
    own = [parameter.data for parameter in model.parameters()]
    try:
        for parameter, other in zip(model.parameters(), weights):
            parameter.data = other.data.to(parameter.dtype)
        yield
    finally:
        for parameter, data in zip(model.parameters(), own):
            parameter.data = data


class WholeModelSaver(StockModelSaver):
    """Stock's saver, with checkpoints written whole, and the best one kept apart.

    Attributes:
        training_state: gives our part of the checkpoint; every process calls it.
        last_path: the newest whole checkpoint.
    """

    training_state: Callable[[int], dict] | None = None
    last_path: str | None = None
    _linkable: tuple[int, str] | None = None  # a checkpoint of this very step, to be given a second name

    def _left_to_stock(self) -> bool:
        sharded = world_size() > 1 and getattr(self.model_opt, "parallel_mode", "") == "tensor_parallel"
        return sharded or self.save_format != "pytorch"

    def save(self, step: int, moving_average=None) -> None:
        """Write ``PREFIX_step_STEP.pt`` and remove what ``keep_checkpoint`` says; on failure nothing is removed."""
        if self._left_to_stock():
            super().save(step, moving_average)
            return
        if self.keep_checkpoint == 0 or step == self.last_saved_step:
            return
        path = f"{self.base_path}_step_{step}.pt"
        self._write(path, step, moving_average)
        self.last_saved_step = step
        if self.keep_checkpoint > 0 and is_first():
            if path in self.checkpoint_queue:
                self.checkpoint_queue.remove(path)
            if len(self.checkpoint_queue) == self.checkpoint_queue.maxlen:
                self._rm_checkpoint(self.checkpoint_queue.popleft())
            self.checkpoint_queue.append(path)

    def save_best(self, step: int, moving_average=None) -> None:
        """Write ``PREFIX_best.pt``, which ``keep_checkpoint`` never removes; on failure the one before stays."""
        self._write(f"{self.base_path}_best.pt", step, moving_average)

    def kept(self) -> list[str]:
        """The checkpoints that ``keep_checkpoint`` counts, oldest first."""
        return list(self.checkpoint_queue) if self.keep_checkpoint > 0 else []

    def step_of(self, path: str) -> int | None:
        """The step in the name of one of this run's own checkpoints; None for every other file."""
        own = re.escape(os.path.abspath(self.base_path))
        found = re.fullmatch(rf"{own}_step_(\d+)\.pt", os.path.abspath(path))
        return None if found is None else int(found[1])

    def is_own(self, path: str) -> bool:
        """Whether ``path`` is named as this run names its checkpoints."""
        return self.step_of(path) is not None or os.path.abspath(path) == f"{os.path.abspath(self.base_path)}_best.pt"

    def go_on_from(self, kept: list[str], train_from: str) -> None:
        """Count the checkpoints of the run that is resumed, as far as they are still there, as if it had gone on.

        Only their steps are taken from the checkpoint: what is removed later is ``PREFIX_step_N.pt`` of this very run,
        wherever its folder has been moved to, and nothing at all of a run under another name.

        Args:
            kept: what :meth:`kept` was before ``train_from`` was written.
            train_from: the checkpoint that the run resumes from.
        """
        if self.keep_checkpoint <= 0 or not self.is_own(train_from):
            return
        found = [re.search(r"_step_(\d+)\.pt$", str(path)) for path in kept]
        steps = [int(match[1]) for match in found if match is not None]
        last = self.step_of(train_from)
        if last is not None:
            steps = [*(step for step in steps if step != last), last]
        there = [path for path in (f"{self.base_path}_step_{step}.pt" for step in steps) if os.path.exists(path)]
        for path in there[: -self.keep_checkpoint]:
            self._rm_checkpoint(path)
        self.checkpoint_queue.extend(there[-self.keep_checkpoint :])

    def remove_parts(self) -> None:
        """Remove what a killed run left of a checkpoint half written."""
        base = Path(self.base_path)
        name = re.compile(rf"\.{re.escape(base.name)}_(step_\d+|best)\.pt\.part")
        for part in base.parent.glob(".*.part"):
            if name.fullmatch(part.name) and part.is_file():
                part.unlink()

    def _write(self, path: str, step: int, moving_average) -> None:
        linkable = from_first(self._linkable)
        if linkable is not None and linkable[0] == step and linkable[1] != path:
            self._on_first(path, lambda: link_or_copy(linkable[1], path))
        else:
            checkpoint = self._checkpoint(step, moving_average)
            self._on_first(path, lambda: write_stream(path, lambda file: torch.save(checkpoint, file)))
        self._linkable = (step, path)

    def _on_first(self, path: str, write: Callable[[], None]) -> None:
        if is_first():
            logger.info(f"Saving checkpoint {path}")
        on_first(path, write, self.last_path)
        self.last_path = path

    def _checkpoint(self, step: int, moving_average) -> dict:
        state = self.training_state(step) if self.training_state is not None else None
        if state is not None and moving_average:
            state["raw_weights"] = {name: value.detach().clone() for name, value in self.model.named_parameters()}
            if any(value.dtype != torch.float32 for value in self.model.parameters()):
                state["average"] = [average.detach() for average in moving_average]
        with weights_in_place(self.model, moving_average):
            if getattr(self.model_opt, "lora_layers", None) or getattr(self.model_opt, "lora_embedding", False):
                weights, generator = lora_state_dict(self.model, bias="lora_only"), None
            else:
                weights = {name: value for name, value in self.model.state_dict().items() if "generator" not in name}
                generator = self.model.generator.state_dict()
        checkpoint = {
            "model": weights,
            "generator": generator,
            "vocab": vocabs_to_dict(self.vocabs),
            "opt": self.model_opt,
            "optim": self.optim.state_dict(),
        }
        if state is not None:
            checkpoint[KEY] = state
        return checkpoint
