"""Beam search over the non-zero part of a distribution.

Candidates are ranked as in OpenNMT-py: in each step the best ``beam_size`` of all continuations, those that finish
included. What differs:

- A continuation of probability zero is no candidate. Only live prefixes have rows, so a sentence may have fewer than
  ``beam_size`` of them, and may return fewer than ``n_best`` hypotheses.
- Without penalties, a live prefix that is no more probable than the ``n_best``-th finished hypothesis is dropped, as
  nothing that it leads to can enter the list; a sentence ends when no live prefix is left. The best hypothesis is the
  one OpenNMT-py finds, whatever ``n_best``; the others are at least as probable as OpenNMT-py's, which stops at the
  first step whose best candidate finishes. Lists for smaller ``n_best`` are heads of those for greater ones.
- With a length or coverage penalty or ``ratio``, the best hypothesis is the one OpenNMT-py finds with ``n_best = 1``,
  whatever ``n_best``. OpenNMT-py searches on for more hypotheses, and its best may then be another. Here those found
  later follow the others, whatever their score: the list consists of stages, each of which ends with a step whose best
  candidate finishes, and is in order of score within a stage. A stage ends early where no live prefix can enter the
  list any more. Lists for smaller ``n_best`` are heads of those for greater ones here too.
- Each path of a batch keeps its own n-grams (OpenNMT-py mixes them up when sentences leave the batch).
- A prefix cut by the length limit is no hypothesis. Only where nothing finishes, the best prefix (cut, or left
  without any permitted continuation) is returned with ``finished=False``; it may be empty, but never has
  probability zero.
- With ``certificates``, a sentence of which nothing has been dropped yet goes on past the point where its list is
  settled, as long as its finished and live prefixes fit in the beam and for at most ``OVERRUN`` times as many steps,
  because the search may then prove that it has seen the whole distribution.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from onmt_entmax.entmax.engine import with_host_copy
from onmt_entmax.search.candidates import merge
from onmt_entmax.search.paths import (
    TREE_WIDTH,
    Found,
    Path,
    Paths,
    SentenceState,
    TreeRecorder,
    distinct_parents,
    join_outputs,
    rows_to_continue,
    select_rows,
)
from onmt_entmax.search.result import Hypothesis, SearchResult, certify
from onmt_entmax.search.rules import Constraints, coverage_penalty, length_divisor
from onmt_entmax.search.scorer import Scorer, States, StepOutput
from onmt_entmax.search.settings import SearchSettings

# Bounds the cost of completeness: a prefix that never ends must not hold up its batch up to the length limit.
OVERRUN = 2.0
# Share of the sentences left at which the scorer may drop the others: it costs about as much as a step's reading them.
DROP_AT = 0.75

Live = list[tuple[float, int, int]]  # prefixes that go on: log-probability, row that they continue, last token


def beam_search(scorer: Scorer, settings: SearchSettings) -> list[SearchResult]:
    """Search every sentence of the scorer's batch.

    Args:
        scorer: the model and its inputs.
        settings: see :class:`SearchSettings`.

    Returns:
        One result per sentence, in order.

    Raises:
        ValueError: a per-sentence setting with the wrong number of entries, or a coverage penalty without attention.
    """
    with torch.no_grad():
        return Beam(scorer, settings).run()


class Beam:
    """One run over a batch; :attr:`sentences` keeps the accounts for exact search."""

    def __init__(self, scorer: Scorer, settings: SearchSettings) -> None:
        batch = scorer.batch_size
        self.scorer = scorer
        self.settings = settings
        self.constraints = Constraints(settings, batch)
        self.sentences = [SentenceState(limit) for limit in settings.limits(batch)]
        self.prunes = not (settings.has_length or settings.has_coverage or settings.ratio > 0)
        self.tree = TreeRecorder(batch, settings.start) if settings.return_tree else None
        self.paths = Paths(batch, settings.start)
        self.divisors = (1.0, 1.0)  # of the hypotheses that finish in this step and in the next

    def run(self) -> list[SearchResult]:
        """Search, and assemble the results."""
        self.search()
        return [self._result(index) for index in range(len(self.sentences))]

    def search(self) -> None:
        """Search until every sentence has ended."""
        scorer, settings = self.scorer, self.settings
        device, batch, beam = scorer.device, scorer.batch_size, settings.beam_size
        active, counts = list(range(batch)), [1] * batch  # sentences with rows, and how many
        row_sentences = list(range(batch))
        prefixes: list[tuple[int, ...]] | None = [()] * batch if self.constraints.needs_prefixes else None
        tokens = torch.full((batch,), settings.start, dtype=torch.long, device=device)
        sentences = torch.arange(batch, device=device)
        totals = torch.zeros(batch, dtype=torch.float64, device=device)
        states: States = scorer.start()
        shared: Tensor | None = None
        per_row = min(scorer.vocab_size, max(beam + 1, TREE_WIDTH) if settings.return_tree else beam + 1)
        coverage: Tensor | None = None
        penalty: Tensor | None = None
        step, in_memory = 0, batch
        while active:
            step += 1
            self.divisors = (length_divisor(settings, step), length_divisor(settings, step + 1))
            output = self._continuations(step, per_row, tokens, states, sentences, shared, row_sentences, prefixes)
            if settings.return_attention:
                self.paths.attend(output.attention)
            indices = output.tokens  # (R, per_row)
            assert indices is not None
            # An entmax or softmax that rounds above 1 must not make a prefix less probable than its continuation.
            scores = output.log_probs.double().clamp_(max=0.0).add_(totals.unsqueeze(1))
            if self.tree is not None:
                self.tree.expand(row_sentences, scores, indices)
            if settings.has_coverage:
                coverage, penalty = self._cover(coverage, output.attention, row_sentences, step)
            stepwise = penalty if settings.stepwise_penalty else None
            candidates = merge(scores, indices, stepwise, counts, beam + 1, settings.eos)
            penalties = penalty.tolist() if penalty is not None and not settings.stepwise_penalty else None
            parents: list[int] = []
            new_tokens: list[int] = []
            new_totals: list[float] = []
            new_sentences: list[int] = []
            next_active, next_counts = [], []
            first = 0  # row of the sentence's best live prefix
            for place, (index, count) in enumerate(zip(active, counts)):
                sentence, size = self.sentences[index], candidates.sizes[place]
                logs, rows, picks = candidates.logs[place], candidates.rows[place], candidates.tokens[place]
                if self._goes_on(sentence, step, size, candidates.finish[place]):  # most sentences in most steps
                    if size > beam:
                        sentence.account.drop(logs[beam])
                        size = beam
                else:
                    ranks = candidates.ranks[place][:size]
                    live = self._advance(index, step, first, ranks, logs, rows, picks, penalties)
                    size = len(live)
                    logs, rows, picks = (
                        [one for one, _, _ in live],
                        [row for _, row, _ in live],
                        [pick for *_, pick in live],
                    )
                sentence.account.expansions += count
                first += count
                if size:
                    next_active.append(index)
                    next_counts.append(size)
                    parents += rows[:size]
                    new_tokens += picks[:size]
                    new_totals += logs[:size]
                    new_sentences += [index] * size
            active, counts = next_active, next_counts
            if not active:
                break
            if len(active) <= DROP_AT * in_memory:
                in_memory = len(active)
                scorer.drop_finished(active)
            distinct, places = distinct_parents(parents)
            fed = torch.tensor([new_tokens, new_sentences] if places is None else [new_tokens, new_sentences, places])
            tokens, sentences, *rest = fed.to(device)
            shared = rest[0] if rest else None
            totals = torch.tensor(new_totals, dtype=torch.float64, device=device)
            states = output.states
            if distinct != list(range(len(row_sentences))):
                states = select_rows(states, torch.tensor(distinct, device=device))
            if coverage is not None:
                coverage = coverage.index_select(0, torch.tensor(parents, device=device))
            if prefixes is not None:
                prefixes = [(*prefixes[row], token) for row, token in zip(parents, new_tokens)]
            if self.tree is not None:
                self.tree.advance(parents, new_tokens)
            self.paths.extend(parents, new_tokens, new_totals)
            row_sentences = new_sentences

    def _continuations(
        self,
        step: int,
        per_row: int,
        tokens: Tensor,
        states: States,
        sentences: Tensor,
        shared: Tensor | None,
        row_sentences: list[int],
        prefixes: list[tuple[int, ...]] | None,
    ) -> StepOutput:
        """The best ``per_row`` permitted continuations of each row, at most ``max_rows`` rows at a time."""
        most = self.settings.max_rows or len(row_sentences)
        parts = []
        for start in range(0, len(row_sentences), most):
            part = slice(start, start + most)
            old, places = rows_to_continue(states, shared, part)
            # constraints may forbid the best continuations, so that they need all of them
            best = None if self.constraints.active else per_row
            of_rows = with_host_copy(sentences[part], row_sentences[part])
            output = self.scorer.step(tokens[part], old, of_rows, places, best)
            values, indices = output.log_probs, output.tokens
            if self.constraints.active:
                of_part, lengths = row_sentences[part], [step - 1] * len(values)
                values = self.constraints.apply(values, lengths, of_part, prefixes and prefixes[part])
            if indices is None:
                values, indices = values.topk(per_row, dim=-1)
            parts.append(StepOutput(values, output.states, output.attention, indices))
        return join_outputs(parts)

    def _goes_on(self, sentence: SentenceState, step: int, size: int, finish: bool) -> bool:
        """Whether a sentence's best candidates are the live prefixes of the next step, with nothing to decide."""
        if finish or not size or step >= sentence.limit or len(sentence.ranking) >= self.settings.n_best:
            return False
        return self.prunes and self.tree is None and self.settings.forced_prefixes is None

    def _advance(
        self,
        index: int,
        step: int,
        first: int,
        ranks: Sequence[float],
        logs: Sequence[float],
        rows: Sequence[int],
        picks: Sequence[int],
        penalties: Sequence[float] | None,
    ) -> Live:
        """Sort one sentence's candidates into finished, live and dropped; return the live ones, best first.

        Args:
            index: the sentence.
            step: tokens of each candidate, counted from 1.
            first: its first row.
            ranks: what the candidates are ranked by, descending.
            logs: their log-probabilities.
            rows: the rows that they continue.
            picks: their last tokens.
            penalties: coverage penalty of each row, where it is applied at the end.

        Returns:
            Triples of log-probability, row and token.
        """
        settings, tree, sentence = self.settings, self.tree, self.sentences[index]
        beam, eos, account, forced = settings.beam_size, settings.eos, sentence.account, self.constraints.forced[index]
        divisor = self.divisors[0]
        live: Live = []
        number_finished, top_score = 0, -math.inf
        for place, rank in enumerate(ranks):
            log_prob, row, token = logs[place], rows[place], picks[place]
            if place >= beam:
                account.drop(log_prob)
                break
            if place == 0 or token == eos:
                score = rank / divisor - (penalties[row] if penalties is not None else 0.0)
                top_score = score if place == 0 else top_score
            if token == eos:
                number_finished += 1
                sentence.finished.append(Found(score, log_prob, step, row, None, sentence.stage))
                account.finished.append(log_prob)
                insort(sentence.ranking, -score)
                if settings.ratio > 0:
                    sentence.best_ratio = max(sentence.best_ratio, score / (step + 2))
                if tree is not None:
                    tree.mark(row, token, "finished")
            else:
                live.append((log_prob, row, token))
        if step == len(forced) and live:
            sentence.account.prefix_log_prob = live[0][0]
        if not live:
            if not number_finished:
                sentence.fallback = self._dead_end(step, first)
                if step <= len(forced):
                    sentence.account.prefix_log_prob = -math.inf
            return live
        if step >= sentence.limit:
            log_prob, row, token = live[0]
            account.drop(max(log_prob for log_prob, _, _ in live))
            sentence.fallback = Found(log_prob / divisor, log_prob, step, row, token)
            self._mark(live, "cut")
            return []
        if self.prunes:
            return self._prune(sentence, step, live)
        enough = False
        if number_finished and self._ends_stage(index, top_score, picks[0] == eos):
            enough = len(sentence.finished) >= settings.n_best
            sentence.stage += 1
            sentence.ranking.clear()
        best = max(log_prob for log_prob, _, _ in live)
        if enough or self._is_settled(sentence, best):
            account.drop(best)
            self._mark(live, "stopped")
            return []
        return live

    def _prune(self, sentence: SentenceState, step: int, live: Live) -> Live:
        """Without penalties: drop the live prefixes that cannot enter the list, unless they may prove completeness."""
        settings, account = self.settings, sentence.account
        if len(sentence.ranking) < settings.n_best:
            return live
        bound = -sentence.ranking[settings.n_best - 1]
        keep = len(live)
        while keep and live[keep - 1][0] <= bound:
            keep -= 1
        if keep == len(live):
            return live
        if keep == 0 and not sentence.settled:
            sentence.settled = step
        if (
            settings.certificates
            and not account.dropped
            and len(sentence.finished) + len(live) <= settings.beam_size
            and (not sentence.settled or step < OVERRUN * (sentence.settled + 2))
        ):
            return live
        account.drop(live[keep][0])
        self._mark(live[keep:], "dropped" if keep else "stopped")
        return live[:keep]

    def _is_settled(self, sentence: SentenceState, best: float) -> bool:
        """With penalties: whether no live prefix can enter the list, however long it grows.

        Penalties for coverage only lower a score, and a length divisor is greatest or smallest at the ends.
        """
        settings = self.settings
        wanted = settings.n_best - (len(sentence.finished) - len(sentence.ranking))  # of this stage
        if len(sentence.ranking) < wanted:
            return False
        divisor = max(self.divisors[1], length_divisor(settings, sentence.limit))
        return best / divisor <= -sentence.ranking[wanted - 1]

    def _ends_stage(self, index: int, top_score: float, top_finished: bool) -> bool:
        """OpenNMT-py's rules, asked only in steps in which something finished."""
        settings = self.settings
        if settings.ratio <= 0 or settings.source_lengths is None:  # which are needed with `ratio`
            return top_finished
        length = settings.source_lengths[index] * settings.ratio
        return length > 0 and top_score / length <= self.sentences[index].best_ratio

    def _mark(self, live: Live, status: str) -> None:
        if self.tree is not None:
            for _, row, token in live:
                self.tree.mark(row, token, status)

    def _cover(
        self, coverage: Tensor | None, attention: Tensor | None, row_sentences: list[int], step: int
    ) -> tuple[Tensor, Tensor | None]:
        """Add a step's attention to the rows' coverage; return it and the rows' penalties (None for none yet)."""
        if attention is None:
            raise ValueError("A coverage penalty needs a model with attention.")
        coverage = attention if coverage is None else coverage + attention
        if self.settings.stepwise_penalty and step == 1:
            return coverage, None  # as in OpenNMT-py; the first step has one row per sentence anyway
        lengths = self.settings.source_lengths
        row_lengths = None if lengths is None else [lengths[sentence] for sentence in row_sentences]
        return coverage, coverage_penalty(self.settings, coverage, row_lengths)

    def _dead_end(self, step: int, row: int) -> Found:
        """The prefix of a sentence's first and best row, where no continuation of any row is permitted."""
        if step == 1:
            return Found(0.0, 0.0, 0, row, None)
        log_prob = self.paths.totals[row]
        score = log_prob / length_divisor(self.settings, step - 1)
        return Found(score, log_prob, step - 1, *self.paths.before(step, row))

    def finished_strings(self, index: int) -> Iterator[tuple[tuple[int, ...], float]]:
        """Tokens and log-probability of everything that one sentence finished."""
        for found in self.sentences[index].finished:
            yield tuple(self._path(found).tokens), found.log_prob

    def _path(self, found: Found) -> Path:
        return self.paths.follow(found.step, found.row, found.last)

    def _result(self, index: int) -> SearchResult:
        settings, sentence = self.settings, self.sentences[index]
        most = None if settings.return_all else settings.n_best
        chosen = sorted(sentence.finished, key=lambda found: (found.stage, -found.score))[:most]
        hypotheses = []
        for found in chosen or [best for best in (sentence.fallback,) if best]:
            path = self._path(found)
            weights = self.paths.weights(path)
            if weights is not None and settings.source_lengths is not None:
                weights = weights[:, : settings.source_lengths[index]]
            hypotheses.append(Hypothesis(path.tokens, found.log_prob, found.score, bool(chosen), weights))
        return SearchResult(
            hypotheses,
            certify(sentence.account, hypotheses, settings, self.scorer.dtype, self.constraints.forced[index]),
            self.tree.trees[index] if self.tree is not None else None,
        )
