"""Dropout masks that a CPU draws in a fifth of the time, and dropout that asks the engine for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from onmt_entmax import engines


class DropoutMask(NamedTuple):
    """Which numbers dropout leaves, and the factor 1 / (1 - p) for them.

    Attributes:
        mask: bool, ``(layers, numbers)``.
        scales: one for each layer.
    """

    mask: Tensor
    scales: list[float]

    @classmethod
    def draw(cls, shape: Sequence[int], p: float, device: torch.device | str = "cpu") -> DropoutMask:
        """Leave each number with probability 1 - ``p``; the first dimension of the shape counts layers.

        On a CPU four are cut from each random 64-bit number, a fifth of the time of ``bernoulli_``; the probability is
        then a multiple of 2^-16, and so is the scale that goes with it.
        """
        if torch.device(device).type != "cpu" or p >= 1:
            mask = torch.empty(shape, dtype=torch.bool, device=device).bernoulli_(1 - p)
            return cls(mask, [1 / max(1 - p, 1e-9)] * shape[0])
        count = math.prod(shape)
        dropped = min(max(round(p * 65536), 1), 65535)
        bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        mask = bits.view(torch.int16)[:count] >= dropped - 32768
        return cls(mask.view(*shape), [65536 / (65536 - dropped)] * shape[0])

    def factors(self, dtype: torch.dtype) -> Tensor:
        """What to multiply with: 0, or the layer's scale; same shape as the mask."""
        found = self.mask.to(dtype)
        for layer, scale in zip(found, self.scales):
            layer.mul_(scale)
        return found


class _Drop(torch.autograd.Function):
    """Dropout on a CPU; saves a byte for each number."""

    @staticmethod
    def forward(ctx, x, p):
        mask, (ctx.scale,) = DropoutMask.draw((1, x.numel()), p)
        ctx.save_for_backward(mask)
        return _Drop.apply_mask(x, mask, ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return _Drop.apply_mask(gradient, *ctx.saved_tensors, ctx.scale), None

    @staticmethod
    def apply_mask(x, mask, scale):
        return mask.view(x.shape).to(x.dtype).mul_(scale).mul_(x)


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero a share ``p`` of ``x`` and scale the rest; same shape. On a CPU by :class:`DropoutMask`."""
    return F.dropout(x, p) if x.device.type != "cpu" or p in (0, 1) else _Drop.apply(x, p)


class Dropout(nn.Dropout):
    """``nn.Dropout`` by the engine of what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        """Zero a share ``p`` of ``x`` in training and scale the rest; same shape."""
        return engines.choose(x.device, x.dtype).dropout(x, self.p) if self.training else x
