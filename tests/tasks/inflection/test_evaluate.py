"""``onmt_entmax evaluate inflection``: literal numbers from tiny files, every kind of file, bad input."""

from __future__ import annotations

import json
import math

import pytest

from onmt_entmax import cli
from onmt_entmax.files import read_lines, sha256, write_json, write_lines
from onmt_entmax.tasks.inflection.evaluate import paired_bootstrap, score
from onmt_entmax.tasks.inflection.format import Row
from onmt_entmax.version import version

SIGNATURE = f"task:conll2018.1|set:low|split:test|langs:2|avg:macro|alpha:1.5/2|seed:1|version:{version()}"


def hypothesis(probability):
    return {"tokens": ["a"], "log_prob": math.log(probability), "prob": probability, "finished": True}


def certificate(line, *probabilities, complete=False, optimal=False, mass_is_one=False, reason=None):
    record = {"line": line, "hypotheses": [hypothesis(p) for p in probabilities]}
    mass = None if reason else sum(probabilities)
    return json.dumps(
        {
            **record,
            "complete": complete,
            "optimal": optimal,
            "mass_is_one": mass_is_one,
            "mass_found": mass,
            "found": len(probabilities),
            "reason": reason,
        }
    )


@pytest.fixture
def prepared(tmp_path):
    """Languages `a` (two pairs in three rows), `a-b` (one pair), and `c`, whose forms nobody knows."""
    test = tmp_path / "run" / "test"
    write_lines(test / "a.gold", ["go\twent\tV", "dive\tdived\tV", "dive\tdo ve\tV"])
    write_lines(test / "a-b.gold", ["x\tx\xa0\tN"])
    write_lines(test / "c.covered", ["y\t\tN"])
    write_json(tmp_path / "run" / "manifest.json", {"task": "conll2018.1", "setting": "low"})
    # a: went right, dive with the last guess "dov": do ve -> dove -> dov, 2 edits. a-b: right with its no-break space
    write_lines(tmp_path / "pred", ["w e n t", "d o <u+0020> v e", "d o v", "x <u+00a0>", "q"])
    return tmp_path


def evaluate(folder, *arguments, predictions="pred"):
    paths = ["--gold", str(folder / "run" / "test"), "--predictions", str(folder / predictions)]
    about = ["--alpha", "1.5/2", "--seed", "1", "--json", str(folder / "out.json")]
    status = cli.main(["evaluate", "inflection", *paths, *about, *map(str, arguments)])
    return status, json.loads((folder / "out.json").read_text(encoding="utf-8")) if status == 0 else None


def test_the_length_of_the_training_is_said(prepared):
    _, result = evaluate(prepared, "--steps", 2400)
    assert "|seed:1|steps:2400|version:" in result["signatures"]["acc"]


def test_the_recipe_is_said(prepared):
    _, result = evaluate(prepared, "--steps", 2400, "--recipe", "smoothing 0.1")
    assert "|seed:1|steps:2400|recipe:smoothing 0.1|version:" in result["signatures"]["acc"]


def test_scores_and_signatures(prepared, capsys):
    status, result = evaluate(prepared)
    assert status == 0
    assert result["languages"] == {
        "a": {"inputs": 3, "pairs": 2, "acc": 50.0, "lev": 1.0},
        "a-b": {"inputs": 1, "pairs": 1, "acc": 100.0, "lev": 0.0},
        "c": {"inputs": 1},
    }
    assert result["macro"] == {"acc": 75.0, "lev": 0.5}  # (50 + 100) / 2, (1 + 0) / 2
    assert result["signatures"] == {"acc": f"acc|{SIGNATURE}", "lev": f"lev|{SIGNATURE}"}
    lines = capsys.readouterr().out.split("\n")
    assert [line.split() for line in lines[:6]] == [
        ["language", "acc", "%", "lev"],
        ["a", "50.00", "1.00"],
        ["a-b", "100.00", "0.00"],
        ["c", "-", "-"],
        ["macro", "average", "75.00", "0.50"],
        [],
    ]
    assert f"acc|{SIGNATURE}" in lines


def test_a_folder_of_predictions_scores_alike(prepared):
    lines = read_lines(prepared / "pred")
    for name, own in (("a.pred", lines[:3]), ("a-b.txt", lines[3:4]), ("c", lines[4:])):
        write_lines(prepared / "preds" / name, own)
    assert evaluate(prepared, predictions="preds")[1]["macro"] == evaluate(prepared)[1]["macro"]


