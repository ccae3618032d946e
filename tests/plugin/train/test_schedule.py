from __future__ import annotations

import json
import math

import pytest

from onmt_entmax.plugin.train.optimiser import ValidLossSchedule


def scales(losses, decay=0.5):
    schedule = ValidLossSchedule(decay)
    found = []
    for loss in losses:
        schedule.update(loss)
        found.append(schedule(123))
    return found


def test_follows_the_previous_validation_not_the_best_one():
    # 3 -> 2 falls; 2 -> 2.5 rises; 2.5 -> 2.4 falls, though 2 was better; 2.4 -> 2.4 does not rise; 2.4 -> 2.6 rises
    assert scales([3, 2, 2.5, 2.4, 2.4, 2.6]) == [1, 1, 0.5, 0.5, 0.5, 0.25]


def test_loss_that_is_no_number_counts_as_higher():
    # compared with the last number: after 2 and NaN, 1.9 is a fall
    assert scales([2, math.nan, 1.9, math.inf]) == [1, 0.5, 0.5, 0.25]
    assert scales([math.nan, 3]) == [1, 1]


def test_state_is_plain_and_goes_on():
    first = ValidLossSchedule(0.5)
    for loss in (1, 2):
        first.update(loss)
    second = ValidLossSchedule(0.5)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.update(2.5) and second(1) == 0.25


@pytest.mark.parametrize("decay", [0, -1, 1.5, math.nan])
def test_refuses_other_decays(decay):
    with pytest.raises(ValueError, match="learning_rate_decay"):
        ValidLossSchedule(decay)
