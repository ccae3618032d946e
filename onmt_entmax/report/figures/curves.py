"""Figures of training runs: learning curves, accuracy against time (Fig. 6), and against alpha (Fig. 4)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Optional

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from onmt_entmax.errors import UserError
from onmt_entmax.report.figures import style
from onmt_entmax.report.readers import Metrics, signature_fields

# (key, title, logarithmic)
PANELS = (
    ("loss", "Validation loss", False),
    ("accuracy", "Token accuracy (%)", False),
    ("support_output", "Target types of non-zero probability", True),
    ("support_attention", "Source tokens attended to", False),
)


def group(runs: Sequence[Metrics], labels: Optional[Sequence[str]] = None) -> dict[str, list[Metrics]]:
    """Put runs with the same label together: the same alphas, unless labels are given.

    Args:
        runs: in any order; without labels they come by alphas, so that softmax looks alike in all figures.
        labels: one per run, or None.
    """
    if labels is not None and len(labels) != len(runs):
        raise UserError(f"Invalid setting for `labels`: {len(labels)} for {len(runs)} files. One per file is needed.")
    if labels is None:
        runs = sorted(runs, key=lambda run: (run.alphas[0], run.alphas[1] != run.alphas[0], run.alphas[1] or 0.0))
    groups: dict[str, list[Metrics]] = {}
    for index, run in enumerate(runs):
        name = labels[index] if labels is not None else style.alphas_name(*run.alphas)
        groups.setdefault(name, []).append(run)
    return groups


def learning_curves(groups: dict[str, list[Metrics]], width: float = style.PAGE) -> Figure:
    """Draw loss, accuracy and support sizes against the step; the best validation is ringed.

    Args:
        groups: label -> runs.
        width: in inches.
    """
    panels = [panel for panel in PANELS if any(run.series(panel[0])[0] for own in groups.values() for run in own)]
    with matplotlib.rc_context(style.RC):
        across = 2 if width > 4 else 1
        down = -(-len(panels) // across)
        figure = Figure(figsize=(width, 2.05 * down), layout="constrained")
        for number, panel in enumerate(panels, 1):
            draw_panel(figure.add_subplot(down, across, number), panel, groups)
        _legend(figure, groups)
    return figure


def draw_panel(axes, panel: tuple[str, str, bool], groups: dict[str, list[Metrics]]) -> None:
    """Draw one measure of all runs."""
    key, title, logarithmic = panel
    for index, (label, runs) in enumerate(groups.items()):
        look = style.line_style(index)
        for number, run in enumerate(runs):
            steps, values = run.series(key)
            axes.plot(steps, values, **look, label=label if number == 0 else None, markevery=_spread(len(steps)))
            if key == "accuracy":
                best = run.best
                ring = {"marker": "o", "markersize": 8, "markerfacecolor": "none", "markeredgecolor": look["color"]}
                axes.plot([best["step"]], [best["accuracy"]], **ring)
    axes.set_title(title, loc="left")
    axes.set_xlabel("training step")
    if logarithmic:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(subs=(1,) if high > 500 * low else (1, 2, 5), numticks=12))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.margins(x=0.03)
    axes.grid(True)


def training_speed(groups: dict[str, list[Metrics]], width: float = style.COLUMN) -> Figure:
    """Draw validation accuracy against time: all runs of a setting alike, a marker per validation of the first.

    Args:
        groups: label -> runs.
        width: in inches.
    """
    longest = max(run.rows[-1]["elapsed"] for runs in groups.values() for run in runs)
    unit, seconds = ("hours", 3600) if longest > 3 * 3600 else ("minutes", 60) if longest > 180 else ("seconds", 1)
    with matplotlib.rc_context(style.RC):
        figure = Figure(figsize=(width, 0.68 * width + 0.16 * len(groups)), layout="constrained")
        axes = figure.add_subplot()
        for index, (label, runs) in enumerate(groups.items()):
            look = style.line_style(index)
            rates = [row["words_per_second"] for run in runs for row in run.rows if row.get("words_per_second")]
            speed = f" ({median(rates):,.0f} words/s)" if rates else ""
            for number, run in enumerate(runs):
                times = [row["elapsed"] / seconds for row in run.rows]
                values = [row["accuracy"] for row in run.rows]
                marked = {} if number == 0 else {"marker": None, "alpha": 0.55, "linewidth": 1.0}
                axes.plot(times, values, **{**look, **marked}, label=label + speed if number == 0 else None)
        axes.set_xlabel(f"training time ({unit})")
        axes.set_ylabel("validation accuracy (%)")
        axes.set_xlim(left=0)
        axes.grid(True)
        figure.legend(loc="outside lower center", ncols=1, labelspacing=0.3)
    return figure


def alpha_grid(runs: Sequence[Metrics], fixed: float = 1.5, width: float = style.PAGE) -> Figure:
    """Draw the best validation accuracy against one alpha while the other is fixed: attention left, output right.

    Args:
        runs: of the grid; runs with the same alphas are averaged, each is shown as a dot.
        fixed: the alpha that is not varied.
        width: in inches.

    Raises:
        UserError: fewer than two values on both sides.
    """
    sides = [("attention α", 1, 0), ("output α", 0, 1)]
    found = []
    for _, varied, other in sides:
        points: dict[float, list[float]] = {}
        for run in runs:
            if None not in run.alphas and abs(run.alphas[other] - fixed) < 1e-9:
                points.setdefault(run.alphas[varied], []).append(run.best["accuracy"])
        found.append(dict(sorted(points.items())))
    if all(len(points) < 2 for points in found):
        raise UserError(
            f"{len(runs)} metrics files hold no two models that differ in one alpha with the other at {fixed:g}."
        )
    with matplotlib.rc_context(style.RC):
        figure = Figure(figsize=(width, 0.36 * width), layout="constrained")
        left = None
        for number, ((name, _, _), points) in enumerate(zip(sides, found)):
            axes = left = figure.add_subplot(1, 2, number + 1, sharey=left)
            look = style.line_style(1)
            means = [fmean(values) for values in points.values()]
            axes.plot(list(points), means, **look)
            for alpha, values in points.items():
                if len(values) > 1:
                    axes.plot([alpha] * len(values), values, ".", color=style.SOFT, markersize=3, zorder=1)
            if means:
                best = max(zip(means, points))
                note = {"textcoords": "offset points", "xytext": (0, 7), "ha": "center", "size": 7.5}
                axes.annotate(f"{best[0]:.2f} at {best[1]:g}", (best[1], best[0]), **note)
            else:
                axes.text(0.5, 0.5, "no runs", transform=axes.transAxes, ha="center", color=style.SOFT)
            axes.set_xlabel(f"{name}   ({sides[1 - number][0]} = {fixed:g})")
            axes.margins(x=0.12, y=0.2)
            axes.grid(True)
            if number == 0:
                axes.set_ylabel("validation accuracy (%)")
    return figure


def differing_fields(runs: Sequence[Metrics]) -> list[str]:
    """Name the fields (steps, seeds and alphas aside) in which runs differ that are drawn together."""
    fields = [signature_fields(run.signature) for run in runs]
    keys = dict.fromkeys(key for one in fields for key in one)
    return [key for key in keys if key not in ("seed", "alpha", "step") and len({one.get(key) for one in fields}) > 1]


def _spread(count: int) -> int:
    """A marker on every so many points, about a dozen in all."""
    return max(1, count // 12)


def _legend(figure: Figure, groups: dict[str, list[Metrics]]) -> None:
    if len(groups) > 1:
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=min(len(groups), 3))
