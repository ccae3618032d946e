"""How good search is: beams, exact search, empty outputs (Stahlberg and Byrne, 2019; Peters and Martins, 2021).

A search error is a line for which some other search found a more probable output: where exact search has proved its
output, that is every error there is, elsewhere the least there can be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from onmt_entmax.errors import choices, invalid_setting
from onmt_entmax.tasks.results import layout
from onmt_entmax.tasks.translation.scores import corpus_score, metric_fields, tokenised_bleu
from onmt_entmax.tasks.translation.subwords import SEPARATOR, SPACE, check_undone, undo_subwords

MEASURES = ("acc", "bleu")
# of log-probabilities: the same string in a batch of another shape differs by rounding
TOLERANCE = 1e-4
_HEADS = {
    "acc": "acc %",
    "bleu": "BLEU",
    "acc_proven": "on proven",
    "bleu_proven": "on proven",
    "errors": "errors %",
    "length_ratio": "length ratio",
    "empty": "empty %",
}


class Output(NamedTuple):
    """What a search found for one line; ``log_prob`` is minus infinity where no string was finished."""

    tokens: list[str]
    log_prob: float


def check(measure: str, beams: Sequence[int]) -> list[int]:
    """The beam sizes in order, each once.

    Raises:
        UserError: an unknown measure, a beam below 1.
    """
    if measure not in MEASURES:
        raise invalid_setting("measure", measure, choices(MEASURES))
    if min(beams) < 1:
        raise invalid_setting("beams", min(beams), "Each must be at least 1.")
    return sorted(set(beams))


def subwords_of(targets: Sequence[Sequence[str]]) -> str:
    """What the references are cut into: ``bpe`` (pieces that end in ``@@``), ``sentencepiece`` or ``none``."""
    pieces = {piece for target in targets for piece in target}
    if any(piece.endswith(SEPARATOR) for piece in pieces):
        return "bpe"
    return "sentencepiece" if any(SPACE in piece for piece in pieces) else "none"


def search_numbers(
    searches: Mapping[Optional[int], Sequence[Output]],
    proven: Sequence[bool],
    empty: Sequence[Optional[float]],
    targets: Sequence[Sequence[str]],
    measure: str,
) -> dict[str, Any]:
    """Compare searches.

    Args:
        searches: beam size, or None for exact search -> an output per line.
        proven: whether exact search has proved its output to be a most probable one.
        empty: log-probability of the empty output, None where it is impossible.
        targets: references, as tokens of the model; at least one.
        measure: ``acc``, percent of the lines that are right; ``bleu``, of words, subwords undone.

    Returns:
        What ``docs/formats.md`` says of ``evaluate search``, but for what only the caller knows.

    Raises:
        UserError: subwords that are left over.
    """
    kind = subwords_of(targets) if measure == "bleu" else "none"
    references = [undo_subwords(kind, " ".join(target)) for target in targets]
    texts = {
        beam: [undo_subwords(kind, " ".join(output.tokens)) for output in outputs] for beam, outputs in searches.items()
    }
    known = {word for line in references for word in line.split(" ")}
    if measure == "bleu":
        left = f"is left over in an output: the references' subwords are {kind}."
        for lines in texts.values():
            check_undone(kind, lines, known, lambda _, token: f"{token!r} {left}")
    most = [max(output.log_prob for output in own) for own in zip(*searches.values())]
    places = [place for place, sure in enumerate(proven) if sure]
    metric = tokenised_bleu()

    def score(lines: Sequence[str], counted: Sequence[int]) -> Optional[float]:
        pairs = [(lines[place], references[place]) for place in counted]
        if not pairs:
            return None
        if measure == "acc":
            return 100 * sum(line == reference for line, reference in pairs) / len(pairs)
        return corpus_score(metric, *zip(*pairs))

    words = max(sum(map(_length, references)), 1)
    rows = []
    for beam, outputs in searches.items():
        lines = texts[beam]
        errors = sum(best - output.log_prob > TOLERANCE for best, output in zip(most, outputs))
        rows.append(
            {
                "beam": beam,
                measure: score(lines, range(len(lines))),
                f"{measure}_proven": score(lines, places),
                "errors": 100 * errors / len(lines),
                "length_ratio": sum(map(_length, lines)) / words,
                "empty": 100 * sum(not output.tokens for output in outputs) / len(lines),
            }
        )
    modes = sum(not searches[None][place].tokens for place in places)
    result = {
        "measure": measure,
        "subwords": kind,
        "lines": len(targets),
        "proven": len(places),
        "empty_impossible": 100 * sum(log_prob is None for log_prob in empty) / len(targets),
        "empty_is_mode": 100 * modes / len(places) if places else None,
        "searches": rows,
    }
    return {**result, "fields": metric_fields(metric) if measure == "bleu" else {"avg": "micro"}}


def table(result: Mapping[str, Any]) -> str:
    """Lay out the numbers for reading."""
    measure, lines = result["measure"], result["lines"]
    heads = {key: head for key, head in _HEADS.items() if key in result["searches"][0]}
    rows = [(f"beam {row['beam']}" if row["beam"] else "exact", row) for row in result["searches"]]
    modes = "unknown" if result["empty_is_mode"] is None else f"{result['empty_is_mode']:.1f}%"
    said = [
        f"Exact search has proved {result['proven']:,} of {lines:,} outputs to be the most probable ones "
        f"({100 * result['proven'] / lines:.1f}%; `{_HEADS[measure]}` of these lines under `on proven`).",
        f"The empty output: impossible for {result['empty_impossible']:.1f}% of the inputs; the most probable one for "
        f"{modes} of the proven.",
        "Errors: lines for which another of these searches found a more probable output.",
    ]
    if result["blank"]:
        said.append(f"Left out: {result['blank']:,} blank sources.")
    return "\n".join([layout("search", heads, rows), *said, "", result["signature"]])


def finite(log_prob: Optional[float], finished: bool) -> float:
    """The log-probability of an output for comparing: an unfinished prefix's says nothing of any string."""
    return log_prob if finished and log_prob is not None else -math.inf


def _length(line: str) -> int:
    return len(line.split(" ")) if line else 0
