r"""The solvers: each finds the threshold of alpha-entmax (Eq. 12 and Lemma 2 of the paper) for many rows at once.

Every solver takes ``s``, the scores with each row's maximum subtracted, times :math:`\varepsilon = \alpha - 1`, and
finds the row's *width* w in (0, 1], the distance of the threshold from the maximum, so that

.. math:: p_j = [s_j + w]_+^{1/\varepsilon}, \quad \sum_j p_j = 1, \quad \tau = \varepsilon \max z - w.

As alpha approaches 1 the width tends to 1 and carries no information any more; probabilities are therefore taken as
:math:`p_j = r_j / \sum_k r_k` with :math:`r_j = [1 + s_j / w]_+^{1/\varepsilon}`, which tends to softmax.
"""

from __future__ import annotations

import math
from typing import Optional, Union

import torch
from torch import Tensor

from onmt_entmax.entmax.engine import can_read, free_to_read

Epsilon = Union[float, Tensor]

FREE_STEPS = 10  # of Newton before a bracket is kept as well
SMALL = 1 << 15  # entries, below which an operation costs its overhead
NARROW = 64  # entries per row, up to which sorting costs least
FIRST_CHECK, CHECK_EVERY = 4, 2  # steps of Newton between questions to a device, for which the host has to wait
FIXED_STEPS = 32  # of Newton where values cannot be read
FIXED_STEPS_ABOVE_2 = 100  # the same for a number alpha > 2, where only the bracket can be relied on
NEAR_ONE = 0.25  # epsilon below which 1 + s / w is so close to 1 that its logarithm is taken by log1p
MAX_STEPS = 200  # of Newton where it may stop early; the tests' worst ladders need fewer than 40


def ratios(s: Tensor, epsilon: Epsilon, width: Tensor, out: Optional[Tensor] = None) -> Tensor:
    """Unnormalised probabilities ``r``: 1 for the maximum, exact zeros outside the support; shape ``(n, d)``.

    For a number alpha > 2 the power is so steep at 0 that an entry next to the threshold jumps from one floating-point
    width to the next; the two sides of the solution are mixed so that the probabilities sum to one.
    """
    if not isinstance(epsilon, float) or epsilon <= 1:
        return _ratios(s, epsilon, width, out)
    slack = 8 * torch.finfo(s.dtype).eps
    above, below = width * (1 + slack), width * (1 - slack)
    upper, lower = _ratios(s, epsilon, above), _ratios(s, epsilon, below)
    sum_above = above ** (1 / epsilon) * upper.sum(-1, True)
    sum_below = below ** (1 / epsilon) * lower.sum(-1, True)
    # for a large alpha sums hardly change with the width: where they are equal, either side will do
    share = ((1 - sum_below) / (sum_above - sum_below)).nan_to_num_(1.0).clamp_(0, 1)
    return torch.lerp(lower, upper, share.expand_as(lower))


def _ratios(s: Tensor, epsilon: Epsilon, width: Tensor, out: Optional[Tensor] = None) -> Tensor:
    if isinstance(epsilon, float) and epsilon in (0.5, 1.0):
        r = torch.add(s, width, out=out).relu_().div_(width)
        return r.mul_(r) if epsilon == 0.5 else r
    if isinstance(epsilon, float):
        base, near_one = _base(s, epsilon, width, out)
        return _power(base.log1p_() if near_one else base.log_(), epsilon)
    return torch.div(s, width, out=out).clamp_(min=-1).log1p_().div_(epsilon).exp_()


# A logarithm of 0, or an exponential that underflows, takes a CPU up to twenty times as long as any other. So for a
# number alpha what lies outside the support is kept at a floor, and told by it afterwards.


def _base(s: Tensor, epsilon: float, width: Tensor, out: Optional[Tensor]) -> tuple[Tensor, bool]:
    """``1 + s / w``, not below the floor; for small epsilon, where it is close to 1, ``s / w`` instead (and True)."""
    floor = _floor(s.dtype, epsilon)
    if epsilon >= NEAR_ONE:
        return torch.add(s, width, out=out).div_(width).clamp_(min=floor), False
    return torch.div(s, width, out=out).clamp_(min=floor - 1), True


def _power(log_base: Tensor, epsilon: float) -> Tensor:
    """The base to the power of 1 / epsilon from its logarithm, in place; zero where the base is at the floor."""
    limit = 1.5 * _floor(log_base.dtype, epsilon) ** (1 / epsilon)
    return torch.threshold_(log_base.div_(epsilon).exp_(), limit, 0.0)


def _floor(dtype: torch.dtype, epsilon: float) -> float:
    """What no ``1 + s / w`` inside the support falls below, unless its power is too small for the dtype anyway."""
    info = torch.finfo(dtype)
    least = math.exp(max((math.log(info.tiny) + 1) * epsilon, -700.0))
    return max(least, info.tiny if epsilon >= NEAR_ONE else info.eps / 2)


