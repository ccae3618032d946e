r"""alpha-entmax: mappings from scores to sparse probability distributions, as functions and as Modules.

.. math:: \mathrm{entmax}_\alpha(z) = \arg\max_{p \in \Delta} p^\top z + H_\alpha(p)

where H is the Tsallis entropy (Eqs. 9 and 10 of the paper). alpha = 1 is softmax, 2 is sparsemax.
"""

from __future__ import annotations

import math
from typing import Union

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from onmt_entmax.entmax import blocks, narrow
from onmt_entmax.entmax import solvers as thresholds
from onmt_entmax.entmax.solvers import may_look

Alpha = Union[float, Tensor]
SOLVERS = ("auto", "sort", "topk", "bisect", "newton")


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Where the threshold is solved: float32 for half precision."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def check_alpha(alpha: Alpha, name: str = "alpha") -> Alpha:
    """Return ``alpha`` (an int becomes a float), or raise ValueError if it is below 1 (tensors: on the CPU only)."""
    if isinstance(alpha, Tensor):
        if may_look(alpha) and bool((alpha < 1).any()):
            raise ValueError(f"Invalid setting for `{name}`: {alpha.min().item()}. It must be at least 1.")
        return alpha
    if not alpha >= 1 or alpha == float("inf"):
        raise ValueError(f"Invalid setting for `{name}`: {alpha}. It must be at least 1; 1 is softmax, 2 is sparsemax.")
    return float(alpha)


def check_mask(scores: Tensor, dim: int) -> None:
    """Raise ValueError for a slice in which every score is -inf (on the CPU; on CUDA such a slice becomes NaN)."""
    if may_look(scores) and scores.numel() > 0 and bool((scores.detach().amax(dim) == float("-inf")).any()):
        raise ValueError("Every score of a slice is -inf: there is nothing to give probability to.")


def solving_dtype(scores: Tensor, alpha: Alpha) -> torch.dtype:
    """The dtype to solve in: float64 for alpha > 2 (p = u^(1/(alpha-1)) is steep at 0), else at least float32."""
    if isinstance(alpha, Tensor):
        above = may_look(alpha) and alpha.numel() > 0 and bool((alpha > 2).any())
    else:
        above = alpha > 2
    return torch.float64 if above else working_dtype(scores.dtype)


def takes_blocks(rows: Tensor, alpha: Alpha) -> bool:
    """Whether rows ``(n, d)`` go through blocks.py: wide ones on the CPU."""
    if rows.shape[-1] < blocks.WIDE or rows.shape[0] == 0 or not may_look(rows):
        return False
    return not isinstance(alpha, Tensor) or bool((alpha > 1).all())


def solve_rows(x: Tensor, alpha: Alpha, solver: str = "auto") -> tuple[Tensor, Tensor]:
    """Probabilities of rows.

    Args:
        x: scores minus their row's maximum, float32 or float64, shape ``(n, d)``, d at least 1.
        alpha: at least 1; a tensor has shape ``(n, 1)``.
        solver: one of ``SOLVERS``.

    Returns:
        Probabilities ``(n, d)``, and the sum over the row of the probabilities over the largest one, ``(n, 1)``.
    """
    if isinstance(alpha, Tensor):
        epsilon = alpha - 1
        dense = epsilon <= 0
        r = _ratios(x, torch.where(dense, 1, epsilon), "newton" if solver == "auto" else solver)
        r = torch.where(dense, x.exp(), r)
    elif alpha == 1:
        r = x.exp()
    else:
        r = _ratios(x, alpha - 1, solver)
    total = r.sum(-1, True)
    return r / total, total


def _ratios(x: Tensor, epsilon: Alpha, solver: str) -> Tensor:
    s = x * epsilon
    if solver == "auto":
        # sorting takes fewest operations on narrow rows; where Newton cannot stop early it takes every step it may need
        few = narrow.WIDEST if may_look(x) else 4096
        closed = not isinstance(epsilon, Tensor) and (epsilon == 1 or (epsilon == 0.5 and not may_look(x)))
        solver = "sort" if closed and x.shape[-1] <= few else "newton"
    return thresholds.ratios(s, epsilon, getattr(thresholds, solver)(s, epsilon))


def entmax_forward(scores: Tensor, alpha: Alpha = 1.5, dim: int = -1, solver: str = "auto") -> Tensor:
    """:func:`entmax` without autograd and without checks, for use inside another autograd Function."""
    if not isinstance(alpha, Tensor):
        alpha = float(alpha)
        if alpha == 1:
            return torch.softmax(scores, dim)
    if scores.numel() == 0:
        return torch.empty_like(scores)
    if solver == "auto" and dim in (-1, scores.dim() - 1) and narrow.fits(scores, alpha):
        return narrow.entmax(scores, alpha)
    z = scores.to(solving_dtype(scores, alpha)).movedim(dim, -1)
    rows = z.reshape(-1, z.shape[-1])
    if isinstance(alpha, Tensor):
        alpha = alpha.to(z.dtype).movedim(dim, -1).expand(*z.shape[:-1], 1).reshape(-1, 1)
    if solver == "auto" and takes_blocks(rows, alpha):
        p = _wide_forward(rows.contiguous(), alpha)
    else:
        p, _ = solve_rows(rows - rows.amax(-1, True), alpha, solver)
    return p.reshape(z.shape).movedim(-1, dim).to(scores.dtype)


