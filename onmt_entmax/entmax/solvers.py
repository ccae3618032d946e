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

Epsilon = Union[float, Tensor]

FREE_STEPS = 10  # of Newton before a bracket is kept as well
SMALL = 1 << 15  # entries, below which an operation costs its overhead
FIRST_LOOK, LOOK_EVERY = 4, 2  # steps of Newton before the host waits for a device to say whether it is done
FIXED_STEPS = 32  # of Newton where the host must not wait for the device
FIXED_STEPS_ABOVE_2 = 100  # the same for a number alpha > 2, where only the bracket can be relied on
NEAR_ONE = 0.25  # epsilon below which 1 + s / w is so close to 1 that its logarithm is taken by log1p
MAX_STEPS = 200  # of Newton where it may stop early; the tests' worst ladders need fewer than 40


def is_compiling() -> bool:
    """Whether torch.compile is tracing, when control flow may not depend on values."""
    flag = getattr(torch.compiler, "is_compiling", None)
    return bool(flag()) if flag is not None else False


def may_look(x: Tensor) -> bool:
    """Whether reading a value of ``x`` is free: on the CPU, outside torch.compile."""
    return x.device.type == "cpu" and not is_compiling()


def may_wait(x: Tensor) -> bool:
    """Whether a value of ``x`` can be read at all: not in torch.compile, nor while a CUDA graph is captured."""
    if is_compiling() or x.is_meta:
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


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
    share = ((1 - sum_below) / (sum_above - sum_below)).clamp_(0, 1)
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
    return torch.nn.functional.threshold_(log_base.div_(epsilon).exp_(), limit, 0.0)


def _floor(dtype: torch.dtype, epsilon: float) -> float:
    """What no ``1 + s / w`` inside the support falls below, unless its power is too small for the dtype anyway."""
    info = torch.finfo(dtype)
    least = math.exp(max((math.log(info.tiny) + 1) * epsilon, -700.0))
    return max(least, info.tiny if epsilon >= NEAR_ONE else info.eps / 2)


def norm_and_step(s: Tensor, epsilon: Epsilon, width: Tensor, out: Optional[Tensor]) -> tuple[Tensor, Tensor]:
    """``h(w) = ||[s + w]_+||_q``, q = 1/epsilon, and the root of its tangent at 1; both ``(n, 1)``."""
    if isinstance(epsilon, float) and epsilon in (0.5, 1.0):
        u = torch.add(s, width, out=out).relu_()
        if epsilon == 0.5:
            norm = torch.linalg.vector_norm(u, 2, -1, True)
            return norm, torch.addcdiv(width, norm - 1, u.sum(-1, True).div_(norm), value=-1)
        norm = u.sum(-1, True)
        return norm, width - (norm - 1) / u.sign_().sum(-1, True)
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
    early: bool = False,
) -> Tensor:
    """Norm-Newton: h(w) = ||[s + w]_+||_q is convex for alpha <= 2, so the root of a tangent never passes the solution.

    Where values may be looked at (on a device at every other step, as the host waits for it) and alpha is at most 2,
    plain steps come first. After them, and otherwise at once, a bracket is kept: it makes alpha > 2 safe, where h is
    not convex and every other step halves it; for alpha <= 2 from the sixth step on every third does, which bounds the
    number of steps for any scores (ladders of entries make plain Newton slow at alpha = 2).

    Args:
        s: scaled scores, at most 0, the largest of each row 0; shape ``(n, d)``.
        epsilon: alpha - 1, positive; a tensor has shape ``(n, 1)``.
        start: where to begin, at least the solution, or close to it; 1 if None; shape ``(n, 1)``.
        out: a buffer of the shape of ``s``.
        early: stop where one more step should be the last, as convergence is quadratic; the caller has to check.

    Returns:
        Widths, shape ``(n, 1)``.
    """
    width = torch.ones_like(s[:, :1]) if start is None else start
    limit = tolerance(s)
    look, every = may_wait(s), 1 if may_look(s) else LOOK_EVERY
    if look and is_convex(epsilon):
        enough = math.sqrt(limit) if early else limit
        first = FIRST_LOOK  # no look before it can be of use
        if every == 1:
            first = 3 if start is None and s.numel() < SMALL else 0
        looks = range(first, FREE_STEPS, every)
        for step in range(FREE_STEPS):
            norm, following = norm_and_step(s, epsilon, width, out)
            if step in looks and not bool(_moves(norm, enough, width, following, True).any()):
                return following  # NaN rows count as solved
            width = following
    high = torch.ones_like(width)
    low = lowest_width(s, epsilon)
    convex = epsilon <= 1
    fixed = FIXED_STEPS_ABOVE_2 if convex is False else FIXED_STEPS
    for step in range(MAX_STEPS if look else fixed):
        norm, following = norm_and_step(s, epsilon, width, out)
        settled = ~_moves(norm, limit, width, following, convex if look else False)
        settled |= high - low <= 2 * torch.finfo(s.dtype).eps * high  # where h jumps, its norm may never be 1
        if look and step % every == 0 and bool(settled.all()):
            return width
        high = torch.where(norm >= 1, width, high)
        low = torch.where(norm < 1, width, low)
        middle = (low * high).sqrt()
        if isinstance(convex, Tensor):
            high = torch.where(convex, torch.minimum(high, following), high)
        elif convex:
            high = torch.minimum(high, following)
        inside = (following > low) & (following <= high)
        if step % 2 == 1 if convex is False else step >= 5 and step % 3 == 2:
            following = middle
        else:  # a tangent from below that ends above `high` says nothing new; without convexity, halve
            otherwise = high if convex is True else middle
            if isinstance(convex, Tensor):
                otherwise = torch.where(convex, high, middle)
            following = torch.where(inside, following, otherwise)
        width = torch.where(settled, width, following)
    return width


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


