"""A weighted mixture of endless corpora that knows where it is and can go there again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Callable

from onmt_entmax.errors import UserError

_END = object()


def starting_at(corpus: Iterable[Any], count: int) -> Iterator[Any]:
    """Iterate over ``corpus`` without its first ``count`` examples; a method of the same name may do so faster."""
    if count and hasattr(corpus, "starting_at"):
        return corpus.starting_at(count)
    return islice(iter(corpus), count, None)


class Mixture:
    """Takes ``weight`` examples from each corpus in turn, for ever; each corpus starts again when it ends.

    Args:
        corpora: name -> an iterable of examples that can be iterated again and again.
        weights: name -> examples per turn, at least 1 for one of them.
        on_pass: called as ``on_pass(passes)``, name -> passes begun, whenever a corpus starts again.
    """

    def __init__(
        self,
        corpora: Mapping[str, Iterable[Any]],
        weights: Mapping[str, int],
        on_pass: Callable[[dict[str, int]], None] | None = None,
    ) -> None:
        self.corpora = corpora
        self.turns = [name for name, weight in weights.items() for _ in range(weight)]
        if not self.turns:
            raise UserError(f"Invalid setting for `weight`: {dict(weights)}. One of them must be at least 1.")
        self.on_pass = on_pass
        self.turn = 0  # whose turn it is, an index into `turns`
        self.passes = dict.fromkeys(corpora, 1)  # the pass each corpus is in
        self.read = dict.fromkeys(corpora, 0)  # examples taken in that pass
        self._iterators: dict[str, Iterator[Any]] = {}

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self._next()

    def _next(self) -> Any:
        name = self.turns[self.turn]
        iterator = self._iterators.get(name)
        if iterator is None:
            # a file that is shorter than it was just starts again
            iterator = self._iterators[name] = starting_at(self.corpora[name], self.read[name])
        example = next(iterator, _END)
        if example is _END:
            self.passes[name] += 1
            self.read[name] = 0
            iterator = self._iterators[name] = iter(self.corpora[name])
            if self.on_pass is not None:
                self.on_pass(dict(self.passes))
            example = next(iterator, _END)
            if example is _END:
                raise UserError(f"Corpus {name} has no line to train on.")
        self.read[name] += 1
        self.turn = (self.turn + 1) % len(self.turns)
        return example

    def state_dict(self) -> dict:
        """Plain data for a checkpoint: what comes next."""
        return {"turn": self.turn, "passes": dict(self.passes), "read": dict(self.read)}

    def load_state_dict(self, state: dict) -> None:
        """Go to :meth:`state_dict` of a mixture of the same corpora and weights."""
        self.turn, self.passes, self.read = state["turn"], dict(state["passes"]), dict(state["read"])
        self._iterators = {}
