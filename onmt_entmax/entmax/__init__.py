"""alpha-entmax: mappings, losses and an output layer with a sparse backward pass. Imports torch and nothing else."""

from __future__ import annotations

from onmt_entmax.entmax.functional import (
    Entmax,
    Entmax15,
    LearnedAlpha,
    Sparsemax,
    entmax,
    entmax15,
    entmax_backward,
    entmax_forward,
    log_entmax,
    sparsemax,
)
from onmt_entmax.entmax.largest import log_entmax_topk
from onmt_entmax.entmax.linear_loss import LinearEntmaxLoss, OutputLayerLoss, linear_entmax_loss
from onmt_entmax.entmax.losses import EntmaxLoss, entmax_loss

__all__ = [
    "Entmax",
    "Entmax15",
    "EntmaxLoss",
    "LearnedAlpha",
    "LinearEntmaxLoss",
    "OutputLayerLoss",
    "Sparsemax",
    "entmax",
    "entmax15",
    "entmax_backward",
    "entmax_forward",
    "entmax_loss",
    "linear_entmax_loss",
    "log_entmax",
    "log_entmax_topk",
    "sparsemax",
]
