"""Which outputs to trust: the reliability diagram and the risk-coverage curve, from results of ``evaluate``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from onmt_entmax.errors import UserError
from onmt_entmax.report.figures import style
from onmt_entmax.report.figures.canvas import families

_GOALS = (99, 95, 90, 80)  # percent right, of which the highest that a tenth of the outputs reaches is told
# classes of certificates -> marker, and what accepting them and the stronger ones means
_RINGS = {"single": ("o", "single strings alone"), "complete": ("s", "all complete ones")}

Trust = Mapping[str, Any]  # docs/formats.md describes it


def trusts_of(result: Mapping[str, Any]) -> Iterator[tuple[str, Trust]]:
    """What a result says of trust: for inflection once, without a name; for translation once per run."""
    if result.get("trust"):
        yield "", result["trust"]
    runs = [run for run in result.get("runs") or [] if run.get("trust")]
    for run in runs:
        yield run["predictions"] if len(runs) > 1 else "", run["trust"]


def sentences(trust: Trust) -> list[str]:
    """What the numbers mean: a threshold and what it accepts, and the strings that are the only ones possible."""
    measure, curve, classes = trust["measure"], trust["curve"], trust["classes"]
    everything = classes["all"][measure]["value"]
    if measure == "acc":
        rules = ([point for point in curve if point["acc"] >= goal and point["coverage"] >= 10] for goal in _GOALS)
        chosen = next((points[-1] for points in rules if points), None) or _half(curve)
        said = f"{chosen['acc']:.1f}% are right; of all outputs, {everything:.1f}%"
    else:
        chosen = _half(curve)
        said = f"their mean chrF is {chosen['chrf']:.1f}; that of all outputs, {everything:.1f}"
    rule = f"Accept outputs of probability {chosen['threshold']:.3g} or more ({chosen['coverage']:.0f}% of them)"
    lines = [f"{rule}: {said}."]
    single = classes["single"]
    if single["outputs"]:
        value = single[measure]["value"]
        known = f"{value:.1f}% of them are right" if measure == "acc" else f"their mean chrF is {value:.1f}"
        share = single["share"]["value"]
        lines.append(f"For {share:.1f}% of the outputs the model holds no other string possible; {known}.")
    return lines


def _half(curve: list[dict[str, float]]) -> dict[str, float]:
    return next(point for point in curve if point["coverage"] >= 50)


def trust_figure(groups: Mapping[str, Trust], width: float = style.PAGE) -> Figure:
    """Draw one line per model: left how often outputs of a probability are right, right the risk of accepting them.

    All are of one measure; translations have no left side.
    """
    measures = {trust["measure"] for trust in groups.values()}
    if len(measures) > 1:
        raise UserError("Accuracy (inflection) and chrF (translation) do not fit in one figure.")
    calibrated = measures == {"acc"}
    with style.look(font_family=families(groups)):
        height = (0.42 if calibrated else 0.7) * width + 0.16 * (len(groups) + len(_RINGS))
        figure = Figure(figsize=(width, height), layout="constrained")
        sides = figure.subplots(1, 2 if calibrated else 1, squeeze=False)[0]
        if calibrated:
            sides[0].plot([0, 100], [0, 100], color=style.SOFT, linewidth=0.8)
        for index, (label, trust) in enumerate(groups.items()):
            look = style.line_style(index)
            if calibrated:
                _reliability(sides[0], trust, look)
            _risk(sides[-1], trust, look, named(label, trust))
        _finish(sides, calibrated)
        handles, names = sides[-1].get_legend_handles_labels()
        for marker, name in _RINGS.values():
            handles.append(Line2D([], [], **_ring(marker, style.SOFT)))
            names.append(f"accepting {name}")
        figure.legend(handles, names, loc="outside lower center", ncols=1, labelspacing=0.3)
    return figure


def named(label: str, trust: Trust) -> str:
    """A model's line in the legend, with its numbers."""
    names = {"ece": "calibration error", "auroc": "AUROC", "aurc": "area under risk-coverage curve"}
    values = {name: (trust.get(key) or {}).get("value") for key, name in names.items()}
    numbers = [f"{name} {value:.1f}" for name, value in values.items() if value is not None]
    return ": ".join(filter(None, [label, ", ".join(numbers)]))


def _reliability(axes, trust: Trust, look: dict[str, Any]) -> None:
    rows = trust["reliability"]
    xs, ys = [100 * row["prob"] for row in rows], [row["acc"] for row in rows]
    axes.plot(xs, ys, **{**look, "marker": None}, clip_on=False)
    areas = [6 + 150 * row["outputs"] / trust["outputs"] for row in rows]
    axes.scatter(xs, ys, areas, look["color"], marker=look["marker"], alpha=0.75, linewidths=0, clip_on=False, zorder=3)


def _risk(axes, trust: Trust, look: dict[str, Any], label: str) -> None:
    measure, curve = trust["measure"], trust["curve"]
    xs, ys = [point["coverage"] for point in curve], [100 - point[measure] for point in curve]
    every = {"markevery": max(1, len(xs) // 8)}
    axes.plot(xs, ys, **look, **every, label=label, clip_on=False)
    share = errors = 0.0
    for name, (marker, _) in _RINGS.items():
        own = trust["classes"][name]
        if own["outputs"]:
            share += own["share"]["value"]
            errors += own["share"]["value"] * (100 - own[measure]["value"])
            axes.plot([share], [errors / share], **_ring(marker, look["color"]), clip_on=False, zorder=4)


def _ring(marker: str, color: str) -> dict[str, Any]:
    shape = {"marker": marker, "markersize": 8, "markerfacecolor": "none"}
    return {**shape, "markeredgecolor": color, "linestyle": "none"}


def _finish(sides, calibrated: bool) -> None:
    percent = FuncFormatter(lambda value, _: f"{value:g}")
    if calibrated:
        sides[0].set_title("Reliability", loc="left")
        sides[0].set_xlabel("probability (%; areas: how many outputs)")
        sides[0].set_ylabel("right (%)")
        sides[0].set_xlim(0, 100)
        sides[0].set_ylim(0, 100)
    risk = sides[-1]
    risk.set_title("Risk and coverage", loc="left")
    risk.set_xlabel("accepted (%), the most probable first")
    risk.set_ylabel("wrong among the accepted (%)" if calibrated else "100 minus their mean chrF")
    risk.set_xlim(0, 100)
    risk.set_ylim(bottom=0)
    for axes in sides:
        axes.yaxis.set_major_formatter(percent)
        axes.grid(True)
