"""The settings of a search, checked once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TypeVar

from onmt_entmax.errors import choices, invalid_setting

_T = TypeVar("_T")
LENGTH_PENALTIES = ("none", "wu", "avg")
COVERAGE_PENALTIES = ("none", "wu", "summary")
_NEUTRAL = {"length_penalty": "none", "coverage_penalty": "none", "ratio": 0}  # nothing but probabilities counts


@dataclass(frozen=True)
class SearchSettings:
    """Settings of beam search, exact search and sampling. Lengths count tokens as OpenNMT-py counts them.

    Attributes:
        start: token fed first (BOS).
        eos: token that finishes a hypothesis.
        beam_size: prefixes kept per sentence and step; for sampling, the number of samples.
        n_best: hypotheses returned per sentence, at most ``beam_size``.
        max_length: most tokens of a hypothesis, EOS included and a forced prefix not; one number, or one per sentence.
        min_length: fewest tokens, neither EOS nor a forced prefix included.
        banned: tokens that no hypothesis may contain (``ban_unk_token``).
        block_ngram_repeat: no n-gram of this size twice; 0 for no such rule. 1 works too (OpenNMT-py ignores it).
        exclusion_tokens: n-grams with one of these may repeat.
        forced_prefixes: one list of tokens per sentence, without BOS and EOS. It precedes every other rule.
        length_penalty: ``none``, ``wu`` or ``avg``.
        length_penalty_weight: its exponent (OpenNMT-py's ``alpha``).
        coverage_penalty: ``none``, ``wu`` or ``summary``.
        coverage_penalty_weight: its factor (OpenNMT-py's ``beta``).
        stepwise_penalty: apply the coverage penalty in every step, not at the end only.
        ratio: OpenNMT-py's stopping rule by length ratio (needs ``source_lengths``); 0 for none.
        source_lengths: number of source tokens of each sentence; needed by ``ratio`` and by coverage ``wu``.
        certificates: go on where a little more search may prove completeness.
        max_rows: most prefixes that go through the model at once (more take turns); None for no such bound. Needs a
            scorer whose states are all in the ``States`` that it returns.
        return_attention: fill in ``Hypothesis.attention``.
        return_tree: fill in ``SearchResult.tree`` (slow; for pictures of single inputs).
        return_all: return every finished hypothesis that was found, not ``n_best`` of them.
    """

    start: int
    eos: int
    beam_size: int = 5
    n_best: int = 1
    max_length: int | Sequence[int] = 250
    min_length: int = 0
    banned: Sequence[int] = ()
    block_ngram_repeat: int = 0
    exclusion_tokens: frozenset[int] = frozenset()
    forced_prefixes: Sequence[Sequence[int]] | None = None
    length_penalty: str = "none"
    length_penalty_weight: float = 1.0
    coverage_penalty: str = "none"
    coverage_penalty_weight: float = 0.0
    stepwise_penalty: bool = False
    ratio: float = 0.0
    source_lengths: Sequence[int] | None = None
    certificates: bool = False
    max_rows: int | None = None
    return_attention: bool = False
    return_tree: bool = False
    return_all: bool = False

    def __post_init__(self) -> None:
        if self.beam_size < 1:
            raise invalid_setting("beam_size", self.beam_size, "It must be at least 1.")
        if self.n_best < 1:
            raise invalid_setting("n_best", self.n_best, "It must be at least 1.")
        if self.n_best > self.beam_size:
            raise invalid_setting("n_best", self.n_best, f"It must be at most `beam_size`, which is {self.beam_size}.")
        lengths = self.max_length if isinstance(self.max_length, Sequence) else [self.max_length]
        if any(length < 1 for length in lengths):
            raise invalid_setting("max_length", min(lengths), "It must be at least 1 (EOS counts).")
        if self.min_length < 0:
            raise invalid_setting("min_length", self.min_length, "It must be at least 0.")
        if self.max_rows is not None and self.max_rows < 1:
            raise ValueError(f"`max_rows` is {self.max_rows}; it must be at least 1, or None.")
        if self.block_ngram_repeat < 0:
            raise invalid_setting("block_ngram_repeat", self.block_ngram_repeat, "It must be at least 0.")
        if self.eos in self.banned:
            raise invalid_setting("banned", self.eos, "EOS cannot be banned: nothing would finish.")
        if self.length_penalty not in LENGTH_PENALTIES:
            raise invalid_setting("length_penalty", self.length_penalty, choices(LENGTH_PENALTIES))
        for name in ("length_penalty_weight", "coverage_penalty_weight"):
            value = getattr(self, name)
            if not isinstance(value, Real) or not math.isfinite(value):
                raise invalid_setting(name, repr(value), "It must be a finite number.")
        if self.coverage_penalty not in COVERAGE_PENALTIES:
            raise invalid_setting("coverage_penalty", self.coverage_penalty, choices(COVERAGE_PENALTIES))
        if self.source_lengths is None and (self.ratio > 0 or (self.has_coverage and self.coverage_penalty == "wu")):
            raise ValueError("`source_lengths` is needed for `ratio` and for coverage penalty `wu`.")
        for prefix in self.forced_prefixes or ():
            if self.eos in prefix:
                raise invalid_setting("forced_prefixes", list(prefix), "A prefix must not contain EOS.")

    @property
    def has_length(self) -> bool:
        """Whether a length penalty changes any score."""
        return self.length_penalty != "none" and self.length_penalty_weight != 0

    @property
    def has_coverage(self) -> bool:
        """Whether a coverage penalty changes any score."""
        return self.coverage_penalty != "none" and self.coverage_penalty_weight != 0

    def prefixes(self, batch_size: int) -> list[list[int]]:
        """The forced prefix of each sentence (empty lists where nothing is forced)."""
        if self.forced_prefixes is None:
            return [[] for _ in range(batch_size)]
        return [list(prefix) for prefix in _per_sentence("forced_prefixes", self.forced_prefixes, batch_size)]

    def limits(self, batch_size: int) -> list[int]:
        """The most tokens of a hypothesis of each sentence, EOS and forced prefix included."""
        if isinstance(self.max_length, Sequence):
            lengths = list(_per_sentence("max_length", self.max_length, batch_size))
        else:
            lengths = [self.max_length] * batch_size
        if self.forced_prefixes is None:
            return lengths
        return [length + len(prefix) for length, prefix in zip(lengths, self.forced_prefixes)]


def check_neutral(what: str, **values: str | float) -> None:
    """Refuse settings by which a search goes by more than probabilities, for ``what`` goes by these alone.

    Args:
        what: the setting that has no other meaning, e.g. "`search` exact".
        values: of ``length_penalty``, ``coverage_penalty`` and ``ratio``.

    Raises:
        UserError: naming the first that is not neutral.
    """
    for name, value in values.items():
        if value != _NEUTRAL[name]:
            raise invalid_setting(name, value, f"{what} needs {_NEUTRAL[name]}: it goes by probability alone.")


def _per_sentence(name: str, values: Sequence[_T], batch_size: int) -> Sequence[_T]:
    if len(values) != batch_size:
        raise ValueError(f"`{name}` has {len(values)} entries for {batch_size} sentences.")
    return values
