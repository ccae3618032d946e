"""The functions as Modules, a learned alpha, and the names of the public ``entmax`` package.

From ``EntmaxBisect`` on, names take the place of that package's: the same arguments, defaults and results. ``k`` and
``n_iter`` say there how many entries to sort and how often to halve a bracket; here every result is exact to rounding,
whatever they say. alpha = 1 is softmax, and targets of ``ignore_index`` count for nothing, also where it is negative.
"""

from __future__ import annotations

from typing import Optional, Union

import torch
from torch import Tensor, nn

from onmt_entmax.entmax.functional import Alpha, check_alpha, check_count, entmax, sparsemax
from onmt_entmax.entmax.linear_loss import LinearEntmaxLossOutput, linear_entmax_loss
from onmt_entmax.entmax.losses import check_reduction, check_smoothing, entmax_loss

PUBLIC_REDUCTIONS = ("elementwise_mean", "mean", "sum", "none")


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
        self.raw = nn.Parameter(torch.empty(shape))
        self.begin_at(start)

    def begin_at(self, start: float) -> None:
        """Set every alpha to ``start``, which later calls of :meth:`begin_again` come back to."""
        self.start = start
        self.begin_again()

    def begin_again(self) -> None:
        """Forget what was learned."""
        share = torch.tensor((self.start - self.LOW) / (self.HIGH - self.LOW))
        with torch.no_grad():
            self.raw.copy_(torch.logit(share))

    def forward(self) -> Tensor:
        """Alpha, shape ``shape``."""
        return self.LOW + (self.HIGH - self.LOW) * torch.sigmoid(self.raw)


class _WithAlpha(nn.Module):
    """Holds alpha: a number, a tensor (which moves with the Module, and is learned if it is a Parameter), or a
    :class:`LearnedAlpha`."""

    def __init__(self, alpha: Union[Alpha, LearnedAlpha]):
        super().__init__()
        if isinstance(alpha, Tensor) and not isinstance(alpha, nn.Parameter):
            self.register_buffer("alpha", check_alpha(alpha), persistent=False)
        else:
            self.alpha = alpha if isinstance(alpha, nn.Module) else check_alpha(alpha)

    def current_alpha(self) -> Alpha:
        """A number or a tensor."""
        return self.alpha() if isinstance(self.alpha, nn.Module) else self.alpha


class Entmax(_WithAlpha):
    """:func:`entmax` as a Module.

    Args:
        alpha: a number of at least 1, a tensor (a Parameter is learned, with nothing that keeps it above 1), or a
            :class:`LearnedAlpha`.
        dim: the dimension that sums to one.
    """

    def __init__(self, alpha: Union[Alpha, LearnedAlpha] = 1.5, dim: int = -1):
        super().__init__(alpha)
        self.dim = dim

    def forward(self, scores: Tensor) -> Tensor:
        """Probabilities, shape of ``scores``."""
        return entmax(scores, self.current_alpha(), self.dim)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}, dim={self.dim}" if isinstance(self.alpha, float) else f"dim={self.dim}"


class Entmax15(Entmax):
    """:func:`entmax15` as a Module."""

    def __init__(self, dim: int = -1, k: Optional[int] = None):
        check_count("k", k)
        super().__init__(1.5, dim)


class Sparsemax(Entmax):
    """:func:`sparsemax` as a Module."""

    def __init__(self, dim: int = -1, k: Optional[int] = None):
        check_count("k", k)
        super().__init__(2.0, dim)


class EntmaxLoss(_WithAlpha):
    """:func:`entmax_loss` as a Module; alpha as for :class:`Entmax`, other arguments as for the function."""

    def __init__(
        self,
        alpha: Union[Alpha, LearnedAlpha] = 1.5,
        reduction: str = "mean",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ):
        super().__init__(alpha)
        check_reduction(reduction)
        check_smoothing(label_smoothing)
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, scores: Tensor, target: Tensor, alpha: Optional[Alpha] = None) -> Tensor:
        """Loss of ``scores`` ``(..., d)`` for classes ``target`` ``(...)``; ``alpha`` replaces the Module's."""
        alpha = self.current_alpha() if alpha is None else alpha
        return entmax_loss(scores, target, alpha, self.reduction, self.ignore_index, self.label_smoothing)


class LinearEntmaxLoss(nn.Module):
    """A linear layer (``(V, d)`` weight and bias) with :func:`linear_entmax_loss` on top.

    Args:
        linear: the layer, e.g. a generator whose weight is shared with the decoder's embeddings.
        alpha: a number of at least 1.
        reduction: ``mean`` or ``sum``.
        ignore_index: rows with this target count for nothing.
        label_smoothing: as in :func:`linear_entmax_loss`.
    """

    def __init__(
        self,
        linear: nn.Linear,
        alpha: float = 1.5,
        reduction: str = "mean",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ):
        super().__init__()
        check_reduction(reduction, ("mean", "sum"))
        check_smoothing(label_smoothing)
        self.linear = linear
        self.alpha = check_alpha(alpha)
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, hidden: Tensor, target: Tensor, statistics: bool = False) -> LinearEntmaxLossOutput:
        """Loss and counts of ``hidden`` ``(n, d)`` for ``target`` ``(n,)``."""
        return linear_entmax_loss(
            hidden,
            self.linear.weight,
            self.linear.bias,
            target,
            self.alpha,
            self.reduction,
            self.ignore_index,
            self.label_smoothing,
            statistics,
        )


