r"""The engine for GPUs: mappings, losses and the output layer by Triton kernels, each in one launch.

Nothing is asked of the device by the host. The kernels are in triton_kernels.py; they have run in Triton's interpreter
on a CPU only (``TRITON_INTERPRET=1``), not on a GPU so far.
"""

from __future__ import annotations

import os
from typing import Any, Optional

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from onmt_entmax.entmax import triton_kernels as kernels
from onmt_entmax.entmax.engine import KINDS, VARIABLE, asked_engine, say_once
from onmt_entmax.entmax.functional import Alpha
from onmt_entmax.entmax.linear_loss import Gradient, Totals
from onmt_entmax.entmax.losses import smoothed_entropy

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 1024  # entries of a row that fits in registers
HIGHEST = 3.0  # alpha, above which entries next to the threshold jump from one width to the next
CHUNK, CHUNK_DOUBLE = 2048, 1024  # entries of a wider row that a program reads at a time
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # as Triton reads it, when kernels are declared


class Gpu:
    """See :class:`~onmt_entmax.entmax.engine.Engine`, which documents the methods."""

    name = "gpu"
    logits = 1 << 24  # entries of a block of logits: fewer leave part of a large GPU without work

    def serves(self, x: Tensor) -> bool:
        return (x.is_cuda or (INTERPRETED and x.device.type == "cpu")) and x.dtype in DTYPES

    def entmax(self, scores: Tensor, alpha: Alpha) -> Optional[Tensor]:
        d = scores.shape[-1]
        if not self._knows(d, alpha) or scores.numel() == 0:
            return None
        z = scores.contiguous()
        probs = torch.empty_like(z)
        if d > WIDEST and not isinstance(alpha, Tensor):
            _launch_rows(z.view(-1, d), probs, alpha)
            return probs
        number, alphas, kind = _alphas(alpha)
        with torch.cuda.device_of(z):
            kernels.narrow_forward[(z.numel() // d,)](
                z, z if alphas is None else alphas, probs, d, number, kind, number > 2, **_sizes(d)
            )
        return probs

    def gradients(self, probs: Tensor, grad: Tensor, alpha: Alpha) -> Optional[tuple[Tensor, Optional[Tensor]]]:
        d = probs.shape[-1]
        if d > WIDEST or not self._knows(d, alpha) or probs.numel() == 0 or grad.dtype not in DTYPES:
            return None
        probs, grad = probs.contiguous(), grad.contiguous()
        d_scores = torch.empty_like(grad)
        number, alphas, kind = _alphas(alpha)
        d_alphas = None if alphas is None else torch.empty_like(alphas)
        unused = d_scores
        with torch.cuda.device_of(probs):
            kernels.narrow_backward[(probs.numel() // d,)](
                *(probs, grad, unused if alphas is None else alphas, d_scores),
                *(unused if d_alphas is None else d_alphas, d, number, kind),
                **_sizes(d),
            )
        return d_scores, None if d_alphas is None else d_alphas.view(*probs.shape[:-1], 1)

    def losses(
        self, scores: Tensor, target: Tensor, alpha: Alpha, ignore_index: int, smoothing: float
    ) -> Optional[Tensor]:
        if scores.numel() == 0 or not self._knows(scores.shape[-1], alpha, loss=True):
            return None
        losses: Tensor = _Losses.apply(scores, target, alpha, ignore_index, smoothing)
        return losses

    def logits_solver(self, rows: int, hidden: Tensor, weight: Tensor, alpha: float) -> Optional[LogitsSolver]:
        return LogitsSolver() if weight.shape[0] > 0 and self._knows(weight.shape[0], alpha) else None

    def _knows(self, d: int, alpha: Alpha, loss: bool = False) -> bool:
        """Whether there is a kernel for rows of d entries; what it does not know is an error if asked for."""
        if isinstance(alpha, Tensor):
            if d <= WIDEST and not loss:
                return True
            reason = f"its kernels know tensors of alphas for mappings of up to {WIDEST} entries only"
        elif alpha <= HIGHEST:
            return True
        else:
            reason = f"its kernels know alphas up to {HIGHEST}, and this one is {alpha:g}"
        if asked_engine() != "auto":
            raise ValueError(f"Invalid setting for `{VARIABLE}`: {self.name}. It cannot compute this: {reason}.")
        say_once(f"The reference computes entmax, not Triton: {reason}.")
        return False


class LogitsSolver:
    """Solves blocks of logits; see :func:`~onmt_entmax.entmax.linear_loss.solve_at_once`.

    Attributes:
        of_layer: it takes logits as the layer gives them, in half precision too, and leaves the gradient in their
            dtype.
    """

    of_layer = True

    def __call__(
        self,
        logits: Tensor,
        target: Tensor,
        counted: Optional[Tensor],
        alpha: float,
        smoothing: float,
        totals: Totals,
        start: int,
        differentiate: bool,
    ) -> Optional[Gradient]:
        n = logits.shape[0]
        rows = slice(start, start + n)
        sums = _Sums(logits, n)
        sums.sizes = totals.size[rows]
        if totals.gold is not None and totals.squares is not None:
            sums.golds, sums.squares = totals.gold[rows], totals.squares[rows]
        _launch_rows(logits, logits if differentiate else None, alpha, smoothing, target, counted, sums)
        spread = sums.spreads.unsqueeze(-1) if smoothing > 0 else None
        # rows that do not count are zero already, but for the entropy
        totals.add(sums.losses.unsqueeze(-1), spread, counted if smoothing > 0 else None)
        totals.correct += sums.hits.sum()
        return Gradient(None, rows, logits) if differentiate else None


class _Sums:
    """What the kernel says of ``n`` rows, each ``(n,)``."""

    def __init__(self, logits: Tensor, n: int) -> None:
        self.losses, self.spreads = logits.new_empty(2, n, dtype=torch.float32)
        self.hits = logits.new_empty(n, dtype=torch.int32)
        self.sizes: Optional[Tensor] = None
        self.golds: Optional[Tensor] = None
        self.squares: Optional[Tensor] = None


class _Losses(torch.autograd.Function):
    """Losses ``(n,)`` of scores ``(n, d)``; their gradient is computed with them."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, target: Tensor, alpha: float, ignore_index: int, smoothing: float) -> Tensor:
        n, d = scores.shape
        scores = scores.contiguous()
        out = torch.empty_like(scores) if ctx.needs_input_grad[0] else None
        sums, counted = _Sums(scores, n), target != ignore_index
        _launch_rows(scores, out, alpha, smoothing, target, counted, sums)
        ctx.save_for_backward(out)
        losses: Tensor = sums.losses
        if smoothing > 0:
            smoothed = losses + smoothing * sums.spreads - smoothed_entropy(d, alpha, smoothing)
            losses = torch.where(counted, smoothed, 0)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Optional[Tensor], None, None, None, None]:
        (out,) = ctx.saved_tensors
        return None if out is None else out * grad.unsqueeze(-1), None, None, None, None


def _launch_rows(
    logits: Tensor,
    out: Optional[Tensor],
    alpha: float,
    smoothing: float = 0.0,
    target: Optional[Tensor] = None,
    counted: Optional[Tensor] = None,
    sums: Optional[_Sums] = None,
) -> None:
    """Solve contiguous rows ``(n, d)``; into ``out``: probabilities, or gradients where there are targets and sums."""
    n, d = logits.shape
    if n == 0:
        return
    unused = logits
    double = alpha > 2  # see functional.solving_dtype
    block = min(triton.next_power_of_2(d), CHUNK_DOUBLE if double else CHUNK)
    given = [None] * 6 if sums is None else [sums.losses, sums.spreads, sums.hits, sums.sizes, sums.golds, sums.squares]
    with torch.cuda.device_of(logits):
        kernels.rows_forward[(n,)](
            *(logits, unused if out is None else out, unused if target is None else target.contiguous()),
            unused if counted is None else counted.contiguous().view(torch.int8),
            *(unused if tensor is None else tensor for tensor in given),
            *(d, float(alpha), smoothing / d),
            kind=KINDS.get(alpha, 0),
            double=double,
            block=block,
            mapping=sums is None,
            masked=counted is not None,
            smooth=smoothing > 0,
            sized=sums is not None and sums.sizes is not None,
            measured=sums is not None and sums.golds is not None,
            differentiate=out is not None,
            num_warps=max(1, min(8, block // (128 if double else 256))),
        )


def _alphas(alpha: Alpha) -> tuple[float, Optional[Tensor], int]:
    """A number (0 for a tensor), alphas by row (None for a number), and which kernel: 1.5, 2, by row, or any."""
    if isinstance(alpha, Tensor):
        return 0.0, alpha.detach().to(torch.float32).reshape(-1).contiguous(), 3
    return float(alpha), None, {1.5: 1, 2.0: 2}.get(alpha, 0)


def _sizes(d: int) -> dict[str, int]:
    block = triton.next_power_of_2(d)
    return {"block": block, "num_warps": 4 if block > 256 else 1}
