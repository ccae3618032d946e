"""When to stop a run, and which checkpoint was best: both follow the measures of the validations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from onmt_entmax.errors import choices, invalid_setting

# measure -> whether higher is better; the names are those of the metrics file
DIRECTIONS = {
    "loss": False,
    "accuracy": True,
    "perplexity": False,
    "support_output": False,
    "support_attention": False,
    "gold_zero": False,
    "epsilon_perplexity": False,
    "sparsemax_score": True,
    "jensen_shannon": False,
}
ALIASES = {"ppl": "loss", "xent": "loss", "acc": "accuracy"}  # stock's; exp(loss) improves when the loss does
ERROR_RATES = {"TER", "WER", "CER"}


def criterion_names(wanted: Iterable[str] | None, scorers: Iterable[str] = ()) -> list[str]:
    """Resolve the names of `early_stopping_criteria`, in order and without repetition.

    Args:
        wanted: as the user wrote them; None gives stock's default, loss and accuracy.
        scorers: names of the further measures of this run (`valid_metrics`), e.g. ``BLEU``.

    Raises:
        UserError: an unknown name.
    """
    if wanted is None:
        return ["loss", "accuracy"]
    scorers = list(scorers)
    names: list[str] = []
    for name in wanted:
        resolved = ALIASES.get(name, name)
        if resolved not in DIRECTIONS and resolved not in scorers:
            raise invalid_setting("early_stopping_criteria", name, choices([*DIRECTIONS, *ALIASES, *scorers]))
        if resolved not in names:
            names.append(resolved)
    return names or ["loss", "accuracy"]


def check_measured(criteria: Iterable[str], alpha: float, token_measures: bool) -> None:
    """Refuse criteria that this run does not measure, before it starts.

    Args:
        criteria: from :func:`criterion_names`.
        alpha: of the output layer; only with 1 there is a perplexity.
        token_measures: whether more than loss and accuracy is measured (our loss, not one of stock's).

    Raises:
        UserError: naming the criterion.
    """
    for name in criteria:
        if name == "perplexity" and alpha != 1:
            rule = f"`generator_alpha` is {alpha:g}, whose loss has no perplexity; use loss, or epsilon_perplexity."
            raise invalid_setting("early_stopping_criteria", name, rule)
        if name in DIRECTIONS and not token_measures and name not in ("loss", "accuracy", "perplexity"):
            raise invalid_setting("early_stopping_criteria", name, "This kind of loss measures loss and accuracy only.")


def is_better(name: str, value: float | None, best: float | None) -> bool:
    """Whether ``value`` beats ``best`` (None: nothing yet). A value that is missing or not a number never does."""
    if value is None or math.isnan(value):
        return False
    if best is None:
        return True
    return value > best if DIRECTIONS.get(name, name.upper() not in ERROR_RATES) else value < best


class StopRule:
    """Stops after ``patience`` validations in a row without progress.

    With one criterion, progress is a new best value. With several, it is a validation at which every one of them beats
    its value at the last progress.

    Args:
        patience: at least 1.
        criteria: names of measures, from :func:`criterion_names`.

    Raises:
        UserError: patience below 1.
    """

    def __init__(self, patience: int, criteria: Iterable[str]) -> None:
        if patience < 1:
            raise invalid_setting("early_stopping", patience, "It must be at least 1, or 0 for no early stopping.")
        self.patience = patience
        self.criteria = list(criteria)
        self.best: dict[str, float] = {}
        self.best_step = 0
        self.waited = 0  # validations since the last progress

    @property
    def current_tolerance(self) -> int:
        """Validations without progress that are left; OpenNMT-py reports it to TensorBoard under this name."""
        return self.patience - self.waited

    def update(self, measures: Mapping[str, float | None], step: int) -> bool:
        """Take note of a validation; returns whether it was progress.

        A measure that is missing or not a number is no progress.
        """
        if all(is_better(name, measures.get(name), self.best.get(name)) for name in self.criteria):
            self.best = {name: float(measures[name]) for name in self.criteria}  # type: ignore[arg-type]
            self.best_step = step
            self.waited = 0
            return True
        self.waited += 1
        return False

    def has_stopped(self) -> bool:
        """Whether the patience is used up."""
        return self.waited >= self.patience

    def signature(self) -> str:
        """E.g. ``10xaccuracy``: ten validations without a new best accuracy."""
        return f"{self.patience}x{'+'.join(self.criteria)}"

    def state_dict(self) -> dict:
        """Plain data for a checkpoint."""
        return {"best": dict(self.best), "best_step": self.best_step, "waited": self.waited}

    def load_state_dict(self, state: dict) -> bool:
        """Go on from :meth:`state_dict`; False where other criteria were followed: then the rule begins anew."""
        if state["best"] and set(state["best"]) != set(self.criteria):
            return False
        self.best = dict(state["best"])
        self.best_step, self.waited = state["best_step"], state["waited"]
        return True
