"""What larger beams and exact search do to outputs: scores and lengths, from results of ``evaluate search``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from onmt_entmax.errors import UserError
from onmt_entmax.report.figures import style
from onmt_entmax.report.figures.canvas import families

_SCORES = {"acc": "right (%)", "bleu": "BLEU"}


def search_figure(groups: Mapping[str, Mapping[str, Any]], width: float = style.PAGE) -> Figure:
    """Draw one line per model over beam sizes, exact search apart at the end: left the score, right the lengths.

    Args:
        groups: label -> result of ``evaluate search``, all of one measure.
        width: in inches.

    Raises:
        UserError: results of different measures.
    """
    measures = {result["measure"] for result in groups.values()}
    if len(measures) > 1:
        raise UserError("Accuracy and BLEU do not fit in one figure: give results of one `--measure`.")
    (measure,) = measures
    beams = sorted({row["beam"] for result in groups.values() for row in result["searches"] if row["beam"]})
    places: dict[Any, float] = {beam: place for place, beam in enumerate(beams)}
    places[None] = len(beams) + 0.3
    with style.look(font_family=families(groups)):
        figure = Figure(figsize=(width, 0.42 * width + 0.16 * len(groups)), layout="constrained")
        for axes, key in zip(figure.subplots(1, 2), (measure, "length_ratio")):
            for index, (label, result) in enumerate(groups.items()):
                rows = {places[row["beam"]]: row[key] for row in result["searches"]}
                look = style.line_style(index)
                line, exact = sorted(place for place in rows if place != places[None]), places[None]
                axes.plot(line, [rows[place] for place in line], **look, label=label, clip_on=False)
                if line:
                    ends = [line[-1], exact]
                    dotted = {**look, "linestyle": ":", "marker": None}
                    axes.plot(ends, [rows[place] for place in ends], **dotted, clip_on=False)
                ring = {**look, "linestyle": "none", "markersize": 7, "markerfacecolor": "none"}
                axes.plot([exact], [rows[exact]], **ring, clip_on=False)
            axes.set_xticks(list(places.values()), [*map(str, beams), "exact"])
            axes.set_xlabel("beam size")
            axes.grid(True)
        first, second = figure.axes
        first.set_title("Score", loc="left")
        first.set_ylabel(_SCORES[measure])
        second.set_title("Length", loc="left")
        second.set_ylabel("length of outputs / of references")
        figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=min(len(groups), 3))
    return figure
