r"""alpha-entmax: mappings from scores to sparse probability distributions.

.. math:: \mathrm{entmax}_\alpha(z) = \arg\max_{p \in \Delta} p^\top z + H_\alpha(p)

where H is the Tsallis entropy (Eqs. 9 and 10 of the paper). alpha = 1 is softmax, 2 is sparsemax. Arguments come in one
order: scores, alpha, dim, what only that function has.

Half precision is solved and differentiated in float32 and rounded once. Values are checked where reading them is free,
on the CPU; elsewhere the host would have to wait for the device, and on the meta device and in torch.compile there is
nothing to read: there a NaN alpha, a tensor alpha below 1 or a slice of nothing but -inf give NaN.

Derivatives are first ones; ``torch.func`` (``vmap``, ``grad``) does not take these functions.
"""

from __future__ import annotations

import math
from typing import Any, Optional, Union, overload

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from onmt_entmax.entmax import solvers
from onmt_entmax.entmax.engine import can_read, engine_for, free_to_read, is_reference

Alpha = Union[float, Tensor]
SOLVERS = ("auto", "sort", "topk", "bisect", "newton")
FEWEST = 8  # entries that log_entmax_topk solves on; the support of a trained model is seldom larger
SPARE = 2  # entries beyond those wanted: the last one has to be outside the support
SORTED_WIDTH = 4096  # entries up to which a device sorts rows where it could take Newton steps


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Where the threshold is solved: float32 for half precision."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def solving_dtype(dtype: torch.dtype, alpha: Alpha) -> torch.dtype:
    """The dtype to solve in: float64 for alpha > 2 (p = u^(1/(alpha-1)) is steep at 0), else at least float32."""
    if isinstance(alpha, Tensor):
        above = free_to_read(alpha) and alpha.numel() > 0 and bool((alpha > 2).any())
    else:
        above = alpha > 2
    return torch.float64 if above else working_dtype(dtype)


@overload
def check_alpha(alpha: float, name: str = ...) -> float: ...
@overload
def check_alpha(alpha: Tensor, name: str = ...) -> Tensor: ...
@overload
def check_alpha(alpha: Alpha, name: str = ...) -> Alpha: ...
def check_alpha(alpha: Alpha, name: str = "alpha") -> Alpha:
    """Return ``alpha`` (an int becomes a float), or raise ValueError if it is not a number of at least 1."""
    if isinstance(alpha, Tensor):
        if not free_to_read(alpha):
            return alpha
        low, high = (bound.item() for bound in alpha.detach().aminmax()) if alpha.numel() > 0 else (1.0, 1.0)
        if low >= 1 and high < float("inf"):  # NaN is neither
            return alpha
        alpha = high if low >= 1 else low
    elif alpha >= 1 and alpha != float("inf"):
        return float(alpha)
    raise ValueError(f"Invalid setting for `{name}`: {alpha}. It must be at least 1; 1 is softmax, 2 is sparsemax.")


def check_scores(scores: Tensor, name: str = "scores") -> None:
    """Raise ValueError for scores that are no real floating-point numbers."""
    if not scores.is_floating_point():
        raise ValueError(f"Invalid setting for `{name}`: dtype {scores.dtype}. It must be float16, 32, 64 or bfloat16.")


def check_mask(scores: Tensor, dim: int = -1) -> None:
    """Raise ValueError for a slice in which every score is -inf, where reading values is free."""
    if free_to_read(scores) and scores.numel() > 0 and bool((scores.detach().amax(dim) == float("-inf")).any()):
        raise ValueError("Every score of a slice is -inf: there is nothing to give probability to.")


def _check_solver(solver: str, alpha: Alpha) -> None:
    if solver not in SOLVERS:
        raise ValueError(f"Invalid setting for `solver`: {solver}. Valid choices: {', '.join(SOLVERS)}.")
    if solver in ("sort", "topk") and (isinstance(alpha, Tensor) or alpha not in (1.0, 1.5, 2.0)):
        raise ValueError(f"Invalid setting for `solver`: {solver}. It knows alpha 1.5 and 2 only, not {alpha}.")


