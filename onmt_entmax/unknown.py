"""How many tokens of a text a model does not know: text of another task gives fluent nonsense, certified or not."""

from __future__ import annotations

from collections.abc import Iterable

WARN_ABOVE = 0.10  # share of unknown tokens; far more than a test set of the same task has
NAMED = 5  # unknown tokens that the warning names


class UnknownTokens:
    """Counts the unknown tokens of a run, side by side (``source``, ``target``).

    ``str`` of it is the sentence for the log, e.g. ``Unknown tokens: source 0.3% (12 of 4000), target 0.0% (0 of
    3100).``, with a second one that warns above 10% and names some. It is empty before anything is counted.
    """

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._examples: dict[str, list[str]] = {}

    def add(self, side: str, unknown: int, total: int, examples: Iterable[str] = ()) -> None:
        """Count ``total`` tokens, ``unknown`` of them not in the vocabulary; the first few of those are named."""
        named = self._examples.setdefault(side, [])
        if len(named) < NAMED:
            self._examples[side] = list(dict.fromkeys([*named, *examples]))[:NAMED]
        counts = self._counts.setdefault(side, [0, 0])
        counts[0] += unknown
        counts[1] += total

    def share(self, side: str) -> float | None:
        """The share of unknown tokens of a side; None where there are no tokens."""
        unknown, total = self._counts.get(side, (0, 0))
        return unknown / total if total else None

    @property
    def too_many(self) -> list[str]:
        """The sides of which more than a tenth is unknown."""
        return [side for side in self._counts if (self.share(side) or 0.0) > WARN_ABOVE]

    def __str__(self) -> str:
        parts = [
            f"{side} {100 * unknown / total:.1f}% ({unknown} of {total})"
            for side, (unknown, total) in self._counts.items()
            if total
        ]
        if not parts:
            return ""
        sentence = f"Unknown tokens: {', '.join(parts)}."
        if self.too_many:
            named = [example for side in self.too_many for example in self._examples.get(side, ())][:NAMED]
            if named:
                sentence += f" Some are {', '.join(map(repr, named))}."
            sentence += f" Is the {' and the '.join(self.too_many)} text prepared as the model's training text was?"
        return sentence
