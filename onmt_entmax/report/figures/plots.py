"""Figures with axes: the mappings (Fig. 3), training runs (Figs. 4, 6 and learning curves), support sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple, Optional

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from onmt_entmax.errors import UserError
from onmt_entmax.report.figures import style
from onmt_entmax.report.figures.canvas import families
from onmt_entmax.report.metrics import Metrics
from onmt_entmax.report.readers import attention_of
from onmt_entmax.report.text import alpha_name, alphas_name, wrap
from onmt_entmax.signatures import parse_signature

ALPHAS = (1.0, 1.25, 1.5, 2.0, 4.0)
# where bins of support sizes start
_EDGES = (1, 2, 3, 4, 5, 6, 11, 21, 51, 101, 1001, 10001)

Groups = Mapping[str, Sequence[Metrics]]  # label -> runs that are drawn alike


def mapping_curves(alphas: Sequence[float] = ALPHAS) -> tuple[list[float], list[list[float]]]:
    """The first entry of entmax([t, 0]): the values of t, and one list of probabilities per alpha."""
    import torch

    from onmt_entmax.entmax import entmax

    t = torch.linspace(-4.5, 4.5, 901, dtype=torch.float64)
    scores = torch.stack([t, torch.zeros_like(t)], dim=-1)  # (points, 2)
    return t.tolist(), [entmax(scores, alpha)[:, 0].tolist() for alpha in alphas]


@style.look()
def mappings_figure(alphas: Sequence[float] = ALPHAS, width: float = style.COLUMN) -> Figure:
    """Draw them; a marker shows where a mapping reaches 0 or 1, at t = ±1/(alpha − 1)."""
    t, lines = mapping_curves(alphas)
    figure = Figure(figsize=(width, 0.72 * width), layout="constrained")
    axes = figure.add_subplot()
    for index, (alpha, line) in enumerate(zip(alphas, lines)):
        look = style.line_style(index)
        ends = [] if alpha <= 1 else [sign / (alpha - 1) for sign in (-1, 1) if 1 / (alpha - 1) <= t[-1]]
        at = [min(range(len(t)), key=lambda i, end=end: abs(t[i] - end)) for end in ends]
        label = f"α = {alpha:g}" + (f" ({alpha_name(alpha)})" if alpha in (1, 2) else "")
        axes.plot(t, line, **{**look, "marker": look["marker"] if at else None}, markevery=at or None, label=label)
    axes.set_xlabel("t")
    axes.set_ylabel("α-entmax([t, 0])₁")
    axes.set_xlim(t[0], t[-1])
    axes.set_yticks([0, 0.5, 1])
    axes.grid(True)
    axes.legend(loc="lower right", handlelength=2.1, handletextpad=0.4, labelspacing=0.2, borderaxespad=0.1, fontsize=7)
    return figure


def group(runs: Sequence[Metrics], labels: Optional[Sequence[str]] = None) -> dict[str, list[Metrics]]:
    """Put runs with the same label together; None: those that differ in seeds alone, labelled by their alphas.

    Labels of equal alphas go on with what tells the runs apart; where not even the seed does, with their files' names.
    Softmax comes first, so it looks alike everywhere.
    """
    if labels is not None and len(labels) != len(runs):
        raise UserError(f"Invalid setting for `labels`: {len(labels)} for {len(runs)} files. One per file is needed.")
    if labels is None:
        runs = sorted(
            runs, key=lambda run: (run.alphas[0], run.learned, run.alphas[1] != run.alphas[0], run.alphas[1] or 0.0)
        )
    groups: dict[str, list[Metrics]] = {}
    for index, run in enumerate(runs):
        name = labels[index] if labels is not None else _name(run, runs)
        groups.setdefault(name, []).append(run)
    if labels is not None:
        return groups
    apart: dict[str, list[Metrics]] = {}
    for name, own in groups.items():
        if not same_seed(own):
            apart[name] = own
        else:
            apart.update({f"{name}, {file}": [run] for file, run in zip(file_names([run.path for run in own]), own)})
    return apart


def same_seed(runs: Sequence[Metrics]) -> list[Metrics]:
    """The runs whose alphas and seed are those of another one: nothing in them says how they differ."""
    about = [
        (run.alphas[0], "learned" if run.learned else run.alphas[1], parse_signature(run.signature).get("seed"))
        for run in runs
    ]
    return [run for run, own in zip(runs, about) if about.count(own) > 1]


def file_names(paths: Sequence[Path]) -> list[str]:
    """What tells files apart: their names, with their folders where several have the same name."""
    for name in (lambda path: path.stem, lambda path: str(path.parent / path.stem)):
        names = [name(path) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _name(run: Metrics, runs: Sequence[Metrics]) -> str:
    alike = [one for one in runs if (one.alphas, one.learned) == (run.alphas, run.learned)]
    same = [one for one in alike if _has_heads(one) == _has_heads(run)]
    kind = ["Transformer"] if _has_heads(run) and len(same) < len(alike) else []  # older metrics say nothing of heads
    about = parse_signature(run.signature)
    keys = [key for key in differing_fields(same) if key not in ("onmt", "version", "measure")]
    fields = [f"{key} {about[key]}" for key in keys if key in about]
    return ", ".join([alphas_name(*run.alphas, run.learned), *kind, *fields])


def _has_heads(run: Metrics) -> bool:
    return bool(run.rows[-1].get("heads"))


class Panel(NamedTuple):
    """One measure by training step.

    Attributes:
        key: in the metrics file.
        title: above the panel.
        logarithmic: the scale, for values of more than one order of magnitude.
        alpha: of the output, if only runs with this one are shown: losses of different alphas cannot be compared.
        learned: whether only runs with a learned alpha are shown.
    """

    key: str
    title: str
    logarithmic: bool = False
    alpha: Optional[float] = None
    learned: bool = False

    def points(self, run: Metrics) -> tuple[list[float], list[float]]:
        """Steps and values of a run, none if it has no place here."""
        here = self.alpha in (None, run.alphas[0]) and (run.learned or not self.learned)
        return run.series(self.key) if here else ([], [])


def panels(groups: Groups) -> list[Panel]:
    """The panels that these runs fill: losses (one panel per output alpha), accuracy, support sizes, learned alpha."""
    runs = [run for own in groups.values() for run in own]
    alphas = sorted({run.alphas[0] for run in runs})
    losses = [
        Panel("loss", "Validation loss" + (f", output α = {alpha:g}" if len(alphas) > 1 else ""), alpha=alpha)
        for alpha in alphas
    ]
    others = [
        Panel("accuracy", "Token accuracy (%)"),
        Panel("support_output", "Target types of non-zero probability", logarithmic=True),
        Panel("support_attention", "Source tokens attended to"),
        Panel("alpha_attention", "Learned α of the attention", learned=True),
    ]
    return [panel for panel in [*losses, *others] if any(panel.points(run)[0] for run in runs)]


def learning_curves(groups: Groups, width: float = style.PAGE) -> Figure:
    """Draw loss, accuracy, support sizes and a learned alpha against the step; the best validation is ringed."""
    with style.look(font_family=families(groups)):
        shown = panels(groups)
        across = 2 if width > 4 else 1
        down = -(-len(shown) // across)
        figure = Figure(figsize=(width, 2.05 * down), layout="constrained")
        for number, panel in enumerate(shown, 1):
            draw_panel(figure.add_subplot(down, across, number), panel, groups)
        if len(groups) > 1:
            handles: dict[str, Any] = {}  # a panel of one alpha shows a part of the runs only
            for axes in figure.axes:
                for handle, name in zip(*axes.get_legend_handles_labels()):
                    handles.setdefault(name, handle)
            order = [name for name in groups if name in handles]
            columns = 1 if max(map(len, order)) * min(len(order), 3) > 16 * width else min(len(order), 3)
            figure.legend([handles[name] for name in order], order, loc="outside lower center", ncols=columns)
    return figure


def draw_panel(axes, panel: Panel, groups: Groups) -> None:
    """Draw one measure of all runs."""
    for index, (label, runs) in enumerate(groups.items()):
        look = style.line_style(index)
        shown = [run for run in runs if panel.points(run)[0]]
        for number, run in enumerate(shown):
            steps, values = panel.points(run)
            marked = {"markevery": max(1, len(steps) // 12), "label": label if number == 0 else None}
            axes.plot(steps, values, **look, **marked, clip_on=False)
            if panel.key == "accuracy":
                best = run.best
                ring = {"marker": "o", "markersize": 8, "markerfacecolor": "none", "markeredgecolor": look["color"]}
                axes.plot([best["step"]], [best["accuracy"]], **ring, clip_on=False)
    axes.set_title(panel.title, loc="left")
    axes.set_xlabel("training step")
    shown = [value for runs in groups.values() for run in runs for value in panel.points(run)[1]]
    if panel.logarithmic and max(shown) > 10 * min(shown) > 0:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(subs=(1,) if high > 500 * low else (1, 2, 5), numticks=12))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.margins(x=0.03)
    axes.grid(True)


def training_speed(groups: Groups, width: float = style.COLUMN) -> Figure:
    """Draw validation accuracy against time: all runs of a setting alike, a marker per validation."""
    longest = max(run.rows[-1]["elapsed"] for runs in groups.values() for run in runs)
    unit, seconds = ("hours", 3600) if longest > 3 * 3600 else ("minutes", 60) if longest > 180 else ("seconds", 1)
    with style.look(font_family=families(groups)):
        figure = Figure(figsize=(width, 0.68 * width + 0.16 * len(groups)), layout="constrained")
        axes = figure.add_subplot()
        for index, (label, runs) in enumerate(groups.items()):
            rates = [row["words_per_second"] for run in runs for row in run.rows if row.get("words_per_second")]
            speed = f" ({median(rates):,.0f} words/s)" if rates else ""
            for number, run in enumerate(runs):
                times = [row["elapsed"] / seconds for row in run.rows]
                values = [row["accuracy"] for row in run.rows]
                look = {**style.line_style(index), **({"alpha": 0.55, "linewidth": 1.0} if number else {})}
                axes.plot(times, values, **look, label=None if number else label + speed, clip_on=False)
        axes.set_xlabel(f"training time ({unit})")
        axes.set_ylabel("validation accuracy (%)")
        axes.set_xlim(left=0)
        axes.grid(True)
        figure.legend(loc="outside lower center", ncols=1, labelspacing=0.3)
    return figure


@style.look()
def alpha_grid(runs: Sequence[Metrics], fixed: float = 1.5, width: float = style.PAGE) -> Figure:
    """Draw the best validation accuracy against one alpha while the other is fixed: attention left, output right.

    Runs with the same alphas are averaged, each is shown as a dot. A learned attention alpha is a star of its own,
    where it ended. Fewer than two values on both sides are a :class:`UserError`.
    """
    sides = [("attention α", 1, 0), ("output α", 0, 1)]
    given = [run for run in runs if None not in run.alphas and not run.learned]
    found = []
    for _, varied, other in sides:
        points: dict[float, list[float]] = {}
        for run in given:
            if abs(run.alphas[other] - fixed) < 1e-9:
                points.setdefault(run.alphas[varied], []).append(run.best["accuracy"])
        found.append(dict(sorted(points.items())))
    if all(len(points) < 2 for points in found):
        raise UserError(
            f"{len(runs)} metrics files hold no two models that differ in one alpha with the other at {fixed:g}."
        )
    learned = [run for run in runs if run.learned and abs(run.alphas[0] - fixed) < 1e-9]
    figure = Figure(figsize=(width, 0.36 * width), layout="constrained")
    left = None
    for number, ((name, _, _), points) in enumerate(zip(sides, found)):
        axes = left = figure.add_subplot(1, 2, number + 1, sharey=left)
        means = [fmean(values) for values in points.values()]
        axes.plot(list(points), means, **style.line_style(1), clip_on=False)
        for alpha, values in points.items():
            if len(values) > 1:
                axes.plot([alpha] * len(values), values, ".", color=style.SOFT, markersize=3, zorder=1)
        if means:
            best = max(zip(means, points))
            note = {"textcoords": "offset points", "xytext": (0, 7), "ha": "center", "size": 7.5}
            axes.annotate(f"{best[0]:.2f} at {best[1]:g}", (best[1], max(points[best[1]])), **note)
        else:
            axes.text(0.5, 0.5, "no runs", transform=axes.transAxes, ha="center", color=style.SOFT)
        if number == 0 and learned:
            ends, tops = [run.alphas[1] for run in learned], [run.best["accuracy"] for run in learned]
            axes.plot(ends, tops, "*", color=style.WARN, markersize=7, clip_on=False)
            for end, top in zip(ends, tops):
                beside = {"textcoords": "offset points", "xytext": (6, 0), "va": "center", "size": 7.5}
                axes.annotate(f"learned: {end:.2f}", (end, top), color=style.WARN, **beside)
        axes.set_xlabel(f"{name}   ({sides[1 - number][0]} = {fixed:g})")
        axes.margins(x=0.12, y=0.2)
        axes.grid(True)
        if number == 0:
            axes.set_ylabel("validation accuracy (%)")
    return figure


def differing_fields(runs: Sequence[Metrics]) -> list[str]:
    """Name the fields (steps, seeds and alphas aside) in which runs differ that are drawn together."""
    fields = [parse_signature(run.signature) for run in runs]
    keys = dict.fromkeys(key for one in fields for key in one)
    return [key for key in keys if key not in ("seed", "alpha", "step") and len({one.get(key) for one in fields}) > 1]


def support_sizes(examples: Sequence[dict[str, Any]]) -> tuple[list[int], list[int]]:
    """Collect the support sizes of all steps: of the output, and of the attention."""
    output, attention = [], []
    for example in examples:
        output += [step["support_size"] for step in example.get("steps") or []]
        found = attention_of(example)
        if found is not None:
            attention += [sum(weight > 0 for weight in row) for row in found[2]]
    return output, attention


def support_histogram(groups: Mapping[str, Sequence[dict[str, Any]]], width: float = style.PAGE) -> Figure:
    """Draw the shares of support sizes of one or more models, from label -> examples with ``steps``."""
    sizes = {label: support_sizes(examples) for label, examples in groups.items()}
    titles = ("Target types of non-zero probability", "Source tokens attended to")
    sides = [side for side in (0, 1) if any(own[side] for own in sizes.values())]
    if not sides:
        raise UserError("no forced decoding (`steps`) in these examples: no support sizes to count.")
    with style.look(font_family=families(groups), hatch_linewidth=0.6):
        # a legend is as wide as its panel
        room = max(int((width / len(sides) - 0.6) / 0.068), 8)  # in characters of 0.068 inches
        rows = [len(wrap(f"{label}: mean 10,000.00", len, room)) for label in groups]
        figure = Figure(figsize=(width, 0.4 * width + 0.16 * sum(rows)), layout="constrained")
        for number, (side, part) in enumerate(zip(sides, figure.subfigures(1, len(sides), squeeze=False)[0])):
            axes = part.add_subplot()
            _bars(axes, {label: own[side] for label, own in sizes.items() if own[side]}, room)
            axes.set_title(titles[side], loc="left")
            axes.set_xlabel("number of non-zeros")
            if number == 0:
                axes.set_ylabel("share of steps (%)")
            part.legend(loc="outside lower center", labelspacing=0.3)
    return figure


def _bars(axes, sizes: dict[str, list[int]], room: int) -> None:
    largest = max(max(own) for own in sizes.values())
    edges = [edge for edge in _EDGES if edge <= largest] + [largest + 1]
    # two lines each, so that the panels of a figure are alike
    names = [f"{a:,}\n" if b == a + 1 else f"{a:,}–\n{_short(b - 1)}" for a, b in zip(edges, edges[1:])]
    width = 0.8 / len(sizes)
    for index, (label, own) in enumerate(sizes.items()):
        color = style.LINES[(index + 1) % len(style.LINES)][0]
        shares = [100 * sum(a <= size < b for size in own) / len(own) for a, b in zip(edges, edges[1:])]
        places = [bin_ + (index + 0.5) * width - 0.4 for bin_ in range(len(names))]
        hatch = ("", "////", "....", "xxxx")[index % 4]
        filled = {"color": color, "hatch": hatch, "edgecolor": "white", "linewidth": 0.4}
        axes.bar(places, shares, width, **filled, label="\n".join(wrap(f"{label}: mean {fmean(own):,.2f}", len, room)))
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.6, max(len(names), 6) - 0.4)  # two bars must not fill the whole width
    axes.grid(True, axis="y")


def _short(number: int) -> str:
    return f"{number // 1000}k" if number >= 1000 and number % 1000 == 0 else f"{number:,}"