def broadcast_alpha(alpha: Tensor, shape: torch.Size, dim: int) -> Tensor:
    """``alpha`` in the shape of the scores, with ``dim`` of size 1; float32 or more, in which gradients add up."""
    alpha = alpha.to(working_dtype(alpha.dtype))
    wanted = list(shape)
    wanted[dim] = 1
    if list(alpha.shape) == wanted:
        return alpha
    try:
        return torch.broadcast_to(alpha, wanted)
    except RuntimeError:
        raise ValueError(
            f"Invalid setting for `alpha`: a tensor of shape {tuple(alpha.shape)}. It must broadcast to "
            f"{tuple(wanted)}, the shape of the scores with `dim` of size 1."
        ) from None


def as_rows(scores: Tensor, alpha: Alpha) -> tuple[Tensor, Alpha]:
    """Scores ``(..., d)`` as rows ``(n, d)`` in the dtype to solve in, and a tensor alpha as ``(n, 1)``."""
    rows = scores.reshape(-1, scores.shape[-1]).to(solving_dtype(scores.dtype, alpha))
    return rows, alpha.reshape(-1, 1).to(rows.dtype) if isinstance(alpha, Tensor) else alpha


def solve_rows(x: Tensor, alpha: Alpha, solver: str = "auto") -> tuple[Tensor, Tensor]:
    """Probabilities of rows: the reference.

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
        r = _ratios(x, torch.where(dense, 1, epsilon), solver)
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
        free = free_to_read(x)
        closed = isinstance(epsilon, float) and (epsilon == 1 or (epsilon == 0.5 and not free))
        solver = "sort" if closed and x.shape[-1] <= (solvers.NARROW if free else SORTED_WIDTH) else "newton"
    if solver in ("sort", "topk") and isinstance(epsilon, float):
        width = solvers.sort(s, epsilon, 64 if solver == "topk" else None)
    elif solver == "bisect":
        width = solvers.bisect(s, epsilon)
    else:
        width = solvers.newton(s, epsilon, powers=not free_to_read(x))
    return solvers.ratios(s, epsilon, width)


def entmax_forward(scores: Tensor, alpha: Alpha = 1.5, dim: int = -1, solver: str = "auto") -> Tensor:
    """:func:`entmax` without autograd and without checks, for use inside another autograd Function."""
    if not isinstance(alpha, Tensor):
        alpha = float(alpha)
        if alpha == 1:
            return torch.softmax(scores, dim)
    if scores.numel() == 0:
        return torch.empty_like(scores)
    last = dim in (-1, scores.dim() - 1)
    z = scores if last else scores.movedim(dim, -1)
    if isinstance(alpha, Tensor):
        alpha = broadcast_alpha(alpha, scores.shape, dim).movedim(dim, -1)
    probs = None
    engine = engine_for(scores) if solver == "auto" else None
    if engine is not None:
        probs = engine.entmax(z, alpha)
    if probs is None:
        rows, alpha = as_rows(z, alpha)
        probs = solve_rows(rows - rows.amax(-1, True), alpha, solver)[0].view(z.shape).to(scores.dtype)
    return probs if last else probs.movedim(-1, dim)


def entmax_backward(probs: Tensor, grad: Tensor, alpha: Alpha = 1.5, dim: int = -1) -> Tensor:
    """Gradient of the scores from that of the probabilities (Prop. 1): s * (grad - <s, grad> / sum s), s = p^(2-alpha).

    Args:
        probs: what :func:`entmax_forward` returned.
        grad: gradient of the probabilities, same shape.
        alpha: as given to :func:`entmax_forward`.
        dim: as given to :func:`entmax_forward`.

    Returns:
        Shape and dtype of ``grad``; half precision is computed in float32.
    """
    found = _engine_gradients(probs, grad, alpha, dim)
    if found is not None:
        return found[0]
    dtype = grad.dtype
    # above alpha = 2 the weights are powers of 1 / p, beyond float32 for a small p
    probs, grad = probs.to(solving_dtype(probs.dtype, alpha)), grad.to(solving_dtype(dtype, alpha))
    if not isinstance(alpha, Tensor) and alpha == 1 and probs.dtype == grad.dtype:
        of_softmax: Tensor = torch.ops.aten._softmax_backward_data(grad, probs, dim, grad.dtype)
        return of_softmax.to(dtype)
    s = _jacobian_weights(probs, alpha)
    of_scores = torch.sub(grad, (s * grad).sum(dim, True).div_(s.sum(dim, True))).mul_(s)
    return of_scores.to(dtype) if of_scores.dtype == working_dtype(dtype) else _rounded(of_scores, dtype)


def _rounded(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """A gradient of float64 in another dtype, whose largest number stands for what is larger."""
    most = torch.finfo(dtype).max
    return gradient.clamp_(-most, most).to(dtype)


def _engine_gradients(probs: Tensor, grad: Tensor, alpha: Alpha, dim: int) -> Optional[tuple[Tensor, Optional[Tensor]]]:
    """Gradients of scores and alpha by the engine, or None."""
    engine = engine_for(probs) if dim in (-1, probs.dim() - 1) else None
    return None if engine is None else engine.gradients(probs, grad, alpha)


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
    """Scores in float32 or float64; a tensor alpha in their shape, with ``dim`` of size 1."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, alpha: Alpha, dim: int, solver: str) -> Tensor:
        probs = entmax_forward(scores, alpha, dim, solver)
        if free_to_read(probs) and math.isnan(probs.sum().item()):  # the one sign of a slice with every score -inf
            check_mask(scores, dim)
        ctx.dim = dim
        ctx.alpha = None if isinstance(alpha, Tensor) else alpha
        ctx.save_for_backward(probs, *([alpha] if ctx.alpha is None else []))
        return probs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Optional[Tensor], Optional[Tensor], None, None]:
        probs, *tensors = ctx.saved_tensors
        alpha = tensors[0].to(probs.dtype) if tensors else ctx.alpha
        found = _engine_gradients(probs, grad, alpha, ctx.dim)
        if found is not None:
            return found[0], None if found[1] is None else found[1].to(tensors[0].dtype), None, None
        grad_scores = entmax_backward(probs, grad, alpha, ctx.dim) if ctx.needs_input_grad[0] else None
        grad_alpha = None
        if ctx.needs_input_grad[1]:
            dtype = solving_dtype(probs.dtype, alpha)
            slope = alpha_gradient(probs.to(dtype), grad.to(dtype), alpha.to(dtype), ctx.dim)
            grad_alpha = _rounded(slope, tensors[0].dtype) if slope.dtype != tensors[0].dtype else slope
        return grad_scores, grad_alpha, None, None


