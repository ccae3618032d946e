"""The most probable entries of alpha-entmax and their logarithms, mostly without a look at the others."""

from __future__ import annotations

import torch
from torch import Tensor

from onmt_entmax.entmax.functional import Alpha, check_alpha, entmax_forward

FEWEST = 8  # entries to solve on; the support of a trained model is seldom larger
SPARE = 2  # entries beyond those wanted: the last one has to be outside the support


def log_entmax_topk(scores: Tensor, k: int, alpha: Alpha = 1.5) -> tuple[Tensor, Tensor]:
    """The k largest entries of ``log_entmax(scores, alpha)``, without autograd.

    An entry that is zero among the largest proves that all of the support has been seen, and entmax of the support
    alone is entmax of the row. Only rows without such an entry are solved as a whole.

    Args:
        scores: ``(n, d)``.
        k: how many; d if that is less.
        alpha: a number of at least 1.

    Returns:
        Logarithms ``(n, k)``, descending, ``-inf`` outside the support, and their places ``(n, k)``.
    """
    d = scores.shape[-1]
    k = min(k, d)
    if check_alpha(alpha) == 1:
        return torch.log_softmax(scores, -1).topk(k, -1)
    values, places = scores.topk(min(d, max(FEWEST, k + SPARE)), -1)
    probs = entmax_forward(values, alpha)
    if probs.shape[-1] < d:
        unproven = (probs[:, -1] > 0).nonzero().squeeze(-1)
        if unproven.numel() > 0:
            whole = entmax_forward(scores.index_select(0, unproven), alpha)
            probs.index_copy_(0, unproven, whole.gather(1, places.index_select(0, unproven)))
    return probs[:, :k].log(), places[:, :k]
