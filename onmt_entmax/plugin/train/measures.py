r"""What a validation measures for each target token, when to stop by it, and which checkpoint was best.

Besides loss and accuracy these are the measures of Martins, Marinho, Martins (2020), "Sparse Text Generation",
Section 4, which stay finite where a model gives the gold token probability zero. With p the distribution, y the gold
token and V the size of the vocabulary:

- epsilon-perplexity: :math:`\exp(-\frac1N \sum \log \frac{p_y + \epsilon}{1 + \epsilon V})`
- sparsemax score: :math:`p_y + \frac12 (1 - \|p\|_2^2)`, between 0 and 1
- Jensen-Shannon divergence of p and the one-hot y, between 0 and log 2. Only y is in both supports, so
  :math:`JS = \log 2 + \frac12 (p_y \log p_y - (1 + p_y) \log (1 + p_y))`
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from onmt_entmax.errors import choices, invalid_setting

EPSILON = 1e-6
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


@dataclass
class TokenMeasures:
    """Sums over target tokens; ``attention_words`` counts the tokens for which there was attention."""

    words: int = 0
    correct: int = 0
    plain_loss: float = 0.0  # without label smoothing, coverage and alignment
    support: float = 0.0
    zeros: int = 0
    neg_log_epsilon: float = 0.0
    sparsemax_score: float = 0.0
    jensen_shannon: float = 0.0
    attention_words: int = 0
    attention_support: float = 0.0

    @classmethod
    def of(cls, sums: Tensor) -> TokenMeasures:
        """Read what :func:`measure_tokens` gave, added up over batches: one transfer from the device."""
        numbers = zip(fields(cls), sums.tolist())
        return cls(**{field.name: int(number) if field.type == "int" else number for field, number in numbers})

    def report(self) -> dict[str, float | None]:
        """Means per token under the names of the metrics file; None where no token was measured."""
        words, attended = self.words, self.attention_words
        # exp overflows above 709
        epsilon_perplexity = math.exp(min(self.neg_log_epsilon / words, 700.0)) if words else None
        return {
            "support_output": self.support / words if words else None,
            "support_attention": self.attention_support / attended if attended else None,
            "gold_zero": self.zeros / words if words else None,
            "epsilon_perplexity": epsilon_perplexity,
            "sparsemax_score": self.sparsemax_score / words if words else None,
            "jensen_shannon": self.jensen_shannon / words if words else None,
        }


def jensen_shannon(gold_prob: Tensor) -> Tensor:
    """Jensen-Shannon divergence (nats) of each distribution and its one-hot gold token, same shape."""
    p = gold_prob.double()
    return math.log(2) + 0.5 * (torch.special.xlogy(p, p) - (1 + p) * torch.log1p(p))


def sparsemax_score(gold_prob: Tensor, sum_of_squares: Tensor) -> Tensor:
    """Sparsemax score of each distribution, same shape."""
    return gold_prob.double() + 0.5 * (1 - sum_of_squares.double())


def neg_log_epsilon(gold_prob: Tensor, vocab_size: int, epsilon: float = EPSILON) -> Tensor:
    """Negative logarithm of the gold token's probability after adding epsilon to all, same shape."""
    return math.log1p(epsilon * vocab_size) - torch.log(gold_prob.double() + epsilon)


def measure_tokens(
    kept: Tensor,
    support_size: Tensor,
    gold_prob: Tensor,
    sum_of_squares: Tensor,
    vocab_size: int,
    correct: Tensor,
    plain_loss: Tensor,
    attention: Tensor | None = None,
) -> Tensor:
    """The sums of one batch on its device, float64: a number for each field of :class:`TokenMeasures`.

    Args:
        kept: which rows are tokens and not padding, ``(rows,)``.
        support_size, gold_prob, sum_of_squares: of the output's probabilities, ``(rows,)``.
        correct: number of rows whose most probable token is the gold one.
        plain_loss: summed loss without label smoothing.
        attention: probabilities, ``(rows, src_len)``, or None.
    """
    zero = torch.zeros((), dtype=torch.float64, device=kept.device)
    attended = zero if attention is None else ((attention > 0).sum(-1) * kept).sum().double()
    return torch.stack(
        [
            kept.sum().double(),
            correct.double(),
            plain_loss.double(),
            (support_size * kept).sum().double(),
            ((gold_prob == 0) & kept).sum().double(),
            torch.where(kept, neg_log_epsilon(gold_prob, vocab_size), zero).sum(),
            torch.where(kept, sparsemax_score(gold_prob, sum_of_squares), zero).sum(),
            torch.where(kept, jensen_shannon(gold_prob), zero).sum(),
            zero if attention is None else kept.sum().double(),
            attended,
        ]
    )


def criterion_names(wanted: Iterable[str] | None, scorers: Iterable[str] = ()) -> list[str]:
    """Resolve the names of `early_stopping_criteria`, in order and without repetition.

    Args:
        wanted: as the user wrote them; None gives stock's default, loss and accuracy.
        scorers: names of the further measures of this run (`valid_metrics`), e.g. ``BLEU``.
    """
    valid = [*DIRECTIONS, *ALIASES, *scorers]
    for name in wanted or ():
        if name not in valid:
            raise invalid_setting("early_stopping_criteria", name, choices(valid))
    return list(dict.fromkeys(ALIASES.get(name, name) for name in wanted or ())) or ["loss", "accuracy"]


def check_measured(criteria: Iterable[str], alpha: float, token_measures: bool) -> None:
    """Refuse criteria that this run does not measure, before it starts.

    Only an output layer of alpha 1 has a perplexity, and only our own loss has more ``token_measures``.
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
    """

    def __init__(self, patience: int, criteria: Iterable[str]) -> None:
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