def entmax(scores: Tensor, alpha: Alpha = 1.5, dim: int = -1, solver: str = "auto") -> Tensor:
    r"""Map scores to the probability distribution that maximises :math:`p^\top z + H_\alpha(p)` (Eq. 10).

    :math:`H_\alpha` is the Tsallis entropy: alpha = 1 gives softmax, 2 gives sparsemax, and every alpha > 1 gives
    exact zeros.

    Args:
        scores: real scores z, shape ``(..., d, ...)``; ``-inf`` masks an entry. A scalar is one entry, as for
            torch.softmax.
        alpha: at least 1; a tensor (any shape that broadcasts to that of ``scores`` with ``dim`` of size 1) is
            differentiated too.
        dim: the dimension that sums to one.
        solver: ``sort`` and ``topk`` (alpha 1.5 and 2), ``bisect``, ``newton``, or ``auto``.

    Returns:
        Probabilities, same shape and dtype; computed in float32 for half-precision input.

    Raises:
        ValueError: scores that are no floating-point numbers, alpha below 1 or NaN, a tensor alpha that does not
            broadcast, a solver that does not exist or does not know this alpha, or a slice in which every score is
            ``-inf`` (values of tensors are checked on the CPU only, see above).
        IndexError: ``dim`` out of range.
    """
    alpha = check_alpha(alpha)
    check_scores(scores)
    if solver != "auto":
        _check_solver(solver, alpha)
    if scores.dim() == 0:
        return entmax(scores.view(1), alpha, _dim_of_scalar(dim), solver).view(())
    if isinstance(alpha, Tensor):
        alpha = broadcast_alpha(alpha, scores.shape, dim)
    probs: Tensor = _Entmax.apply(scores.to(working_dtype(scores.dtype)), alpha, dim, solver)
    return probs.to(scores.dtype)


