"""Forced scoring: what a model thinks of a given target, and what else it would allow at each step (Fig. 2).

The support at each step is the set of tokens of non-zero probability: for sparse models a short list.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable

import torch
from torch import Tensor

from onmt_entmax.search.beam import beam_search
from onmt_entmax.search.paths import select_rows
from onmt_entmax.search.result import SearchResult
from onmt_entmax.search.scorer import Scorer, StepOutput, refuse_nan
from onmt_entmax.search.settings import SearchSettings


@dataclass
class ForcedStep:
    """One step of a forced target.

    Attributes:
        token: the forced token.
        log_prob: its log-probability given what precedes; None for a probability of zero.
        support: tokens of non-zero probability with their probabilities, most probable first, at most as many as
            asked for.
        support_size: how many there are.
        attention: source positions of non-zero weight with their weights, in order of position; None without attention.
    """

    token: int
    log_prob: float | None
    support: list[tuple[int, float]]
    support_size: int
    attention: list[tuple[int, float]] | None


@dataclass
class ForcedResult:
    """A target's score.

    Attributes:
        steps: one per token, and one for EOS where it was forced.
        log_prob: of the whole target, summed in float64; None where it is impossible.
        impossible_at: index in ``steps`` of the first token of probability zero, or None. Later steps tell what the
            model would allow nevertheless.
    """

    steps: list[ForcedStep]
    log_prob: float | None
    impossible_at: int | None


@dataclass
class PrefixCompletion:
    """What may follow a prefix.

    Attributes:
        prefix: its score, without EOS.
        next_tokens: tokens of non-zero probability after it, most probable first; EOS among them means that the
            prefix may be the whole target. Empty where the prefix is impossible.
        result: completions: whole hypotheses, the prefix included.
    """

    prefix: ForcedResult
    next_tokens: list[tuple[int, float]]
    result: SearchResult


def force(
    scorer: Scorer,
    targets: Sequence[Sequence[int]],
    start: int,
    eos: int | None,
    max_support: int | None = None,
    source_lengths: Sequence[int] | None = None,
) -> list[ForcedResult]:
    """Score one target per sentence, step by step.

    Args:
        scorer: the model and its inputs.
        targets: tokens without BOS and EOS, one list per sentence.
        start: token fed first.
        eos: token appended to each target; None to append nothing (for prefixes).
        max_support: list at most this many tokens per step; None for all.
        source_lengths: source tokens of each sentence, to leave padding out of the attention.
    """
    targets = _with_eos(targets, eos)
    steps: list[list[ForcedStep]] = [[] for _ in targets]
    with torch.no_grad():
        for step, (live, output) in enumerate(_feed(scorer, targets, list(range(len(targets))), start)):
            forced = [targets[index][step] for index in live]
            lengths = None if source_lengths is None else [source_lengths[index] for index in live]
            described = _describe(output.log_probs, forced, output.attention, lengths, max_support)
            for index, entry in zip(live, described):
                steps[index].append(entry)
    return [_result(entry) for entry in steps]


def complete_prefix(
    scorer: Scorer, prefixes: Sequence[Sequence[int]], settings: SearchSettings, max_support: int | None = None
) -> list[PrefixCompletion]:
    """The possible next tokens and the completions of one prefix per sentence (predictive translation).

    Args:
        scorer: the model and its inputs.
        prefixes: tokens without BOS, one list per sentence.
        settings: of the beam search for completions; its forced prefixes are replaced.
        max_support: list at most this many next tokens; None for all.

    Returns:
        A list of :class:`PrefixCompletion`.
    """
    # One more token is forced, whichever: the step that scores it holds what may follow.
    ahead = force(scorer, prefixes, settings.start, settings.eos, max_support, settings.source_lengths)
    results = beam_search(scorer, replace(settings, forced_prefixes=[list(prefix) for prefix in prefixes]))
    completions = []
    for forced, result in zip(ahead, results):
        prefix = _result(forced.steps[:-1])
        allowed = forced.steps[-1].support if prefix.impossible_at is None else []
        completions.append(PrefixCompletion(prefix, allowed, result))
    return completions


def attend(
    scorer: Scorer, targets: Sequence[Sequence[int]], sentences: Sequence[int], start: int, eos: int | None
) -> list[Tensor | None]:
    """The attention of given targets, several per sentence.

    Args:
        scorer: the model and its inputs.
        targets: tokens without BOS and EOS.
        sentences: the sentence of each target, ascending.
        start: token fed first.
        eos: token appended to each target, or None.

    Returns:
        One tensor ``(steps, S)`` per target; None for each without attention.
    """
    targets = _with_eos(targets, eos)
    rows: list[list[Tensor]] = [[] for _ in targets]
    with torch.no_grad():
        for live, output in _feed(scorer, targets, sentences, start):
            if output.attention is None:
                return [None] * len(targets)
            for index, weights in zip(live, output.attention):
                rows[index].append(weights)
    return [torch.stack(part) if part else None for part in rows]


class Sparsity:
    """Counts non-zeros per step (Table 3), target by target.

    Args:
        unknown: index of the token that stands for unknown ones.
    """

    def __init__(self, unknown: int) -> None:
        self.unknown = unknown
        self.lines = self.impossible_lines = self.steps = self.types = 0
        self.zeros = self.unknown_zeros = 0
        self.attended: list[int] = [0, 0]  # source words, and over how many steps

    def add(self, result: ForcedResult) -> None:
        """Count the steps of one target."""
        self.lines += 1
        self.impossible_lines += result.impossible_at is not None
        for step in result.steps:
            self.steps += 1
            self.types += step.support_size
            if step.log_prob is None:
                self.zeros += 1
                self.unknown_zeros += step.token == self.unknown
            if step.attention is not None:
                self.attended[0] += len(step.attention)
                self.attended[1] += 1

    def numbers(self) -> dict[str, float | int | None]:
        """Means over steps, EOS included: ``target_types``, ``source_words`` (None without attention), ``gold_zero``.

        ``gold_zero`` is the share of tokens of probability zero, ``gold_zero_unknown`` that of the unknown words among
        them: a model seldom gives its token for unknown words anything. All three are None where there are no steps.
        """
        steps, (words, attended) = self.steps, self.attended
        return {
            "steps": steps,
            "target_types": self.types / steps if steps else None,
            "source_words": words / attended if attended else None,
            "lines": self.lines,
            "impossible_lines": self.impossible_lines,
            "gold_zero": self.zeros / steps if steps else None,
            "gold_zero_unknown": self.unknown_zeros / steps if steps else None,
        }


def step_records(
    result: ForcedResult, lookup: Callable[[int], str], target: Sequence[str], source: Sequence[str], unknown: int
) -> list[dict[str, Any]]:
    """The steps of a forced target, ready for JSON; see ``docs/formats.md``.

    Args:
        result: of one target.
        lookup: from a token's index to its text.
        target: the target as it was given, whose words the model may not know.
        source: text of the source, for the attention.
        unknown: index of the token that stands for unknown ones.
    """
    records = []
    for index, step in enumerate(result.steps):
        attention = None
        if step.attention is not None:
            attention = [{"position": at, "token": source[at], "weight": weight} for at, weight in step.attention]
        records.append(
            {
                "token": target[index] if index < len(target) else lookup(step.token),
                "unknown": index < len(target) and step.token == unknown,
                "log_prob": step.log_prob,
                "prob": 0.0 if step.log_prob is None else math.exp(step.log_prob),
                "support": [{"token": lookup(token), "prob": prob} for token, prob in step.support],
                "support_size": step.support_size,
                "attention": attention,
            }
        )
    return records


def _with_eos(targets: Sequence[Sequence[int]], eos: int | None) -> list[list[int]]:
    return [[*target] if eos is None else [*target, eos] for target in targets]


def _feed(
    scorer: Scorer, targets: list[list[int]], sentences: Sequence[int], start: int
) -> Iterator[tuple[list[int], StepOutput]]:
    """Feed targets together; yield per step the indices of those with a token to score, and the step's output."""
    live = [index for index, target in enumerate(targets) if target]
    device = scorer.device
    states, step = scorer.start(), 0
    rows = torch.tensor([sentences[index] for index in live], dtype=torch.long, device=device)
    states = select_rows(states, rows)
    while live:
        fed = [targets[index][step - 1] if step else start for index in live]
        rows = torch.tensor([sentences[index] for index in live], device=device)
        output = scorer.step(torch.tensor(fed, device=device), states, rows)
        yield live, output
        step += 1
        longer = [row for row, index in enumerate(live) if len(targets[index]) > step]
        states = output.states
        if len(longer) < len(live):
            states = select_rows(states, torch.tensor(longer, dtype=torch.long, device=device))
            live = [live[row] for row in longer]


