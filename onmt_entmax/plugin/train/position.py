"""Where a run is: the state of every random number generator, and the place in a weighted mixture of corpora."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch

from onmt_entmax.errors import UserError, invalid_setting

_END = object()


def pack_python(state: tuple) -> dict:
    """State of :mod:`random` (``random.getstate()``) as a tensor and plain data."""
    version, words, gauss = state
    return {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss}


def unpack_python(packed: dict) -> tuple:
    """Inverse of :func:`pack_python`."""
    return packed["version"], tuple(packed["words"].tolist()), packed["gauss"]


def capture(cuda: bool = False) -> dict:
    """States of Python's, numpy's and torch's generators; with ``cuda`` also that of the current device."""
    name, words, position, has_gauss, gauss = np.random.get_state()
    return {
        "python": pack_python(random.getstate()),
        "numpy": {
            "name": str(name),
            "words": torch.from_numpy(words.astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "gauss": float(gauss),
        },
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if cuda else None,
    }


def restore(state: dict) -> None:
    """Set the generators to what :func:`capture` returned; a state of a device is left out where there is none."""
    random.setstate(unpack_python(state["python"]))
    packed = state["numpy"]
    words = packed["words"].numpy().astype(np.uint32)
    np.random.set_state((packed["name"], words, packed["position"], packed["has_gauss"], packed["gauss"]))
    torch.set_rng_state(state["torch"].cpu().to(torch.uint8))
    if state.get("cuda") is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu().to(torch.uint8))


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
    """

    def __init__(self, corpora: Mapping[str, Iterable[Any]], weights: Mapping[str, int]) -> None:
        self.corpora = corpora
        self.turns = [name for name, weight in weights.items() for _ in range(weight)]
        if not self.turns:
            raise invalid_setting("weight", dict(weights), "One of them must be at least 1.")
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
