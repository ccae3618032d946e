"""``figure support-histogram``: how many target types and source tokens have a non-zero probability, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from onmt_entmax.errors import UserError
from onmt_entmax.report.figures import style
from onmt_entmax.report.readers import attention_of

# where bins of support sizes start
_EDGES = (1, 2, 3, 4, 5, 6, 11, 21, 51, 101, 1001, 10001)


def support_sizes(examples: Sequence[dict[str, Any]]) -> tuple[list[int], list[int]]:
    """Collect the support sizes of all steps: of the output, and of the attention."""
    output, attention = [], []
    for example in examples:
        output += [step["support_size"] for step in example.get("steps") or []]
        found = attention_of(example)
        if found is not None:
            attention += [sum(weight > 0 for weight in row) for row in found[2]]
    return output, attention


def support_histogram(groups: dict[str, Sequence[dict[str, Any]]], width: float = style.PAGE) -> Figure:
    """Draw the shares of support sizes of one or more models.

    Args:
        groups: label -> examples with ``steps``.
        width: in inches.

    Raises:
        UserError: no steps in any of them.
    """
    sizes = {label: support_sizes(examples) for label, examples in groups.items()}
    titles = ("Target types of non-zero probability", "Source tokens attended to")
    sides = [side for side in (0, 1) if any(own[side] for own in sizes.values())]
    if not sides:
        raise UserError("no forced decoding (`steps`) in these examples: no support sizes to count.")
    with matplotlib.rc_context({**style.RC, "hatch.linewidth": 0.6}):
        figure = Figure(figsize=(width, 0.4 * width), layout="constrained")
        for number, side in enumerate(sides, 1):
            axes = figure.add_subplot(1, len(sides), number)
            _bars(axes, {label: own[side] for label, own in sizes.items() if own[side]})
            axes.set_title(titles[side], loc="left")
            axes.set_xlabel("number of non-zeros")
            if number == 1:
                axes.set_ylabel("share of steps (%)")
    return figure


def _bars(axes, sizes: dict[str, list[int]]) -> None:
    largest = max(max(own) for own in sizes.values())
    edges = [edge for edge in _EDGES if edge <= largest] + [largest + 1]
    names = [f"{a:,}" if b == a + 1 else f"{a:,}–\n{_short(b - 1)}" for a, b in zip(edges, edges[1:])]
    width = 0.8 / len(sizes)
    for index, (label, own) in enumerate(sizes.items()):
        color = style.LINES[(index + 1) % len(style.LINES)][0]
        shares = [100 * sum(a <= size < b for size in own) / len(own) for a, b in zip(edges, edges[1:])]
        places = [bin_ + (index + 0.5) * width - 0.4 for bin_ in range(len(names))]
        mean = sum(own) / len(own)
        hatch = ("", "////", "....", "xxxx")[index % 4]
        axes.bar(
            places,
            shares,
            width,
            color=color,
            hatch=hatch,
            edgecolor="white",
            linewidth=0.4,
            label=f"{label}: mean {mean:,.2f}",
        )
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.6, max(len(names), 6) - 0.4)  # two bars must not fill the whole width
    axes.grid(True, axis="y")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.3), labelspacing=0.3)


def _short(number: int) -> str:
    return f"{number // 1000}k" if number >= 1000 and number % 1000 == 0 else f"{number:,}"
