"""Tables as text for a terminal, as Markdown and as LaTeX (booktabs)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

from tabulate import SEPARATING_LINE, tabulate

from onmt_entmax.report.tables import MISSING, Cell, Table

BOLD, RESET = "\033[1m", "\033[0m"
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "α": r"$\alpha$"}
_LATEX.update({character: "\\" + character for character in "&%$#_{}"}, **{"±": r"$\pm$", "–": "--"})


def terminal(table: Table, bold: bool = False) -> str:
    """Aligned columns; the best are marked by bold type, or else by ``*``."""

    def best(text: str) -> str:
        return f"{BOLD}{text}{RESET}" if bold else f"*{text}"

    rows = [_texts(row, best) or SEPARATING_LINE for row in table.rows]
    names, sides = [head or "" for head in table.heads[-1]], _sides(len(table.heads[-1]), table.labels)
    heads, rule, *body = tabulate(rows, names, "simple", disable_numparse=True, colalign=sides).split("\n")
    spans = [_spanned(row, rule) for row in table.heads[:-1]]
    legend = ("Bold" if bold else "*") + f": best of its column, ours and the paper's apart. {MISSING}: no number."
    lines = [table.title, "", *spans, heads.rstrip(), rule, *(line.rstrip() for line in body), rule, legend]
    return "\n".join([*lines, *table.notices, *(["", *table.signatures] if table.signatures else [])])


def markdown(table: Table) -> str:
    """A table for GitHub: heads of several rows are joined into one."""
    full = [[text for text, start, end in _spans(row) for _ in range(start, end)] for row in table.heads]
    heads = [" ".join(filter(None, column)) for column in zip(*full)]
    rows = [_texts(row, "**{}**".format) for row in table.rows if row]
    lines = [table.title, "", pipe_table(heads, rows, table.labels), ""]
    lines += [f"Bold: best of its column, ours and the paper's apart. {MISSING}: no number.", *table.notices]
    if table.signatures:
        lines += ["", "```", *table.signatures, "```"]
    return "\n".join(lines)


def pipe_table(heads: Sequence[str], rows: Sequence[Sequence[str]], labels: int = 1) -> str:
    """A table that reads in a terminal and in Markdown: the first columns left, the others right."""
    return tabulate(rows, heads, "pipe", disable_numparse=True, colalign=_sides(len(heads), labels))


def latex(table: Table) -> str:
    r"""A ``tabular`` for booktabs; signatures and notices are comments below it."""
    columns = "l" * table.labels + "r" * (len(table.heads[-1]) - table.labels)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    for heads in table.heads:
        parts = [
            rf"\multicolumn{{{end - start}}}{{c}}{{{escape(text)}}}" if end - start > 1 else escape(text)
            for text, start, end in _spans(heads)
        ]
        lines.append(" & ".join(parts) + r" \\")
    lines.append(r"\midrule")
    for row in table.rows:
        shown = [rf"\textbf{{{escape(c.text())}}}" if _is_best(c) else escape(_text(c)) for c in row]
        lines.append(" & ".join(shown) + r" \\" if row else r"\midrule")
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join([*lines, *(f"% {text}" for text in [table.title, *table.notices, *table.signatures])])


def escape(text: str) -> str:
    """Write a text so that LaTeX prints it as it is."""
    return "".join(_LATEX.get(character, character) for character in text)


FORMATS: dict[str, Callable[[Table], str]] = {"terminal": terminal, "markdown": markdown, "latex": latex}


def _text(item: Any) -> str:
    return item.text() if isinstance(item, Cell) else item or ""


def _is_best(item: Any) -> bool:
    return isinstance(item, Cell) and item.best


def _texts(row: Sequence[Any], best: Callable[[str], str]) -> list[str]:
    return [best(_text(item)) if _is_best(item) else _text(item) for item in row]


def _sides(columns: int, labels: int) -> list[str]:
    return ["left"] * labels + ["right"] * (columns - labels)


def _spans(heads: Sequence[Optional[str]]) -> Iterator[tuple[str, int, int]]:
    """Each head with the columns it stands over, the end excluded."""
    starts = [column for column, head in enumerate(heads) if head is not None]
    for start, end in zip(starts, [*starts[1:], len(heads)]):
        yield heads[start] or "", start, end


def _spanned(heads: Sequence[Optional[str]], rule: str) -> str:
    """Heads centred over the columns that the rule below the last head shows."""
    places = [match.span() for match in re.finditer("-+", rule)]
    line = ""
    for text, start, end in _spans(heads):
        left, right = places[start][0], places[end - 1][1]
        line = line.ljust(left) + (text.center(right - left) if end - start > 1 else text)
    return line.rstrip()