def _wide_forward(rows: Tensor, alpha: Alpha) -> Tensor:
    """Probabilities of wide rows ``(n, d)`` on the CPU."""
    n, d = rows.shape
    out = torch.zeros_like(rows)
    work = blocks.workspace(n, d, rows, rows.dtype)
    for part in blocks.blocks(n, d):
        epsilon = alpha[part] - 1 if isinstance(alpha, Tensor) else alpha - 1
        blocks.fill(rows[part], epsilon, blocks.solve(rows[part], epsilon, work), out[part])
    return out


def entmax_backward(probs: Tensor, grad: Tensor, alpha: Alpha = 1.5, dim: int = -1) -> Tensor:
    """Gradient of the scores from that of the probabilities (Prop. 1): s * (grad - <s, grad> / sum s), s = p^(2-alpha).

    Args:
        probs: what :func:`entmax_forward` returned.
        grad: gradient of the probabilities, same shape.
        alpha: as given to :func:`entmax_forward`.
        dim: as given to :func:`entmax_forward`.
    """
    dtype = grad.dtype
    if isinstance(alpha, Tensor) or alpha > 2:  # p^(2-alpha) of a small p is too large for half precision
        probs, grad = probs.to(working_dtype(dtype)), grad.to(working_dtype(dtype))
    s = _jacobian_weights(probs, alpha)
    return torch.sub(grad, (s * grad).sum(dim, True).div_(s.sum(dim, True))).mul_(s).to(dtype)


def _jacobian_weights(probs: Tensor, alpha: Alpha) -> Tensor:
    """``p ** (2 - alpha)`` on the support and 0 elsewhere."""
    if not isinstance(alpha, Tensor):
        if alpha == 1:
            return probs
        if alpha == 1.5:
            return probs.sqrt()
        if alpha == 2:
            return probs.sign()
        if alpha < 2:
            return probs ** (2 - alpha)
    return torch.where(probs > 0, probs ** (2 - alpha), 0)


def alpha_gradient(probs: Tensor, grad: Tensor, alpha: Tensor, dim: int) -> Tensor:
    r"""Gradient of alpha (Correia, Niculae and Martins 2019), rearranged so that nothing cancels as alpha goes to 1.

    With u = -log p, :math:`r = (e^{\varepsilon u} - 1 - \varepsilon u) / \varepsilon^2`, H and R the means of u and r
    under p, and Z = 1 + sum p (e^{εu} - 1): :math:`\partial p / \partial\alpha = p (R (1+εu) - r (1+εH)) / Z`.
    """
    epsilon = alpha - 1
    inside = probs > 0
    u = torch.where(inside, -probs.log(), 0)
    x = epsilon * u
    r = u * u * _phi(x)
    entropy = (probs * u).sum(dim, keepdim=True)
    mean = (probs * r).sum(dim, keepdim=True)
    scale = 1 + (probs * torch.expm1(x)).sum(dim, keepdim=True)
    slope = probs * (mean * (1 + x) - r * (1 + epsilon * entropy)) / scale
    return (grad * slope).sum(dim, keepdim=True)


def _phi(x: Tensor) -> Tensor:
    """``(exp(x) - 1 - x) / x**2``, by its series near 0."""
    series = 1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * (1 / 720 + x * (1 / 5040 + x / 40320)))))
    far = x.abs() > 0.1
    safe = torch.where(far, x, 1)
    return torch.where(far, (torch.expm1(safe) - safe) / (safe * safe), series)


class _Entmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores, alpha, dim, solver):
        probs = entmax_forward(scores, alpha, dim, solver)
        if may_look(probs) and math.isnan(probs.sum().item()):  # the one sign of a slice with every score -inf
            check_mask(scores, dim)
        ctx.dim = dim
        if isinstance(alpha, Tensor):
            ctx.alpha = None
            ctx.save_for_backward(probs, alpha)
        else:
            ctx.alpha = alpha
            ctx.save_for_backward(probs)
        return probs

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        if ctx.alpha is not None:
            (probs,) = ctx.saved_tensors
            return entmax_backward(probs, grad, ctx.alpha, ctx.dim), None, None, None
        probs, alpha = ctx.saved_tensors
        dtype = working_dtype(probs.dtype)
        p, g, a = probs.to(dtype), grad.to(dtype), alpha.to(dtype)
        grad_scores = entmax_backward(p, g, a, ctx.dim).to(probs.dtype) if ctx.needs_input_grad[0] else None
        grad_alpha = None
        if ctx.needs_input_grad[1]:
            grad_alpha = alpha_gradient(p, g, a, ctx.dim).sum_to_size(alpha.shape).to(alpha.dtype)
        return grad_scores, grad_alpha, None, None


