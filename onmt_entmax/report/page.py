"""One self-contained HTML page of a run, made from the files in its folder; ``templates/page.html`` is its form.

The page shows set-up, curves, scores with signatures, sparsity and certificate rates, and the inputs of which the model
was least certain with their search trees and attention. It opens from disk and loads nothing.
"""

from __future__ import annotations

import base64
import io
from collections import Counter
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from onmt_entmax.files import sha256
from onmt_entmax.report import text
from onmt_entmax.report.figures import style
from onmt_entmax.report.figures.attention import heat_map_of
from onmt_entmax.report.figures.canvas import families
from onmt_entmax.report.figures.heads import heads_figure, heads_of
from onmt_entmax.report.figures.plots import draw_panel, group, panels
from onmt_entmax.report.figures.trust import sentences, trust_figure, trusts_of
from onmt_entmax.report.metrics import Metrics
from onmt_entmax.report.readers import attention_of, certainty, read_objects
from onmt_entmax.report.run_files import Examples, RunFiles
from onmt_entmax.report.steps import forced_of
from onmt_entmax.report.trees import ENDS, LEGEND_DROPPED, tree_of
from onmt_entmax.search.result import RATES
from onmt_entmax.signatures import parse_signature
from onmt_entmax.tasks.results import certificate_rates
from onmt_entmax.version import version

_TEMPLATES = Path(__file__).parent / "templates"
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


def page(run: RunFiles, examples: int = 20) -> str:
    """Make the page of a run, with so many inputs as examples."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {name: getattr(text, name) for name in ("cells", "count", "percent", "percent_of_log")}
    environment.filters.update(filters)
    environment.globals.update(eos=text.EOS, ends=ENDS, legend=LEGEND_DROPPED)
    # of all inputs, as `evaluate` counts them: those that were not searched, too
    certificates = {path: read_objects(path) for path in run.certificates}
    names = dict.fromkeys(text.alphas_name(*own.alphas, own.learned) for own in run.metrics)
    made = environment.get_template("page.html").render(
        title=run.folder.resolve().name,
        subtitle=", ".join([*names, f"made by onmt_entmax {version()}"]),
        css=(_TEMPLATES / "page.css").read_text(encoding="utf-8"),
        tiles=_tiles(run, certificates),
        notices=run.notices,
        setup=[_facts(own) for own in run.metrics] + [_best(path.name, note) for path, note in run.best.items()],
        settings=[(path.name, content) for path, content in run.settings.items()],
        curves=_curves(run),
        heads=_heads(run),
        curve_signatures="\n".join(dict.fromkeys(own.signature for own in run.metrics)),
        scores=[_score(path.name, result) for path, result in run.results.items()],
        sparsity=[_sparsity(path.name, record) for path, record in run.sparsity.items()],
        certificates=[_certificates(path.name, records) for path, records in certificates.items()],
        trust=_trust(run),
        examples=[_example(example) for example in run.examples(examples)],
        sources=[[path.name, sha256(path)[:16]] for path in run.used],
    )
    return made.strip() + "\n"


def _tiles(run: RunFiles, certificates: Examples) -> list[tuple[str, str]]:
    """The few numbers to see first, each with the file it is from where there are several."""
    tiles: list[tuple[str, str]] = []

    def add(value: str, what: str, path: Path, files: Any) -> None:
        tiles.append((value, what + (f" ({path.name})" if len(files) > 1 else "")))

    if run.metrics:
        own = max(run.metrics, key=lambda one: one.best["accuracy"])
        best = own.best
        add(f"{best['accuracy']:.2f}%", f"best validation accuracy, step {best['step']:,}", own.path, run.metrics)
    for path, result in list(run.results.items())[:1]:
        values = result.get("macro") or result.get("mean") or {}
        for key in ("acc", "bleu_tok"):
            if values.get(key) is not None:
                split = parse_signature(result["signatures"].get(key, "")).get("split", "unknown")
                add(f"{values[key]:.2f}", f"{_NAMES[key]}, {split} set", path, run.results)
    for path, records in list(certificates.items())[:1]:
        rates = certificate_rates(records)
        for key, what in (("complete", "complete searches"), ("optimal", "certified best")):
            tiles.append((f"{rates[key]:.1f}%", f"{what}, of all inputs of {path.name}"))
    numbers: list[tuple[Path, Any, Any]] = [
        (path, record["target_types"], record.get("source_words")) for path, record in run.sparsity.items()
    ] or [(own.path, own.best.get("support_output"), own.best.get("support_attention")) for own in run.metrics]
    for path, target, source in numbers[:1]:
        for value, what in ((target, "target types allowed per step"), (source, "source tokens attended to")):
            if value is not None:
                add(f"{value:,.2f}", what, path, numbers)
    return tiles


def _facts(own: Metrics) -> dict[str, str]:
    """One training in names and values."""
    last, (output, attention) = own.rows[-1], own.alphas
    shown = "none" if attention is None else f"α = {attention:g} ({text.alpha_name(attention)})"
    facts = {
        "training": own.path.name,
        "output": f"α = {output:g} ({text.alpha_name(output)})",
        "attention": f"α learned: {attention:.4g} at the last validation" if own.learned else shown,
        "steps": f"{last['step']:,}" + (f" ({last['epoch']:.1f} epochs)" if last.get("epoch") is not None else ""),
        "validations": f"{len(own.rows)}",
        "time": _duration(last["elapsed"]),
    }
    if last.get("words_per_second"):
        facts["speed"] = f"{last['words_per_second']:,.0f} target words per second"
    known = {"measure", "metric", "alpha", "step"}
    fields = parse_signature(own.signature).items()
    return {**facts, **{key: value for key, value in fields if key not in known and value}}


def _best(name: str, note: dict[str, Any]) -> dict[str, str]:
    value = note.get("value")
    shown = "" if not isinstance(value, (int, float)) else f", {note['measure']} {value:.2f}"
    return {"best checkpoint": f"{note['checkpoint']}, step {note.get('step', 'unknown')}{shown} ({name})"}


def _curves(run: RunFiles) -> list[tuple[str, str]]:
    """A description and an SVG image in base64 for each measure."""
    groups = group(run.metrics) if len(run.metrics) < 2 else {own.path.stem: [own] for own in run.metrics}
    images = []
    for panel in panels(groups):
        with style.look(font_family=families(groups), font_size=9, axes_titlesize=9.5):
            several = len(groups) if len(groups) > 1 else 0
            figure = Figure(figsize=(3.4, 2.3 + 0.17 * several), layout="constrained")
            axes = figure.add_subplot()
            draw_panel(axes, panel, groups)
            if several:
                figure.legend(loc="outside lower center", labelspacing=0.3)
            images.append((f"{panel.title} by training step", _svg(figure)))
    return images


def _heads(run: RunFiles) -> list[tuple[str, str]]:
    """A description and an SVG image in base64 of each Transformer's heads."""
    shown = []
    for own in (one for one in run.metrics if heads_of(one)):
        figure = heads_figure({"": [own]})
        with style.look():
            shown.append((f"Heads at the best validation ({own.path.name})", _svg(figure)))
    return shown


