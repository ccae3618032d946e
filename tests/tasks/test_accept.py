"""``onmt_entmax accept``: the bound, the choice of a threshold, the promise, both files, and bad input."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from onmt_entmax import cli
from onmt_entmax.errors import UserError
from onmt_entmax.files import read_json, read_lines, write_lines
from onmt_entmax.tasks.accept import Choice, candidates, choose, fewest, lower_bound


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.99))
def test_the_bound_is_clopper_and_pearson(counts, confidence):
    reference = binomtest(*counts, alternative="greater").proportion_ci(confidence, method="exact").low
    assert lower_bound(*counts, confidence) == pytest.approx(reference, abs=1e-9)


def test_bounds_by_hand():
    # all of n right: p^n = 0.05
    assert lower_bound(59, 59, 0.95) == pytest.approx(0.05 ** (1 / 59))
    assert fewest(0.95, 0.95) == 59  # 0.95^59 = 0.0485, 0.95^58 = 0.0510
    assert lower_bound(0, 0, 0.95) == lower_bound(0, 5, 0.95) == 0


def test_candidates():
    # 10 outputs with an answer: the first takes 2 of them, then 3 to 10; a tie is one threshold
    probs = np.array([0.0, 1.0, 0.9, 0.9, 0.9, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05])
    assert candidates(probs, 0.2) == [0.9, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05]
    assert candidates(probs, 7.0) == [0.05]
    assert candidates(np.array([0.3]), 0.1) == [0.3]
    assert candidates(np.array([0.0])) == candidates(np.array([])) == []


def test_the_lowest_threshold_before_the_first_failure():
    probs = np.arange(1, 201) / 200
    right = probs > 0.5
    # thresholds take 58 outputs, 60, 62 ...; the first 100 are right
    # the bound of 100 of 104 is 0.914, that of 100 of 106 is 0.891
    assert choose(probs, probs, right, 0.9) == Choice(
        0.485, 0.485, 104, 100, pytest.approx(lower_bound(100, 104, 0.95))
    )
    # what lies below a failure is not tested, right as it may be
    assert choose(probs, probs, right | (probs < 0.3), 0.9).threshold == 0.485
    # the strictest fails already: 2 * fewest(0.9) / 200 = 0.29 of the outputs, 58 of them
    wrong = choose(probs, probs, probs < 0, 0.9)
    assert wrong == Choice(None, probs[-58], 58, 0, 0.0)
    assert choose(np.zeros(3), probs, right, 0.9) == Choice(None, None, 0, 0, 0.0)
    with pytest.raises(UserError, match="of 28 is too small: to promise 0.9 with confidence 0.95 takes at least 29"):
        choose(probs, probs[:28], right[:28], 0.9)


def test_the_promise_holds_as_often_as_it_says():
    """Development sets drawn from outputs whose accuracy is known: at most 5% may miss it, but for chance."""
    generator = np.random.default_rng(0)
    probs = generator.random(2000)
    right = generator.random(2000) < probs**0.2
    missed = 0
    for _ in range(400):
        dev = generator.integers(0, 2000, 500)
        threshold = choose(probs, probs[dev], right[dev], 0.9).threshold
        missed += threshold is not None and right[probs >= threshold].mean() < 0.9
    # 20 of 400, and three standard deviations of sqrt(400 * 0.05 * 0.95) = 4.4 more; not far fewer, or it were too shy
    assert 1 <= missed <= 33


def record(line, form, prob, reason=None, finished=True):
    hypothesis = {"tokens": list(form), "log_prob": math.log(prob), "prob": prob, "finished": finished}
    rates = {"complete": None, "optimal": None, "mass_found": None, "mass_is_one": None, "found": 1}
    return json.dumps({"line": line, "hypotheses": [hypothesis] if form else [], **rates, "reason": reason})


@pytest.fixture
def folder(tmp_path):
    """Forty dev words, right at 0.9 and wrong at 0.2; three test words of 0.95, 0.5 and 0.1, a blank line between."""
    forms = ["ab" if number < 30 else "cd" for number in range(40)]
    write_lines(tmp_path / "dev" / "x.gold", [f"w{number}\tab\tV" for number in range(40)])
    write_lines(tmp_path / "dev.tgt", ["a b"] * 40)
    write_lines(tmp_path / "dev.pred", [" ".join(form) for form in forms])
    records = [record(n, form, 0.9 if form == "ab" else 0.2) for n, form in enumerate(forms, 1)]
    write_lines(tmp_path / "dev.jsonl", records)
    write_lines(tmp_path / "test.pred", ["e f\t-0.05", "\t0.0", "g\t-0.6", "h i\t-2.3"])
    test = [("ef", 0.95), ("", 1.0), ("g", 0.9), ("hi", 0.1)]
    lines = [record(n, form, prob, None if form else "blank input line") for n, (form, prob) in enumerate(test, 1)]
    write_lines(tmp_path / "test.jsonl", lines)
    return tmp_path


def accept(folder, *more, gold="dev", at="0.9", **changes):
    files = {"predictions": "test.pred", "certificates": "test.jsonl"}
    files.update({"dev-predictions": "dev.pred", "dev-certificates": "dev.jsonl", **changes})
    words = [word for name, file in files.items() for word in (f"--{name}", str(folder / file))]
    return cli.main(["accept", *words, "--dev-gold", str(folder / gold), "--at", at, *more])


@pytest.mark.parametrize("gold", ["dev", "dev.tgt"])
def test_both_files_keep_line_numbers(folder, gold, capsys):
    assert accept(folder, gold=gold) == 0
    # 2 * fewest / 40 > 1: the strictest accepts all of the three; 30 of 40 right are too few
    assert read_json(folder / "test.pred.accept.json")["threshold"] is None
    assert "No probability reaches 90% with 95% confidence: nothing is accepted." in capsys.readouterr().out
    # fewest is 9, and 2 * 9 / 40 of three answers are two of them: 0.9 has 30 of 30 right, the next, 0.1, 30 of 40
    # a prefix, which may be the predictions' name: that is the default
    assert accept(folder, "--output", str(folder / "test.pred"), gold=gold) == 0
    assert accept(folder, "--output", str(folder / "out"), gold=gold, at="0.7") == 0
    assert read_lines(folder / "out.accepted.tsv") == ["1\t0.95\te f", "3\t0.9\tg"]
    assert read_lines(folder / "out.review.tsv") == ["2\t0\t", "4\t0.1\th i"]
    out = capsys.readouterr().out
    assert "Accepted 2 of 4 outputs (50.0%): those of probability 0.9 or more." in out
    assert "at least 70% are right, with 95% confidence" in out and "30 of 30 right, 100.0%, at least 90.5%" in out
    assert "To review without a probability (blank, or nothing finished): 1." in out
    result = read_json(folder / "out.accept.json")
    assert (result["unlike"], result["dev"]["accepted"], result["dev"]["right"]) == (0, 30, 30)
    assert result["dev"]["low"] == pytest.approx(0.05 ** (1 / 30))


def test_predictions_of_other_certificates_are_named(folder, capsys):
    lines = read_lines(folder / "test.pred")
    write_lines(folder / "test.pred", [lines[2], *lines[1:]])
    assert accept(folder, at="0.7") == 0
    assert "not the best string of their certificate: 1." in capsys.readouterr().out


def void(line, reason):
    return record(line, "ab", 0.5, reason)


@pytest.mark.parametrize(
    ("file", "lines", "message"),
    [
        (
            "dev.jsonl",
            [*(void(n, "length_penalty avg") for n in range(1, 40)), void(40, "sampling")],
            "40 of 40 certificates are void (length_penalty avg: 39, sampling: 1). Decode without",
        ),
        (
            "test.jsonl",
            [void(n, "min_length 2") for n in range(1, 5)],
            "4 of 4 certificates are void (min_length 2: 4)",
        ),
        ("test.jsonl", [record(1, "ef", 0.95)], "test.pred has 4 lines for 1 certificates; that would be --n-best 4."),
        ("dev.jsonl", [record(1, "ef", 0.95)], "dev.jsonl has 1 certificates for 40 inputs."),
        ("dev.pred", ["a b"] * 39, "dev.pred has 39 lines for 40 inputs."),
        ("dev/x.gold", ["w\tab\tV"] * 40, "x.gold, line 2: 'w' with 'V' stands there before."),
        ("dev/x.covered", ["w\t\tV"], "x is also in"),
        (
            "dev.pred",
            ["e f\t-0.05", "\t0.0", "g\t-0.6", "h i\t-2.3"],
            "are the same: a promise holds for other outputs",
        ),
    ],
)
def test_bad_input_is_one_line(folder, file, lines, message, capsys):
    write_lines(folder / file, lines)
    assert accept(folder) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not list(folder.glob("*.tsv"))


@pytest.mark.parametrize(("name", "value"), [("at", "1"), ("at", "95"), ("confidence", "0"), ("n-best", "0")])
def test_settings_that_cannot_be(folder, name, value, capsys):
    more = ["--at", value] if name == "at" else [f"--{name}", value]
    assert accept(folder, *more) == 2
    assert f"Invalid setting for `{name}`" in capsys.readouterr().err
