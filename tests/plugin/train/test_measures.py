from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_entmax.entmax import entmax, linear_entmax_loss
from onmt_entmax.errors import UserError
from onmt_entmax.plugin.train.measures import (
    EPSILON,
    StopRule,
    TokenMeasures,
    check_measured,
    criterion_names,
    is_better,
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
    sums = measure_tokens(
        target != ignore,
        result.support_size,
        result.gold_prob,
        result.sum_of_squares,
        vocab,
        result.n_correct,
        result.plain_loss,
        attention,
    )
    return sums, entmax(hidden @ weight.t(), alpha), target, attention


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_sums_equal_a_loop_over_tokens(alpha):
    sums, probs, target, attention = measure(alpha)
    measures = TokenMeasures.of(sums)
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
    sums = [measure(seed=seed)[0] for seed in (1, 2)]
    first, second = map(TokenMeasures.of, sums)
    both = TokenMeasures.of(sum(sums)).report()
    mean = (first.jensen_shannon + second.jensen_shannon) / (first.words + second.words)
    assert both["jensen_shannon"] == pytest.approx(mean)
    assert both["gold_zero"] == (first.zeros + second.zeros) / (first.words + second.words)


def test_nothing_measured_is_none():
    assert set(TokenMeasures().report().values()) == {None}


def test_epsilon_perplexity_of_a_uniform_softmax_is_the_vocabulary():
    # p = 1/4 everywhere: (1/4 + e) / (1 + 4e) = 1/4
    n = torch.ones(3)
    sums = measure_tokens(n.bool(), 4 * n, n / 4, n / 4, 4, torch.tensor(0), torch.tensor(0.0))
    report = TokenMeasures.of(sums).report()
    assert report["epsilon_perplexity"] == pytest.approx(4)
    assert report["support_attention"] is None


def follow(rule, values, name="accuracy"):
    """Steps at which the rule saw progress, and the step at which it stopped."""
    progress = []
    for step, value in enumerate(values, 1):
        if rule.update({name: value}, step):
            progress.append(step)
        if rule.has_stopped():
            return progress, step
    return progress, None


def test_stops_after_n_validations_without_a_new_best():
    # best at 2 (.9); 3, 4 and 5 are no better, a tie included
    assert follow(StopRule(3, ["accuracy"]), [0.1, 0.9, 0.2, 0.9, 0.3, 1.0]) == ([1, 2], 5)


def test_new_best_starts_the_count_again():
    assert follow(StopRule(2, ["accuracy"]), [1, 0, 2, 0, 3, 0]) == ([1, 3, 5], None)


@pytest.mark.parametrize(
    ("name", "values", "progress"),
    [("loss", [3, 2, 2.5], [1, 2]), ("sparsemax_score", [0.3, 0.2, 0.5], [1, 3]), ("TER", [60, 50, 55], [1, 2])],
)
def test_every_measure_has_its_direction(name, values, progress):
    assert follow(StopRule(9, criterion_names([name], ["TER"])), values, name) == (progress, None)


def test_several_criteria_all_have_to_improve():
    rule = StopRule(2, ["loss", "accuracy"])
    assert rule.update({"loss": 2.0, "accuracy": 50}, 1)
    assert not rule.update({"loss": 1.0, "accuracy": 50}, 2)
    assert rule.current_tolerance == 1
    assert rule.update({"loss": 1.5, "accuracy": 51}, 3)  # both better than at step 1, the last progress
    assert (rule.best, rule.best_step, rule.current_tolerance) == ({"loss": 1.5, "accuracy": 51.0}, 3, 2)


def test_two_rules_share_nothing():
    first, second = StopRule(2, ["accuracy"]), StopRule(2, ["accuracy"])
    first.update({"accuracy": 90}, 1)
    assert second.update({"accuracy": 10}, 1)


def test_state_goes_on():
    rule = StopRule(2, ["accuracy"])
    follow(rule, [5, 4])
    other = StopRule(2, ["accuracy"])
    other.load_state_dict(json.loads(json.dumps(rule.state_dict())))
    assert not other.update({"accuracy": 5}, 3)
    assert other.has_stopped() and other.best_step == 1


def test_names():
    assert criterion_names(None) == ["loss", "accuracy"]
    assert criterion_names(["ppl", "xent", "acc", "BLEU"], ["BLEU"]) == ["loss", "accuracy", "BLEU"]
    with pytest.raises(UserError, match="early_stopping_criteria`: BLEU. Valid choices: loss, accuracy, perplexity"):
        criterion_names(["BLEU"])


@pytest.mark.parametrize(
    ("name", "alpha", "token_measures", "rule"),
    [
        ("perplexity", 1.5, True, r"`generator_alpha` is 1\.5, whose loss has no perplexity"),
        ("support_output", 1.0, False, "loss and accuracy only"),
    ],
)
def test_measure_that_this_run_lacks_is_refused(name, alpha, token_measures, rule):
    with pytest.raises(UserError, match=f"`early_stopping_criteria`: {name}. .*{rule}"):
        check_measured([name], alpha, token_measures)
    check_measured(["loss", "perplexity", "gold_zero", "BLEU"], 1.0, True)
    check_measured(["loss", "accuracy", "gold_zero"], 1.5, True)


def test_loss_that_is_no_number_uses_up_patience():
    rule = StopRule(2, ["loss"])
    assert [rule.update({"loss": loss}, step) for step, loss in enumerate([1.0, None, math.nan])] == [
        True,
        False,
        False,
    ]
    assert rule.has_stopped() and rule.best_step == 0


def test_other_criteria_begin_anew():
    rule = StopRule(1, ["accuracy"])
    follow(rule, [5, 4])
    other = StopRule(1, ["loss"])
    assert not other.load_state_dict(rule.state_dict())
    assert not other.has_stopped() and other.update({"loss": 3.0}, 3)


def test_not_a_number_is_never_better():
    assert not is_better("loss", math.nan, None) and not is_better("loss", None, None)
    assert is_better("loss", math.inf, None)
