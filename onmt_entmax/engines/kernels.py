"""The elementwise parts of an LSTM step, written for few passes over memory, and fast dropout masks.

Gates are ``(4H, B)``, in PyTorch's order: input, forget, candidate, output. Columns are sentences because on a CPU,
once two threads share the work, the product of a weight and 64 columns takes little more than half the time that 64
rows and the transposed weight take. Strided views are fine.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_MINUS_ONE = torch.tensor(-1.0)  # has no dimensions, so that the other operand's dtype counts


def compiled_for(*tensors: Tensor) -> ModuleType | None:
    """``model.compiled`` if it can compute with the tensors, float32 on a CPU, and numba is installed; else None."""
    fits = all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors)
    return _compiled() if fits else None


@functools.cache
def _compiled() -> ModuleType | None:
    try:
        from onmt_entmax.engines.cpu import compiled  # at the first need: to import numba takes half a second
    except ImportError:
        logging.getLogger(__name__).info(
            "numba is not installed, so that training on a CPU takes longer: pip install numba"
        )
        return None
    return compiled


def ours_to_change(saved: Sequence[Tensor]) -> Sequence[Tensor]:
    """What a backward pass may change of the tensors that were saved for it: copies, if it may run once more.

    It may with ``retain_graph``; older versions of PyTorch do not tell, so that it always may.
    """
    keeps = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return [tensor.clone() for tensor in saved] if keeps is None or keeps() else saved


def tanh(x: Tensor, out: Tensor) -> Tensor:
    """tanh into ``out``; on a CPU as 2 sigmoid(2x) - 1, because the sigmoid's kernel takes a quarter of the time."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return torch.tanh(x, out=out)
    return torch.add(_MINUS_ONE, torch.mul(x, 2, out=out).sigmoid_(), alpha=2, out=out)


def cell_forward(gates: Tensor, cell: Tensor, new_cell: Tensor, squashed: Tensor, out: Tensor) -> None:
    """One LSTM cell.

    Args:
        gates: before the activations, ``(4H, B)``; activated in place.
        cell: state before the step, ``(H, B)``.
        new_cell, squashed, out: receive the new state, its tanh and the output, ``(H, B)``.
    """
    i, f, g, o = gates.chunk(4)
    if gates.device.type == "cpu":
        g.mul_(2)
        gates.sigmoid_()
        torch.add(_MINUS_ONE, g, alpha=2, out=g)
    else:
        gates[: 2 * cell.size(0)].sigmoid_()
        g.tanh_()
        o.sigmoid_()
    torch.mul(f, cell, out=new_cell)
    new_cell.addcmul_(i, g)
    torch.mul(o, tanh(new_cell, squashed), out=out)


def cell_slopes(gates: Tensor, squashed: Tensor) -> tuple[Tensor, Tensor]:
    """What :func:`cell_backward` needs and can be had for many steps at once.

    Args:
        gates: activated, ``(4H, N)``.
        squashed: of :func:`cell_forward`, ``(H, N)``.

    Returns:
        Slopes of the gates ``(4H, N)`` and of the state's tanh ``(H, N)``, each times what it meets that is known.
    """
    i, _, g, o = gates.chunk(4)
    one = gates.new_ones(())
    slopes = torch.addcmul(gates, gates, gates, value=-1)  # the sigmoid's
    d_i, _, d_g, d_o = slopes.chunk(4)
    d_i.mul_(g)
    torch.addcmul(one, g, g, value=-1, out=d_g).mul_(i)  # the tanh's
    d_o.mul_(squashed)
    return slopes, torch.addcmul(one, squashed, squashed, value=-1).mul_(o)


def cell_backward(slopes: Tensor, opened: Tensor, forget: Tensor, cell: Tensor, d_out: Tensor, d_cell: Tensor) -> None:
    """Back through one LSTM cell.

    Args:
        slopes, opened: of :func:`cell_slopes`; ``slopes`` becomes the gradient of the gates before their activations.
        forget: activated gate, ``(H, B)``.
        cell: state before the step, ``(H, B)``.
        d_out: gradient of the output, ``(H, B)``.
        d_cell: gradient of the new state, ``(H, B)``; becomes that of the state before.
    """
    size = d_cell.size(0)
    d_cell.addcmul_(d_out, opened)
    inner = slopes[: 3 * size].unflatten(0, (3, size))
    inner.mul_(d_cell)
    inner[1].mul_(cell)
    slopes[3 * size :].mul_(d_out)
    d_cell.mul_(forget)


class Kept(NamedTuple):
    """What dropout keeps, and the factor 1 / (1 - p) for it.

    Attributes:
        mask: bool, ``(layers, numbers)``.
        scales: one for each layer.
    """

    mask: Tensor
    scales: list[float]

    @classmethod
    def draw(cls, shape: Sequence[int], p: float, device: torch.device | str = "cpu") -> Kept:
        """Keep each number with probability 1 - ``p``; the first dimension of the shape counts layers.

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
        mask, (ctx.scale,) = Kept.draw((1, x.numel()), p)
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
    """Zero a share ``p`` of ``x`` and scale the rest; same shape."""
    return F.dropout(x, p) if x.device.type != "cpu" or p in (0, 1) else _Drop.apply(x, p)


class Dropout(nn.Dropout):
    """``nn.Dropout`` by :func:`dropout`."""

    def forward(self, x: Tensor) -> Tensor:
        """Zero a share ``p`` of ``x`` in training and scale the rest; same shape."""
        return dropout(x, self.p) if self.training else x
