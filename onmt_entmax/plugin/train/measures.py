r"""What a validation measures for each target token, in sums that can be added up over batches.

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
from dataclasses import dataclass, fields

import torch
from torch import Tensor

EPSILON = 1e-6


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

    def __add__(self, other: TokenMeasures) -> TokenMeasures:
        return TokenMeasures(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

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
) -> TokenMeasures:
    """Sum up one batch; one transfer from the device.

    Args:
        kept: which rows are tokens and not padding, ``(rows,)``.
        support_size: non-zero probabilities of the output, ``(rows,)``.
        gold_prob: probability of the gold token, ``(rows,)``.
        sum_of_squares: of the probabilities, ``(rows,)``.
        vocab_size: number of classes.
        correct: number of rows whose most probable token is the gold one.
        plain_loss: summed loss without label smoothing.
        attention: probabilities, ``(rows, src_len)``, or None.
    """
    zero = torch.zeros((), dtype=torch.float64, device=kept.device)
    attended = zero if attention is None else ((attention > 0).sum(-1) * kept).sum().double()
    sums = torch.stack(
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
    ).tolist()
    for index in (0, 1, 4, 8):
        sums[index] = int(sums[index])
    return TokenMeasures(*sums)
