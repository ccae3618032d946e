from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_entmax.entmax import entmax, linear_entmax_loss
from onmt_entmax.plugin.train.measures import (
    EPSILON,
    TokenMeasures,
    jensen_shannon,
    measure_tokens,
    neg_log_epsilon,
    sparsemax_score,
)


def kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q) if a > 0)


def direct(p, gold):
    """Definitions of Martins, Marinho, Martins (2020), term by term."""
    y = [float(i == gold) for i in range(len(p))]
    mixed = [(a + b) / 2 for a, b in zip(p, y)]
    squares = sum(a * a for a in p)
    return {
        "jensen_shannon": 0.5 * kl(p, mixed) + 0.5 * kl(y, mixed),
        "sparsemax_score": p[gold] + 0.5 * (1 - squares),
        "neg_log_epsilon": -math.log((p[gold] + EPSILON) / (1 + EPSILON * len(p))),
    }


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 1, allow_subnormal=False), min_size=2, max_size=6).filter(lambda p: sum(p) > 0.1),
    st.integers(0, 5),
)
def test_closed_forms_equal_definitions(weights, gold):
    total = sum(weights)
    p, gold = [w / total for w in weights], gold % len(weights)
    expected = direct(p, gold)
    gold_prob = torch.tensor(p[gold], dtype=torch.float64)
    squares = torch.tensor(sum(a * a for a in p), dtype=torch.float64)
    assert jensen_shannon(gold_prob).item() == pytest.approx(expected["jensen_shannon"], abs=1e-12)
    assert sparsemax_score(gold_prob, squares).item() == pytest.approx(expected["sparsemax_score"], abs=1e-12)
    assert neg_log_epsilon(gold_prob, len(p)).item() == pytest.approx(expected["neg_log_epsilon"], abs=1e-9)


def test_known_values():
    # all mass on the gold token: no divergence, score 1; none on it, and all on one other: log 2, score 0
    assert jensen_shannon(torch.tensor([1.0, 0.0])).tolist() == pytest.approx([0, math.log(2)])
    assert sparsemax_score(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0])).tolist() == [1, 0]


def measure(alpha=1.5, seed=0, rows=7, vocab=5, ignore=2):
    torch.manual_seed(seed)
    hidden, weight = torch.randn(rows, 4, dtype=torch.float64) * 2, torch.randn(vocab, 4, dtype=torch.float64)
    target = torch.arange(rows) % vocab
    result = linear_entmax_loss(
        hidden, weight, None, target, alpha=alpha, reduction="sum", ignore_index=ignore, statistics=True
    )
    attention = entmax(torch.randn(rows, 3, dtype=torch.float64) * 2, 2.0)
    measures = measure_tokens(
        target != ignore,
        result.support_size,
        result.gold_prob,
        result.sum_of_squares,
        vocab,
        result.n_correct,
        result.plain_loss,
        attention,
    )
    return measures, entmax(hidden @ weight.t(), alpha), target, attention


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_sums_equal_a_loop_over_tokens(alpha):
    measures, probs, target, attention = measure(alpha)
    kept = [i for i, t in enumerate(target.tolist()) if t != 2]
    tokens = [direct(probs[i].tolist(), target[i].item()) for i in kept]
    assert measures.words == len(kept) == measures.attention_words
    assert measures.support == sum((probs[i] > 0).sum().item() for i in kept)
    assert measures.attention_support == sum((attention[i] > 0).sum().item() for i in kept)
    assert measures.zeros == sum(probs[i, target[i]].item() == 0 for i in kept)
    assert measures.correct == sum(probs[i].argmax().item() == target[i].item() for i in kept)
    for name in ("jensen_shannon", "sparsemax_score", "neg_log_epsilon"):
        assert getattr(measures, name) == pytest.approx(sum(token[name] for token in tokens))


def test_batches_add_up():
    first, second = measure(seed=1)[0], measure(seed=2)[0]
    both = (first + second).report()
    mean = (first.jensen_shannon + second.jensen_shannon) / (first.words + second.words)
    assert both["jensen_shannon"] == pytest.approx(mean)
    assert both["gold_zero"] == (first.zeros + second.zeros) / (first.words + second.words)


def test_nothing_measured_is_none():
    assert set(TokenMeasures().report().values()) == {None}


def test_epsilon_perplexity_of_a_uniform_softmax_is_the_vocabulary():
    # p = 1/4 everywhere: (1/4 + e) / (1 + 4e) = 1/4
    n = torch.ones(3)
    measures = measure_tokens(n.bool(), 4 * n, n / 4, n / 4, 4, torch.tensor(0), torch.tensor(0.0))
    report = measures.report()
    assert report["epsilon_perplexity"] == pytest.approx(4)
    assert report["support_attention"] is None
