"""Every figure by name: what it shows, which files it is made from, and how it is made from them.

Nothing here imports matplotlib before a figure is drawn.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple

from onmt_entmax.signatures import signature

# name -> (what it shows, what it is made from)
FIGURES = {
    "mappings": ("alpha-entmax in two dimensions (Fig. 3)", None),
    "beam": ("the search of one input as a tree (Fig. 1)", "output of `trace`, or of `onmt_translate -certificates`"),
    "forced": ("what the model allows along a target (Fig. 2)", "output of `force`"),
    "attention": (
        "attention weights, non-zeros outlined (Fig. 5)",
        "output of `trace`, `force` or `onmt_translate -attention`, one per model",
    ),
    "alpha-grid": ("accuracy against one alpha (Fig. 4)", "metrics files"),
    "training-speed": ("accuracy against time (Fig. 6)", "metrics files"),
    "learning-curves": ("loss, accuracy, support sizes by step", "metrics files"),
    "support-histogram": ("how often how many non-zeros", "output of `force`, one per model"),
}
# those of one input, which a terminal can show too
IN_TERMINAL = ("beam", "forced")


class Drawing(NamedTuple):
    """A figure, how its numbers were made, and what a reader must know."""

    figure: Any
    signatures: list[str]
    notices: list[str]


def draw(name: str, options: Namespace) -> Drawing:
    """Make a figure.

    Args:
        name: a key of ``FIGURES``.
        options: those of ``onmt_entmax figure``, as attributes.
    """
    return _DRAW[name](options)


def text_of(name: str, options: Namespace, width: int, bold: bool) -> str:
    """One of ``IN_TERMINAL`` as text of at most ``width`` cells."""
    from onmt_entmax.report.terminal import forced_text, tree_text

    if name == "beam":
        return tree_text(_tree(options), width)
    return forced_text(_forced(options), width, bold)


def _tree(options: Namespace):
    from onmt_entmax.report.readers import pick
    from onmt_entmax.report.trees import tree_of

    def fits(example: dict[str, Any]) -> bool:
        return bool(example.get("certificate"))

    example = pick(options.input[0], options.line, ("trace", "certificate"), fits, "a search")
    return tree_of(example, options.max_leaves)


def _forced(options: Namespace):
    from onmt_entmax.report.readers import pick
    from onmt_entmax.report.steps import forced_of

    def fits(example: dict[str, Any]) -> bool:
        return bool(example.get("steps"))

    example = pick(options.input[0], options.line, ("forced",), fits, "forced decoding")
    return forced_of(example, options.max_choices, options.max_steps)


def _mappings(options: Namespace) -> Drawing:
    from onmt_entmax.report.figures import plots, style

    alphas = options.alphas or plots.ALPHAS
    about = {"alphas": "+".join(f"{alpha:g}" for alpha in alphas), "dtype": "float64"}
    made = signature("mappings", about, version=False)
    return Drawing(plots.mappings_figure(alphas, options.width or style.COLUMN), [made], [])


def _beam(options: Namespace) -> Drawing:
    from onmt_entmax.report.figures.trees import beam_figure

    tree = _tree(options)
    return Drawing(beam_figure(tree, _page(options), options.font), _files(options), tree.notices)


def _forced_decoding(options: Namespace) -> Drawing:
    from onmt_entmax.report.figures.trees import forced_figure

    forced = _forced(options)
    return Drawing(forced_figure(forced, _page(options), options.font), _files(options), forced.notes)


def _attention(options: Namespace) -> Drawing:
    from onmt_entmax.report.figures.attention import attention_figure, heat_map_of
    from onmt_entmax.report.readers import attention_of, pick

    labels = options.labels or (_names(options.input) if len(options.input) > 1 else [""])
    maps = []
    for path, label in zip(options.input, labels):
        kinds = ("trace", "forced", "attention")
        example = pick(path, options.line, kinds, lambda example: attention_of(example) is not None, "attention")
        maps.append(heat_map_of(example, label, options.max_tokens))
    notices = [notice for one in maps for notice in one.notices]
    return Drawing(attention_figure(maps, _page(options), options.font), _files(options), notices)


def _support_histogram(options: Namespace) -> Drawing:
    from onmt_entmax.report.figures.plots import support_histogram
    from onmt_entmax.report.readers import read_examples

    groups: dict[str, Sequence[dict[str, Any]]] = {}
    for path, label in zip(options.input, options.labels or _names(options.input)):
        groups[label] = [*groups.get(label, ()), *read_examples(path, ("forced",))]
    return Drawing(support_histogram(groups, _page(options)), _files(options), [])


def _runs(function: str) -> Callable[[Namespace], Drawing]:
    """A figure of metrics files; runs of one label are drawn alike."""

    def drawn(options: Namespace) -> Drawing:
        from onmt_entmax.report.figures import plots, style
        from onmt_entmax.report.metrics import read_metrics

        runs = [read_metrics(path) for path in options.input]
        width = options.width or (style.COLUMN if function == "training_speed" else style.PAGE)
        different = plots.differing_fields(runs)
        notices = [f"The runs differ in more than alpha and seed: {', '.join(different)}."] if different else []
        if function == "alpha_grid":
            figure = plots.alpha_grid(runs, options.fixed, width)
        else:
            figure = getattr(plots, function)(plots.group(runs, options.labels), width)
        return Drawing(figure, [run.signature for run in runs], notices)

    return drawn


def _names(paths: Sequence[Path]) -> list[str]:
    """What tells files apart: their names, with their folders where several have the same name."""
    stems = [path.stem for path in paths]
    return [path.stem if stems.count(path.stem) == 1 else str(path.parent / path.stem) for path in paths]


def _page(options: Namespace) -> float:
    from onmt_entmax.report.figures.style import PAGE

    return options.width or PAGE


def _files(options: Namespace) -> list[str]:
    from onmt_entmax.files import sha256

    abouts = ({"file": path.name, "sha256": sha256(path)[:16]} for path in options.input)
    return [signature(None, about, version=False) for about in abouts]


_DRAW: dict[str, Callable[[Namespace], Drawing]] = {
    "mappings": _mappings,
    "beam": _beam,
    "forced": _forced_decoding,
    "attention": _attention,
    "alpha-grid": _runs("alpha_grid"),
    "training-speed": _runs("training_speed"),
    "learning-curves": _runs("learning_curves"),
    "support-histogram": _support_histogram,
}
