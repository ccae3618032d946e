"""The learning-rate schedule of the paper: the rate shrinks whenever validation loss rises."""

from __future__ import annotations

import math


class ValidLossSchedule:
    """Multiplies the rate by ``decay`` whenever validation loss is higher than at the validation before.

    The comparison is with the previous validation, not with the best one so far, as in the paper's code. A loss that
    is not a number counts as higher than any number, and the one after it is compared with the last that was one.

    Args:
        decay: above 0, at most 1; the paper uses 0.5.

    Raises:
        ValueError: ``decay`` outside that range.
    """

    def __init__(self, decay: float) -> None:
        if not 0 < decay <= 1:
            raise ValueError(f"Invalid setting for `learning_rate_decay`: {decay}. It must be above 0 and at most 1.")
        self.decay = decay
        self.scale = 1.0  # product of all decays so far
        self.previous: float | None = None

    def update(self, loss: float) -> bool:
        """Take note of a validation's loss; returns whether the rate shrank."""
        finite = math.isfinite(loss)
        shrinks = self.previous is not None and (not finite or loss > self.previous)
        if shrinks:
            self.scale *= self.decay
        if finite:
            self.previous = loss
        return shrinks

    def __call__(self, step: int) -> float:
        """Factor of the learning rate; the same at every step between two validations."""
        return self.scale

    def state_dict(self) -> dict:
        """Plain data for a checkpoint; ``decay`` is an option and not part of it."""
        return {"scale": self.scale, "previous": self.previous}

    def load_state_dict(self, state: dict) -> None:
        """Go on from :meth:`state_dict`."""
        self.scale, self.previous = float(state["scale"]), state["previous"]