def test_n_best_with_scores(prepared):
    first = read_lines(prepared / "pred")
    write_lines(prepared / "two", [line for one in first for line in (f"{one}\t-0.5", "d o <u+0020> v e\t-1.25")])
    _, result = evaluate(prepared, "--n-best", "2", predictions="two")
    assert result["macro"] == {"acc": 75.0, "lev": 0.5, "nbest_acc": 100.0}
    assert "|nbest:2|" in result["signatures"]["nbest_acc"]


def test_certificate_rates(prepared):
    write_lines(
        prepared / "certificates",
        [
            certificate(1, 1.0, complete=True, optimal=True, mass_is_one=True),
            certificate(2, 0.7, 0.3, complete=True, optimal=True, mass_is_one=True),
            certificate(3, 0.7, optimal=True),
            certificate(4, 0.4),
            certificate(5, reason="length_penalty"),
        ],
    )
    _, result = evaluate(prepared, "--certificates", prepared / "certificates")
    third = 100 / 3
    a = result["languages"]["a"]
    assert [a[rate] for rate in ("single", "complete", "optimal", "mass_is_one")] == pytest.approx(
        [third, 2 * third, 100, 2 * third]
    )
    assert [result["languages"][language]["void_certificates"] for language in ("a", "a-b", "c")] == [0, 0, 1]
    assert result["macro"]["optimal"] == pytest.approx(third)  # (100 + 0 + 0) / 3
    # certificates need no gold forms: `c` counts too
    assert result["signatures"]["single"] == f"single|{SIGNATURE.replace('langs:2', 'langs:3')}"


def test_a_list_cut_to_one_best_is_not_a_single_hypothesis(prepared):
    lines = [certificate(number, 0.6, complete=True) for number in range(1, 6)]
    lines[0] = lines[0].replace('"found": 1', '"found": 2')
    write_lines(prepared / "certificates", lines)
    _, result = evaluate(prepared, "--certificates", prepared / "certificates")
    # input 1: two hypotheses were found, one is listed
    assert result["languages"]["a"]["single"] == pytest.approx(200 / 3)
    assert result["languages"]["a"]["complete"] == 100


def test_trust_counts_the_last_row_of_a_pair(prepared, capsys):
    probs = [0.9, 0.8, 0.7, 0.6, 0.5]
    lines = [certificate(number, prob, complete=number == 3) for number, prob in enumerate(probs, 1)]
    lines[3] = certificate(4, 0.6, reason="length_penalty")
    write_lines(prepared / "certificates", lines)
    _, result = evaluate(prepared, "--certificates", prepared / "certificates", "--bootstrap-samples", "9")
    trust = result["trust"]
    # go is right at 0.9; of dive's two rows the last counts, wrong at 0.7; a-b's is void, and nobody knows c's form
    assert trust["curve"] == [
        {"threshold": pytest.approx(0.9), "coverage": 50, "acc": 100},
        {"threshold": pytest.approx(0.7), "coverage": 100, "acc": 50},
    ]
    assert trust["void"] == {"length_penalty": 1}
    assert trust["unlike"] == 5  # all certificates speak of "a"
    assert (trust["classes"]["single"]["outputs"], trust["classes"]["uncertified"]["outputs"]) == (1, 1)
    wanted = f"trust|{SIGNATURE.replace('macro', 'micro')}".replace(
        "|version", "|bins:10|bootstrap:9|bootstrap_seed:1|version"
    )
    assert result["signatures"]["trust"] == wanted
    out = capsys.readouterr().out
    void = [certificate(number, 0.6, reason="sampling") for number in range(1, 6)]
    write_lines(prepared / "certificates", void)
    _, result = evaluate(prepared, "--certificates", prepared / "certificates")
    assert result["trust"] is None and "trust" not in result["signatures"]
    assert "5 certificates are void" in capsys.readouterr().out
    assert "not the best string of their certificate: 5." in out
    assert "AUROC 100.00" in out and "Without the outputs whose certificates are void (length_penalty: 1)." in out


def test_submission_is_written_and_scores_alike(prepared):
    _, result = evaluate(prepared, "--submission", prepared / "sub")
    assert sorted(path.name for path in (prepared / "sub").iterdir()) == ["a-b-low-out", "a-low-out", "c-low-out"]
    assert read_lines(prepared / "sub" / "a-low-out") == ["go\twent\tV", "dive\tdo ve\tV", "dive\tdov\tV"]
    assert evaluate(prepared, "--submitted", predictions="sub")[1]["macro"] == result["macro"]
    # gold files alone: nobody says what the setting is
    (prepared / "run" / "manifest.json").unlink()
    _, result = evaluate(prepared, "--submission", prepared / "bare")
    assert sorted(path.name for path in (prepared / "bare").iterdir()) == ["a-b-out", "a-out", "c-out"]
    assert evaluate(prepared, "--submitted", predictions="bare")[1]["macro"] == result["macro"]


