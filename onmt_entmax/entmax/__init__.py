"""alpha-entmax: mappings, losses and an output layer with a sparse backward pass. Imports torch and nothing else.

Everything that the public ``entmax`` package offers under the same name takes its place (see modules.py), normmax and
budget aside.
"""

from __future__ import annotations

from onmt_entmax.entmax.functional import (
    entmax,
    entmax15,
    entmax_backward,
    entmax_forward,
    log_entmax,
    log_entmax_topk,
    sparsemax,
)
from onmt_entmax.entmax.linear_loss import LinearEntmaxLossOutput, linear_entmax_loss
from onmt_entmax.entmax.losses import entmax_loss
from onmt_entmax.entmax.modules import (
    Entmax,
    Entmax15,
    Entmax15Loss,
    EntmaxBisect,
    EntmaxBisectLoss,
    EntmaxLoss,
    LearnedAlpha,
    LinearEntmaxLoss,
    Sparsemax,
    SparsemaxBisect,
    SparsemaxBisectLoss,
    SparsemaxLoss,
    entmax15_loss,
    entmax_bisect,
    entmax_bisect_loss,
    sparsemax_bisect,
    sparsemax_bisect_loss,
    sparsemax_loss,
)

__all__ = [
    "Entmax",
    "Entmax15",
    "Entmax15Loss",
    "EntmaxBisect",
    "EntmaxBisectLoss",
    "EntmaxLoss",
    "LearnedAlpha",
    "LinearEntmaxLoss",
    "LinearEntmaxLossOutput",
    "Sparsemax",
    "SparsemaxBisect",
    "SparsemaxBisectLoss",
    "SparsemaxLoss",
    "entmax",
    "entmax15",
    "entmax15_loss",
    "entmax_backward",
    "entmax_bisect",
    "entmax_bisect_loss",
    "entmax_forward",
    "entmax_loss",
    "linear_entmax_loss",
    "log_entmax",
    "log_entmax_topk",
    "sparsemax",
    "sparsemax_bisect",
    "sparsemax_bisect_loss",
    "sparsemax_loss",
]