def _describe(
    log_probs: Tensor,
    forced: Sequence[int],
    attention: Tensor | None,
    source_lengths: Sequence[int] | None,
    max_support: int | None,
) -> list[ForcedStep]:
    """Describe rows ``(R, V)``, each with its forced token."""
    if not len(forced):
        return []
    sizes = log_probs.isneginf().logical_not().sum(-1)
    most = int(sizes.max()) if max_support is None else min(max_support, int(sizes.max()))
    values, indices = log_probs.topk(most, dim=-1)
    refuse_nan(values[:, :1])
    picked = log_probs.gather(1, torch.tensor(forced, device=log_probs.device).unsqueeze(1)).squeeze(1)
    values, picked = values.double().clamp(max=0.0), picked.double().clamp(max=0.0)
    rows = zip(forced, picked.tolist(), values.exp().tolist(), indices.tolist(), sizes.tolist())
    weights = attention.tolist() if attention is not None else None
    steps = []
    for row, (token, log_prob, probs, tokens, size) in enumerate(rows):
        attended = None
        if weights is not None:
            length = None if source_lengths is None else source_lengths[row]
            attended = [(position, weight) for position, weight in enumerate(weights[row][:length]) if weight > 0]
        support = list(zip(tokens, probs))[:size]
        steps.append(ForcedStep(token, None if log_prob == -math.inf else log_prob, support, size, attended))
    return steps


def _result(steps: list[ForcedStep]) -> ForcedResult:
    impossible = next((index for index, step in enumerate(steps) if step.log_prob is None), None)
    log_prob = None if impossible is not None else sum((step.log_prob or 0.0 for step in steps), 0.0)
    return ForcedResult(steps, log_prob, impossible)
