"""The elementwise parts of an LSTM step by PyTorch's operations, in few passes over memory.

Gates are ``(4H, B)``, in PyTorch's order: input, forget, candidate, output. Columns are sentences because on a CPU,
once two threads share the work, the product of a weight and 64 columns takes little more than half the time that 64
rows and the transposed weight take. Strided views are fine.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_MINUS_ONE = torch.tensor(-1.0)  # has no dimensions, so that the other operand's dtype counts


def writable(saved: Sequence[Tensor]) -> Sequence[Tensor]:
    """What a backward pass may write into of the tensors saved for it: copies, if it may run once more.

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
    input, forget, candidate, output = gates.chunk(4)
    if gates.device.type == "cpu":
        candidate.mul_(2)
        gates.sigmoid_()
        torch.add(_MINUS_ONE, candidate, alpha=2, out=candidate)
    else:
        gates[: 2 * cell.size(0)].sigmoid_()
        candidate.tanh_()
        output.sigmoid_()
    torch.mul(forget, cell, out=new_cell)
    new_cell.addcmul_(input, candidate)
    torch.mul(output, tanh(new_cell, squashed), out=out)


def cell_slopes(gates: Tensor, squashed: Tensor) -> tuple[Tensor, Tensor]:
    """What :func:`cell_backward` needs and can be computed for many steps at once.

    Args:
        gates: activated, ``(4H, N)``.
        squashed: of :func:`cell_forward`, ``(H, N)``.

    Returns:
        Slopes of the gates' activations ``(4H, N)`` and of the state's tanh ``(H, N)``, each times those factors of the
        chain rule that are known before the backward pass begins.
    """
    input, _, candidate, output = gates.chunk(4)
    one = gates.new_ones(())
    slopes = torch.addcmul(gates, gates, gates, value=-1)  # the sigmoid's
    d_input, _, d_candidate, d_output = slopes.chunk(4)
    d_input.mul_(candidate)
    torch.addcmul(one, candidate, candidate, value=-1, out=d_candidate).mul_(input)  # the tanh's
    d_output.mul_(squashed)
    return slopes, torch.addcmul(one, squashed, squashed, value=-1).mul_(output)


def cell_backward(
    slopes: Tensor, cell_slope: Tensor, forget: Tensor, cell: Tensor, d_out: Tensor, d_cell: Tensor
) -> None:
    """Back through one LSTM cell.

    Args:
        slopes, cell_slope: of :func:`cell_slopes`; ``slopes`` becomes the gradient of the gates before activation.
        forget: activated gate, ``(H, B)``.
        cell: state before the step, ``(H, B)``.
        d_out: gradient of the output, ``(H, B)``.
        d_cell: gradient of the new state, ``(H, B)``; becomes that of the state before.
    """
    size = d_cell.size(0)
    d_cell.addcmul_(d_out, cell_slope)
    inner = slopes[: 3 * size].unflatten(0, (3, size))
    inner.mul_(d_cell)
    inner[1].mul_(cell)
    slopes[3 * size :].mul_(d_out)
    d_cell.mul_(forget)
