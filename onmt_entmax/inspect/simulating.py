"""A simulated translator who completes with a model: how much typing is left, by the usual protocol.

The model proposes how to go on; the translator accepts the longest prefix of it that is right, and types what comes
next in the reference, a whole word (word-stroke ratio) or one character (key-stroke ratio, mouse-action ratio;
Barrachina et al. 2009); the model then goes on behind that, until the reference stands. A mouse action is each move to
another place than where typing ended, and accepting the whole at the end.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from tqdm import tqdm

from onmt_entmax.errors import UserError
from onmt_entmax.inspect.completing import Completer
from onmt_entmax.inspect.loaded import Loaded
from onmt_entmax.inspect.texts import join_words
from onmt_entmax.tasks.translation.subwords import SEPARATOR, SPACE


@dataclass
class Proposal:
    """How the model goes on: words, the first of which begins with the letters typed; none if it knows no way."""

    words: list[str]
    finished: bool


class Model(Protocol):
    """What the translator works with, for one sentence."""

    def propose(self, words: Sequence[str], letters: str) -> Proposal:
        """The best way to go on after these words, the next of which begins with these letters."""
        ...

    def listed(self, words: Sequence[str], letters: str) -> tuple[list[str], bool]:
        """The words shown as possible next, and whether no other is possible."""
        ...


@dataclass
class Effort:
    """What the translator of some sentences did.

    Attributes:
        strokes: words typed; or characters.
        picked: words taken from the list instead.
        moves: mouse actions, accepting included.
        ends: sentences that the model would have gone on with.
        blind: strokes at which the model proposed nothing.
        stops: places at which something was wrong.
        in_list: those at which the right word was listed.
        whole_lists: those at which the list was all that is possible.
        shown: words listed at all of them.
    """

    strokes: int = 0
    picked: int = 0
    moves: int = 0
    ends: int = 0
    blind: int = 0
    stops: int = 0
    in_list: int = 0
    whole_lists: int = 0
    shown: int = 0

    def add(self, other: Effort) -> None:
        """Add the effort of other sentences."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def by_words(model: Model, reference: Sequence[str], picks: bool = False) -> Effort:
    """Translate one sentence, correcting word by word.

    Args:
        model: what proposes.
        reference: the words wanted.
        picks: take a word from the list where it is there, rather than type it.
    """
    effort, done = Effort(), 0
    while True:
        proposal = model.propose(reference[:done], "")
        right = _common(proposal.words, reference[done:])
        done += right
        if done == len(reference):
            effort.ends += right < len(proposal.words) or not proposal.finished
            return effort
        effort.stops += 1
        effort.blind += not proposal.finished
        if picks and _pick(effort, model, reference, done, ""):
            effort.picked += 1
        else:
            effort.strokes += 1
        done += 1


def by_characters(model: Model, reference: Sequence[str], picks: bool = False) -> Effort:
    """The same, correcting character by character; a blank is one, too."""
    effort, text = Effort(), " ".join(reference)
    typed = 0
    while True:
        *words, letters = text[:typed].split(" ")
        proposal = model.propose(words, letters)
        right = typed
        if proposal.finished:
            right = max(typed, _common(" ".join([*words, *proposal.words]), text))
        effort.moves += right > typed
        typed = right
        if typed == len(text):
            whole = [*words, *proposal.words]
            effort.ends += len(whole) > len(reference) or whole[-1:] != [*reference[-1:]] or not proposal.finished
            effort.moves += 1
            return effort
        effort.stops += 1
        effort.blind += not proposal.finished
        *words, letters = text[:typed].split(" ")
        if picks and text[typed] != " " and _pick(effort, model, reference, len(words), letters):
            effort.picked += 1
            typed = len(" ".join(reference[: len(words) + 1]))
        else:
            effort.strokes += 1
            typed += 1


def _pick(effort: Effort, model: Model, reference: Sequence[str], done: int, letters: str) -> bool:
    words, whole = model.listed(reference[:done], letters)
    effort.shown += len(words)
    effort.whole_lists += whole
    effort.in_list += reference[done] in words
    return reference[done] in words


def _common(one: Sequence, other: Sequence) -> int:
    """The length of the longest common prefix."""
    size = 0
    while size < min(len(one), len(other)) and one[size] == other[size]:
        size += 1
    return size


class Proposals:
    """Proposals of a completer for one sentence; the same question is answered once.

    Args:
        completer: bound to the sentence.
        most: words listed.
        seconds: gets the time of each answer.
    """

    def __init__(self, completer: Completer, most: int, seconds: list[float]) -> None:
        self._completer, self._most, self._seconds = completer, most, seconds
        self._prefixes: dict[tuple[str, ...], tuple[int, ...]] = {(): ()}
        self._proposed: dict[tuple, Proposal] = {}
        self._listed: dict[tuple, tuple[list[str], bool]] = {}

    def prefix(self, words: Sequence[str]) -> tuple[int, ...]:
        """Tokens of words; those that the model holds impossible are forced, unknown ones are ``<unk>``."""
        key = tuple(words)
        if key not in self._prefixes:
            before = self.prefix(key[:-1])
            self._prefixes[key] = (*before, *self._completer.pieces_of(before, key[-1]))
        return self._prefixes[key]

    def propose(self, words: Sequence[str], letters: str) -> Proposal:
        """See :class:`Model`."""
        key = (tuple(words), letters)
        if key not in self._proposed:
            began = time.monotonic()
            result = self._completer.best(self.prefix(words), letters)
            self._seconds.append(time.monotonic() - began)
            tokens, finished = result.hypotheses[0].tokens, result.hypotheses[0].finished
            spelled = join_words(self._completer.spelling, self._completer.tokens(tokens)) if finished else []
            self._proposed[key] = Proposal(spelled, finished)
        return self._proposed[key]

    def listed(self, words: Sequence[str], letters: str) -> tuple[list[str], bool]:
        """See :class:`Model`."""
        key = (tuple(words), letters)
        if key not in self._listed:
            found, whole = self._completer.words(self.prefix(words), self._most, letters)
            self._listed[key] = ([word.text for word in found], whole)
        return self._listed[key]

    def impossible(self, words: Sequence[str]) -> int:
        """How many of these words are impossible, each after those before it."""
        ends = [len(self.prefix(words[:count])) for count in range(len(words) + 1)]
        row, session = self.prefix(words), self._completer.session
        places = zip(ends, ends[1:])
        return sum(session.impossible_at(row[:start], row[start:end]) is not None for start, end in places)


