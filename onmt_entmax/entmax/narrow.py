"""Rows of attention size, where every operation costs its overhead: alpha from 1.25 to 2 in few operations."""

from __future__ import annotations

import torch
from torch import Tensor

from onmt_entmax.entmax.solvers import MAX_STEPS, NEAR_ONE, may_look, may_wait, newton, sort, tolerance

WIDEST = 64  # entries; sorting wider rows costs more than it saves
UNSEEN_STEPS = 4  # of Newton before the first look at how far it got


def entmax(scores: Tensor, alpha: float) -> Tensor:
    """alpha-entmax of the last dimension where :func:`fits` says so; shape and dtype of ``scores``."""
    s = torch.sub(scores, scores.amax(-1, True))
    if alpha == 2:
        return torch.add(s, sort(s, 1.0)).relu_()
    epsilon = alpha - 1
    s.mul_(epsilon)
    width = None
    limit = tolerance(s) if epsilon == 0.5 else tolerance(s) / epsilon
    for step in range(MAX_STEPS):
        u = torch.add(s, 1 if width is None else width).relu_()
        norm, change = _norm_and_change(u, epsilon)
        if step >= UNSEEN_STEPS and not bool((norm.sub(1).abs_() > limit).any()):
            return u.pow_(1 / epsilon)
        width = 1 - change if width is None else width.sub_(change)
        if step == 3 * UNSEEN_STEPS:  # rows that Newton is slow on: with a bracket
            break
    rows = s.reshape(-1, s.shape[-1])
    return torch.add(rows, newton(rows, epsilon)).relu_().pow_(1 / epsilon).view_as(s)


def _norm_and_change(u: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """What is to be 1, the rows' sum of ``u ** (1 / epsilon)`` or its root, and Newton's step for the width.

    ``thresholds.norm_and_step`` in fewer operations: narrow rows hide what powers of zeros take.
    """
    if epsilon == 0.5:
        norm = torch.linalg.vector_norm(u, 2, -1, True)
        return norm, (norm - 1).mul_(norm).div_(u.sum(-1, True))
    slope = u.pow(1 / epsilon - 1)
    total = (slope * u).sum(-1, True)
    return total, (total - total.pow(1 - epsilon)).div_(slope.sum(-1, True))


def fits(scores: Tensor, alpha: object) -> bool:
    """Whether :func:`entmax` knows this alpha and is the fastest for the last dimension of ``scores``."""
    if scores.dtype not in (torch.float32, torch.float64) or scores.shape[-1] > WIDEST or isinstance(alpha, Tensor):
        return False
    if alpha == 2:
        return True
    if not 1 + NEAR_ONE <= alpha < 2:
        return False
    return may_look(scores) or (alpha != 1.5 and may_wait(scores))  # on a device, sorting solves 1.5 without waiting
