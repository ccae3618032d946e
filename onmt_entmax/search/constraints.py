"""Rules that forbid tokens, by setting their log-probability to -inf: nothing forbidden can outrank a zero."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
            log_probs: ``(rows, vocab_size)``; not changed.
            lengths: number of tokens of each row's prefix so far.
            sentences: the sentence of each row.
            prefixes: the tokens so far of each row, where ``needs_prefixes``.

        Returns:
            ``(rows, vocab_size)``, with ``-inf`` where forbidden.
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
                for row, prefix in enumerate(prefixes)
                for token in repeating_tokens(prefix, size, exclusion)
            ]
            if pairs:
                rows, tokens = zip(*pairs)
                allowed[list(rows), list(tokens)] = -math.inf
        if self._longest_forced:
            pairs = [
                (row, forced[sentence][length])
                for row, (length, sentence) in enumerate(zip(lengths, sentences))
                if length < len(forced[sentence])
            ]
            if pairs:
                rows, tokens = (list(part) for part in zip(*pairs))
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
