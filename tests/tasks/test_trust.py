"""How good outputs are by certificate and probability: literal measures, and the same by brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onmt_entmax.tasks.trust import _Judged, class_of, probability, trust, trust_lines


def certificate(prob, complete=False, optimal=False, found=2, reason=None, finished=True, **more):
    hypothesis = {"tokens": ["a"], "log_prob": math.log(prob), "prob": prob, "finished": finished}
    rates = {"complete": complete, "optimal": optimal, "mass_is_one": False, "found": found, "reason": reason}
    return {"hypotheses": [hypothesis], **rates, **more}


# right: 1 and 2; the second and third have the same probability
OUTPUTS = [
    certificate(1.0, complete=True, optimal=True, found=1),
    certificate(0.8, complete=True, optimal=True),
    certificate(0.8, optimal=True),
    certificate(0.35),
]
RIGHT = [100, 100, 0, 0]


def test_classes_and_probabilities():
    assert [class_of(one) for one in OUTPUTS] == ["single", "complete", "optimal", "uncertified"]
    assert probability(certificate(0.5, finished=False)) == 0.0
    assert probability({"hypotheses": []}) == 0.0
    # 0.2 of all strings, 0.4 of those that begin with a prefix of probability 0.5
    assert probability(certificate(0.2, prefix_log_prob=math.log(0.5))) == pytest.approx(0.4)


def test_measures_by_hand():
    result = trust(OUTPUTS, RIGHT, "acc", samples=20)
    values = {name: own["acc"]["value"] for name, own in result["classes"].items()}
    assert values == {"single": 100, "complete": 100, "optimal": 0, "uncertified": 0, "all": 50}
    assert [own["share"]["value"] for own in result["classes"].values()] == [25, 25, 25, 25, 100]
    # bins of 0.1: at 1 the gap is 0; at 0.8 |80 - 100 + 80 - 0|, at 0.35 |35 - 0|: (0 + 60 + 35) / 4
    assert result["ece"]["value"] == pytest.approx(23.75)
    # pairs of a right and a wrong one: 1 > 0.8, 1 > 0.35, 0.8 > 0.35, and a tie that counts half, of 4
    assert result["auroc"]["value"] == pytest.approx(87.5)
    # share of wrong ones among the first 1, 2, 3, 4: 0, then inside the tie 0.5 of 2 and 1 of 3, then 2 of 4
    assert result["aurc"]["value"] == pytest.approx(100 * (0 + 1 / 4 + 1 / 3 + 1 / 2) / 4)
    assert [list(point.values()) for point in result["curve"]] == [
        pytest.approx([1.0, 25, 100]),
        pytest.approx([0.8, 75, 200 / 3]),  # both of the tie or none
        pytest.approx([0.35, 100, 50]),
    ]
    rows = [(row["from"], row["to"], row["outputs"], row["acc"]) for row in result["reliability"]]
    assert rows == [(0.3, 0.4, 1, 0), (0.8, 0.9, 2, 50), (0.9, 1.0, 1, 100)]


def test_intervals_hold_the_value_and_need_both_kinds():
    result = trust(OUTPUTS * 20, RIGHT * 20, "acc", samples=200)
    for key in ("ece", "auroc", "aurc"):
        assert result[key]["low"] < result[key]["value"] < result[key]["high"]
    # 40 of 80 right: a standard deviation of sqrt(0.25 / 80) = 5.6 points, so about 39 to 61
    assert result["classes"]["all"]["acc"]["low"] == pytest.approx(39, abs=3)
    assert result["classes"]["all"]["acc"]["high"] == pytest.approx(61, abs=3)
    right = trust(OUTPUTS, [100] * 4, "acc", samples=5)
    assert right["auroc"] == {"value": None, "low": None, "high": None}  # no wrong one to rank below
    assert right["classes"]["all"]["acc"] == {"value": 100, "low": 100, "high": 100}
    alone = trust(OUTPUTS[:1], [0], "acc", samples=5)
    assert alone["classes"]["complete"]["acc"]["value"] is None and alone["aurc"]["value"] == 100


def test_void_certificates_are_left_out_and_counted():
    void = certificate(0.5, reason="length_penalty avg")
    result = trust([void, *OUTPUTS, void], [0, *RIGHT, 0], "acc", samples=5)
    alone = trust(OUTPUTS, RIGHT, "acc", samples=5)
    assert result == {**alone, "void": {"length_penalty avg": 2}}
    assert trust_lines(result)[-1].endswith("(length_penalty avg: 2).")
    assert trust([void], [0], "acc") is None and trust([], [], "acc") is None


def test_graded_quality_has_no_calibration():
    seen = []

    def corpus(counted):
        seen.append(list(counted))
        return {"bleu": lambda weights: float(weights.sum())}

    result = trust([*reversed(OUTPUTS)], [10, 20, 60, 90], "chrf", samples=5, corpus=corpus)
    assert seen == [[3, 1, 2, 0]]  # by falling probability, ties in the order of the lines
    assert "ece" not in result and "auroc" not in result and "reliability" not in result
    assert result["classes"]["single"]["chrf"]["value"] == 90 and result["classes"]["all"]["bleu"]["value"] == 4
    # mean distance from 100 among the first k: 10, then (60 mean of the tie: 10 + 60, 10 + 120), then 220 of 4
    assert result["aurc"]["value"] == pytest.approx((10 + 70 / 2 + 130 / 3 + 220 / 4) / 4)


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 3)), min_size=1, max_size=12))
def test_drawing_an_output_twice_is_having_two(rows):
    rows.sort(key=lambda row: -row[0])
    level, right, times = (np.array(column) for column in zip(*rows))
    if times.sum() != len(rows):  # resamples are as large as what they are drawn from
        times = np.ones(len(rows), dtype=int)
    drawn = _Judged(level / 4, 100.0 * right, level % 4, "acc", {}).numbers(times)
    twice, kept = np.repeat(level, times), np.repeat(right, times)
    plain = _Judged(twice / 4, 100.0 * kept, twice % 4, "acc", {}).numbers(np.ones(len(twice)))
    for key, value in plain.items():
        assert drawn[key] == pytest.approx(value, nan_ok=True)
    pairs = [(a > b) + (a == b) / 2 for a in twice[kept] for b in twice[~kept]]
    assert plain[None, "auroc"] == pytest.approx(100 * np.mean(pairs) if pairs else math.nan, nan_ok=True)