def test_comparison_of_two_systems(prepared, capsys):
    lines = read_lines(prepared / "pred")
    write_lines(prepared / "other", ["g o", *lines[1:]])
    _, result = evaluate(prepared, "--compare", prepared / "other", "--bootstrap-samples", "100")
    # the other system loses one of the two pairs of `a`: (50 + 0) / 2
    assert result["comparison"]["difference"] == 25.0
    assert 0 < result["comparison"]["p_value"] <= 1
    assert "bootstrap:100|bootstrap_seed:1" in result["signatures"]["acc_difference"]
    assert "+25.00" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lines", "arguments", "message"),
    [
        (["a"] * 4, [], "pred has 4 lines for 5 inputs."),
        (["a"] * 10, [], "pred has 10 lines for 5 inputs; that would be --n-best 2."),
        (["a"] * 5, ["--n-best", "3"], "pred has 5 lines for 5 inputs x 3 = 15 lines; that would be --n-best 1."),
        (["a"] * 5, ["--n-best", "0"], "Invalid setting for `n-best`: 0. It must be at least 1."),
        (["a"] * 5, ["--submitted", "--n-best", "2"], "--submitted goes without"),
        (["a"] * 5, ["--setting", "mediun"], "`setting`: mediun. Valid choices: low, medium, high, none."),
    ],
)
def test_wrong_predictions_are_one_line(prepared, capsys, lines, arguments, message):
    write_lines(prepared / "pred", lines)
    assert evaluate(prepared, *arguments)[0] == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: not a JSON object"),
        ("{}", "line 2: the certificate lacks `line`"),
        (certificate(7, 1.0), "line 2: this certificate is of input line 7"),
        (certificate(2, 1.0).replace('"prob"', '"p"'), "line 2: a hypothesis lacks `prob`"),
    ],
)
def test_wrong_certificates_are_one_line(prepared, capsys, line, message):
    lines = [certificate(number, 1.0) for number in range(1, 6)]
    write_lines(prepared / "certificates", [lines[0], line, *lines[2:]])
    assert evaluate(prepared, "--certificates", prepared / "certificates")[0] == 2
    assert message in capsys.readouterr().err


def test_missing_files_are_named(prepared, capsys):
    assert evaluate(prepared, predictions="nothing")[0] == 2
    assert "nothing: no such file" in capsys.readouterr().err
    (prepared / "empty").mkdir()
    assert evaluate(prepared, predictions="empty")[0] == 2
    assert "no file for a " in capsys.readouterr().err
    arguments = ["--gold", str(prepared / "run"), "--predictions", str(prepared / "pred")]
    assert cli.main(["evaluate", "inflection", *arguments]) == 2
    assert "holds no LANG.gold. Its folder `test` or `dev` does." in capsys.readouterr().err


@pytest.mark.parametrize(
    "written",
    [
        lambda lines: b"".join(line.encode() + b"\r\n" for line in lines),
        lambda lines: b"\xef\xbb\xbf" + "\n".join(lines).encode(),
        lambda lines: "".join(f"{line} ||| 0-0 1-1\n" for line in lines).encode(),  # -report_align
        lambda lines: "".join(f"{line} ||| 0-0\t-0.25\n" for line in lines).encode(),  # and -with_score
    ],
)
def test_predictions_written_otherwise_score_alike(prepared, written):
    (prepared / "other").write_bytes(written(read_lines(prepared / "pred")))
    assert evaluate(prepared, predictions="other")[1]["macro"] == {"acc": 75.0, "lev": 0.5}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: "d ||| o"}, "pred, line 2: `|||` without the alignments of `-report_align` behind it."),
        ({3: "x\ty"}, "pred, line 4: 'y' behind the tab is no score of `-with_score`."),
    ],
)
def test_predictions_that_cannot_be_read_are_refused(prepared, capsys, change, message):
    lines = [change.get(number, line) for number, line in enumerate(read_lines(prepared / "pred"))]
    write_lines(prepared / "pred", lines)
    assert evaluate(prepared)[0] == 2
    assert capsys.readouterr().err.endswith(f"{message}\n")


