"""Sampling from a distribution with zeros: a token of probability zero is never drawn, whatever top-k or top-p say."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from onmt_entmax.errors import invalid_setting
from onmt_entmax.search.paths import select_rows
from onmt_entmax.search.result import IMPOSSIBLE_PREFIX, SAMPLING, Certificate, Hypothesis, SearchResult
from onmt_entmax.search.rules import Constraints, length_divisor
from onmt_entmax.search.scorer import Scorer, refuse_nan
from onmt_entmax.search.settings import SearchSettings


def check_sampling(top_k: int, top_p: float, temperature: float) -> None:
    """Refuse settings that mean nothing.

    Raises:
        UserError: naming the setting.
    """
    if top_k < -1:
        raise invalid_setting("random_sampling_topk", top_k, "It must be -1 (all tokens), 0 or more.")
    if not 0 <= top_p <= 1:
        raise invalid_setting("random_sampling_topp", top_p, "It must be from 0 (no such rule) to 1.")
    if temperature < 0 or not math.isfinite(temperature):
        raise invalid_setting("random_sampling_temp", temperature, "It must be at least 0.")


def draw(
    log_probs: Tensor,
    top_k: int = -1,
    top_p: float = 0.0,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw one token per row.

    Args:
        log_probs: ``(R, V)``, ``-inf`` for zeros, in each row something greater.
        top_k: keep the k most probable tokens; -1 and 0 keep all, and so does a k above the support.
        top_p: keep the most probable tokens until their mass, after the temperature, exceeds p; 0 keeps all.
        temperature: divides log-probabilities; 0 takes the most probable token, and so does ``top_k`` 1.
        generator: source of randomness; None for torch's own.

    Returns:
        ``(R,)`` long.
    """
    if temperature == 0 or top_k == 1:
        return log_probs.argmax(-1)
    weights = (log_probs.double() / temperature).log_softmax(-1)
    if 0 < top_p < 1:
        ordered, indices = weights.sort(dim=-1, descending=True)
        probs = ordered.exp()
        outside = probs.cumsum(-1) - probs >= top_p  # the token that overflows p is still in
        outside[:, 0] = False
        weights = weights.masked_fill(torch.zeros_like(outside).scatter_(1, indices, outside), -math.inf)
    if 0 < top_k < weights.size(-1):
        values, indices = weights.topk(top_k, dim=-1)
        weights = torch.full_like(weights, -math.inf).scatter_(1, indices, values)
    # The Gumbel trick: noise is finite, so -inf stays -inf and cannot be the largest.
    noise = torch.empty_like(weights).exponential_(generator=generator).clamp_(min=torch.finfo(weights.dtype).tiny)
    return (weights - noise.log()).argmax(-1)


def sample(
    scorer: Scorer,
    settings: SearchSettings,
    top_k: int = -1,
    top_p: float = 0.0,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> list[SearchResult]:
    """Draw ``beam_size`` hypotheses per sentence and return the ``n_best`` of the highest score.

    ``log_prob`` is the model's own log-probability, before temperature and rules; ``score`` is that after the length
    penalty. Finished hypotheses precede those cut by the length limit, which are returned with ``finished=False``.

    Args:
        scorer: the model and its inputs.
        settings: coverage penalties and ``ratio`` have no effect, as in OpenNMT-py.
        top_k: see :func:`draw`.
        top_p: see :func:`draw`.
        temperature: see :func:`draw`.
        generator: see :func:`draw`.

    Raises:
        UserError: see :func:`check_sampling`.
    """
    check_sampling(top_k, top_p, temperature)
    with torch.no_grad():
        return _sample(scorer, settings, top_k, top_p, temperature, generator)


def _sample(
    scorer: Scorer,
    settings: SearchSettings,
    top_k: int,
    top_p: float,
    temperature: float,
    generator: torch.Generator | None,
) -> list[SearchResult]:
    batch, device = scorer.batch_size, scorer.device
    constraints, limits = Constraints(settings, batch), settings.limits(batch)
    paths = [sentence for sentence in range(batch) for _ in range(settings.beam_size)]
    strings: list[list[int]] = [[] for _ in paths]
    totals = [0.0] * len(paths)
    attention: list[list[Tensor]] = [[] for _ in paths]
    found: list[list[Hypothesis]] = [[] for _ in range(batch)]
    expansions = [0] * batch

    def end(path: int, finished: bool) -> None:
        total = totals[path]
        weights = torch.stack(attention[path]) if attention[path] else None
        if weights is not None and settings.source_lengths is not None:
            weights = weights[:, : settings.source_lengths[paths[path]]]
        divisor = length_divisor(settings, len(strings[path]) + finished) if strings[path] or finished else 1.0
        found[paths[path]].append(Hypothesis(strings[path], total, total / divisor, finished, weights))

    live, impossible = list(range(len(paths))), set()  # sentences whose forced prefix has probability zero
    sentences = torch.tensor(paths, dtype=torch.long, device=device)
    states = select_rows(scorer.start(), sentences)
    tokens = torch.full((len(paths),), settings.start, dtype=torch.long, device=device)
    step = 0
    while live:
        step += 1
        output = scorer.step(tokens, states, sentences)
        rows = [paths[path] for path in live]
        prefixes = [strings[path] for path in live] if constraints.needs_prefixes else None
        log_probs = constraints.apply(output.log_probs, [step - 1] * len(live), rows, prefixes)
        refuse_nan(log_probs.amax(1))
        picks = draw(log_probs, top_k, top_p, temperature, generator)
        picked = log_probs.gather(1, picks.unsqueeze(1)).squeeze(1).double().clamp(max=0.0)
        alive = []
        for row, (path, token, log_prob) in enumerate(zip(live, picks.tolist(), picked.tolist())):
            expansions[paths[path]] += 1
            if log_prob == -math.inf:  # nothing is permitted here
                if step <= len(constraints.forced[paths[path]]):
                    impossible.add(paths[path])
                end(path, False)
                continue
            totals[path] += log_prob
            if settings.return_attention and output.attention is not None:
                attention[path].append(output.attention[row])
            if token == settings.eos:
                end(path, True)
                continue
            strings[path].append(token)
            if step >= limits[paths[path]]:
                end(path, False)
            else:
                alive.append(row)
        where = torch.tensor(alive, dtype=torch.long, device=device)
        live = [live[row] for row in alive]
        tokens, sentences = picks[where], sentences[where]
        states = select_rows(output.states, where)
    results = []
    for sentence, hypotheses in enumerate(found):
        hypotheses.sort(key=lambda hypothesis: (not hypothesis.finished, -hypothesis.score))
        certificate = Certificate(
            found=sum(hypothesis.finished for hypothesis in hypotheses),
            expansions=expansions[sentence],
            dtype=scorer.dtype,
            reason=IMPOSSIBLE_PREFIX if sentence in impossible else SAMPLING,
        )
        most = None if settings.return_all else settings.n_best
        results.append(SearchResult(hypotheses[:most], certificate))
    return results
