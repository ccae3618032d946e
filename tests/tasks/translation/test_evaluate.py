"""``onmt_entmax evaluate translation``: literal scores, signatures, and predictions that cannot be right."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import pytest
import sacrebleu

from onmt_entmax.cli import main
from onmt_entmax.errors import UserError
from onmt_entmax.files import read_lines
from onmt_entmax.tasks.translation.evaluate import evaluate, table
from onmt_entmax.tasks.translation.prepare import prepare
from onmt_entmax.tasks.translation.scores import (
    paired_bootstrap,
    raw_bleu,
    sentence_statistics,
    tokenised_bleu,
)
from onmt_entmax.version import version
from tests.tasks.translation.archives import sentences
from tests.tasks.translation.test_prepare import plain, write_plain

REFERENCES = ["The cat sat on the mat.", "It's a dog.", "We see an old tree (again)."]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    sources = ["Die Katze sa\u00df auf der Matte.", "Es ist ein Hund.", "Wir sehen einen alten Baum."]
    pairs = list(zip(sources, REFERENCES))
    prepare(plain(merges=5), write_plain(folder / "in", test=pairs), folder / "out")
    return folder / "out"


def write(path, lines):
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    return path


def test_the_references_themselves_score_100(data):
    result = evaluate(data, [data / "test.tgt"])
    assert result["mean"] == pytest.approx({"bleu_tok": 100, "bleu_raw": 100, "chrf": 100})
    assert result["sd"] == {"bleu_tok": None, "bleu_raw": None, "chrf": None}
    assert "@@ " in (data / "test.tgt").read_text(encoding="utf-8")  # there was something to undo


def test_tokenised_bleu_by_hand(data, tmp_path):
    # "the cat sat on the mat ." against "The cat sat on the mat .": "the" occurs once in the reference, so 6 of 7
    # unigrams match, and 5 of 6, 4 of 5, 3 of 4 longer n-grams; the other lines, 5 and 9 tokens, match wholly:
    # 14 unigrams, 12, 10 and 8. No brevity penalty.
    wrong = write(tmp_path / "wrong", ["the cat sat on the mat .", "It 's a dog .", "We see an old tree ( again ) ."])
    assert [len(line.split(" ")) for line in read_lines(data / "test.ref.tok")] == [7, 5, 9]
    precisions = [(6 + 14) / (7 + 14), (5 + 12) / (6 + 12), (4 + 10) / (5 + 10), (3 + 8) / (4 + 8)]
    expected = 100 * math.exp(sum(math.log(p) for p in precisions) / 4)
    result = evaluate(data, [wrong])
    assert result["mean"]["bleu_tok"] == pytest.approx(expected)


def test_signatures_say_how(data):
    result = evaluate(data, [data / "test.tgt"], about={"alpha": "1.5/1.5", "seed": "1"})
    assert result["signatures"]["bleu_tok"] == (
        "bleu_tok|task:plain|dir:de-en|split:test|lines:3|train:12|text:moses|subwords:bpe-joint-5|alpha:1.5/1.5|seed:1"
        f"|runs:1|nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|sacrebleu:{sacrebleu.__version__}|version:{version()}"
    )
    assert "|tok:13a|" in result["signatures"]["bleu_raw"]
    assert "|nc:6|nw:0|" in result["signatures"]["chrf"]


def test_mean_and_deviation_over_runs(data, tmp_path):
    other = write(tmp_path / "other", ["the cat sat on a mat .", "It 's a dog .", "We see an old tree ( again ) ."])
    paths = [data / "test.tgt", other, other]
    alone = evaluate(data, [other])["mean"]
    result = evaluate(data, paths)
    for name, value in alone.items():
        assert [run[name] for run in result["runs"]] == pytest.approx([100, value, value])
        assert result["mean"][name] == pytest.approx((100 + 2 * value) / 3)
        # of 100, v, v: the deviations are 2d/3, -d/3, -d/3 with d = 100 - v; their squares' sum 2d²/3 over n - 1 = 2
        assert result["sd"][name] == pytest.approx((100 - value) / math.sqrt(3))
    lines = table(result).split("\n")
    assert lines[0].split() == ["run", "BLEU", "tok", "BLEU", "raw", "chrF"]
    assert [line.split()[0] for line in lines[1:6]] == [*map(str, paths), "mean", "sd"]


def test_raw_scores_are_of_detokenised_text(data, tmp_path):
    tokens = write(tmp_path / "tokens", read_lines(data / "test.ref.tok"))
    assert evaluate(data, [tokens])["mean"]["bleu_raw"] == pytest.approx(100)


def test_bpe_undone_across_odd_predictions(data, tmp_path):
    cut = write(tmp_path / "cut", ["The cat sat on the m@@", "", " It 's  a dog . "])
    result = evaluate(data, [cut])
    assert 0 < result["mean"]["bleu_tok"] < 100


def test_scores_behind_predictions_do_not_count(data, tmp_path):
    scored = write(tmp_path / "scored", [f"{line}\t-0.53" for line in read_lines(data / "test.tgt")])
    assert evaluate(data, [scored])["mean"] == pytest.approx({"bleu_tok": 100, "bleu_raw": 100, "chrf": 100})


def test_tokens_of_the_references_are_not_left_over(tmp_path):
    pairs = [("a", "x \u2581 y"), ("b", "see foo@@ too"), ("c", "z")]
    output = tmp_path / "out"
    prepare(plain(merges=5), write_plain(tmp_path / "in", test=pairs), output)
    assert evaluate(output, [output / "test.tgt"])["mean"]["bleu_tok"] == pytest.approx(100)
    with pytest.raises(UserError, match="line 1: '\u2581x' is left over"):
        evaluate(output, [write(tmp_path / "p", ["\u2581x", "b", "c"])])


def test_left_over_subwords_are_an_error(tmp_path):
    output = tmp_path / "out"
    prepare(plain(subwords="none"), write_plain(tmp_path / "in"), output)
    predictions = write(tmp_path / "p", ["a b", "a do@@ g", "c"])
    with pytest.raises(UserError, match="p, line 2: 'do@@' is left over: the data's subwords are none"):
        evaluate(output, [predictions])


def test_a_single_piece_is_said_and_stops_no_evaluation(tmp_path, capsys):
    output = tmp_path / "out"
    prepare(plain(subwords="none"), write_plain(tmp_path / "in", test=[("a", "b c d e")] * 11), output)
    predictions = ["b c d e"] * 10 + ["b c d @@"]
    assert evaluate(output, [write(tmp_path / "p", predictions)])["mean"]["bleu_tok"] < 100
    said = capsys.readouterr().err
    assert "p, line 11: '@@' is left over: the data's subwords are none." in said
    assert said.endswith("Scored as written: 1 of 11 lines.\n")
    with pytest.raises(UserError, match="p, line 10: '@@' is left over"):
        evaluate(output, [write(tmp_path / "p", [*predictions[:9], "b @@", "b @@"])])


def test_other_subwords_are_an_error(data, tmp_path):
    predictions = write(tmp_path / "p", ["a b", "c", "▁the cat"])
    with pytest.raises(UserError, match="p, line 3: '▁the' is left over: the data's subwords are bpe"):
        evaluate(data, [predictions])


def test_unequal_numbers_of_lines(data, tmp_path, capsys):
    two = write(tmp_path / "two", ["a", "b"])
    assert main(["evaluate", "translation", "--data", str(data), "--predictions", str(two)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err == f"onmt_entmax evaluate: {two} has 2 lines for 3 references.\n"
    six = write(tmp_path / "six", "abcdef")
    with pytest.raises(UserError, match="six has 6 lines for 3 references; that would be --n-best 2"):
        evaluate(data, [six])
    with pytest.raises(UserError, match="two has 2 lines for 3 references x 2"):
        evaluate(data, [two], n_best=2)


@pytest.mark.parametrize("setting", ["predictions", "compare", "certificates"])
def test_a_run_given_twice_does_not_count_twice(data, tmp_path, capsys, setting):
    one = write(tmp_path / "one", ["a", "b", "c"])
    words = ["evaluate", "translation", "--data", str(data), "--predictions", str(one), f"--{setting}", str(one)]
    assert main([*words, f"{tmp_path}/./one"]) == 2
    assert f"Invalid setting for `{setting}`: {tmp_path}/one. It is given twice." in capsys.readouterr().err


def test_only_the_best_of_n_counts(data, tmp_path):
    lines = [line for best in read_lines(data / "test.tgt") for line in (best, "something else")]
    predictions = write(tmp_path / "p", lines)
    assert evaluate(data, [predictions], n_best=2)["mean"]["bleu_tok"] == pytest.approx(100)


def test_certificate_rates(data, tmp_path):
    def certificate(line, probabilities, **rest):
        hypotheses = [{"tokens": ["a"], "log_prob": math.log(p), "prob": p, "finished": True} for p in probabilities]
        full = {"line": line, "hypotheses": hypotheses, "complete": False, "optimal": False, "mass_is_one": False}
        return json.dumps(
            {**full, "mass_found": sum(probabilities), "found": len(probabilities), "reason": None, **rest}
        )

    lines = [
        certificate(1, [1.0], complete=True, optimal=True, mass_is_one=True),
        certificate(2, [0.6, 0.4], complete=True, optimal=True),
        certificate(3, [0.3], complete=None, optimal=None, mass_is_one=None, reason="length penalty"),
    ]
    path = write(tmp_path / "c", lines)
    result = evaluate(data, [data / "test.tgt"], certificates=[path])
    expected = {"single": 100 / 3, "complete": 200 / 3, "optimal": 200 / 3, "mass_is_one": 100 / 3}
    assert {name: result["mean"][name] for name in expected} == pytest.approx(expected)
    assert "1 certificates are void" in table(result)
    assert result["signatures"]["certificates"].startswith("certificates|task:plain|")
    with pytest.raises(UserError, match="--certificates has 2 files, --predictions 1: one per run"):
        evaluate(data, [data / "test.tgt"], certificates=[path, path])
    with pytest.raises(UserError, match="c has 2 certificates for 3 inputs"):
        evaluate(data, [data / "test.tgt"], certificates=[write(path, lines[:2])])


def test_a_changed_reference_is_found(tmp_path):
    prepare(plain(), write_plain(tmp_path / "in"), tmp_path / "out")
    reference = tmp_path / "out/test.ref"
    reference.write_bytes(reference.read_bytes().replace(b".", b"!"))
    with pytest.raises(UserError, match="test.ref was changed since it was prepared"):
        evaluate(tmp_path / "out", [tmp_path / "out/test.tgt"])
    reference.unlink()
    with pytest.raises(UserError, match="lacks the file test.ref"):
        evaluate(tmp_path / "out", [tmp_path / "out/test.tgt"])


@pytest.mark.parametrize("text", ["{}", "[]", "no json", '{"task": "inflection"}'])
def test_another_folder_is_an_error(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="manifest.json(: not| is not a manifest of `onmt_entmax prepare translation`)"):
        evaluate(tmp_path, [tmp_path / "x"])


@pytest.mark.parametrize(
    "change, message",
    [
        ({"split": "train"}, "`--split`: train. Valid choices: test, dev"),
        ({"n_best": 0}, "`--n-best`: 0. It must be at least 1"),
        ({"samples": 0}, "`--bootstrap-samples`: 0. It must be at least 1"),
        ({"raw_tokenizer": "moses"}, "`--raw-tokenizer`: moses. Valid choices: 13a, ja-mecab, char"),
    ],
)
def test_wrong_options(data, change, message):
    with pytest.raises(UserError, match=message):
        evaluate(data, [data / "test.tgt"], **change)


def test_no_case_no_tokens_and_dev(tmp_path):
    output = tmp_path / "out"
    prepare(plain(subwords="sentencepiece", merges=40, lowercase=True), write_plain(tmp_path / "in"), output)
    result = evaluate(output, [output / "dev.tgt"], split="dev")
    # raw text was not tokenised: both sides are for the tokenised score; case does not count against "the"
    assert result["mean"] == pytest.approx({"bleu_tok": 100, "bleu_raw": 100, "chrf": 100})
    assert "|case:lc|" in result["signatures"]["bleu_raw"]


def japanese(tmp_path, tokenised=False, **settings):
    """English-Japanese data; ``tokenised`` puts a blank after every character."""
    pairs = [(en, " ".join(ja) if tokenised else ja) for en, ja in zip(sentences("en", 12), sentences("ja", 12))]
    folder = write_plain(tmp_path / "in", "en", "ja", train=pairs, dev=pairs[:2], test=pairs[:3])
    prepare(plain("en-ja", **settings), folder, tmp_path / "out")
    return tmp_path / "out"


def test_japanese_needs_mecab_for_raw_scores(tmp_path, monkeypatch):
    output = japanese(tmp_path, tokenised=True, pretokenised=("train", "dev", "test"))
    monkeypatch.setitem(sys.modules, "MeCab", None)
    with pytest.raises(UserError, match="pip install mecab-python3; or choose `--raw-tokenizer char`"):
        evaluate(output, [output / "test.tgt"])
    result = evaluate(output, [output / "test.tgt"], raw_tokenizer="char")
    assert result["mean"] == pytest.approx({"bleu_tok": 100, "bleu_raw": 100, "chrf": 100})
    assert "|tok:char|" in result["signatures"]["bleu_raw"]


def test_untokenised_japanese_has_no_tokenised_score(tmp_path):
    output = japanese(tmp_path, subwords="sentencepiece", merges=60)
    result = evaluate(output, [output / "test.tgt"], raw_tokenizer="char")
    assert result["mean"] == pytest.approx({"bleu_raw": 100, "chrf": 100})


def test_japanese_with_mecab(tmp_path):
    pytest.importorskip("MeCab")
    pytest.importorskip("ipadic")
    output = japanese(tmp_path)
    result = evaluate(output, [output / "test.tgt"])
    assert result["mean"] == pytest.approx({"bleu_tok": 100, "bleu_raw": 100, "chrf": 100})
    assert "|tok:ja-mecab-" in result["signatures"]["bleu_raw"]


def test_statistics_add_up_to_corpus_bleu():
    references = ["a b c d e f", "g h i j k", "l m n o p q r"]
    hypotheses = ["a b c d x f", "g h i j", "l m n o p q z r"]
    metric = tokenised_bleu()
    summed = sentence_statistics(metric, hypotheses, references).sum(axis=0)
    score = metric.corpus_score(hypotheses, [references])
    assert summed.tolist() == [*score.counts, *score.totals, score.sys_len, score.ref_len]


def test_bootstrap_of_a_system_with_itself_and_of_a_worse_one():
    metric = raw_bleu("13a")
    references = [f"line number {n} of the text says {n * n} things" for n in range(40)]
    worse = [line.replace("text", "book").replace("says", "said") for line in references]
    good, bad = (sentence_statistics(metric, lines, references) for lines in (references, worse))
    same = paired_bootstrap([good, bad], [bad, good], samples=50)
    assert (same.difference, same.low, same.high, same.p_value) == pytest.approx((0, 0, 0, 1), abs=1e-9)
    better = paired_bootstrap([good], [bad], samples=50, seed=3)
    assert better.difference == pytest.approx(100 - metric.corpus_score(worse, [references]).score)
    assert 0 < better.low <= better.difference <= better.high
    assert better.p_value == pytest.approx(1 / 51)  # no resample comes near: one added above and below
    assert paired_bootstrap([good], [bad], samples=50, seed=3) == better
    reverse = paired_bootstrap([bad], [good], samples=50, seed=3)
    assert reverse.difference == pytest.approx(-better.difference)
    assert (reverse.low, reverse.high) == pytest.approx((-better.high, -better.low))


def test_bootstrap_interval_agrees_with_sacrebleu():
    """Our percentiles of one system's differences against sacreBLEU's own paired bootstrap: same data, other draws."""
    from sacrebleu.significance import PairedTest

    generator = np.random.default_rng(0)
    references = [" ".join(generator.choice(list("abcdefgh"), 12)) for _ in range(150)]
    systems = []
    for rate in (0.05, 0.1):
        noisy = [[w if generator.random() > rate else "z" for w in line.split(" ")] for line in references]
        systems.append([" ".join(words) for words in noisy])
    metric = tokenised_bleu()
    ours = paired_bootstrap(*([sentence_statistics(metric, s, references)] for s in systems), samples=400)
    _, theirs = PairedTest(
        [("second", systems[1]), ("first", systems[0])], {"BLEU": metric}, [references], "bs", n_samples=400
    )()
    scores = [result.score for result in theirs["BLEU"]]
    assert ours.difference == pytest.approx(scores[1] - scores[0])
    assert ours.p_value == pytest.approx(theirs["BLEU"][1].p_value, abs=0.02)


def test_romanian_references_are_named_in_the_signature(tmp_path):
    output = tmp_path / "out"
    prepare(plain("en-ro"), write_plain(tmp_path / "in", "en", "ro"), output)
    result = evaluate(output, [output / "test.tgt"])
    # the references lost their diacritics as the training text did
    assert result["mean"]["bleu_raw"] == pytest.approx(100) and "|romanian:plain|" in result["signatures"]["bleu_raw"]


def test_compare_by_the_command(data, tmp_path, capsys):
    other = write(tmp_path / "other", ["a cat sits on the mat .", "It 's a dog .", "We see trees ."])
    arguments = ["evaluate", "translation", "--data", str(data), "--predictions", str(data / "test.tgt")]
    options = ["--compare", str(other), "--bootstrap-samples", "20", "--json", str(tmp_path / "scores.json")]
    assert main([*arguments, *options]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "BLEU tok, first minus second system: +" in out
    result = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))
    assert result["comparison"]["bleu_tok"]["difference"] > 0
    assert result["comparison"]["others"][0]["predictions"] == str(other)
    assert "|bootstrap:20|bootstrap_seed:1|" in result["signatures"]["bleu_raw_difference"]


def test_predictions_written_otherwise_score_alike(data, tmp_path):
    lines = read_lines(data / "test.tgt")
    for name, content in {
        "crlf": b"\xef\xbb\xbf" + b"".join(line.encode() + b"\r\n" for line in lines),
        "aligned": "".join(f"{line} ||| 0-0 1-1\n" for line in lines).encode(),
    }.items():
        (tmp_path / name).write_bytes(content)
        assert evaluate(data, [tmp_path / name])["mean"]["bleu_tok"] == pytest.approx(100)


def test_trust_by_certificate(data, tmp_path, capsys):
    """The first line is wrong and not certified, the others are right: 100 chrF and BLEU."""
    predictions = write(tmp_path / "p", ["xx yy zz", *read_lines(data / "test.tgt")[1:]])
    made = [(0.5, False), (1.0, True), (0.9, True)]
    strings = [["a"], *(line.split(" ") for line in read_lines(data / "test.tgt")[1:])]
    records = [
        {
            "line": line,
            "hypotheses": [{"tokens": tokens, "log_prob": math.log(prob), "prob": prob, "finished": True}],
            **{"complete": False, "optimal": optimal, "mass_is_one": False, "mass_found": prob, "found": 1},
            "reason": None,
        }
        for line, (tokens, (prob, optimal)) in enumerate(zip(strings, made), 1)
    ]
    certificates = write(tmp_path / "c", map(json.dumps, records))
    result = evaluate(data, [predictions], certificates=[certificates], samples=5)
    own = result["runs"][0]["trust"]
    wrong = sacrebleu.CHRF().sentence_score("xx yy zz", [REFERENCES[0]]).score
    assert wrong < 10
    assert own["unlike"] == 1  # "a", in whole words as in subwords
    assert own["classes"]["optimal"]["chrf"]["value"] == pytest.approx(100)
    assert own["classes"]["optimal"]["bleu"]["value"] == pytest.approx(100)
    assert own["classes"]["uncertified"]["chrf"]["value"] == pytest.approx(wrong)
    assert own["aurc"]["value"] == pytest.approx((0 + 0 + (100 - wrong) / 3) / 3)
    assert "|bleu:bleu_tok|bootstrap:5|bootstrap_seed:1|" in result["signatures"]["trust"]
    shown = [line.split()[:2] for line in table(result).split("\n")]
    assert ["uncertified", "33.33"] in shown and "AUROC" not in table(result)
