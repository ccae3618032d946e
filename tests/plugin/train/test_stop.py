from __future__ import annotations

import json
import math

import pytest

from onmt_entmax.errors import UserError
from onmt_entmax.plugin.train.stop import StopRule, check_measured, criterion_names, is_better


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


def test_refuses_no_patience():
    with pytest.raises(UserError, match="early_stopping"):
        StopRule(0, ["accuracy"])
