"""``figure mappings``: alpha-entmax of two scores (Fig. 3 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import torch
from matplotlib.figure import Figure

from onmt_entmax.entmax import entmax
from onmt_entmax.report.figures import style

ALPHAS = (1.0, 1.25, 1.5, 2.0, 4.0)


def curves(
    alphas: Sequence[float] = ALPHAS, reach: float = 4.5, points: int = 901
) -> tuple[list[float], list[list[float]]]:
    """Compute the first entry of entmax([t, 0]) for t from ``-reach`` to ``reach``.

    Returns:
        The values of t, and one list of probabilities per alpha.
    """
    t = torch.linspace(-reach, reach, points, dtype=torch.float64)
    scores = torch.stack([t, torch.zeros_like(t)], dim=-1)  # (points, 2)
    return t.tolist(), [entmax(scores, alpha)[:, 0].tolist() for alpha in alphas]


def mappings_figure(alphas: Sequence[float] = ALPHAS, width: float = style.COLUMN) -> Figure:
    """Draw them; a marker shows where a mapping reaches 0 or 1, at t = ±1/(alpha − 1).

    Args:
        alphas: at least 1 each.
        width: in inches.
    """
    t, lines = curves(alphas)
    with matplotlib.rc_context(style.RC):
        figure = Figure(figsize=(width, 0.72 * width), layout="constrained")
        axes = figure.add_subplot()
        for index, (alpha, line) in enumerate(zip(alphas, lines)):
            look = style.line_style(index)
            ends = [] if alpha <= 1 else [sign / (alpha - 1) for sign in (-1, 1) if 1 / (alpha - 1) <= t[-1]]
            at = [min(range(len(t)), key=lambda i, end=end: abs(t[i] - end)) for end in ends]
            label = f"α = {alpha:g}" + (f" ({style.alpha_name(alpha)})" if alpha in (1, 2) else "")
            axes.plot(t, line, **{**look, "marker": look["marker"] if at else None}, markevery=at or None, label=label)
        axes.set_xlabel("t")
        axes.set_ylabel("α-entmax([t, 0])₁")
        axes.set_xlim(t[0], t[-1])
        axes.set_yticks([0, 0.5, 1])
        axes.grid(True)
        axes.legend(
            loc="lower right", handlelength=2.1, handletextpad=0.4, labelspacing=0.2, borderaxespad=0.1, fontsize=7
        )
    return figure