@dataclass
class Simulation:
    """Sums over the sentences of a test set."""

    most: int
    lines: int = 0
    words: int = 0
    characters: int = 0
    impossible: int = 0
    efforts: dict[str, Effort] = field(
        default_factory=lambda: {
            name: Effort() for name in ("words", "words_and_lists", "characters", "characters_and_lists")
        }
    )
    seconds: list[float] = field(default_factory=list)

    def add(self, completer: Completer, reference: Sequence[str]) -> None:
        """Translate one sentence, in all four ways."""
        model = Proposals(completer, self.most, self.seconds)
        self.lines += 1
        self.words += len(reference)
        self.characters += len(" ".join(reference))
        self.efforts["words"].add(by_words(model, reference))
        self.efforts["words_and_lists"].add(by_words(model, reference, picks=True))
        self.efforts["characters"].add(by_characters(model, reference))
        self.efforts["characters_and_lists"].add(by_characters(model, reference, picks=True))
        self.impossible += model.impossible(reference)

    def record(self) -> dict[str, Any]:
        """The ratios in percent and the counts, ready for JSON; see ``docs/formats.md``."""
        words, lists, keys, both = self.efforts.values()

        def share(count: int, of: int) -> float | None:
            return 100 * count / of if of else None

        times = [1000 * float(value) for value in np.percentile(self.seconds, (50, 95))] if self.seconds else [None] * 2
        return {
            "lines": self.lines,
            "words": self.words,
            "characters": self.characters,
            "wsr": share(words.strokes, self.words),
            "ksr": share(keys.strokes, self.characters),
            "mar": share(keys.moves, self.characters),
            "ksmr": share(keys.strokes + keys.moves, self.characters),
            "lists": {
                "most": self.most,
                "wsr": share(lists.strokes, self.words),
                "ksr": share(both.strokes + both.picked, self.characters),
                "right_word_listed": share(lists.in_list, lists.stops),
                "whole": share(lists.whole_lists, lists.stops),
                "mean_size": lists.shown / lists.stops if lists.stops else None,
            },
            "wrong_ends": words.ends,
            "blind": share(keys.blind, keys.stops),
            "impossible_words": share(self.impossible, self.words),
            "milliseconds": {"proposals": len(self.seconds), "p50": times[0], "p95": times[1]},
            "efforts": {name: vars(effort) for name, effort in self.efforts.items()},
        }


def simulate(loaded: Loaded, pairs: Sequence[tuple[str, str]], most: int) -> Simulation:
    """Simulate the translator of a test set, with a bar that says how long it will take.

    Args:
        loaded: the model.
        pairs: inputs and the translations wanted, as the model's text is written; those with a blank side do not count.
        most: possible next words shown.

    Raises:
        UserError: an output that is one word, or made of pieces that only a prepared folder can make.
    """
    texts = loaded.texts
    if texts.kind == "inflection":
        raise UserError(f"{loaded.name} inflects: its output is one word, and there is nothing to complete.")
    pieces = next((token for token in loaded.target if token.endswith(SEPARATOR) or SPACE in token), None)
    if texts.kind == "tokens" and pieces is not None:
        raise UserError(f"{loaded.name}: its target tokens are pieces of words ({pieces}): give `--prepared`.")
    simulation = Simulation(most)
    for source_text, target_text in tqdm(pairs, unit="line", disable=None):
        source, reference = texts.source({"text": source_text}), [word for word, _, _ in texts.words(target_text)]
        if source and reference:
            with loaded.session(source, lambda: None) as session:
                simulation.add(loaded.completer(session, len(source)), reference)
    if not simulation.lines:
        raise UserError("There is nothing to translate: every line is blank on one of its sides.")
    return simulation


def describe(record: dict[str, Any]) -> str:
    """The ratios for people."""
    lists = record["lists"]
    rows = [
        ("words typed (WSR)", record["wsr"], lists["wsr"]),
        ("keys pressed (KSR)", record["ksr"], lists["ksr"]),
        ("keys and mouse actions (KSMR)", record["ksmr"], None),
    ]
    lines = [f"{'of 100 words or characters':32}{'completion':>11}{'+ list':>14}"]
    lines += [f"{name:32}{value:11.1f}" + ("" if listed is None else f"{listed:14.1f}") for name, value, listed in rows]
    if lists["right_word_listed"] is not None:
        lines.append(
            f"where the completion was wrong the right word was listed {lists['right_word_listed']:.1f}% of the time, "
            f"among {lists['mean_size']:.1f}; {lists['whole']:.1f}% of the lists were all that is possible"
        )
    lines.append(
        f"{record['lines']} lines, {record['words']} words, {record['impossible_words']:.2f}% of them held impossible; "
        f"a completion took {record['milliseconds']['p50']:.0f} ms (95%: {record['milliseconds']['p95']:.0f} ms)"
    )
    return "\n".join(lines)
