"""What a search obeys besides the model: constraints that forbid tokens, penalties that change the ranking.

A constraint sets a log-probability to -inf, so that nothing forbidden can outrank a zero. Penalties have OpenNMT-py's
formulae (after Wu et al. 2016), defined for zeros too. Dimension letters: see ``scorer.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from onmt_entmax.search.settings import SearchSettings


class Constraints:
    """The rules of a search over ``batch_size`` sentences.

    Attributes:
        active: whether there is any rule.
        needs_prefixes: whether :meth:`apply` needs the tokens of each prefix.
        forced: the forced prefix of each sentence.
    """

    def __init__(self, settings: SearchSettings, batch_size: int) -> None:
        self.forced = settings.prefixes(batch_size)
        self.needs_prefixes = settings.block_ngram_repeat > 0
        self._settings = settings
        self._longest_forced = max((len(prefix) for prefix in self.forced), default=0)
        self.active = bool(
            settings.banned or settings.min_length or settings.block_ngram_repeat or self._longest_forced
        )

    def apply(
        self,
        log_probs: Tensor,
        lengths: Sequence[int],
        sentences: Sequence[int],
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> Tensor:
        """Forbid tokens; a forced prefix precedes the other rules.

        Args:
            log_probs: ``(R, V)``; not changed.
            lengths: number of tokens of each row's prefix so far.
            sentences: the sentence of each row.
            prefixes: the tokens so far of each row, where ``needs_prefixes``.

        Returns:
            ``(R, V)``, with ``-inf`` where forbidden.
        """
        if not self.active:
            return log_probs
        settings, forced = self._settings, self.forced
        allowed = log_probs.clone()
        if settings.banned:
            allowed[:, list(settings.banned)] = -math.inf
        if settings.min_length:
            early = [
                row
                for row, (length, sentence) in enumerate(zip(lengths, sentences))
                if length < settings.min_length + len(forced[sentence])
            ]
            if early:
                allowed[early, settings.eos] = -math.inf
        if self.needs_prefixes:
            size, exclusion = settings.block_ngram_repeat, settings.exclusion_tokens
            pairs = [
                (row, token)
                for row, prefix in enumerate(prefixes or ())
                for token in repeating_tokens(prefix, size, exclusion)
            ]
            if pairs:
                allowed[[row for row, _ in pairs], [token for _, token in pairs]] = -math.inf
        if self._longest_forced:
            pairs = [
                (row, forced[sentence][length])
                for row, (length, sentence) in enumerate(zip(lengths, sentences))
                if length < len(forced[sentence])
            ]
            if pairs:
                rows, tokens = [row for row, _ in pairs], [token for _, token in pairs]
                allowed[rows] = -math.inf
                allowed[rows, tokens] = log_probs[rows, tokens]
        return allowed


def repeating_tokens(prefix: Sequence[int], size: int, exclusion: frozenset[int]) -> set[int]:
    """The tokens that would complete an n-gram that the prefix already contains.

    Args:
        prefix: tokens so far.
        size: n.
        exclusion: n-grams with one of these may repeat.
    """
    prefix = tuple(prefix)
    tail = prefix[len(prefix) - size + 1 :]
    if len(prefix) < size or not exclusion.isdisjoint(tail):
        return set()
    last = size - 1
    return {
        prefix[start + last]
        for start in range(len(prefix) - last)
        if prefix[start : start + last] == tail and prefix[start + last] not in exclusion
    }


def length_divisor(settings: SearchSettings, tokens: int) -> float:
    """What the log-probability of a hypothesis is divided by.

    Args:
        settings: with ``length_penalty`` and ``length_penalty_weight``.
        tokens: of the hypothesis, EOS included. As in OpenNMT-py, BOS counts as one more.
    """
    if not settings.has_length:
        return 1.0
    length = (6 + tokens) / 6 if settings.length_penalty == "wu" else tokens + 1.0
    return math.pow(length, settings.length_penalty_weight)


def coverage_penalty(settings: SearchSettings, coverage: Tensor, source_lengths: Sequence[int] | None) -> Tensor:
    """What is subtracted from the score of each row.

    For ``wu``, a source token that nothing attends to would give an infinite penalty, and all hypotheses would tie.
    Its coverage counts as the smallest normal float32 instead (a penalty of 87 times the weight each), so that
    hypotheses are ranked by how many tokens they leave out. Padding does not count.

    Args:
        settings: with ``coverage_penalty`` and ``coverage_penalty_weight``.
        coverage: attention summed over steps, ``(R, S)``.
        source_lengths: of each row; only for ``wu``.

    Returns:
        float64, ``(R,)``.
    """
    coverage = coverage.double()
    if settings.coverage_penalty == "summary":
        return settings.coverage_penalty_weight * (coverage.clamp(min=1.0) - 1.0).sum(-1)
    logs = coverage.clamp(min=torch.finfo(torch.float32).tiny, max=1.0).log()
    positions = torch.arange(coverage.size(-1), device=coverage.device)
    lengths = torch.tensor(source_lengths, device=coverage.device)
    return -settings.coverage_penalty_weight * logs.masked_fill(positions >= lengths.unsqueeze(-1), 0.0).sum(-1)
