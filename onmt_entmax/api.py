"""Trained models from Python: translate with certificates, score given targets, complete prefixes.

    model = onmt_entmax.load("best.pt")
    model.translate(["SOURCE TOKENS"])[0].text

Lines are strings whose tokens are separated by blanks (U+0020; a line end is left out, so that an open file can be
given), or lists of tokens; the text must be prepared as the training text was. Results come line for line; a blank
line gives a blank result. Mistakes are :class:`~onmt_entmax.errors.UserError`. The commands ``force``, ``trace`` and
``sparsity`` print what is found here.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Union

import onmt_entmax
from onmt_entmax.errors import UserError, check_whole, choices, invalid_setting
from onmt_entmax.files import split_tokens
from onmt_entmax.search.beam import beam_search
from onmt_entmax.search.exact import MAX_EXPANSIONS, exact_search
from onmt_entmax.search.forced import ForcedResult, Sparsity, complete_prefix, force, step_records
from onmt_entmax.search.mbr import UTILITIES, check_decision, decide
from onmt_entmax.search.result import SearchResult, attention_rows, certificate_record, tree_records, void_record
from onmt_entmax.search.settings import SearchSettings

if TYPE_CHECKING:
    from onmt_entmax.plugin.models import Text

Line = Union[str, Sequence[str]]
SEARCHES = ("beam", "exact")

_logger = logging.getLogger("onmt_entmax")


@dataclass
class Hypothesis:
    """One string that a search found.

    Attributes:
        tokens: without ``<s>`` and ``</s>``.
        log_prob: natural logarithm of its probability, ``</s>`` included where finished.
        prob: the probability.
        finished: whether it ended with ``</s>``.
        score: what it is ranked by: ``log_prob``, after a penalty where one was asked for; with ``mbr`` the expected
            utility.
        attention: where asked for, a row per token (and one for ``</s>``), a column per source token.
    """

    tokens: list[str]
    log_prob: float
    prob: float
    finished: bool
    score: float
    attention: list[list[float]] | None = field(default=None, repr=False)

    @property
    def text(self) -> str:
        """The tokens, separated by blanks."""
        return " ".join(self.tokens)


@dataclass
class Translation:
    """What was found for one line.

    Attributes:
        line: its number, from 1.
        source: its tokens.
        hypotheses: best first, at most ``n_best`` (fewer where no more exist); none for a blank line.
        certificate: the object of ``docs/formats.md``, or None where not asked for.
        unknown: source tokens that the model does not know.
        tree: where asked for, every prefix that the search saw, as ``docs/formats.md`` describes.
    """

    line: int
    source: list[str]
    hypotheses: list[Hypothesis]
    certificate: dict[str, Any] | None = field(default=None, repr=False)
    unknown: list[str] = field(default_factory=list)
    tree: list[dict[str, Any]] | None = field(default=None, repr=False)

    @property
    def tokens(self) -> list[str]:
        """Tokens of the best hypothesis."""
        return self.hypotheses[0].tokens if self.hypotheses else []

    @property
    def text(self) -> str:
        """The best hypothesis, its tokens separated by blanks."""
        return " ".join(self.tokens)

    @property
    def log_prob(self) -> float | None:
        """Log-probability of the best hypothesis; None for a blank line."""
        return self.hypotheses[0].log_prob if self.hypotheses else None

    @property
    def prob(self) -> float | None:
        """Probability of the best hypothesis; None for a blank line."""
        return self.hypotheses[0].prob if self.hypotheses else None


@dataclass
class Completion(Translation):
    """What may follow a prefix; hypotheses include it, and the certificate is conditional on it.

    Attributes:
        prefix: its tokens as they were given.
        prefix_impossible_at: index of its first token of probability zero, or None.
        next_tokens: what may follow, with its probability, most probable first; ``</s>`` among them means that the
            prefix may be the whole target. Empty where the prefix is impossible.
    """

    prefix: list[str] = field(default_factory=list)
    prefix_impossible_at: int | None = None
    next_tokens: list[tuple[str, float]] = field(default_factory=list)


@dataclass
class Forced:
    """A given target's score.

    Attributes:
        line: its number, from 1.
        source: tokens of the source.
        tokens: of the target, as they were given.
        unknown: source and target tokens that the model does not know.
        log_prob: of the whole target, ``</s>`` included; None where it is impossible, or where the source is blank.
        impossible_at: index in ``steps`` of the first token of probability zero, or None.
        steps: what the model allows at each step; the objects of ``docs/formats.md``. Empty for a blank source.
    """

    line: int
    source: list[str]
    tokens: list[str]
    unknown: list[str] = field(default_factory=list)
    log_prob: float | None = None
    impossible_at: int | None = None
    steps: list[dict[str, Any]] = field(default_factory=list, repr=False)

    @property
    def text(self) -> str:
        """The target, its tokens separated by blanks."""
        return " ".join(self.tokens)

    @property
    def prob(self) -> float | None:
        """Probability of the target, 0 where impossible; None for a blank source."""
        return math.exp(self.log_prob) if self.log_prob is not None else 0.0 if self.steps else None


class Model:
    """A checkpoint, or an ensemble of several, on one device; see :func:`onmt_entmax.load`."""

    def __init__(
        self, paths: Sequence[str | os.PathLike[str]], gpu: int, log: Callable[[str], None] | None, progress: bool
    ) -> None:
        onmt_entmax.register()
        from onmt_entmax.plugin.models import Models
        from onmt_entmax.plugin.options import check_gpu

        if not paths:
            raise UserError("`load` needs a checkpoint, or several for an ensemble.")
        for path in paths:
            if not isinstance(path, (str, os.PathLike)):
                raise UserError(f"`load` takes paths of checkpoints, one by one; {path!r} is none.")
        check_whole(gpu=gpu)
        if gpu >= 0:
            check_gpu("gpu", gpu)
        self.paths = [os.fspath(path) for path in paths]
        self._models = Models(self.paths, gpu)
        self._log, self._progress = log, progress

    @property
    def alphas(self) -> str:
        """Alphas of output and attention, e.g. ``1.5/1.5``; members of an ensemble joined by ``+``."""
        return self._models.alphas

    def translate(
        self,
        lines: Iterable[Line],
        beam_size: int = 5,
        n_best: int = 1,
        certificates: bool = True,
        search: str = "beam",
        max_length: int = 250,
        min_length: int = 0,
        length_penalty: str = "none",
        length_penalty_weight: float = 1.0,
        max_expansions: int = MAX_EXPANSIONS,
        whole_support: bool = False,
        attention: bool = False,
        tree: bool = False,
        batch_size: int = 64,
        decision: str = "map",
        mbr_utility: str = "chrf",
    ) -> list[Translation]:
        """Search for the most probable outputs.

        Args:
            lines: the sources.
            beam_size: prefixes kept per line and step.
            n_best: hypotheses wanted per line, at most ``beam_size``.
            certificates: say of each line whether its hypotheses are provably the best, and all there are. A length
                penalty or ``min_length`` voids them, with the reason.
            search: ``beam`` or ``exact``.
            max_length: most tokens of a hypothesis, ``</s>`` included.
            min_length: fewest tokens.
            length_penalty: ``none``, ``avg`` or ``wu``; unlike in ``onmt_translate`` the default is ``none``.
            length_penalty_weight: its exponent (``-alpha`` of ``onmt_translate``).
            max_expansions: most prefixes that exact search expands per line.
            whole_support: exact search: list every output of non-zero probability.
            attention: fill in ``Hypothesis.attention``.
            tree: fill in ``Translation.tree`` (beam search only).
            batch_size: lines at a time; up to rounding, results do not depend on it.
            decision: ``map``, the most probable hypothesis first, or ``mbr``, minimum Bayes risk: of those found, the
                one of the highest expected utility first.
            mbr_utility: for ``mbr``: ``chrf`` or ``edit``, see ``docs/search.md``.

        Returns:
            One :class:`Translation` per line, in order.

        Raises:
            UserError: a setting that is not valid, or that the search cannot honour.
        """
        if search not in SEARCHES:
            raise invalid_setting("search", search, choices(SEARCHES))
        check_whole(
            beam_size=beam_size,
            n_best=n_best,
            max_length=max_length,
            min_length=min_length,
            max_expansions=max_expansions,
            batch_size=batch_size,
        )
        exact = search == "exact"
        for name, value, default, works, wanted in (
            ("whole_support", whole_support, False, exact, "`search` exact"),
            ("max_expansions", max_expansions, MAX_EXPANSIONS, exact, "`search` exact"),
            ("tree", tree, False, not exact, "`search` beam"),
            ("mbr_utility", mbr_utility, UTILITIES[0], decision == "mbr", "`decision` mbr"),
            ("length_penalty_weight", length_penalty_weight, 1.0, length_penalty != "none", "a `length_penalty`"),
        ):
            if value != default and not works:
                raise invalid_setting(name, value, f"It is for {wanted}.")
        if min_length > max_length:
            raise invalid_setting("min_length", min_length, f"It must be at most `max_length`, {max_length}.")
        check_decision(decision, mbr_utility, beam_size, length_penalty)
        given = {
            "n_best": n_best,
            "certificates": certificates,
            "min_length": min_length,
            "length_penalty": length_penalty,
            "length_penalty_weight": length_penalty_weight,
            "return_attention": attention,
            "return_tree": tree,
        }
        settings = self._settings(beam_size, max_length, given)
        minimises_risk = decision == "mbr"
        if minimises_risk:
            settings = replace(settings, n_best=beam_size, return_all=True)
        text = self._text(lines)
        found = [
            Translation(line, source, [], void_record(line) if certificates else None, unknown, [] if tree else None)
            for line, (source, unknown) in enumerate(zip(text.sources, text.unknown), 1)
        ]
        for places, scorer in text.batches(batch_size, self._progress, any_order=exact):
            if exact:
                results = exact_search(scorer, settings, max_expansions, whole_support)
            else:
                results = beam_search(scorer, settings)
            for place, result in zip(places, results):
                if minimises_risk:
                    most = None if whole_support else n_best
                    result = decide(result, self._models.token, mbr_utility, most)
                self._fill(found[place], result, certificates)
        return found

    def force(
        self, sources: Iterable[Line], targets: Iterable[Line], max_support: int = 50, batch_size: int = 64
    ) -> list[Forced]:
        """Score given targets, and say what else the model would allow at each step.

        Args:
            sources: the sources.
            targets: one for each; a blank one is ``</s>`` alone.
            max_support: most tokens listed per step.
            batch_size: lines at a time.

        Returns:
            One :class:`Forced` per line, in order.

        Raises:
            UserError: another number of targets than of sources, or ``max_support`` below 1.
        """
        check_whole(max_support=max_support, batch_size=batch_size)
        if max_support < 1:
            raise invalid_setting("max_support", max_support, "It must be at least 1.")
        models, text = self._models, self._text(sources, targets)
        found = [Forced(line, *given) for line, given in enumerate(zip(text.sources, text.targets, text.unknown), 1)]
        for places, results in self._forced(text, batch_size, max_support):
            for place, result in zip(places, results):
                one = found[place]
                one.log_prob, one.impossible_at = result.log_prob, result.impossible_at
                one.steps = step_records(result, models.token, one.tokens, one.source, models.unknown)
        return found

    def complete(
        self,
        sources: Iterable[Line],
        prefix: Line,
        beam_size: int = 5,
        max_length: int = 250,
        max_support: int = 50,
        batch_size: int = 64,
    ) -> list[Completion]:
        """The possible next tokens and the most probable completions of a prefix (predictive translation).

        Args:
            sources: the sources.
            prefix: of every line's output.
            beam_size: completions per line.
            max_length: most tokens after the prefix, ``</s>`` included.
            max_support: most next tokens listed.
            batch_size: lines at a time.

        Returns:
            One :class:`Completion` per line, in order.

        Raises:
            UserError: a setting that is not valid, or a prefix with ``</s>`` in it.
        """
        check_whole(beam_size=beam_size, max_length=max_length, max_support=max_support, batch_size=batch_size)
        if max_support < 1:
            raise invalid_setting("max_support", max_support, "It must be at least 1.")
        models, given = self._models, _tokens("prefix", prefix)
        if models.eos in models.target_ids(given):
            raise invalid_setting("prefix", " ".join(given), "It must not contain the end of the output.")
        settings = self._settings(beam_size, max_length, {"n_best": beam_size, "certificates": True})
        text = self._text(sources, prefix=given)
        found = [
            Completion(line, source, [], void_record(line), unknown, None, given)
            for line, (source, unknown) in enumerate(zip(text.sources, text.unknown), 1)
        ]
        for places, scorer in text.batches(batch_size, self._progress):
            prefixes = [text.target_ids[place] for place in places]
            completions = complete_prefix(scorer, prefixes, settings, max_support)
            for place, completion in zip(places, completions):
                one = found[place]
                self._fill(one, completion.result, True, given)
                one.prefix_impossible_at = completion.prefix.impossible_at
                one.next_tokens = [(models.token(token), prob) for token, prob in completion.next_tokens]
        return found

    def sparsity(
        self, sources: Iterable[Line], targets: Iterable[Line], batch_size: int = 64
    ) -> dict[str, float | int | None]:
        """Mean numbers of non-zeros per target token, ``</s>`` included (Table 3); see ``docs/formats.md``.

        Lines whose source is blank do not count.
        """
        counts = Sparsity(self._models.unknown)
        for _, results in self._forced(self._text(sources, targets), batch_size, 1):
            for result in results:
                counts.add(result)
        return counts.numbers()

    def heads(self, sources: Iterable[Line], targets: Iterable[Line], batch_size: int = 64) -> list[dict[str, Any]]:
        """What each head of a Transformer looks at while it is forced to the targets; see ``docs/formats.md``.

        Raises:
            UserError: an ensemble, a model without heads, or blank sources only.
        """
        from onmt_entmax.plugin.head_measures import measure_heads

        return measure_heads(self._models, self._text(sources, targets), batch_size, self._progress)

    def head_weights(
        self,
        sources: Iterable[Line],
        targets: Iterable[Line],
        attention: str = "context_attention",
        layer: int | None = None,
        head: int = 1,
        batch_size: int = 64,
    ) -> list[dict[str, Any]]:
        """The weights that one head of a Transformer gives while it is forced to the targets; see ``docs/formats.md``.

        Args:
            attention: ``encoder_self_attention``, ``decoder_self_attention`` or ``context_attention``.
            layer: from 1; None: the last.
            head: from 1.

        Raises:
            UserError: as :meth:`heads`; no such attention, layer or head.
        """
        from onmt_entmax.plugin.head_measures import head_weights

        return head_weights(self._models, self._text(sources, targets), attention, layer, head, batch_size)

    def _settings(self, beam_size: int, max_length: int, more: dict[str, Any]) -> SearchSettings:
        models = self._models
        return SearchSettings(models.start, models.eos, beam_size=beam_size, max_length=max_length, **more)

    def _text(
        self, sources: Iterable[Line], targets: Iterable[Line] | None = None, prefix: list[str] | None = None
    ) -> Text:
        """Read a call's text (a prefix is every line's target), and say how much of it is unknown."""
        from onmt_entmax.plugin.models import Text

        text = Text(self._models, _lines("sources", sources))
        if prefix is not None:
            text.add_targets([prefix] * len(text.sources))
        elif targets is not None:
            text.add_targets(_lines("targets", targets))
        if self._log is not None and str(text.counts):
            self._log(str(text.counts))
        elif text.counts.too_many:
            _logger.warning("%s", text.counts)
        return text

    def _forced(self, text: Text, batch_size: int, max_support: int) -> Iterator[tuple[list[int], list[ForcedResult]]]:
        """Force the targets, batch by batch: places of the lines, and their results."""
        models = self._models
        for places, scorer in text.batches(batch_size, self._progress):
            ids = [text.target_ids[place] for place in places]
            yield places, force(scorer, ids, models.start, models.eos, max_support, text.lengths(places))

    def _fill(self, one: Translation, result: SearchResult, certificates: bool, prefix: Sequence[str] = ()) -> None:
        """Write a search's result into the line's."""
        record = certificate_record(result, one.line, self._models.token, prefix)
        for entry, hypothesis in zip(record["hypotheses"], result.hypotheses):
            attention = attention_rows(hypothesis, len(one.source))
            known = {key: entry[key] for key in ("tokens", "log_prob", "prob", "finished")}
            one.hypotheses.append(Hypothesis(**known, score=hypothesis.score, attention=attention))
        if certificates:
            one.certificate = record
        if result.tree is not None:
            one.tree = tree_records(result.tree, self._models.token)


def _tokens(name: str, line: Line) -> list[str]:
    """Tokens of a line; empty ones never exist. A string's line end, as open files give it, is none of them."""
    if isinstance(line, str):
        return split_tokens(line[:-1].removesuffix("\r") if line.endswith("\n") else line)
    tokens = None if isinstance(line, (bytes, bytearray)) or not isinstance(line, Iterable) else list(line)
    if tokens is None or not all(isinstance(token, str) for token in tokens):
        raise invalid_setting(name, repr(line), "A line is a string, or a list of its tokens.")
    return [token for token in tokens if token]


def _lines(name: str, lines: Iterable[Line]) -> list[list[str]]:
    if isinstance(lines, (str, bytes)) or not isinstance(lines, Iterable):
        raise invalid_setting(name, repr(lines), "It must be a list of lines; put a single line into a list.")
    return [_tokens(name, line) for line in lines]