def _svg(figure: Figure) -> str:
    """An SVG image in base64; inside ``style.look``."""
    content = io.BytesIO()
    figure.savefig(content, format="svg", metadata={"Date": None})
    return base64.b64encode(content.getvalue()).decode("ascii")


def _trust(run: RunFiles) -> list[tuple[str, str, list[str], str]]:
    """For each result that says which outputs to trust: its name, a picture, sentences, the signature."""
    shown = []
    for path, result in run.results.items():
        for name, own in trusts_of(result):
            label = ", ".join(filter(None, [path.name, name]))
            figure = trust_figure({"": own})
            with style.look():
                shown.append((label, _svg(figure), sentences(own), result["signatures"]["trust"]))
    return shown


def _score(name: str, result: dict[str, Any]) -> dict[str, Any]:
    """The scores of one result file: what they are averaged over, all of them, and those of the languages."""
    values = result.get("macro") or result.get("mean") or {}
    languages, runs, spread = result.get("languages") or {}, result.get("runs") or [], result.get("sd") or {}
    rows = []
    for key, value in values.items():
        if isinstance(value, (int, float)):
            sd = f" ±{spread[key]:.2f}" if spread.get(key) is not None else ""
            rows.append([_NAMES.get(key, key), f"{value:.2f}{sd}"])
    keys = [key for key in values if key in _NAMES]
    averaged = [f"mean of {text.count(len(part), noun)}" for part, noun in ((languages, "language"), (runs, "run"))]
    several = len(languages) > 1 and any(key in values for key in RATES)
    return {
        "name": name,
        "average": next((words for words, part in zip(averaged, (languages, runs)) if len(part) > 1), "all"),
        "rows": rows,
        "notes": ["Rates here are means over languages; under Certificates every input counts the same."] * several,
        "heads": ["language", *(_NAMES[key] for key in keys)],
        "languages": [
            [language, *(f"{own[key]:.2f}" if key in own else "–" for key in keys)]
            for language, own in languages.items()
        ]
        if len(languages) > 1
        else [],
        "signatures": "\n".join(result["signatures"].values()),
    }


def _sparsity(name: str, record: dict[str, Any]) -> tuple[str, list[list[str]], str]:
    rows = [
        [what, "–" if value is None else f"{value:,.2f}"]
        for what, value in (
            ("Target types of non-zero probability", record["target_types"]),
            ("Source tokens attended to", record.get("source_words")),
        )
    ]
    return name, rows, record["signature"]


def _certificates(name: str, records: list[dict[str, Any]]) -> tuple[str, int, list[list[str]], list[str]]:
    rates = certificate_rates(records)
    reasons = Counter(record["reason"] for record in records if record["reason"])
    missing = [f"No certificate for {number:,}: {reason}." for reason, number in reasons.items()]
    return name, len(records), [[_NAMES[key], f"{rates[key]:.1f}"] for key in RATES], missing


def _example(example: dict[str, Any]) -> dict[str, Any]:
    hypotheses = (example.get("certificate") or {}).get("hypotheses") or []
    searched = bool(example.get("tree"))
    return {
        "file": example["file"],
        "line": example["line"],
        "best": text.percent_of_log(certainty(example)) if hypotheses else "",
        "source": text.join(example["source"], False) if example.get("source") else "",
        "searched": searched,
        "tree": tree_of(example, max_leaves=10) if hypotheses or searched else None,
        "forced": forced_of(example) if example.get("steps") else None,
        "heat": heat_map_of(example) if attention_of(example) is not None else None,
    }


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} seconds"
    return f"{minutes} minutes" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
