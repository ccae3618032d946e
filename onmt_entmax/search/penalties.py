"""Length and coverage penalties with OpenNMT-py's formulae (after Wu et al. 2016), defined for zeros too."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from onmt_entmax.search.settings import SearchSettings


def length_divisor(settings: SearchSettings, tokens: int) -> float:
    """What the log-probability of a hypothesis is divided by.

    Args:
        settings: with ``length_penalty`` and ``alpha``.
        tokens: of the hypothesis, EOS included. As in OpenNMT-py, BOS counts as one more.
    """
    if not settings.has_length:
        return 1.0
    length = tokens + 1
    if settings.length_penalty == "wu":
        return ((5 + length) / 6.0) ** settings.alpha
    return float(length) ** settings.alpha


def coverage_penalty(settings: SearchSettings, coverage: Tensor, source_lengths: Sequence[int] | None) -> Tensor:
    """What is subtracted from the score of each row.

    For ``wu``, a source token that nothing attends to would give an infinite penalty, and all hypotheses would tie.
    Its coverage counts as the smallest normal float32 instead (a penalty of 87 beta each), so that hypotheses are
    ranked by how many tokens they leave out. Padding does not count.

    Args:
        settings: with ``coverage_penalty`` and ``beta``.
        coverage: attention summed over steps, ``(rows, src_len)``.
        source_lengths: of each row; only for ``wu``.

    Returns:
        float64, ``(rows,)``.
    """
    coverage = coverage.double()
    if settings.coverage_penalty == "summary":
        return settings.beta * (coverage.clamp(min=1.0) - 1.0).sum(-1)
    logs = coverage.clamp(min=torch.finfo(torch.float32).tiny, max=1.0).log()
    positions = torch.arange(coverage.size(-1), device=coverage.device)
    lengths = torch.tensor(source_lengths, device=coverage.device)
    return -settings.beta * logs.masked_fill(positions >= lengths.unsqueeze(-1), 0.0).sum(-1)
