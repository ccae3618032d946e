"""Every figure by its name, made from files with the options of ``onmt_entmax figure``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple

from matplotlib.figure import Figure

from onmt_entmax.errors import UserError, invalid_setting
from onmt_entmax.files import sha256
from onmt_entmax.report.figures import plots, style
from onmt_entmax.report.figures.attention import attention_figure, heat_map_of
from onmt_entmax.report.figures.heads import heads_figure, read_heads
from onmt_entmax.report.figures.search import search_figure
from onmt_entmax.report.figures.trees import beam_figure, forced_figure
from onmt_entmax.report.figures.trust import sentences, trust_figure, trusts_of
from onmt_entmax.report.metrics import read_metrics
from onmt_entmax.report.readers import attention_of, pick, read_examples, read_object
from onmt_entmax.report.steps import read_forced
from onmt_entmax.report.text import alphas_name
from onmt_entmax.report.trees import read_tree
from onmt_entmax.signatures import parse_signature, signature


class Drawing(NamedTuple):
    """A figure, how its numbers were made, and what a reader must know."""

    figure: Figure
    signatures: list[str]
    notices: Sequence[str] = ()


def draw(name: str, options: Namespace) -> Drawing:
    """Make a figure.

    Args:
        name: ``mappings``, ``beam``, ``forced``, ``attention``, ``support-histogram``, ``alpha-grid``,
            ``training-speed``, ``learning-curves``, ``heads``, ``trust`` or ``search``.
        options: those of ``onmt_entmax figure``.
    """
    return _DRAW.get(name, _runs)(options)


def _mappings(options: Namespace) -> Drawing:
    alphas = options.alphas or plots.ALPHAS
    about = {"alphas": "+".join(f"{alpha:g}" for alpha in alphas), "dtype": "float64"}
    made = signature("mappings", about, version=False)
    return Drawing(plots.mappings_figure(alphas, options.width or style.COLUMN), [made])


def _beam(options: Namespace) -> Drawing:
    tree = read_tree(options.input[0], options.line, options.max_leaves)
    return Drawing(beam_figure(tree, _page(options), options.font), _files(options), tree.notices)


def _forced(options: Namespace) -> Drawing:
    forced = read_forced(options.input[0], options.line, options.max_choices, options.max_steps)
    return Drawing(forced_figure(forced, _page(options), options.font), _files(options), forced.notes)


def _attention(options: Namespace) -> Drawing:
    labels = options.labels or (plots.file_names(options.input) if len(options.input) > 1 else [""])
    maps = []
    for path, label in zip(options.input, labels):
        kinds = ("trace", "forced", "attention")
        example = pick(path, options.line, kinds, lambda example: attention_of(example) is not None, "attention")
        maps.append(heat_map_of(example, label or example.get("head", ""), options.max_tokens))
    notices = [notice for one in maps for notice in one.notices]
    return Drawing(attention_figure(maps, _page(options), options.font), _files(options), notices)


def _support_histogram(options: Namespace) -> Drawing:
    groups: dict[str, Sequence[dict[str, Any]]] = {}
    for path, label in zip(options.input, options.labels or plots.file_names(options.input)):
        groups[label] = [*groups.get(label, ()), *read_examples(path, ("forced",))]
    return Drawing(plots.support_histogram(groups, _page(options)), _files(options))


def _trust(options: Namespace) -> Drawing:
    groups: dict[str, Any] = {}
    signatures = []
    results = [read_object(path, "result") for path in options.input]
    for path, label, result in zip(
        options.input, options.labels or _alphas(options.input, map(_first_signature, results)), results
    ):
        found = dict(trusts_of(result))
        if not found:
            raise UserError(f"{path} says nothing of trust: run `onmt_entmax evaluate` with --certificates (not void).")
        named = {" ".join(filter(None, [label, run])): own for run, own in found.items()}
        _check_new(groups, named)
        groups.update(named)
        signatures.append(result["signatures"]["trust"])
    notices = [f"{label}: {' '.join(sentences(own))}" for label, own in groups.items()]
    return Drawing(trust_figure(groups, _page(options)), signatures, notices)


def _search(options: Namespace) -> Drawing:
    results = [read_object(path, "search") for path in options.input]
    labels = options.labels or _alphas(options.input, [result["signature"] for result in results])
    proven = [
        f"{label}: exact search has proved {result['proven']:,} of {result['lines']:,} outputs to be the most probable."
        for label, result in zip(labels, results)
    ]
    groups: dict[str, dict[str, Any]] = {}
    for label, result in zip(labels, results):
        _check_new(groups, [label])
        groups[label] = result
    figure = search_figure(groups, _page(options))
    return Drawing(figure, [result["signature"] for result in results], proven)


def _heads(options: Namespace) -> Drawing:
    runs = [read_heads(path) for path in options.input]
    # what `onmt_entmax heads` wrote knows no alphas of a run
    measured = any("alpha_output" not in run.rows[-1] for run in runs)
    groups = plots.group(runs, options.labels or (plots.file_names(options.input) if measured else None))
    return Drawing(heads_figure(groups, _page(options)), [run.signature for run in runs])


def _runs(options: Namespace) -> Drawing:
    """A figure of metrics files; runs of one label are drawn alike."""
    runs = [read_metrics(path) for path in options.input]
    different = plots.differing_fields(runs)
    notices = [f"The runs differ in more than alpha and seed: {', '.join(different)}."] if different else []
    if options.name == "alpha-grid":
        figure = plots.alpha_grid(runs, options.fixed, _page(options))
        again = plots.same_seed(runs)
        if again:
            files = ", ".join(plots.file_names([run.path for run in again]))
            notices.append(f"Averaged, though each of them has alphas and seed of another one: {files}.")
        return Drawing(figure, [run.signature for run in runs], notices)
    groups = plots.group(runs, options.labels)
    for label, own in groups.items():
        if len(own) > 1:
            notices.append(f"{label}: {', '.join(plots.file_names([run.path for run in own]))}, drawn alike.")
    if options.name == "training-speed":
        figure = plots.training_speed(groups, options.width or style.COLUMN)
    else:
        figure = plots.learning_curves(groups, _page(options))
    return Drawing(figure, [run.signature for run in runs], notices)


def _check_new(groups: Mapping[str, Any], labels: Iterable[str]) -> None:
    """Refuse a label that another file has already: only one of the two would be shown."""
    for label in labels:
        if label in groups:
            raise invalid_setting("labels", label, "Two files have it; each needs its own.")


def _first_signature(result: dict[str, Any]) -> str:
    return next(iter(result["signatures"].values()), "")


def _alphas(paths: Sequence[Path], signatures: Iterable[str]) -> list[str]:
    """Names of models by their alphas where signatures tell these and they differ, else by their files."""
    about = [parse_signature(one).get("alpha", "") for one in signatures]
    try:
        labels = [alphas_name(*map(float, alpha.split("/"))) for alpha in about]
    except (ValueError, TypeError):
        return plots.file_names(paths)
    return labels if len(set(labels)) == len(labels) else plots.file_names(paths)


def _page(options: Namespace) -> float:
    return options.width or style.PAGE


def _files(options: Namespace) -> list[str]:
    abouts = ({"file": path.name, "sha256": sha256(path)[:16]} for path in options.input)
    return [signature(None, about, version=False) for about in abouts]


_DRAW: dict[str, Callable[[Namespace], Drawing]] = {
    "mappings": _mappings,
    "beam": _beam,
    "forced": _forced,
    "attention": _attention,
    "support-histogram": _support_histogram,
    "trust": _trust,
    "search": _search,
    "heads": _heads,
}