def test_certificates_of_other_inputs_and_attention_are_refused(prepared, capsys):
    path = prepared / "c"
    write_lines(path, [certificate(number, 1.0) for number in range(1, 5)])
    assert evaluate(prepared, "--certificates", path)[0] == 2
    assert "c has 4 certificates for 5 inputs." in capsys.readouterr().err
    attention = {"source": ["a"], "hypotheses": [{"tokens": ["a"], "attention": [[1.0]]}]}
    write_lines(path, [json.dumps({"line": number, **attention}) for number in range(1, 6)])
    assert evaluate(prepared, "--certificates", path)[0] == 2
    error = capsys.readouterr().err
    assert "c, line 1: this is a file of `-attention`" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("form", "guess", "distance"),
    [("a", "", 1), ("abc", "abc", 0), ("kitten", "sitting", 3), ("ab", "ba", 2), ("e\u0301", "\xe9", 2), ("", "a", 1)],
)
def test_known_distances(form, guess, distance):
    # kitten -> sitten -> sittin -> sitting; there is no transposition; composed and decomposed forms differ
    row = Row("x", form, "N")
    assert outcomes([row], [(row, [guess])]) == [(form == guess, distance, form == guess)]


def outcomes(gold, guesses):
    return [tuple(outcome) for outcome in score(gold, guesses)]


def test_last_gold_form_and_last_guess_of_a_pair_are_kept():
    gold = [Row("dive", "dived", "V;PST"), Row("go", "went", "V;PST"), Row("dive", "dove", "V;PST")]
    guesses = [(gold[0], ["dove"]), (gold[1], ["went"]), (gold[2], ["dived"])]
    # two pairs; dive: gold dove (the last), guess dived (the last): dove -> dive -> dived, 2 edits
    assert outcomes(gold, guesses) == [(False, 2, False), (True, 0, True)]


def test_missing_guess_is_the_empty_word():
    assert outcomes([Row("a", "abc", "N"), Row("b", "b", "N")], [(Row("b", "", "N"), ["b"])]) == [
        (False, 3, False),
        (True, 0, True),
    ]


def test_blanks_at_the_ends_of_the_line_do_not_count_those_of_the_form_do():
    # the official scorer strips the line: before the lemma and after the tags
    gold = [Row(" a", "x ", "N\xa0"), Row("b", "y", "N"), Row("c ", "z", " N")]
    guesses = [(Row("a", "", "N"), ["x "]), (Row("b", "", "N"), ["y "]), (Row("c", "", "N"), ["z"])]
    # the third pair is ("c ", " N"): blanks inside the line are part of it, so its guess is missing
    assert outcomes(gold, guesses) == [(True, 0, True), (False, 1, False), (False, 1, False)]


def test_n_best_counts_the_first_and_any():
    gold = [Row("a", "x", "N"), Row("b", "y", "N")]
    assert outcomes(gold, [(gold[0], ["q", "x"]), (gold[1], ["y", "q"])]) == [(False, 1, True), (True, 0, True)]


def test_bootstrap_of_one_clear_difference():
    # a is right on all 100 pairs of x and b on 50; equal on y: macro difference (50 + 0) / 2 = 25
    first = {"x": [True] * 100, "y": [True, False] * 50}
    second = {"x": [True, False] * 50, "y": [True, False] * 50}
    result = paired_bootstrap(first, second, samples=500, seed=3)
    assert result.difference == pytest.approx(25)
    # the x share is binomial(100, .5): sd 5 points, halved by the average over two languages: 95% is about 25 +- 4.9
    assert 18 < result.low < 22 and 28 < result.high < 32
    assert result.p_value == pytest.approx(1 / 501)
    assert result == paired_bootstrap(first, second, samples=500, seed=3)
    assert result != paired_bootstrap(first, second, samples=500, seed=4)


def test_bootstrap_swaps_sign_and_finds_no_difference_between_equals():
    system = {"x": [True, False, True]}
    same = paired_bootstrap(system, system, samples=50)
    assert same == (0, 0, 0, 1)
    other = {"x": [True, True, True]}
    forth, back = paired_bootstrap(system, other, samples=50), paired_bootstrap(other, system, samples=50)
    assert forth.difference == pytest.approx(-100 / 3) and back.difference == pytest.approx(100 / 3)


# --- lemmas seen in training ---


@pytest.fixture
def trained(prepared):
    """Training rows of `a` with the lemma of one of its two pairs; of `a-b` with none that is tested; and of `z`."""
    rows = ["<lang:a> <tag:V> g o", "<lang:a> <tag:N> <tag:PL> g o", "<lang:a-b> <tag:N> X", "<lang:z> <tag:N> x"]
    write_lines(prepared / "run" / "train.src", rows)
    return prepared


