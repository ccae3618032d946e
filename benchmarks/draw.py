"""Draw curves of ``training.py --curve ... --output FILE``: ``python benchmarks/draw.py FILE... --output FIGURE``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from onmt_entmax.files import read_json
from onmt_entmax.report.figures import style
from onmt_entmax.report.text import alpha_name

NAMES = {"vocab": "Target types", "lengths": "Tokens of a sentence", "batch": "Sentences of a batch"}


def draw(curves: list[list[dict]]) -> Figure:
    """A panel for each file: words per second against what changes, OpenNMT-py's first."""
    with style.look():
        figure = Figure(figsize=(style.PAGE, 2.3), layout="constrained")
        for number, rows in enumerate(curves, 1):
            axes = figure.add_subplot(1, len(curves), number)
            (key,) = rows[0]["at"]
            lines: dict[str, dict[float, float]] = {}
            for row in rows:
                at = row["at"][key]
                at = at[0] if isinstance(at, list) else at
                lines.setdefault("OpenNMT-py, softmax", {})[at] = row["words_per_second_stock"]
                name = f"onmt_entmax, {alpha_name(row['alpha'])}"
                lines.setdefault(name, {})[at] = row["words_per_second"]
            for index, (name, points) in enumerate(lines.items()):
                axes.plot(*zip(*points.items()), **style.line_style(index), label=name)
            places = list(next(iter(lines.values())))
            axes.set_xscale("log")
            axes.set_xticks(places, [f"{place:,}" for place in places])
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter("{x:,.0f}")
            axes.set_xlabel(NAMES[key])
            axes.grid(axis="y")
        figure.get_axes()[0].set_ylabel("Target words per second")
        figure.legend(*figure.get_axes()[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--output", type=Path, required=True, help=", ".join(style.SUFFIXES))
    args = parser.parse_args()
    results = [read_json(path) for path in args.files]
    for path, result in zip(args.files, results):
        if not all("at" in row for row in result["rows"]):
            parser.error(f"{path} holds no curve")
    style.save(draw([result["rows"] for result in results]), args.output, [result["signature"] for result in results])
    return 0


if __name__ == "__main__":
    sys.exit(main())