def norm_and_step(
    s: Tensor, epsilon: Epsilon, width: Tensor, out: Optional[Tensor] = None, powers: bool = False
) -> tuple[Tensor, Tensor]:
    """``h(w) = ||[s + w]_+||_q``, q = 1/epsilon, and the root of its tangent at 1; both ``(..., 1)``.

    ``powers``: fewer operations for a number alpha from 1.25 to 2, but zeros are raised to a power, slow on a CPU.
    """
    if isinstance(epsilon, float) and epsilon in (0.5, 1.0):
        u = torch.add(s, width, out=out).relu_()
        if epsilon == 0.5:
            norm = torch.linalg.vector_norm(u, 2, -1, True)
            return norm, torch.addcdiv(width, norm - 1, u.sum(-1, True).div_(norm), value=-1)
        norm = u.sum(-1, True)
        return norm, width - (norm - 1) / u.sign_().sum(-1, True)
    if powers and isinstance(epsilon, float) and NEAR_ONE <= epsilon < 1:
        u = torch.add(s, width, out=out).relu_()
        slope = u.pow(1 / epsilon - 1)
        total = u.mul_(slope).sum(-1, True)
        norm = total.pow(epsilon)
        return norm, width - (total - total / norm).div_(slope.sum(-1, True))
    if isinstance(epsilon, float):
        base, near_one = _base(s, epsilon, width, out)
        r = _power(base.log1p() if near_one else base.log(), epsilon)
    else:
        base, near_one = torch.div(s, width, out=out).clamp_(min=-1), True
        r = base.log1p().div_(epsilon).exp_()
    total = r.sum(-1, True)
    base = base.add_(1).clamp_(min=torch.finfo(s.dtype).tiny) if near_one else base
    slope = r.div_(base).sum(-1, True)
    return width * total**epsilon, width - (width * total - total ** (1 - epsilon)) / slope


def tolerance(s: Tensor) -> float:
    """How far the norm of a solved row may be from 1: the rounding of sums over d entries."""
    return torch.finfo(s.dtype).eps * (4 + math.sqrt(s.shape[-1]) / 8)


def newton(
    s: Tensor,
    epsilon: Epsilon,
    start: Optional[Tensor] = None,
    out: Optional[Tensor] = None,
    steps: Optional[int] = None,
    early: bool = False,
    powers: bool = False,
    check_every: Optional[int] = None,
) -> Tensor:
    """Norm-Newton: h(w) = ||[s + w]_+||_q is convex for alpha <= 2, so the root of a tangent never passes the solution.

    Where values can be read and alpha is at most 2, plain steps come first. After them, and otherwise at once, a
    bracket is kept: it makes alpha > 2 safe, where h is not convex and every other step halves it; for alpha <= 2 from
    the sixth step on every third does, which bounds the number of steps for any scores (ladders of entries make plain
    Newton slow at alpha = 2).

    Args:
        s: scaled scores, at most 0, the largest of each row 0; shape ``(..., d)``.
        epsilon: alpha - 1, positive; a tensor has shape ``(..., 1)``.
        start: where to begin, at least the solution, or close to it; 1 if None; shape ``(..., 1)``.
        out: a scratch buffer of the shape of ``s``.
        steps: take exactly so many plain steps, for alpha <= 2; until solved if None.
        early: stop where one more step should be the last, as convergence is quadratic; the caller has to check.
        powers: see :func:`norm_and_step`.
        check_every: steps between two questions whether all rows are solved, 0 for never; if None, what the device
            allows: 1 on the CPU, where it is free, 2 on others, 0 where values cannot be read.

    Returns:
        Widths, shape ``(..., 1)``.
    """
    width = torch.ones_like(s[..., :1]) if start is None else start
    if check_every is None:
        check_every = 1 if free_to_read(s) else CHECK_EVERY if can_read(s) else 0
    convex = epsilon <= 1  # a tensor for a tensor alpha
    limit = tolerance(s)
    if steps is not None:
        plain, bracketed, checks = steps, 0, range(0)
    else:
        plain = FREE_STEPS if check_every and is_convex(epsilon) else 0
        bracketed = MAX_STEPS if check_every else FIXED_STEPS_ABOVE_2 if convex is False else FIXED_STEPS
        first = FIRST_CHECK  # none before it can be of use
        if check_every == 1 and not powers:
            first = 3 if start is None and s.numel() < SMALL else 0
        checks = range(first, plain, check_every) if plain else range(0)
    high: Optional[Tensor] = None
    low: Optional[Tensor] = None
    for step in range(plain + bracketed):
        norm, tangent = norm_and_step(s, epsilon, width, out, powers)
        if step < plain:
            if step in checks and _is_solved(norm, math.sqrt(limit) if early else limit, width, tangent):
                return tangent
            width = tangent
            continue
        step -= plain
        if high is None or low is None:
            high, low = torch.ones_like(width), lowest_width(s, epsilon)
        settled = ~_moves(norm, limit, width, tangent, convex if check_every else False)
        settled |= high - low <= 2 * torch.finfo(s.dtype).eps * high  # where h jumps, its norm may never be 1
        if check_every and step % check_every == 0 and bool(settled.all()):
            return width
        high = torch.where(norm >= 1, width, high)
        low = torch.where(norm < 1, width, low)
        middle = (low * high).sqrt()
        if isinstance(convex, Tensor):
            high = torch.where(convex, torch.minimum(high, tangent), high)
        elif convex:
            high = torch.minimum(high, tangent)
        if step % 2 == 1 if convex is False else step >= 5 and step % 3 == 2:
            following = middle
        else:  # a tangent from below that ends above `high` says nothing new; without convexity, halve
            otherwise = high if convex is True else middle
            if isinstance(convex, Tensor):
                otherwise = torch.where(convex, high, middle)
            following = torch.where((tangent > low) & (tangent <= high), tangent, otherwise)
        width = torch.where(settled, width, following)
    return width