class EntmaxBisect(Entmax):
    """:func:`entmax_bisect` as a Module."""

    def __init__(self, alpha: Alpha = 1.5, dim: int = -1, n_iter: Optional[int] = 50):
        check_count("n_iter", n_iter)
        super().__init__(alpha, dim)


class SparsemaxBisect(Sparsemax):
    """:func:`sparsemax_bisect` as a Module."""

    def __init__(self, dim: int = -1, n_iter: Optional[int] = None):
        check_count("n_iter", n_iter)
        super().__init__(dim)


def entmax_bisect(
    scores: Tensor, alpha: Alpha = 1.5, dim: int = -1, n_iter: Optional[int] = 50, ensure_sum_one: bool = True
) -> Tensor:
    """:func:`entmax`; probabilities always sum to one, so ``ensure_sum_one`` changes nothing."""
    check_count("n_iter", n_iter)
    return entmax(scores, alpha, dim)


def sparsemax_bisect(scores: Tensor, dim: int = -1, n_iter: Optional[int] = 50, ensure_sum_one: bool = True) -> Tensor:
    """:func:`sparsemax`; probabilities always sum to one, so ``ensure_sum_one`` changes nothing."""
    check_count("n_iter", n_iter)
    return sparsemax(scores, dim)


def entmax_bisect_loss(scores: Tensor, target: Tensor, alpha: Alpha = 1.5, n_iter: Optional[int] = 50) -> Tensor:
    """Losses ``(n,)`` of scores ``(n, d)`` for classes ``(n,)``, see :func:`entmax_loss`; a tensor alpha broadcasts to
    ``(n, 1)``."""
    check_count("n_iter", n_iter)
    return entmax_loss(scores, target, alpha, "none")


def sparsemax_bisect_loss(scores: Tensor, target: Tensor, n_iter: Optional[int] = 50) -> Tensor:
    """:func:`sparsemax_loss`."""
    return entmax_bisect_loss(scores, target, 2.0, n_iter)


def entmax15_loss(scores: Tensor, target: Tensor, k: Optional[int] = None) -> Tensor:
    """Losses ``(n,)`` of 1.5-entmax, see :func:`entmax_bisect_loss`."""
    check_count("k", k)
    return entmax_loss(scores, target, 1.5, "none")


def sparsemax_loss(scores: Tensor, target: Tensor, k: Optional[int] = None) -> Tensor:
    """Losses ``(n,)`` of sparsemax, see :func:`entmax_bisect_loss`."""
    check_count("k", k)
    return entmax_loss(scores, target, 2.0, "none")


class EntmaxBisectLoss(EntmaxLoss):
    """:class:`EntmaxLoss` with the public package's arguments.

    Args:
        alpha: as for :class:`Entmax`.
        n_iter: changes nothing.
        ignore_index: targets that count for nothing.
        reduction: ``elementwise_mean`` (or ``mean``) over the targets that count, ``sum`` or ``none``.
    """

    def __init__(
        self,
        alpha: Alpha = 1.5,
        n_iter: Optional[int] = 50,
        ignore_index: int = -100,
        reduction: str = "elementwise_mean",
    ):
        check_count("n_iter", n_iter)
        check_reduction(reduction, PUBLIC_REDUCTIONS)
        super().__init__(alpha, "mean" if reduction == "elementwise_mean" else reduction, ignore_index)


class SparsemaxBisectLoss(EntmaxBisectLoss):
    """:class:`EntmaxBisectLoss` of sparsemax."""

    def __init__(self, n_iter: Optional[int] = 50, ignore_index: int = -100, reduction: str = "elementwise_mean"):
        super().__init__(2.0, n_iter, ignore_index, reduction)


class Entmax15Loss(EntmaxBisectLoss):
    """:class:`EntmaxBisectLoss` of 1.5-entmax."""

    def __init__(self, k: Optional[int] = 100, ignore_index: int = -100, reduction: str = "elementwise_mean"):
        check_count("k", k)
        super().__init__(1.5, None, ignore_index, reduction)


class SparsemaxLoss(EntmaxBisectLoss):
    """:class:`EntmaxBisectLoss` of sparsemax."""

    def __init__(self, k: Optional[int] = None, ignore_index: int = -100, reduction: str = "elementwise_mean"):
        check_count("k", k)
        super().__init__(2.0, None, ignore_index, reduction)
