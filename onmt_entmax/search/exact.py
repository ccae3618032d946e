"""Exact search: best-first over prefixes by log-probability, on queues of many sentences at once.

A prefix is at least as probable as all its continuations, so the first finished hypothesis that is at least as
probable as every prefix in the queue is the mode. Beam search runs first: where its certificate covers the whole list,
there is nothing to do, and elsewhere its ``n_best``-th hypothesis is a lower bound below which no prefix is queued.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Optional

import torch
from torch import Tensor

from onmt_entmax.errors import invalid_setting
from onmt_entmax.search.beam import Beam
from onmt_entmax.search.forced import attend
from onmt_entmax.search.paths import SentenceState, StatePool
from onmt_entmax.search.result import Account, Hypothesis, SearchResult, certify
from onmt_entmax.search.rules import Constraints
from onmt_entmax.search.scorer import Scorer, States, refuse_nan
from onmt_entmax.search.settings import SearchSettings, check_neutral

MAX_EXPANSIONS = 10_000


def check_exact(settings: SearchSettings, max_expansions: int = 1) -> None:
    """Refuse what exact search cannot honour.

    Raises:
        UserError: with a length penalty, a coverage penalty, ``ratio``, or ``max_expansions`` below 1.
    """
    check_neutral(
        "`search` exact",
        length_penalty=settings.length_penalty if settings.has_length else "none",
        coverage_penalty=settings.coverage_penalty if settings.has_coverage else "none",
        ratio=max(settings.ratio, 0),
    )
    if max_expansions < 1:
        raise invalid_setting("max_expansions", max_expansions, "It must be at least 1.")


def exact_search(
    scorer: Scorer,
    settings: SearchSettings,
    max_expansions: int = MAX_EXPANSIONS,
    whole_support: bool = False,
    max_queue: int = 1_000,
) -> list[SearchResult]:
    """The ``n_best`` most probable hypotheses of every sentence, in order.

    Args:
        scorer: the model and its inputs; ``start`` is called more than once.
        settings: penalties are refused; other constraints hold (and void the certificate, as in beam search).
        max_expansions: most prefixes expanded per sentence, those of the beam not counted. Where that does not do,
            the certificate tells how much of the list is exact, and the gap.
        whole_support: list every hypothesis of non-zero probability instead of ``n_best``.
        max_queue: most prefixes waiting per sentence (up to a quarter more in between); the least probable are
            dropped, and the certificate knows. Bounds the memory, in rows of states.

    Raises:
        UserError: see :func:`check_exact`.
    """
    check_exact(settings, max_expansions)
    if whole_support:
        settings = replace(settings, certificates=True)
    with torch.no_grad():
        beam = Beam(scorer, settings)
        results = beam.run()
        open_sentences = []
        for index, (result, sentence) in enumerate(zip(results, beam.sentences)):
            exact = sentence.account.certified(hypothesis.log_prob for hypothesis in result.hypotheses)
            exact = exact if result.hypotheses[0].finished else 0
            if sentence.account.dropped and (whole_support or exact < settings.n_best):
                open_sentences.append(index)
            elif whole_support:
                results[index] = _complete_list(beam, index, result)
        if open_sentences:
            queues = _Queues(scorer, settings, beam, open_sentences, max_expansions, whole_support, max_queue)
            queues.search()
            for index, queue in queues.queues.items():
                results[index] = queue.result(results[index], settings, scorer.dtype, beam.constraints.forced[index])
        if settings.return_attention:
            _fill_attention(scorer, settings, results)
    return results


# The part of a prefix's probability by which float32 may be wrong, over all steps: the least that found strings leave.
_ROUNDING = 1e-4
Tokens = tuple[int, ...]
Link = tuple[Any, int]  # the link to the prefix before, or None, and the last token
Node = tuple[float, int, int, int, int, Optional[Link]]  # -log_prob, order, length, token, slot, link
Nodes = list[tuple[int, Node]]  # with their sentences


class _Queue:
    """The queue and the account of one sentence."""

    def __init__(self, sentence: SentenceState, found: dict[Tokens, float], n_best: int | None) -> None:
        self.sentence = sentence
        self.found = found  # tokens to log-probability
        self.ranking = sorted(-log_prob for log_prob in found.values())
        self.n_best = n_best  # None for the whole support
        self.account = Account()
        self.heap: list[Node] = []
        self.order = 0
        self.expanded = 0
        # what each prefix has of the beam's strings, by the token that leads on to them (None: their end)
        self.ways: dict[Tokens, dict[int | None, float]] = {}
        for tokens, log_prob in found.items() if n_best is not None else ():
            for length, token in enumerate([*tokens, None]):
                way = self.ways.setdefault(tokens[:length], {})
                way[token] = way.get(token, 0.0) + math.exp(log_prob)

    @property
    def bound(self) -> float:
        """What a prefix must exceed to matter."""
        if self.n_best is None or len(self.ranking) < self.n_best:
            return -math.inf
        return -self.ranking[self.n_best - 1]

    def rest(self, log_prob: float, tokens: Tokens) -> float:
        """A bound of the log-probabilities of what is not yet found of a prefix: not more than what the found leave."""
        if tokens not in self.ways:
            return log_prob
        left = (1 + _ROUNDING) * math.exp(log_prob) - math.fsum(self.ways[tokens].values())
        return min(log_prob, math.log(left)) if left > 0 else log_prob

    def push(self, log_prob: float, length: int, token: int, slot: int, link: Link | None) -> None:
        self.order += 1
        heapq.heappush(self.heap, (-log_prob, self.order, length, token, slot, link))

    def finish(self, tokens: Tokens, log_prob: float) -> None:
        if tokens not in self.found:
            insort(self.ranking, -log_prob)
            self.found[tokens] = log_prob

    def result(
        self, beam_result: SearchResult, settings: SearchSettings, dtype: str, forced: Sequence[int]
    ) -> SearchResult:
        account = self.account
        account.finished = list(self.found.values())
        account.expansions = self.sentence.account.expansions + self.expanded
        account.disjoint = False  # what the beam finished may continue a prefix that the queue dropped
        # Both bound whatever neither found.
        account.best_dropped_log_prob = min(account.best_dropped_log_prob, self.sentence.account.best_dropped_log_prob)
        best = sorted(self.found.items(), key=lambda item: -item[1])[: None if settings.return_all else self.n_best]
        hypotheses = [Hypothesis(list(tokens), log_prob, log_prob, True) for tokens, log_prob in best]
        hypotheses = hypotheses or beam_result.hypotheses
        account.prefix_log_prob = self.sentence.account.prefix_log_prob
        certificate = certify(account, hypotheses, settings, dtype, forced)
        return SearchResult(hypotheses, certificate, beam_result.tree)


class _Queues:
    """Best-first search over several sentences, ``beam_size`` prefixes of each per model call."""

    def __init__(
        self,
        scorer: Scorer,
        settings: SearchSettings,
        beam: Beam,
        indices: Sequence[int],
        max_expansions: int,
        whole_support: bool,
        max_queue: int,
    ) -> None:
        self.scorer, self.settings = scorer, settings
        self.max_expansions, self.max_queue = max_expansions, max_queue
        self.constraints: Constraints = beam.constraints
        self.pools: dict[int, StatePool] = {}  # by length where lengths cannot be mixed
        n_best = None if whole_support else settings.n_best
        self.queues = {
            index: _Queue(beam.sentences[index], dict(beam.finished_strings(index)), n_best) for index in indices
        }

    def search(self) -> None:
        states = self.scorer.start()
        self.scorer.drop_finished(list(self.queues))
        slots = self._pool(0).add(states, list(self.queues))
        for slot, queue in zip(slots, self.queues.values()):
            queue.push(0.0, 0, self.settings.start, slot, None)
            self._pool(0).hold(slot, 1)
        while True:
            groups: dict[int, Nodes] = {}
            for index, queue in self.queues.items():
                for node in self._take(queue):
                    groups.setdefault(self._key(node[2]), []).append((index, node))
            if not groups:
                return
            for nodes in groups.values():
                most = self.settings.max_rows or len(nodes)
                for start in range(0, len(nodes), most):
                    self._expand(nodes[start : start + most])

    def _key(self, length: int) -> int:
        return 0 if self.scorer.mixed_lengths else length

    def _pool(self, length: int) -> StatePool:
        return self.pools.setdefault(self._key(length), StatePool())

    def _take(self, queue: _Queue) -> list[Node]:
        """The best prefixes of a queue that matter; close the queue where there are none."""
        taken: list[Node] = []
        while queue.heap and len(taken) < self.settings.beam_size:
            if -queue.heap[0][0] <= queue.bound or queue.expanded >= self.max_expansions:
                break
            taken.append(heapq.heappop(queue.heap))
            queue.expanded += 1
        if not taken:
            self._drop(queue, 0)
        return taken

    def _drop(self, queue: _Queue, keep: int) -> None:
        """Drop all but the best ``keep`` prefixes of a queue."""
        queue.heap.sort()
        if len(queue.heap) > keep:
            for log_prob, _, length, token, slot, link in queue.heap[keep:]:
                self._pool(length).hold(slot, -1)
                if -log_prob > queue.account.best_dropped_log_prob:
                    queue.account.drop(queue.rest(-log_prob, () if length == 0 else _tokens((link, token))))
            del queue.heap[keep:]

    def _expand(self, nodes: Nodes) -> None:
        scorer, constraints, device = self.scorer, self.constraints, self.scorer.device
        length = nodes[0][1][2]
        pool = self._pool(length)
        states, parents = pool.take([node[4] for _, node in nodes])
        for _, node in nodes:
            pool.hold(node[4], -1)
        fed = torch.tensor([[node[3] for _, node in nodes], [index for index, _ in nodes]], device=device)
        output = scorer.step(fed[0], states, fed[1], parents)  # queues are visited in order
        links: list[Link | None] = [None if node[2] == 0 else (node[5], node[3]) for _, node in nodes]
        prefixes = [_tokens(link) for link in links]
        lengths, sentences = [node[2] for _, node in nodes], [index for index, _ in nodes]
        log_probs = constraints.apply(output.log_probs, lengths, sentences, prefixes)
        totals = torch.tensor([-node[0] for _, node in nodes], dtype=torch.float64, device=device)
        bounds = torch.tensor([self.queues[index].bound for index, _ in nodes], dtype=torch.float64, device=device)
        scores = log_probs.double().clamp_(max=0.0).add_(totals.unsqueeze(1))  # (R, V)
        for row, ((index, _), prefix) in enumerate(zip(nodes, prefixes)):
            self._leave_out_found(self.queues[index], prefix, scores[row])
        rows, tokens, values, dropped = self._worthwhile(scores, bounds)
        for (index, _), best in zip(nodes, dropped):
            if best > -math.inf:
                self.queues[index].account.drop(best)
        self._queue_children(nodes, links, prefixes, output.states, rows, tokens, values)

    def _leave_out_found(self, queue: _Queue, prefix: Tokens, scores: Tensor) -> None:
        """Where a continuation does not matter, what the beam found of it is not to be counted as dropped."""
        for token in queue.ways.get(prefix, ()):
            if token is None:
                scores[self.settings.eos] = -math.inf
            elif (value := float(scores[token])) <= queue.bound:
                scores[token] = queue.rest(value, (*prefix, token))

    def _worthwhile(self, scores: Tensor, bounds: Tensor) -> tuple[list[int], list[int], list[float], list[float]]:
        """Rows, tokens and values of continuations above the bounds, and the best below of each row."""
        keep = scores > bounds.unsqueeze(1)
        if scores.size(1) > self.max_queue and int(keep.sum(1).max()) > self.max_queue:
            keep &= scores >= scores.topk(self.max_queue, dim=1).values[:, -1:]
        dropped = scores.masked_fill(keep, -math.inf).amax(1).cpu()
        refuse_nan(dropped)
        rows, tokens = keep.nonzero(as_tuple=True)
        return rows.tolist(), tokens.tolist(), scores[rows, tokens].tolist(), dropped.tolist()

    def _queue_children(
        self,
        nodes: Nodes,
        links: list[Link | None],
        prefixes: list[Tokens],
        states: States,
        rows: list[int],
        tokens: list[int],
        values: list[float],
    ) -> None:
        eos = self.settings.eos
        children: dict[int, list[tuple[float, int]]] = {}
        for row, token, value in zip(rows, tokens, values):
            index, node = nodes[row]
            queue = self.queues[index]
            if token == eos:
                queue.finish(prefixes[row], value)
            elif node[2] + 1 >= queue.sentence.limit:
                queue.account.drop(value)
            else:
                children.setdefault(row, []).append((value, token))
        if not children:
            return
        pool = self._pool(nodes[0][1][2] + 1)
        for (row, continuations), slot in zip(children.items(), pool.add(states, list(children))):
            index, node = nodes[row]
            pool.hold(slot, len(continuations))
            for value, token in continuations:
                self.queues[index].push(value, node[2] + 1, token, slot, links[row])
        for index in {nodes[row][0] for row in children}:
            if len(self.queues[index].heap) > 1.25 * self.max_queue:
                self._drop(self.queues[index], self.max_queue)


def _tokens(link: Link | None) -> Tokens:
    tokens = []
    while link is not None:
        link, token = link
        tokens.append(token)
    return tuple(reversed(tokens))


def _complete_list(beam: Beam, index: int, result: SearchResult) -> SearchResult:
    """All that the beam finished, where that is the whole support."""
    found = sorted(beam.finished_strings(index), key=lambda item: -item[1])
    if not found:
        return result
    hypotheses = [Hypothesis(list(tokens), log_prob, log_prob, True) for tokens, log_prob in found]
    account, forced = beam.sentences[index].account, beam.constraints.forced[index]
    certificate = certify(account, hypotheses, beam.settings, beam.scorer.dtype, forced)
    return SearchResult(hypotheses, certificate, result.tree)


def _fill_attention(scorer: Scorer, settings: SearchSettings, results: list[SearchResult]) -> None:
    missing = [
        (index, hypothesis)
        for index, result in enumerate(results)
        for hypothesis in result.hypotheses
        if hypothesis.attention is None and hypothesis.finished
    ]
    most = settings.max_rows or scorer.batch_size * settings.beam_size  # rows that the search has had at a time
    for start in range(0, len(missing), most):
        part = missing[start : start + most]
        targets, sentences = [hypothesis.tokens for _, hypothesis in part], [index for index, _ in part]
        for (index, hypothesis), weights in zip(part, attend(scorer, targets, sentences, settings.start, settings.eos)):
            if weights is not None and settings.source_lengths is not None:
                weights = weights[:, : settings.source_lengths[index]]
            hypothesis.attention = weights