def _is_solved(norm: Tensor, limit: float, width: Tensor, tangent: Tensor) -> bool:
    """Whether no row needs another plain step; NaN rows count as solved."""
    if free_to_read(norm) and not bool(((norm - 1).abs_() > limit).any()):
        return True
    return not bool(_moves(norm, limit, width, tangent, True).any())


def _moves(norm: Tensor, limit: float, width: Tensor, following: Tensor, convex: Union[bool, Tensor]) -> Tensor:
    """Whether another step may help: a large support multiplies what the width itself is rounded by.

    ``convex`` says where a short step counts as the end. Above alpha = 2 it says nothing, as an entry next to the
    threshold makes tangents as steep as one likes.
    """
    off = (norm - 1).abs() > limit
    if convex is False:
        return off
    far = (following - width).abs() > torch.finfo(width.dtype).eps * width
    return off & (far if convex is True else far | ~convex)


def is_convex(epsilon: Epsilon) -> bool:
    """Whether alpha is at most 2 in every row (reads the value of a tensor)."""
    return epsilon <= 1 if isinstance(epsilon, float) else bool((epsilon <= 1).all())


def lowest_width(s: Tensor, epsilon: Epsilon) -> Tensor:
    """The width of a row whose d scores are all equal, ``d ** -epsilon``: no row's is smaller; shape ``(..., 1)``."""
    low = torch.full_like(s[..., :1], float(max(s.shape[-1], 1))) ** -epsilon
    return low.clamp_(min=torch.finfo(s.dtype).tiny)


def bisect(s: Tensor, epsilon: Epsilon) -> Tensor:
    """Alg. 1 (any alpha > 1), halving the bracket in the logarithm of the width; arguments as in :func:`newton`."""
    high = torch.zeros_like(s[..., :1])
    low = lowest_width(s, epsilon).log()
    for _ in range(40 if s.dtype == torch.float32 else 66):
        middle = (low + high) / 2
        width = middle.exp()
        above = width * _ratios(s, epsilon, width).sum(-1, True) ** epsilon >= 1
        high = torch.where(above, middle, high)
        low = torch.where(above, low, middle)
    return high.exp()


def sort(s: Tensor, epsilon: float, k: Optional[int] = None) -> Tensor:
    """Alg. 2 (alpha = 1.5) and its twin for sparsemax (alpha = 2); arguments as in :func:`newton`.

    With ``k`` only the k largest entries of rows ``(n, d)`` are sorted, and twice as many where the support may be
    larger.
    """
    if k is not None and k < s.shape[-1]:
        width, size = _from_sorted(torch.topk(s, k, dim=-1)[0], epsilon)
        unsolved = (size == k).squeeze(-1).nonzero().squeeze(-1)
        if unsolved.numel() > 0:
            width[unsolved] = sort(s[unsolved], epsilon, 2 * k)
        return width
    ordered = torch.sort(s, dim=-1, descending=True)[0]
    if epsilon == 1.0:  # the thresholds of the k largest entries rise up to the support's size and fall after it
        count = torch.arange(1, s.shape[-1] + 1, device=s.device, dtype=s.dtype)
        return ordered.clamp_(min=-1).cumsum(-1).sub_(1).div_(count).amax(-1, True).neg_()
    return _from_sorted(ordered, epsilon)[0]


def _from_sorted(ordered: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Widths from the (first) entries in descending order, and the size of the support among them; both ``(n, 1)``."""
    s = ordered.clamp(min=-1)  # nothing below -1 is ever in the support, and the sums stay accurate
    count = torch.arange(1, s.shape[-1] + 1, device=s.device, dtype=s.dtype)
    mean = s.cumsum(-1) / count
    if epsilon == 1.0:
        tau = mean - 1 / count
    else:
        spread = (s * s).cumsum(-1) - mean * mean * count
        tau = mean - ((1 - spread) / count).clamp_(min=0).sqrt_()
    size = (tau < s).sum(-1, True).clamp_(min=1)
    return -tau.gather(-1, size - 1), size
