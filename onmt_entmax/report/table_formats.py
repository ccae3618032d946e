"""Tables as text for a terminal, as Markdown and as LaTeX (booktabs)."""

from __future__ import annotations

from typing import Any, Callable, Optional

from onmt_entmax.report.tables import MISSING, Cell, Table
from onmt_entmax.report.text import cells

BOLD, RESET = "\033[1m", "\033[0m"
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "α": r"$\alpha$"}
_LATEX.update({character: "\\" + character for character in "&%$#_{}"}, **{"±": r"$\pm$", "–": "--"})


def terminal(table: Table, bold: bool = False) -> str:
    """Aligned columns.

    Args:
        table: to lay out.
        bold: mark the best by bold type; otherwise by ``*``.
    """

    def shown(item: Any) -> str:
        if isinstance(item, Cell):
            return item.text() + (" " if not bold and not item.best else "*" if not bold else "")
        return item or ""

    grid = [[shown(item) for item in row] for row in table.rows]
    subheads = [head or "" for head in table.heads[-1]]
    pad = "" if bold else " "
    subheads = [text + (pad if column >= table.labels else "") for column, text in enumerate(subheads)]
    widths = [
        max([cells(subheads[column]), *(cells(row[column]) for row in grid if row)]) for column in _columns(table)
    ]
    lines = [table.title, ""]
    for heads in table.heads[:-1]:
        lines.append(_spanned(heads, widths).rstrip())
    lines.append("  ".join(_aligned(text, widths[i], i < table.labels) for i, text in enumerate(subheads)).rstrip())
    rule = "─" * (sum(widths) + 2 * (len(widths) - 1))
    lines.append(rule)
    for items, row in zip(table.rows, grid):
        if not row:
            lines.append(rule)
            continue
        parts = []
        for column, text in enumerate(row):
            part = _aligned(text, widths[column], column < table.labels)
            emphasise = bold and isinstance(items[column], Cell) and items[column].best
            parts.append(part.replace(text, f"{BOLD}{text}{RESET}") if emphasise else part)
        lines.append("  ".join(parts).rstrip())
    legend = ("Bold" if bold else "*") + f": best of its column, ours and the paper's apart. {MISSING}: no number."
    return "\n".join([*lines, rule, legend, *table.notices, *(["", *table.signatures] if table.signatures else [])])


def markdown(table: Table) -> str:
    """A table for GitHub: heads of several rows are joined into one."""

    def shown(item: Any) -> str:
        text = item.text() if isinstance(item, Cell) else item or ""
        return f"**{text}**" if isinstance(item, Cell) and item.best else text

    heads = []
    for column in _columns(table):
        parts = [_head(row, column) for row in table.heads]
        heads.append(" ".join(part for part in parts if part))
    rows = [[shown(item) for item in row] for row in table.rows if row]
    lines = [
        f"{table.title}",
        "",
        _pipes(heads),
        _pipes(["---" if c < table.labels else "---:" for c in _columns(table)]),
    ]
    lines += [_pipes(row) for row in rows]
    lines += ["", f"Bold: best of its column, ours and the paper's apart. {MISSING}: no number.", *table.notices]
    if table.signatures:
        lines += ["", "```", *table.signatures, "```"]
    return "\n".join(lines)


def latex(table: Table) -> str:
    r"""A ``tabular`` for booktabs; signatures and notices are comments below it."""

    def shown(item: Any) -> str:
        if isinstance(item, Cell):
            number = escape(item.text())
            return rf"\textbf{{{number}}}" if item.best else number
        return escape(item or "")

    columns = "l" * table.labels + "r" * (len(table.heads[-1]) - table.labels)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    for heads in table.heads:
        parts = []
        column = 0
        while column < len(heads):
            span = 1
            while column + span < len(heads) and heads[column + span] is None:
                span += 1
            text = escape(heads[column] or "")
            parts.append(rf"\multicolumn{{{span}}}{{c}}{{{text}}}" if span > 1 else text)
            column += span
        lines.append(" & ".join(parts) + r" \\")
    lines.append(r"\midrule")
    lines += [" & ".join(shown(item) for item in row) + r" \\" if row else r"\midrule" for row in table.rows]
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join([*lines, *(f"% {text}" for text in [table.title, *table.notices, *table.signatures])])


def escape(text: str) -> str:
    """Write a text so that LaTeX prints it as it is."""
    return "".join(_LATEX.get(character, character) for character in text)


FORMATS: dict[str, Callable[[Table], str]] = {"terminal": terminal, "markdown": markdown, "latex": latex}


def _columns(table: Table) -> range:
    return range(len(table.heads[-1]))


def _head(row: list[Optional[str]], column: int) -> str:
    while row[column] is None:
        column -= 1
    return row[column] or ""


def _aligned(text: str, width: int, left: bool) -> str:
    padding = " " * (width - cells(text))
    return text + padding if left else padding + text


def _pipes(row: list[str]) -> str:
    return "| " + " | ".join(row) + " |"


def _spanned(heads: list[Optional[str]], widths: list[int]) -> str:
    out = ""
    column = 0
    while column < len(heads):
        span = 1
        while column + span < len(heads) and heads[column + span] is None:
            span += 1
        width = sum(widths[column : column + span]) + 2 * (span - 1)
        out += ("  " if column else "") + (heads[column] or "").center(width)
        column += span
    return out
