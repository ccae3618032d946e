"""Search trees, forced decodings and attention as HTML: the browser shapes every script and breaks lines itself."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape

import matplotlib
from matplotlib.figure import Figure

from onmt_entmax.report.figures import style
from onmt_entmax.report.figures.attention import HeatMap
from onmt_entmax.report.layout import ENDS, LEGEND_DROPPED, shows_totals
from onmt_entmax.report.steps import Forced
from onmt_entmax.report.text import EOS, cells, percent, percent_of_log
from onmt_entmax.report.trees import Segment, Tree

_CELL, _LETTER, _LABEL = 15, 6.7, 11  # pixels: a heat map's cell, an average letter, the size of labels


def tree_html(tree: Tree) -> str:
    """A tree as nested lists, with the certificate and notices below."""
    totals = shows_totals(tree)
    body = _segment(tree, tree.root, totals)
    leaves = list(tree.root.leaves())
    notes = [LEGEND_DROPPED] * any("✕" in ENDS[leaf.status] for leaf in leaves) + tree.notices
    sure = "sure" if tree.certified else "unsure"
    below = "".join(f"<p class=note>{escape(note)}</p>" for note in notes)
    return f'<ul class="tree root">{body}</ul><p class="{sure}">{escape(tree.statement)}</p>{below}'


def _segment(tree: Tree, segment: Segment, totals: bool) -> str:
    label = "" if segment.branch is None else f"<span class=p>{percent(segment.branch)}</span> "
    text = tree.text(segment)
    end = f" <span class=eos>{escape(EOS)}</span>" if text.endswith(EOS) else ""
    words = escape(text[: -len(EOS)].rstrip(" ") if end else text)
    mark = "" if segment.children else escape(ENDS[segment.status])
    finished = "done" if segment.status == "finished" else "lost"
    total = f" <b class={finished}>{percent_of_log(segment.log_prob)}</b>" if totals and not segment.children else ""
    kind = "seg" if segment.children or segment.status == "finished" else "seg lost"
    children = "".join(_segment(tree, child, totals) for child in segment.children)
    nested = f"<ul class=tree>{children}</ul>" if children else ""
    return f'<li>{label}<span class="{kind}"><bdi>{words}</bdi>{end}{mark}</span>{total}{nested}</li>'


def forced_html(forced: Forced) -> str:
    """A forced decoding as boxes in a row that wraps."""
    boxes = []
    for block in forced.blocks:
        rows = []
        for choice in block.choices:
            tag = "b" if choice.gold else "span"
            number = f"<i>{choice.percent}</i>" if choice.percent else ""
            rows.append(f"<div><{tag}><bdi>{escape(choice.text)}</bdi></{tag}>{number}</div>")
        if block.more:
            rows.append(f"<div class=more>{escape(block.more)}</div>")
        boxes.append(f'<div class="box{" single" if block.single else ""}">{"".join(rows)}</div>')
    notes = "".join(f"<p class=note>{escape(note)}</p>" for note in forced.notes)
    return f"<div class=forced>{''.join(boxes)}</div>{notes}"


def attention_html(one: HeatMap) -> str:
    """A heat map as inline SVG in a box that scrolls sideways where it is too wide."""
    left = max((cells(token) for token in one.target), default=1) * _LETTER + 8
    top = max((cells(token) for token in one.source), default=1) * _LETTER + 8
    width, height = left + _CELL * len(one.source) + 2, top + _CELL * len(one.target) + 2
    box = f'x="{left:.0f}" y="{top:.0f}" width="{width - left - 2:.0f}" height="{height - top - 2:.0f}"'
    parts = [f"<rect {box} class=frame />"]
    for column, token in enumerate(one.source):
        x, y = left + _CELL * (column + 0.5) + 4, top - 5
        parts.append(f'<text transform="translate({x:.1f} {y:.1f}) rotate(-90)">{escape(token)}</text>')
    for row, token in enumerate(one.target):
        y = top + _CELL * (row + 0.5) + 4
        parts.append(f'<text x="{left - 5:.1f}" y="{y:.1f}" text-anchor="end">{escape(token)}</text>')
    for row, weights in enumerate(one.weights):
        for column, weight in enumerate(weights):
            if weight > 0:
                x, y = left + _CELL * column + 0.5, top + _CELL * row + 0.5
                about = f"{one.target[row]} ← {one.source[column]}: {percent(weight)}"
                parts.append(
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{_CELL - 1}" height="{_CELL - 1}" class=cell '
                    f'fill-opacity="{min(max(weight, 0.02), 1.0):.2f}"><title>{escape(about)}</title></rect>'
                )
    notes = [f"{one.nonzeros:.1f} source tokens attended to per target token.", *one.notices]
    below = "".join(f"<p class=note>{escape(note[0].upper() + note[1:])}</p>" for note in notes)
    return (
        f'<div class=scroll><svg class=heat role=img aria-label="Attention: source across, target down" '
        f'width="{width:.0f}" height="{height:.0f}" font-size="{_LABEL}">{"".join(parts)}</svg></div>{below}'
    )


def figure_html(figure: Figure, description: str) -> str:
    """A matplotlib figure as an image inside the page."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(style.RC):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f'<img alt="{escape(description)}" src="data:image/svg+xml;base64,{data}">'


def table_html(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