def _dim_of_scalar(dim: int) -> int:
    if dim not in (0, -1):
        raise IndexError(f"Invalid setting for `dim`: {dim}. Scores without dimensions have 0 and -1 only.")
    return dim


def entmax15(scores: Tensor, dim: int = -1, k: object = None) -> Tensor:
    """1.5-entmax, see :func:`entmax`.

    ``k`` is accepted as in the public ``entmax`` package, where it says how many entries to sort first; probabilities
    never depend on it, and here speed does not either.
    """
    check_count("k", k)
    return entmax(scores, 1.5, dim)


def sparsemax(scores: Tensor, dim: int = -1, k: object = None) -> Tensor:
    """Sparsemax (Martins and Astudillo 2016), the projection onto the simplex; see :func:`entmax`, and for ``k``
    :func:`entmax15`."""
    check_count("k", k)
    return entmax(scores, 2.0, dim)


def check_count(name: str, value: object) -> None:
    """Raise ValueError if a number of steps or entries is neither None nor a whole number of at least 1."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"Invalid setting for `{name}`: {value}. It must be a whole number of at least 1, or None.")


def log_entmax(scores: Tensor, alpha: Alpha = 1.5, dim: int = -1) -> Tensor:
    """Logarithm of :func:`entmax`: ``-inf`` outside the support; the gradient flows through the support only.

    Arguments, dtype and errors as for :func:`entmax`; half precision is rounded once, after the logarithm.
    """
    check_scores(scores)
    z = scores.to(working_dtype(scores.dtype))
    if not isinstance(alpha, Tensor) and check_alpha(alpha) == 1:
        check_mask(z, dim)
        return torch.log_softmax(z, dim).to(scores.dtype)
    probs = entmax(z, alpha, dim)
    if probs.requires_grad:
        inside = probs > 0
        logs = torch.where(inside, torch.where(inside, probs, 1).log(), float("-inf"))
    elif free_to_read(probs):
        # on a CPU the logarithm of a zero takes many times that of another number
        logs, flat = torch.full(probs.shape, float("-inf"), dtype=probs.dtype), probs.reshape(-1)
        inside = flat.nonzero().squeeze(-1)
        logs.view(-1)[inside] = flat.index_select(0, inside).log_()
    else:
        logs = probs.log_()
    return logs.to(scores.dtype)


def log_entmax_topk(scores: Tensor, alpha: Alpha = 1.5, k: int = 1) -> tuple[Tensor, Tensor]:
    """The k largest entries of ``log_entmax(scores, alpha)``, without autograd, mostly without a look at the others.

    An entry that is zero among the largest proves that all of the support has been seen, and entmax of the support
    alone is entmax of the row. Only rows without such an entry are solved as a whole. The reference, and any code where
    values cannot be read, solves all rows as a whole.

    Args:
        scores: ``(n, d)``.
        alpha: a number of at least 1.
        k: how many; d if that is less.

    Returns:
        Logarithms ``(n, k)``, descending, ``-inf`` outside the support, and their places ``(n, k)``.
    """
    d = scores.shape[-1]
    k = min(k, d)
    alpha = check_alpha(alpha)
    check_scores(scores)
    if alpha == 1 or not can_read(scores) or is_reference():
        places = scores.topk(k, -1).indices
        return log_entmax(scores.detach(), alpha).gather(-1, places), places
    values, places = scores.detach().topk(min(d, max(FEWEST, k + SPARE)), -1)
    check_mask(values[:, :1])
    values = values.to(working_dtype(scores.dtype))
    probs = entmax_forward(values, alpha)
    if probs.shape[-1] < d:
        unproven = (probs[:, -1] > 0).nonzero().squeeze(-1)
        if unproven.numel() > 0:
            whole = entmax_forward(scores.detach().index_select(0, unproven).to(values.dtype), alpha)
            probs.index_copy_(0, unproven, whole.gather(1, places.index_select(0, unproven)))
    return probs[:, :k].log().to(scores.dtype), places[:, :k]