def entmax(scores: Tensor, alpha: Alpha = 1.5, dim: int = -1, solver: str = "auto") -> Tensor:
    r"""Map scores to the probability distribution that maximises :math:`p^\top z + H_\alpha(p)` (Eq. 10).

    :math:`H_\alpha` is the Tsallis entropy: alpha = 1 gives softmax, 2 gives sparsemax, and every alpha > 1 gives
    exact zeros.

    Args:
        scores: real scores z, shape ``(..., d, ...)``; ``-inf`` masks an entry.
        alpha: at least 1; a tensor (shape that broadcasts to that of ``scores`` with ``dim`` of size 1) is
            differentiated too.
        dim: the dimension that sums to one.
        solver: ``sort`` and ``topk`` (alpha 1.5 and 2), ``bisect``, ``newton``, or ``auto``.

    Returns:
        Probabilities, same shape and dtype; computed in float32 for half-precision input.

    Raises:
        ValueError: alpha below 1, a solver that does not exist or does not know this alpha, or a slice in which every
            score is ``-inf`` (on CUDA, where the check would make the host wait, such a slice becomes NaN).
    """
    alpha = check_alpha(alpha)
    if solver != "auto":
        if solver not in SOLVERS:
            raise ValueError(f"Invalid setting for `solver`: {solver}. Valid choices: {', '.join(SOLVERS)}.")
        if solver in ("sort", "topk") and (isinstance(alpha, Tensor) or alpha not in (1.0, 1.5, 2.0)):
            raise ValueError(f"Invalid setting for `solver`: {solver}. It knows alpha 1.5 and 2 only, not {alpha}.")
    return _Entmax.apply(scores, alpha, dim, solver)


def entmax15(scores: Tensor, dim: int = -1) -> Tensor:
    """1.5-entmax, see :func:`entmax`."""
    return entmax(scores, 1.5, dim)


def sparsemax(scores: Tensor, dim: int = -1) -> Tensor:
    """Sparsemax (Martins and Astudillo 2016): the projection of the scores onto the simplex, see :func:`entmax`."""
    return entmax(scores, 2.0, dim)


def log_entmax(scores: Tensor, alpha: Alpha = 1.5, dim: int = -1) -> Tensor:
    """Logarithm of :func:`entmax`: ``-inf`` outside the support; the gradient flows through the support only."""
    if not isinstance(alpha, Tensor) and check_alpha(alpha) == 1:
        check_mask(scores, dim)
        return torch.log_softmax(scores, dim)
    probs = entmax(scores, alpha, dim)
    if not probs.requires_grad:
        return _log(probs)
    inside = probs > 0
    return torch.where(inside, torch.where(inside, probs, 1).log(), float("-inf"))


def _log(probs: Tensor) -> Tensor:
    if not may_look(probs):
        return probs.log_()
    # on a CPU the logarithm of a zero takes many times that of another number
    logs = torch.full(probs.shape, float("-inf"), dtype=probs.dtype)
    flat = probs.reshape(-1)
    inside = flat.nonzero().squeeze(-1)
    logs.view(-1)[inside] = flat.index_select(0, inside).log_()
    return logs


class Entmax(nn.Module):
    """:func:`entmax` as a Module."""

    def __init__(self, alpha: float = 1.5, dim: int = -1):
        super().__init__()
        self.alpha = check_alpha(alpha)
        self.dim = dim

    def forward(self, scores: Tensor) -> Tensor:
        """Probabilities, shape of ``scores``."""
        return entmax(scores, self.alpha, self.dim)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}, dim={self.dim}"


class Entmax15(Entmax):
    """:func:`entmax15` as a Module."""

    def __init__(self, dim: int = -1):
        super().__init__(1.5, dim)


class Sparsemax(Entmax):
    """:func:`sparsemax` as a Module."""

    def __init__(self, dim: int = -1):
        super().__init__(2.0, dim)


class LearnedAlpha(nn.Module):
    """A learned alpha, inside (1, 2) by construction: 1.01 + 0.98 sigmoid(parameter); no rounding takes it to 1 or 2.

    Args:
        shape: of the parameter, e.g. ``(heads, 1, 1)``; it must broadcast over the scores with ``dim`` of size 1.
        start: the first value of alpha, between 1.01 and 1.99.
    """

    LOW, HIGH = 1.01, 1.99

    def __init__(self, shape: tuple[int, ...] = (1,), start: float = 1.5):
        super().__init__()
        if not self.LOW < start < self.HIGH:
            raise ValueError(f"Invalid setting for `start`: {start}. It must lie between {self.LOW} and {self.HIGH}.")
        share = torch.tensor((start - self.LOW) / (self.HIGH - self.LOW))
        self.raw = nn.Parameter(torch.logit(share).expand(shape).clone())

    def forward(self) -> Tensor:
        """Alpha, shape ``shape``."""
        return self.LOW + (self.HIGH - self.LOW) * torch.sigmoid(self.raw)
