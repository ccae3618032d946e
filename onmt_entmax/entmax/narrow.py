"""Rows of attention size, where every operation costs its overhead: sparsemax and 1.5-entmax in few operations."""

from __future__ import annotations

import torch
from torch import Tensor

from onmt_entmax.entmax.thresholds import MAX_STEPS, may_look, newton, sort, tolerance

WIDEST = 64  # entries; sorting wider rows costs more than it saves
UNSEEN_STEPS = 4  # of Newton before the first look at how far it got


def entmax15(scores: Tensor) -> Tensor:
    """1.5-entmax of the last dimension, on the CPU, outside torch.compile; shape and dtype of ``scores``."""
    s = torch.sub(scores, scores.amax(-1, True)).mul_(0.5)
    width = None
    limit = tolerance(s)
    for step in range(MAX_STEPS):
        u = torch.add(s, 1 if width is None else width).relu_()
        norm = torch.linalg.vector_norm(u, 2, -1, True)
        if step >= UNSEEN_STEPS and not bool((norm.sub(1).abs_() > limit).any()):
            return u.mul_(u)
        change = (norm - 1).mul_(norm).div_(u.sum(-1, True))
        width = 1 - change if width is None else width.sub_(change)
        if step == 3 * UNSEEN_STEPS:  # rows that Newton is slow on: with a bracket
            break
    rows = s.reshape(-1, s.shape[-1])
    return torch.add(rows, newton(rows, 0.5)).relu_().square_().view_as(s)


def sparsemax(scores: Tensor) -> Tensor:
    """Sparsemax of the last dimension; shape and dtype of ``scores``."""
    s = torch.sub(scores, scores.amax(-1, True))
    return torch.add(s, sort(s, 1.0)).relu_()


def fits(scores: Tensor, alpha: object) -> bool:
    """Whether the functions here know this alpha and are the fastest for the last dimension of ``scores``."""
    if scores.dtype not in (torch.float32, torch.float64) or scores.shape[-1] > WIDEST:
        return False
    return alpha == 2 or (alpha == 1.5 and may_look(scores))
