"""``onmt_entmax report``: one self-contained HTML page of a run, made from the files in its folder.

onmt_entmax report runs/quickstart/entmax15

The page shows set-up, curves, scores with signatures, sparsity and certificate rates, and the inputs of which the model
was least certain with their search trees and attention. It opens from disk and loads nothing.
"""

from __future__ import annotations

import argparse
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from onmt_entmax.commands.uncertain import certainty
from onmt_entmax.errors import invalid_setting
from onmt_entmax.files import sha256, write_text
from onmt_entmax.report.figures import style
from onmt_entmax.report.figures.attention import heat_map_of
from onmt_entmax.report.figures.curves import PANELS, draw_panel, group
from onmt_entmax.report.page.parts import attention_html, figure_html, forced_html, table_html, tree_html
from onmt_entmax.report.page.run_files import RunFiles, read_run
from onmt_entmax.report.page.style import CSS
from onmt_entmax.report.readers import attention_of, signature_fields
from onmt_entmax.report.steps import forced_of
from onmt_entmax.report.text import count, join, percent_of_log
from onmt_entmax.report.trees import tree_of
from onmt_entmax.tasks.inflection.results import RATES, rates_of
from onmt_entmax.version import __version__

_NAMES = {
    "acc": "Word accuracy (%)",
    "lev": "Edit distance",
    "nbest_acc": "n-best accuracy (%)",
    "bleu_tok": "BLEU, tokenised",
    "bleu_raw": "BLEU, raw text",
    "chrf": "chrF",
    "single": "One string only (%)",
    "complete": "Complete (%)",
    "optimal": "Optimal (%)",
    "mass_is_one": "Mass is one, the paper's count (%)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``onmt_entmax report``."""
    add = parser.add_argument
    add("run_dir", type=Path, metavar="RUN_DIR", help="folder with the files of one run")
    add("--output", type=Path, metavar="FILE", help="(default: RUN_DIR/report.html)")
    add("--examples", type=int, default=20, metavar="N", help="inputs shown (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Write the page; prints its name and what is missing."""
    if args.examples < 0:
        raise invalid_setting("examples", args.examples, "It must be at least 0.")
    files = read_run(args.run_dir)
    output = args.output or args.run_dir / "report.html"
    write_text(output, page(files, args.examples))
    print("\n".join([str(output), *files.notices]))
    return 0


def page(run: RunFiles, examples: int = 20) -> str:
    """Make the page of a run.

    Args:
        run: its files.
        examples: how many inputs to show.
    """
    title = run.folder.resolve().name
    sections = [
        _tiles(run),
        "".join(f"<p class=missing>{escape(notice)}</p>" for notice in run.notices),
        _setup(run),
        _curves(run),
        _scores(run),
        _certificates(run),
        _examples(run, examples),
        _sources(run),
    ]
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{CSS}</style></head>\n<body>\n"
        f"<h1>{escape(title)}</h1><p class=note>{escape(_subtitle(run))}</p>\n"
        + "\n".join(filter(None, sections))
        + "\n</body></html>\n"
    )


def _subtitle(run: RunFiles) -> str:
    names = list(dict.fromkeys(style.alphas_name(*own.alphas) for own in run.metrics))
    return ", ".join([*names, f"made by onmt_entmax {__version__}"])


def _tiles(run: RunFiles) -> str:
    """The few numbers to see first."""
    tiles: list[tuple[str, str]] = []
    for own in run.metrics[:1]:
        best = own.best
        tiles.append((f"{best['accuracy']:.2f}%", f"best validation accuracy, step {best['step']:,}"))
    for result in list(run.results.values())[:1]:
        values = result.get("macro") or result.get("mean") or {}
        for key in ("acc", "bleu_tok"):
            if values.get(key) is not None:
                split = signature_fields(result["signatures"].get(key, "")).get("split", "unknown")
                tiles.append((f"{values[key]:.2f}", f"{_NAMES[key]}, {split} set"))
    for examples in list(run.certificates.values())[:1]:
        rates = _rates(examples)
        tiles += [
            (f"{rates[key]:.1f}%", text)
            for key, text in (("complete", "complete searches"), ("optimal", "certified best"))
        ]
    target, source = _sparsity_numbers(run)
    tiles += [(f"{target:,.2f}", "target types allowed per step")] if target is not None else []
    tiles += [(f"{source:,.2f}", "source tokens attended to")] if source is not None else []
    return (
        "<div class=tiles>"
        + "".join(f"<div class=tile><b>{a}</b><span>{escape(b)}</span></div>" for a, b in tiles)
        + "</div>"
    )


def _sparsity_numbers(run: RunFiles) -> tuple[Any, Any]:
    for record in run.sparsity.values():
        return record["target_types"], record.get("source_words")
    for own in run.metrics:
        return own.best.get("support_output"), own.best.get("support_attention")
    return None, None


def _setup(run: RunFiles) -> str:
    parts = []
    for own in run.metrics:
        last = own.rows[-1]
        facts = {
            "training": own.path.name,
            "output": f"α = {own.alphas[0]:g} ({style.alpha_name(own.alphas[0])})",
            "attention": "none"
            if own.alphas[1] is None
            else f"α = {own.alphas[1]:g} ({style.alpha_name(own.alphas[1])})",
            "steps": f"{last['step']:,}" + (f" ({last['epoch']:.1f} epochs)" if last.get("epoch") is not None else ""),
            "validations": f"{len(own.rows)}",
            "time": _duration(last["elapsed"]),
        }
        if last.get("words_per_second"):
            facts["speed"] = f"{last['words_per_second']:,.0f} target words per second"
        known = {"measure", "metric", "alpha", "step"}
        facts.update(
            {key: value for key, value in signature_fields(own.signature).items() if key not in known and value}
        )
        rows = "".join(f"<dt>{escape(key)}</dt><dd>{escape(str(value))}</dd>" for key, value in facts.items())
        parts.append(f"<dl>{rows}</dl>")
    for path, text in run.settings.items():
        parts.append(f"<details><summary>{escape(path.name)}</summary><pre>{escape(text)}</pre></details>")
    return "<h2>Set-up</h2>" + "".join(parts) if parts else ""


def _curves(run: RunFiles) -> str:
    if not run.metrics:
        return ""
    groups = group(run.metrics) if len(run.metrics) < 2 else {own.path.stem: [own] for own in run.metrics}
    images = []
    for panel in PANELS:
        if not any(own.series(panel[0])[0] for own in run.metrics):
            continue
        with matplotlib.rc_context({**style.RC, "font.size": 9, "axes.titlesize": 9.5}):
            figure = Figure(figsize=(3.4, 2.3), layout="constrained")
            axes = figure.add_subplot()
            draw_panel(axes, panel, groups)
            if len(groups) > 1:
                axes.legend()
        images.append(figure_html(figure, f"{panel[1]} by training step"))
    signatures = "\n".join(dict.fromkeys(own.signature for own in run.metrics))
    return (
        f"<h2>Training</h2><div class=curves>{''.join(images)}</div>"
        f"<p class=note>The ring marks the best validation.</p><pre>{escape(signatures)}</pre>"
    )


def _scores(run: RunFiles) -> str:
    parts = []
    for path, result in run.results.items():
        values = result.get("macro") or result.get("mean") or {}
        spread = result.get("sd") or {}
        rows = []
        for key, value in values.items():
            if isinstance(value, (int, float)):
                sd = f" ±{spread[key]:.2f}" if spread.get(key) is not None else ""
                rows.append([_NAMES.get(key, key), f"{value:.2f}{sd}"])
        parts.append(f"<h3>{escape(path.name)}</h3>{table_html(['', 'all'], rows)}")
        languages = result.get("languages") or {}
        if len(languages) > 1:
            keys = [key for key in values if key in _NAMES]
            body = [
                [name, *(f"{own[key]:.2f}" if key in own else "–" for key in keys)] for name, own in languages.items()
            ]
            table = table_html(["language", *(_NAMES[key] for key in keys)], body)
            parts.append(f"<details><summary>{count(len(languages), 'language')}</summary>{table}</details>")
        signatures = "\n".join(result["signatures"].values())
        parts.append(f"<details><summary>Signatures</summary><pre>{escape(signatures)}</pre></details>")
    for path, record in run.sparsity.items():
        source = record.get("source_words")
        rows = [
            ["Target types of non-zero probability", f"{record['target_types']:,.2f}"],
            ["Source tokens attended to", "–" if source is None else f"{source:,.2f}"],
        ]
        parts.append(f"<h3>{escape(path.name)}</h3>{table_html(['per target token', 'mean'], rows)}")
        parts.append(f"<pre>{escape(record['signature'])}</pre>")
    return "<h2>Scores and sparsity</h2>" + "".join(parts) if parts else ""


def _rates(examples: list[dict[str, Any]]) -> dict[str, float]:
    counted = [rates_of(example["certificate"]) for example in examples]
    return {key: 100 * sum(one[key] for one in counted) / len(counted) for key in RATES}


def _certificates(run: RunFiles) -> str:
    parts = []
    for path, examples in run.certificates.items():
        rows = [[_NAMES[key], f"{value:.1f}"] for key, value in _rates(examples).items()]
        parts.append(f"<h3>{escape(path.name)}</h3>{table_html([count(len(examples), 'input'), 'share'], rows)}")
        reasons: dict[str, int] = {}
        for example in examples:
            reason = example["certificate"].get("reason")
            if reason:
                reasons[reason] = reasons.get(reason, 0) + 1
        parts += [
            f"<p class=missing>No certificate for {number}: {escape(why)}.</p>" for why, number in reasons.items()
        ]
    if not parts:
        return ""
    meaning = (
        "<p class=note>Complete: the strings found are the whole distribution. Optimal: nothing that the search gave "
        "up is more probable than its best string. Inputs without a certificate count as neither.</p>"
    )
    return "<h2>Certificates</h2>" + "".join(parts) + meaning


def _examples(run: RunFiles, number: int) -> str:
    chosen = run.examples(number)
    if not chosen:
        return ""
    articles = [_example(example) for example in chosen]
    note = "<p class=note>The least certain first: those whose best string has the lowest probability.</p>"
    return f"<h2>Examples</h2>{note}" + "\n".join(articles)


def _example(example: dict[str, Any]) -> str:
    hypotheses = (example.get("certificate") or {}).get("hypotheses") or []
    parts = [f"<p class=file>{escape(example['file'])}, line {example['line']}"]
    if hypotheses:
        parts.append(f", best string {percent_of_log(certainty(example))}")
    parts.append("</p>")
    if example.get("source"):
        parts.append(f"<p class=source><bdi>{escape(join(example['source'], False))}</bdi></p>")
    if hypotheses or example.get("tree"):
        tree = tree_of(example, max_leaves=10)
        parts.append(f"<h4>{'Search' if example.get('tree') else 'Strings found'}</h4>{tree_html(tree)}")
    if example.get("steps"):
        parts.append(f"<h4>Along the target</h4>{forced_html(forced_of(example))}")
    if attention_of(example) is not None:
        parts.append(f"<h4>Attention</h4>{attention_html(heat_map_of(example))}")
    return f"<article>{''.join(parts)}</article>"


def _sources(run: RunFiles) -> str:
    rows = [[path.name, sha256(path)[:16]] for path in run.used]
    return f"<h2>Made from</h2>{table_html(['file', 'SHA-256, first 16 digits'], rows)}"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} seconds"
    return f"{minutes} minutes" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
