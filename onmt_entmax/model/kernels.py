"""The elementwise parts of an LSTM step, written for few passes over memory, and fast dropout masks.

Gates are ``(B, 4H)``, in PyTorch's order: input, forget, candidate, output. Further dimensions may stand in front.
"""

from __future__ import annotations

import torch
from torch import Tensor


def tanh_(x: Tensor) -> Tensor:
    """tanh in place. On a CPU by way of the sigmoid, whose kernel takes a quarter of the time: 2 sigmoid(2x) - 1."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return x.tanh_()
    return x.mul_(2).sigmoid_().mul_(2).sub_(1)


def cell_forward(gates: Tensor, cell: Tensor, new_cell: Tensor, squashed: Tensor, out: Tensor) -> None:
    """One LSTM cell.

    Args:
        gates: before the activations, ``(B, 4H)``; activated in place.
        cell: state before the step, ``(B, H)``.
        new_cell, squashed, out: receive the new state, its tanh and the output, ``(B, H)``.
    """
    size = cell.size(-1)
    i, f, g, o = (gates[..., k * size : (k + 1) * size] for k in range(4))
    if gates.device.type == "cpu":
        g.mul_(2)
        gates.sigmoid_()
        g.mul_(2).sub_(1)
    else:
        gates[..., : 2 * size].sigmoid_()
        g.tanh_()
        o.sigmoid_()
    torch.mul(f, cell, out=new_cell)
    new_cell.addcmul_(i, g)
    squashed.copy_(new_cell)
    torch.mul(o, tanh_(squashed), out=out)


def local_slopes(gates: Tensor, cells: Tensor, squashed: Tensor) -> tuple[Tensor, Tensor]:
    """What gradients are multiplied with at each step, for all steps at once.

    Args:
        gates: activated, ``(T, B, 4H)``.
        cells: states before each step, ``(T, B, H)``.
        squashed: tanh of the states after each step, ``(T, B, H)``.

    Returns:
        ``(T, B, 4H)``: for input, forget and candidate the derivative of the new state, for the output gate that of the
        output, by the gate before its activation; and ``(T, B, H)``, the derivative of the output by the new state.
    """
    size = cells.size(-1)
    i, _, g, o = (gates[..., k * size : (k + 1) * size] for k in range(4))
    slopes = gates - gates * gates
    slopes[..., :size] *= g
    slopes[..., size : 2 * size] *= cells
    slopes[..., 2 * size : 3 * size] = i - i * g * g
    slopes[..., 3 * size :] *= squashed
    return slopes, o - o * squashed * squashed


def cell_backward(d_gates: Tensor, through: Tensor, gates: Tensor, d_out: Tensor, d_cell: Tensor) -> None:
    """Back through one LSTM cell.

    Args:
        d_gates: the step's first result of :func:`local_slopes`, ``(B, 4H)``; becomes the gradient.
        through: the step's second result, ``(B, H)``.
        gates: activated, ``(B, 4H)``.
        d_out: gradient of the output, ``(B, H)``.
        d_cell: gradient of the new state, ``(B, H)``; becomes that of the state before.
    """
    size = d_cell.size(-1)
    d_cell.addcmul_(d_out, through)
    d_gates[..., 3 * size :].mul_(d_out)
    d_gates[..., : 3 * size].unflatten(-1, (3, size)).mul_(d_cell.unsqueeze(-2))
    d_cell.mul_(gates[..., size : 2 * size])


def dropout_factors(like: Tensor, shape: tuple[int, ...], p: float) -> Tensor:
    """Factors for inverted dropout: 0 with probability ``p``, else 1 / (1 - p).

    On a CPU four are cut from each random 64-bit number, a fifth of the time of ``bernoulli_``; the probability is then
    a multiple of 2^-16, and so is the scale that goes with it.
    """
    if like.device.type != "cpu" or p >= 1:
        return torch.empty(shape, dtype=like.dtype, device=like.device).bernoulli_(1 - p).div_(max(1 - p, 1e-9))
    count = 1
    for length in shape:
        count *= length
    dropped = min(max(round(p * 65536), 1), 65535)
    bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    kept = bits.view(torch.int16)[:count] >= dropped - 32768
    return kept.to(like.dtype).mul_(65536 / (65536 - dropped)).view(shape)
