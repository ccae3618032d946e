"""A model bound to one input, with the states of the prefixes that it was asked about: one more token is one step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Optional

import torch
from torch import Tensor

from onmt_entmax.search.paths import select_rows
from onmt_entmax.search.scorer import Scorer, States, StepOutput

PREFIXES, FEWEST = 300, 80  # kept per input, the last used ones; more than one list of words looks at
NUMBERS = 8_000_000  # of their distributions together: fewer where vocabularies are large


class Cancelled(Exception):
    """Nobody waits for the answer any more, or the time is over."""


class Watched:
    """A scorer that asks before every step whether the result is still wanted.

    Args:
        scorer: the model and its inputs.
        wanted: raises :class:`Cancelled` where it is not.
    """

    def __init__(self, scorer: Scorer, wanted: Callable[[], None]) -> None:
        self._scorer, self.wanted = scorer, wanted
        self.vocab_size, self.batch_size, self.device = scorer.vocab_size, scorer.batch_size, scorer.device
        self.dtype, self.mixed_lengths = scorer.dtype, scorer.mixed_lengths

    def start(self) -> States:
        """See :class:`~onmt_entmax.search.scorer.Scorer`."""
        return self._scorer.start()

    def drop_finished(self, sentences: Sequence[int]) -> None:
        """See :class:`~onmt_entmax.search.scorer.Scorer`; a single input stays in memory."""

    def step(
        self,
        tokens: Tensor,
        states: States,
        sentences: Tensor,
        parents: Optional[Tensor] = None,
        best: Optional[int] = None,
    ) -> StepOutput:
        """See :class:`~onmt_entmax.search.scorer.Scorer`.

        Raises:
            Cancelled: the result is not wanted any more.
        """
        self.wanted()
        return self._scorer.step(tokens, states, sentences, parents, best)


class Session:
    """One input, encoded once.

    Args:
        scorer: bound to this input alone, for nobody else's use; rows may come in any order.
        start: token fed first.
        eos: the one that ends the output.
        wanted: see :class:`Watched`; may be replaced between calls.

    Attributes:
        steps: prefixes that went through the decoder.
    """

    def __init__(self, scorer: Scorer, start: int, eos: int, wanted: Callable[[], None] = lambda: None) -> None:
        self.scorer, self.start, self.eos, self.wanted = Watched(scorer, lambda: self.wanted()), start, eos, wanted
        self.steps = 0
        self._most = max(FEWEST, min(PREFIXES, NUMBERS // scorer.vocab_size))
        self._known: OrderedDict[tuple[int, ...], StepOutput] = OrderedDict()
        self._begin = self.scorer.start()

    def after(self, prefix: Sequence[int]) -> StepOutput:
        """What the decoder says after a prefix, whether possible or not: one row."""
        prefix = tuple(prefix)
        known = len(prefix)
        while known and prefix[:known] not in self._known:
            known -= 1
        for size in range(known, len(prefix) + 1):
            self.after_all([prefix[:size]])
        return self._known[prefix]

    def after_all(self, prefixes: Sequence[tuple[int, ...]]) -> list[StepOutput]:
        """The same for several prefixes that go on where known ones end, in as few steps as the model allows."""
        groups: dict[int, list[tuple[int, ...]]] = {}
        for prefix in dict.fromkeys(prefixes):
            if prefix in self._known:
                self._known.move_to_end(prefix)
            else:
                groups.setdefault(0 if self.scorer.mixed_lengths else len(prefix), []).append(prefix)
        found = {prefix: self._known[prefix] for prefix in prefixes if prefix in self._known}
        for group in groups.values():
            found.update(zip(group, self._step(group)))
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return [found[prefix] for prefix in prefixes]

    def _step(self, prefixes: Sequence[tuple[int, ...]]) -> list[StepOutput]:
        rows = [self._known[prefix[:-1]].states if prefix else self._begin for prefix in prefixes]
        states = tuple(torch.cat(parts) for parts in zip(*rows))
        fed = torch.tensor([prefix[-1] if prefix else self.start for prefix in prefixes], device=self.scorer.device)
        with torch.no_grad():
            output = self.scorer.step(fed, states, torch.zeros_like(fed))
        self.steps += len(prefixes)
        outputs = []
        for number, prefix in enumerate(prefixes):
            row = torch.tensor([number], device=self.scorer.device)
            attention = None if output.attention is None else output.attention[number : number + 1]
            one = StepOutput(output.log_probs[number : number + 1], select_rows(output.states, row), attention)
            self._known[prefix] = one
            outputs.append(one)
        return outputs

    def probability(self, prefix: Sequence[int], token: int) -> float:
        """Of one token after a prefix."""
        return float(self.after(prefix).log_probs[0, token].double().exp().clamp(max=1.0))

    def impossible_at(self, prefix: Sequence[int], tokens: Sequence[int]) -> Optional[int]:
        """The index of the first of these tokens that has probability zero where they follow a prefix, or None."""
        row = (*prefix, *tokens)
        places = range(len(prefix), len(row))
        return next((at - len(prefix) for at in places if self.probability(row[:at], row[at]) == 0), None)

    def next_tokens(self, prefix: Sequence[int], most: int) -> tuple[list[tuple[int, float]], int]:
        """The most probable tokens after a prefix, best first, and how many of non-zero probability there are."""
        log_probs = self.after(prefix).log_probs[0]
        size = int(log_probs.isneginf().logical_not().sum())
        values, tokens = log_probs.topk(min(most, size))
        return list(zip(tokens.tolist(), values.double().exp().clamp(max=1.0).tolist())), size
