r"""The solvers: each finds the threshold of alpha-entmax (Lemma "tsallis_reduction" of the paper) for many rows at once.

Every solver takes ``x``, the scores with each row's maximum subtracted, and finds the row's *width* w in (0, 1]: the
distance of the threshold from the maximum once scores are scaled by :math:`\varepsilon = \alpha - 1`, so that

.. math:: p_j = [\varepsilon x_j + w]_+^{1/\varepsilon}, \quad \sum_j p_j = 1, \quad \tau = \varepsilon \max z - w.

As alpha approaches 1 the width tends to 1 and would carry no information; the probabilities are therefore taken as
:math:`p_j = r_j / \sum_k r_k` with :math:`r_j = [1 + \varepsilon x_j / w]_+^{1/\varepsilon}`, which tends to softmax.
"""

from __future__ import annotations

import math
from typing import Union

import torch
from torch import Tensor

Epsilon = Union[float, Tensor]

FIXED_STEPS = 32  # of Newton where the host must not wait for the device
MAX_STEPS = 200  # of Newton where it may stop early; no input is known that needs more than 40


def is_compiling() -> bool:
    """Whether torch.compile is tracing, when control flow may not depend on values."""
    flag = getattr(torch.compiler, "is_compiling", None)
    return bool(flag()) if flag is not None else False


def may_look(x: Tensor) -> bool:
    """Whether reading a value of ``x`` is free: on the CPU, outside torch.compile."""
    return x.device.type == "cpu" and not is_compiling()


def ratios(x: Tensor, epsilon: Epsilon, width: Tensor) -> Tensor:
    """Unnormalised probabilities ``r``: 1 for the maximum, exact zeros outside the support; shape ``(n, d)``."""
    if isinstance(epsilon, float):
        if epsilon == 0.5:
            return torch.relu_(x * 0.5 + width).div_(width).square_()
        if epsilon == 1.0:
            return torch.relu_(x + width).div_(width)
    return (x * (epsilon / width)).clamp_(min=-1).log1p_().div_(epsilon).exp_()


def _sums(x: Tensor, epsilon: Epsilon, width: Tensor) -> tuple[Tensor, Tensor]:
    """``sum u ** q`` over ``width ** q`` and ``sum u ** (q-1)`` over ``width ** (q-1)``, q = 1/epsilon; both (n, 1)."""
    if isinstance(epsilon, float):
        if epsilon == 0.5:
            r = torch.relu_(x * 0.5 + width).div_(width)
            return r.square().sum(-1, keepdim=True), r.sum(-1, keepdim=True)
        if epsilon == 1.0:
            r = torch.relu_(x + width).div_(width)
            return r.sum(-1, keepdim=True), (r > 0).sum(-1, keepdim=True).to(x.dtype)
    y = (x * (epsilon / width)).clamp_(min=-1)
    r = y.log1p().div_(epsilon).exp_()
    return r.sum(-1, keepdim=True), torch.where(r > 0, r / (1 + y), 0).sum(-1, keepdim=True)


def newton(x: Tensor, epsilon: Epsilon) -> Tensor:
    """Norm-Newton: h(w) = ||[epsilon x + w]_+||_q is convex for alpha <= 2, so its tangents never pass the solution.

    A bracket is kept besides: it makes alpha > 2 safe, where h is not convex, and every third step halves it, which
    bounds the number of steps for any scores (ladders of entries make plain Newton slow at alpha = 2).

    Args:
        x: scores minus their row's maximum, shape ``(n, d)``.
        epsilon: alpha - 1, positive; a tensor has shape ``(n, 1)``.

    Returns:
        Widths, shape ``(n, 1)``.
    """
    width = torch.ones_like(x[:, :1])
    high = width
    low = lowest_width(x, epsilon)
    tolerance = 4 * torch.finfo(x.dtype).eps
    look = may_look(x)
    for step in range(MAX_STEPS if look else FIXED_STEPS):
        total, slope = _sums(x, epsilon, width)
        norm = width * total**epsilon
        settled = ~((norm - 1).abs() > tolerance)  # true for NaN rows: they stay as they are
        if look and bool(settled.all()):
            break
        high = torch.where(norm >= 1, width, high)
        low = torch.where(norm < 1, width, low)
        middle = (low * high).sqrt()
        settled |= (middle <= low) | (middle >= high)
        following = width - (width * total - total ** (1 - epsilon)) / slope
        if step % 3 == 2:
            following = torch.where((following > low) & (following < high) & (norm < 1), following, middle)
        else:
            following = torch.where((following >= low) & (following <= high), following, middle)
        width = torch.where(settled, width, following)
    return width


def lowest_width(x: Tensor, epsilon: Epsilon) -> Tensor:
    """The width of a row whose d scores are all equal, ``d ** -epsilon``: no row's is smaller; shape ``(n, 1)``."""
    exponent = -epsilon * math.log(max(x.shape[-1], 1))
    low = exponent.exp() if isinstance(exponent, Tensor) else torch.full_like(x[:, :1], math.exp(exponent))
    return low.clamp_(min=torch.finfo(x.dtype).tiny)


def bisect(x: Tensor, epsilon: Epsilon) -> Tensor:
    """Alg. 1 (any alpha > 1), halving the bracket in the logarithm of the width; arguments as in :func:`newton`."""
    high = torch.zeros_like(x[:, :1])
    low = lowest_width(x, epsilon).log()
    for _ in range(40 if x.dtype == torch.float32 else 66):
        middle = (low + high) / 2
        width = middle.exp()
        above = width * ratios(x, epsilon, width).sum(-1, keepdim=True) ** epsilon >= 1
        high = torch.where(above, middle, high)
        low = torch.where(above, low, middle)
    return high.exp()


def sort(x: Tensor, epsilon: float) -> Tensor:
    """Alg. 2 (alpha = 1.5) and its twin for sparsemax (alpha = 2); arguments as in :func:`newton`."""
    return _from_sorted(torch.sort(x, dim=-1, descending=True)[0], epsilon)[0]


def _from_sorted(ordered: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Widths from the (first) entries in descending order, and the size of the support among them; both ``(n, 1)``."""
    s = (ordered * epsilon).clamp_(min=-1)  # nothing below -1 is ever in the support, and sums stay accurate
    count = torch.arange(1, s.shape[-1] + 1, device=s.device, dtype=s.dtype)
    mean = s.cumsum(-1) / count
    if epsilon == 1.0:
        tau = mean - 1 / count
    else:
        spread = (s * s).cumsum(-1) - mean * mean * count
        tau = mean - ((1 - spread) / count).clamp_(min=0).sqrt_()
    size = (tau < s).sum(-1, keepdim=True).clamp_(min=1)
    return -tau.gather(-1, size - 1), size


def topk(x: Tensor, epsilon: float, k: int = 64) -> Tensor:
    """:func:`sort` on the k largest entries only, k doubled for the rows whose support may be larger."""
    d = x.shape[-1]
    if k >= d:
        return sort(x, epsilon)
    width, size = _from_sorted(torch.topk(x, k, dim=-1)[0], epsilon)
    unsolved = (size == k).squeeze(-1).nonzero().squeeze(-1)
    if unsolved.numel() > 0:
        width[unsolved] = topk(x[unsolved], epsilon, 2 * k)
    return width