def bound(s: Tensor, epsilon: Epsilon, steps: int = 5, start: Optional[Tensor] = None) -> Tensor:
    """A width that is at least the solution's, from part of the rows' entries, on the CPU; shape ``(n, 1)``.

    ``start`` is where Newton's steps begin for alpha <= 2, 1 if None.
    """
    if is_convex(epsilon):
        width = torch.ones_like(s[:, :1]) if start is None else start
        for _ in range(steps):
            _, width = norm_and_step(s, epsilon, width, None)
    else:
        width = newton(s, epsilon)
    return width.mul_(1 + 1e-5).clamp_(max=1)  # rounding must not take it below


def lowest_width(s: Tensor, epsilon: Epsilon) -> Tensor:
    """The width of a row whose d scores are all equal, ``d ** -epsilon``: no row's is smaller; shape ``(n, 1)``."""
    low = torch.full_like(s[:, :1], float(max(s.shape[-1], 1))) ** -epsilon
    return low.clamp_(min=torch.finfo(s.dtype).tiny)


def bisect(s: Tensor, epsilon: Epsilon) -> Tensor:
    """Alg. 1 (any alpha > 1), halving the bracket in the logarithm of the width; arguments as in :func:`newton`."""
    high = torch.zeros_like(s[:, :1])
    low = lowest_width(s, epsilon).log()
    for _ in range(40 if s.dtype == torch.float32 else 66):
        middle = (low + high) / 2
        width = middle.exp()
        above = width * _ratios(s, epsilon, width).sum(-1, True) ** epsilon >= 1
        high = torch.where(above, middle, high)
        low = torch.where(above, low, middle)
    return high.exp()


def sort(s: Tensor, epsilon: float) -> Tensor:
    """Alg. 2 (alpha = 1.5) and its twin for sparsemax (alpha = 2); arguments as in :func:`newton`."""
    if epsilon == 1.0:  # the thresholds of the k largest entries rise up to the support's size and fall after it
        count = torch.arange(1, s.shape[-1] + 1, device=s.device, dtype=s.dtype)
        sums = torch.sort(s, dim=-1, descending=True)[0].clamp_(min=-1).cumsum(-1)
        return sums.sub_(1).div_(count).amax(-1, True).neg_()
    return _from_sorted(torch.sort(s, dim=-1, descending=True)[0], epsilon)[0]


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


def topk(s: Tensor, epsilon: float, k: int = 64) -> Tensor:
    """:func:`sort` on the k largest entries only, k doubled for the rows whose support may be larger."""
    if k >= s.shape[-1]:
        return sort(s, epsilon)
    width, size = _from_sorted(torch.topk(s, k, dim=-1)[0], epsilon)
    unsolved = (size == k).squeeze(-1).nonzero().squeeze(-1)
    if unsolved.numel() > 0:
        width[unsolved] = topk(s[unsolved], epsilon, 2 * k)
    return width