def test_accuracy_by_whether_a_lemma_was_seen(trained, capsys):
    status, result = evaluate(trained, "--train", trained / "run")
    assert status == 0
    # a: go is in its training rows and right; dive is not, and wrong. a-b: x is not (X is another lemma, and the x of z
    # another language), and right. c has no forms, so its training rows are not asked for
    assert result["languages"] == {
        "a": {"inputs": 3, "pairs": 2, "acc": 50, "lev": 1, "lemma_seen": 50, "acc_seen": 100, "acc_unseen": 0,
              "acc_gap": 100},
        "a-b": {"inputs": 1, "pairs": 1, "acc": 100, "lev": 0, "lemma_seen": 0, "acc_unseen": 100},
        "c": {"inputs": 1},
    }  # fmt: skip
    # seen (50 + 0) / 2; unseen (0 + 100) / 2; only a has seen ones, and so a difference
    assert result["macro"] == {
        "acc": 75, "lev": 0.5, "lemma_seen": 25, "acc_seen": 100, "acc_unseen": 50, "acc_gap": 100
    }  # fmt: skip
    fields = SIGNATURE.replace("|version", "|train:3|version")  # the rows of a and a-b
    assert result["signatures"] == {
        "acc": f"acc|{SIGNATURE}",
        "lev": f"lev|{SIGNATURE}",
        "lemma_seen": f"lemma_seen|{fields}",
        "acc_seen": f"acc_seen|{fields.replace('langs:2', 'langs:1')}",
        "acc_unseen": f"acc_unseen|{fields}",
        "acc_gap": f"acc_gap|{fields.replace('langs:2', 'langs:1')}",
    }
    assert result["files"][str(trained / "run" / "train.src")] == sha256(trained / "run" / "train.src")
    lines = capsys.readouterr().out.split("\n")
    assert [line.split() for line in lines[1:5]] == [
        ["a", "50.00", "1.00", "50.00", "100.00", "0.00", "100.00"],
        ["a-b", "100.00", "0.00", "0.00", "-", "100.00", "-"],
        ["c", "-", "-", "-", "-", "-", "-"],
        ["macro", "average", "75.00", "0.50", "25.00", "100.00", "50.00", "100.00"],
    ]
    assert lines[5] == "`acc seen %` is over 1 of 2 languages: the others have no such pairs."


def test_training_rows_may_be_official_files(trained):
    # CRLF, a byte order mark, and blanks before a lemma, which the official scorer does not see
    (trained / "a-train-low").write_bytes(b"\xef\xbb\xbf go\twent\tV\r\ngo\tgo\tN;PL\r\n")
    (trained / "a-b-train-low").write_bytes(b"X\tx\tN\n")
    for end in ("a-dev", "a-b-dev", "a-train-high", "a-b-train-high"):
        write_lines(trained / end, ["dive\tdove\tV"])
    wanted = evaluate(trained, "--train", trained / "run")[1]
    files = (trained / "a-train-low", trained / "a-b-train-low")
    # of a folder's settings that of the manifest
    for given in ((trained / "run" / "train.src",), files, (trained,)):
        found = evaluate(trained, "--train", *given)[1]
        assert (found["languages"], found["signatures"]) == (wanted["languages"], wanted["signatures"])
    assert set(map(str, files)) < set(found["files"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"go\twent\tV\n", "a-train-low: no training rows of a-b; they have a."),
        (b"", "a-train-low: no training rows of a, a-b; they have no language."),
        (b"go\twent\tV\r\r\n", "a-train-low, line 1: it ends with a carriage return."),
        (b"go\twent\tV\ng\xff\twent\tV\n", "a-train-low, line 2: not valid UTF-8"),
        (b"go\twent\n", "a-train-low, line 1: a row has lemma, form and tags"),
    ],
)
def test_wrong_training_rows_are_one_line(trained, capsys, content, message):
    (trained / "a-train-low").write_bytes(content)
    assert evaluate(trained, "--train", trained / "a-train-low")[0] == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["run/train.src", "a-train-low"], "a-train-low: a is also in "),
        (["run/test"], "Invalid setting for `train`: "),
        (["nowhere"], "nowhere: no such file."),
        (["run/train.src", "pred.src"], "pred.src, line 1: not an inflection source line"),
    ],
)
def test_wrong_places_of_training_rows_are_one_line(trained, capsys, given, message):
    write_lines(trained / "a-train-low", ["go\twent\tV"])
    write_lines(trained / "pred.src", ["g o"])
    assert evaluate(trained, "--train", *(trained / one for one in given))[0] == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
