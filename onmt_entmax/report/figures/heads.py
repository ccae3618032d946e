"""``figure heads``: alphas, densities and disagreement of a Transformer's heads (Correia, Niculae and Martins 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from onmt_entmax.errors import UserError
from onmt_entmax.report.figures import style
from onmt_entmax.report.figures.canvas import families
from onmt_entmax.report.metrics import Metrics, read_metrics
from onmt_entmax.report.readers import kind, read_objects, wrong_kind

PLACES = {
    "encoder_self_attention": "Encoder",
    "decoder_self_attention": "Decoder, itself",
    "context_attention": "Decoder, source",
}
BINS = 10  # of densities


def read_heads(path: Path) -> Metrics:
    """Read what a run's validations, or ``onmt_entmax heads`` of one model, say of heads.

    Raises:
        UserError: another kind of file, or one that breaks the format.
    """
    first = read_objects(path, may_be_cut=True)[0]
    if kind(first) == "metrics":
        return read_metrics(path)
    if kind(first) != "heads":
        raise wrong_kind(path, kind(first), ["metrics", "heads"])
    found: dict[str, Any] = {}
    for one in first["heads"]:
        own = found.setdefault(one["attention"], {"alpha": [], "density": [], "jensen_shannon": []})
        if one["head"] == 1:
            own["alpha"].append([])
            own["density"].append([])
            own["jensen_shannon"].append(one["jensen_shannon"])
        own["alpha"][-1].append(one["alpha"])
        own["density"][-1].append(one["density"])
    return Metrics(path, [{"step": 0, "accuracy": 0.0, "heads": found, "signature": first["signature"]}])


def heads_of(run: Metrics) -> dict[str, Any]:
    """What the heads of a run do at its best validation, by place; empty for a model without heads."""
    return run.best.get("heads") or {}


def trajectories(run: Metrics, place: str) -> tuple[list[float], list[list[list[float]]]]:
    """Steps, and the alphas of each validation, layer by layer and head by head; before them where learning began."""
    rows = [row for row in run.rows if place in (row.get("heads") or {})]
    steps, alphas = [row["step"] for row in rows], [row["heads"][place]["alpha"] for row in rows]
    start = run.rows[0].get("alpha_start")
    if start is None or not alphas or all(one == alphas[0] for one in alphas):
        return steps, alphas
    return [0, *steps], [[[start] * len(heads) for heads in alphas[0]], *alphas]


def moves(run: Metrics) -> bool:
    """Whether a run learns the alpha of any head."""
    found = [trajectories(run, place)[1] for place in PLACES]
    return any(alphas != own[0] for own in found for alphas in own)


def heads_figure(groups: Mapping[str, Sequence[Metrics]], width: float = style.PAGE) -> Figure:
    """Draw three columns (encoder, decoder's two attentions): learned alphas by step, one row for each run that learns
    them, a line for each head; how many heads are how dense; the Jensen-Shannon divergence of each layer's heads.

    Args:
        groups: label -> runs.
        width: in inches.

    Raises:
        UserError: none of the runs says anything about heads.
    """
    groups = {label: [run for run in runs if heads_of(run)] for label, runs in groups.items()}
    groups = {label: runs for label, runs in groups.items() if runs}
    if not groups:
        raise UserError("No validation in these files says anything about heads: were they written by Transformers?")
    places = [place for place in PLACES if any(place in heads_of(run) for runs in groups.values() for run in runs)]
    learning = [(label, run) for label, runs in groups.items() for run in runs if moves(run)]
    with style.look(font_family=families(groups)):
        heights = [2.5] * len(learning) + [1.75] * 2
        figure = Figure(figsize=(width, sum(heights) + 0.16 * len(groups)), layout="constrained")
        parts = list(figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0])
        for part, (label, run) in zip(parts, learning):
            _alphas(part, places, run)
            if len(learning) > 1:
                part.suptitle(label, x=0.01, ha="left", fontsize=8)
        _columns(parts[-2], places, groups, _densities, "heads", "density of the weights")
        _columns(parts[-1], places, groups, _divergences, "JS divergence (nats)", "layer")
        if len(groups) > 1:
            handles, names = parts[-1].axes[0].get_legend_handles_labels()
            figure.legend(handles, names, loc="outside lower center", ncols=1, labelspacing=0.3)
    return figure


def _alphas(part, places: Sequence[str], run: Metrics) -> None:
    first = None
    for number, place in enumerate(places, 1):
        axes = part.add_subplot(1, len(places), number, sharey=first)
        first = first or axes
        steps, found = trajectories(run, place)
        layers, heads = (len(found[0]), len(found[0][0])) if found else (0, 0)
        for layer in range(layers):
            look = {
                **style.line_style(layer),
                "linewidth": 1.0,
                "markersize": 2.5,
                "markevery": max(1, len(steps) // 6),
            }
            for head in range(heads):
                label = f"layer {layer + 1}" if head == 0 else None
                axes.plot(steps, [alphas[layer][head] for alphas in found], **look, label=label, clip_on=False)
        axes.set_title(PLACES[place], loc="left")
        axes.set_xlabel("training step")
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.margins(x=0.03)
        for height, side, text in ((0.01, "bottom", "softmax"), (0.99, "top", "sparsemax")):
            axes.text(0.99, height, text, transform=axes.transAxes, ha="right", va=side, color=style.SOFT, size=7)
        axes.tick_params(labelleft=number == 1)
        axes.grid(True)
    first.set_ylim(1, 2)
    first.set_yticks([1, 1.25, 1.5, 1.75, 2], ["1", "1.25", "1.5", "1.75", "2"])
    first.set_ylabel("α of each head")
    handles, names = max((axes.get_legend_handles_labels() for axes in part.axes), key=lambda pair: len(pair[1]))
    part.legend(handles, names, loc="outside lower center", ncols=6)


def _columns(part, places: Sequence[str], groups: Mapping[str, Sequence[Metrics]], draw, y: str, x: str) -> None:
    first = None
    for number, place in enumerate(places, 1):
        axes = part.add_subplot(1, len(places), number, sharey=first)
        first = first or axes
        draw(axes, place, groups)
        axes.set_title(PLACES[place], loc="left")
        axes.set_xlabel(x)
        axes.tick_params(labelleft=number == 1)
        axes.grid(True, axis="y")
    first.set_ylim(bottom=0)
    first.yaxis.set_major_locator(MaxNLocator(4, integer=y == "heads"))
    first.set_ylabel(y)


def _densities(axes, place: str, groups: Mapping[str, Sequence[Metrics]]) -> None:
    share = 0.9 / BINS / len(groups)
    for index, (label, runs) in enumerate(groups.items()):
        own = [heads_of(run).get(place, {}).get("density", []) for run in runs]
        values = [value for layers in own for heads in layers for value in heads if value is not None]
        counts = [0] * BINS
        for value in values:
            counts[min(int(value * BINS), BINS - 1)] += 1
        left = [bin_ / BINS + 0.05 / BINS + (index + 0.5) * share for bin_ in range(BINS)]
        hatch = ("", "////", "....", "xxxx")[index % 4]
        filled = {"color": style.LINES[index % len(style.LINES)][0], "hatch": hatch, "edgecolor": "white"}
        axes.bar(left, counts, share, **filled, linewidth=0.3, label=label)
    axes.set_xlim(0, 1)


def _divergences(axes, place: str, groups: Mapping[str, Sequence[Metrics]]) -> None:
    for index, (label, runs) in enumerate(groups.items()):
        found = [heads_of(run).get(place, {}).get("jensen_shannon", []) for run in runs]
        for number, values in enumerate(own for own in found if own):
            layers = range(1, len(values) + 1)
            axes.plot(layers, values, **style.line_style(index), label=None if number else label, clip_on=False)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
