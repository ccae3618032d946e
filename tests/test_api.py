"""``onmt_entmax.load``: results line for line, those of stock's command and of our commands, and what it refuses."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import onmt_entmax
from onmt_entmax.errors import UserError

ROOT = Path(__file__).parents[1]
LINES = ["a b c", "", "d e", "  ", "h g f e"]


@pytest.fixture(scope="module")
def model(entmax_model):
    return onmt_entmax.load(entmax_model)


def test_importing_the_package_imports_neither_torch_nor_typing():
    code = "import sys; before = set(sys.modules); import onmt_entmax; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if not name.startswith("onmt_entmax")}
    assert loaded <= {"__future__"}


def test_translations_are_those_of_the_command(model, corpus, entmax_model):
    certificates = corpus.folder / "api.jsonl"
    expected = corpus.translate(entmax_model, LINES, "-certificates", str(certificates), "-n_best", "2")
    records = [json.loads(line) for line in certificates.read_text(encoding="utf-8").split("\n")[:-1]]
    found = model.translate(LINES, n_best=2)
    assert [one.text for one in found] == expected[::2]
    assert [one.line for one in found] == [1, 2, 3, 4, 5]
    for one, record in zip(found, records):
        assert one.certificate.keys() == record.keys()
        for key in ("line", "complete", "optimal", "certified_n", "found", "reason", "dtype"):
            assert one.certificate[key] == record[key]
        assert [h.tokens for h in one.hypotheses] == [entry["tokens"] for entry in record["hypotheses"]]
        assert [h.log_prob for h in one.hypotheses] == pytest.approx(
            [entry["log_prob"] for entry in record["hypotheses"]], abs=1e-5
        )


def test_a_blank_line_is_a_blank_result(model):
    blank = model.translate(LINES)[1]
    assert (blank.text, blank.tokens, blank.log_prob, blank.prob, blank.hypotheses) == ("", [], None, None, [])
    assert blank.certificate["reason"] == "blank input line" and blank.certificate["line"] == 2
    assert model.translate([]) == [] and model.force([], []) == [] and model.complete([], "a") == []
    assert [one.text for one in model.translate([""], tree=True)] == [""]


def test_lines_may_come_from_any_iterable(model):
    expected = model.translate(["a b", "c"])
    assert [one.text for one in model.translate(line for line in ("a b", "c"))] == [one.text for one in expected]
    file = model.translate(io.StringIO("a b\nc\r\n"))  # as an open file gives them, with line ends
    assert [(one.source, one.unknown) for one in file] == [(["a", "b"], []), (["c"], [])]
    forced = model.force(iter(["a b", "c"]), iter(["b a", "c"]))
    assert [one.text for one in forced] == ["b a", "c"]
    assert [one.prefix for one in model.complete(iter(["a b", "c"]), ("b",))] == [["b"], ["b"]]


def test_the_parts_of_a_translation(model):
    (one,) = model.translate([["a", "b", "c"]], attention=True, tree=True)
    best = one.hypotheses[0]
    assert one.source == ["a", "b", "c"] and one.text == best.text == " ".join(best.tokens)
    assert best.prob == math.exp(best.log_prob) and best.score == best.log_prob
    assert len(best.attention) == len(best.tokens) + best.finished
    assert all(len(row) == 3 and sum(row) == pytest.approx(1, abs=1e-5) for row in best.attention)
    assert one.tree[0]["parent"] is None and {node["status"] for node in one.tree} >= {"live", "finished"}
    plain = model.translate(["a b c"], certificates=False)[0]
    assert plain.certificate is None and plain.tree is None and plain.hypotheses[0].attention is None
    assert plain.tokens == one.tokens


@settings(max_examples=20)
@given(texts=st.lists(st.text("ab ", max_size=8), max_size=5), batch_size=st.integers(1, 3))
def test_only_runs_of_blanks_separate_tokens_and_batches_do_not_matter(model, texts, batch_size):
    found = model.translate(texts, batch_size=batch_size)
    alone = model.translate([" ".join(text.split()) for text in texts])
    assert [(one.source, one.tokens) for one in found] == [(one.source, one.tokens) for one in alone]
    for one, same in zip(found, alone):
        assert one.log_prob == pytest.approx(same.log_prob, abs=1e-5)


def test_exact_search_is_at_least_as_probable(model):
    for beam, exact in zip(model.translate(LINES, beam_size=1), model.translate(LINES, search="exact")):
        assert exact.log_prob is None or exact.log_prob >= beam.log_prob - 1e-6
        assert exact.certificate["optimal"] is (True if exact.source else None)
    whole = model.translate(["a b c"], search="exact", whole_support=True)[0]
    assert whole.certificate["complete"] and len(whole.hypotheses) == whole.certificate["found"]


def test_a_length_penalty_changes_scores_and_voids_certificates(model):
    one = model.translate(["a b c"], length_penalty="avg")[0]
    assert one.certificate["reason"] == "length_penalty avg"
    # as stock has it: the length counts BOS and EOS
    assert one.hypotheses[0].score == pytest.approx(one.log_prob / (len(one.tokens) + 2))


def test_forced_targets_have_the_probability_that_search_finds(model):
    for found in model.translate(["a b c", "d e"], n_best=2):
        for hypothesis in found.hypotheses:
            forced = model.force([found.source], [hypothesis.tokens])[0]
            assert forced.log_prob == pytest.approx(hypothesis.log_prob, abs=1e-4)
            assert forced.prob == pytest.approx(hypothesis.prob, abs=1e-4)


def test_a_blank_target_is_the_end_alone_and_a_blank_source_is_no_target(model):
    blank, no_source, double = model.force(["a b", "", "a b"], ["", "a", "a   b"])
    assert [step["token"] for step in blank.steps] == ["</s>"] and blank.tokens == [] and blank.text == ""
    assert no_source.steps == [] and no_source.log_prob is None and no_source.prob is None
    assert double.tokens == ["a", "b"]


def test_a_given_padding_token_counts_as_any_other(softmax_model):
    (one,) = onmt_entmax.load(softmax_model).force(["a b"], ["<blank> b"])
    assert [step["token"] for step in one.steps] == ["<blank>", "b", "</s>"]
    assert one.log_prob == pytest.approx(sum(step["log_prob"] for step in one.steps))


def test_unknown_tokens_are_shown_as_given_and_reported(model, entmax_model, caplog):
    (one,) = model.force(["a NEVER b c d e f g h a b c"], ["a SEEN"])
    assert one.unknown == ["NEVER", "SEEN"]
    assert [(step["token"], step["unknown"]) for step in one.steps] == [("a", False), ("SEEN", True), ("</s>", False)]
    # one of two target tokens is unknown
    assert "Some are 'SEEN'. Is the target text prepared as" in caplog.text
    caplog.clear()
    assert model.translate(["a b"])[0].unknown == [] and not caplog.text
    said = []
    onmt_entmax.load(entmax_model, log=said.append).translate(["a b", "x"])
    assert said[0].startswith("Unknown tokens: source 33.3% (1 of 3).")


def test_sparsity_counts_zeros_of_unknown_words_apart(model):
    numbers = model.sparsity(["a b c", ""], ["c b ZZ", "a"])
    assert numbers["lines"] == 1 and numbers["steps"] == 4
    assert 0 <= numbers["gold_zero_unknown"] <= numbers["gold_zero"] <= 1


def test_completions_begin_with_the_prefix_as_given(model):
    known, blank = model.complete(["a b c", ""], "c b")
    assert known.prefix == ["c", "b"] and known.certificate["conditional_on_prefix"] is True
    assert all(hypothesis.tokens[:2] == ["c", "b"] for hypothesis in known.hypotheses)
    assert sum(prob for _, prob in known.next_tokens) == pytest.approx(1, abs=1e-5)
    assert blank.text == "" and blank.next_tokens == [] and blank.certificate["reason"] == "blank input line"
    nothing = model.complete(["a b c"], " ")[0]  # no token at all: the same as searching
    assert nothing.text == model.translate(["a b c"])[0].text
    assert model.complete(["a b c"], "ZZ")[0].prefix == ["ZZ"]
    few = model.complete(["a b c"], "c b", max_support=1, max_length=np.int64(9))[0]
    assert few.next_tokens == known.next_tokens[:1]


@pytest.mark.parametrize("search", ["beam", "exact"])
def test_minimum_risk_is_that_of_the_command(model, corpus, entmax_model, search):
    path = corpus.folder / "risk.jsonl"
    options = ("-decision", "mbr", "-mbr_utility", "edit", "-n_best", "2", "-search", search)
    expected = corpus.translate(entmax_model, LINES, "-certificates", str(path), *options)
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    found = model.translate(LINES, n_best=2, search=search, decision="mbr", mbr_utility="edit")
    assert [one.text for one in found] == expected[::2]
    for one, record in zip(found, records):
        assert one.certificate.get("mbr") == record.get("mbr")
        scores = [entry["expected_utility"] for entry in record["hypotheses"]]
        assert [hypothesis.score for hypothesis in one.hypotheses] == pytest.approx(scores, abs=1e-4)


def test_an_ensemble(entmax_model, softmax_model):
    ensemble = onmt_entmax.load(entmax_model, softmax_model)
    assert ensemble.alphas == "1.5/1.5+1/1"
    both = ensemble.force(["a b c"], ["c b a"])[0]
    single = [onmt_entmax.load(path).force(["a b c"], ["c b a"])[0] for path in (entmax_model, softmax_model)]
    for step, pair in zip(both.steps, zip(*(one.steps for one in single))):
        assert step["prob"] == pytest.approx(sum(entry["prob"] for entry in pair) / 2, abs=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model.translate("a b"), "`sources`: 'a b'. It must be a list of lines"),
        (lambda model: model.translate(["a"], min_length=9, max_length=8), "`min_length`: 9. It must be at most"),
        (lambda model: model.translate(["a"], n_best=6), "`n_best`: 6. It must be at most `beam_size`, which is 5"),
        (lambda model: model.translate(["a"], search="best"), "`search`: best. Valid choices: beam, exact"),
        (lambda model: model.translate(["a"], whole_support=True), "`whole_support`: True. It is for `search` exact"),
        (lambda model: model.translate(["a"], max_expansions=3), "`max_expansions`: 3. It is for `search` exact"),
        (lambda model: model.translate(["a"], mbr_utility="edit"), "`mbr_utility`: edit. It is for `decision` mbr"),
        (
            lambda model: model.translate(["a"], length_penalty_weight=7.0),
            "`length_penalty_weight`: 7.0. It is for a `length_penalty`",
        ),
        (
            lambda model: model.translate(["a"], length_penalty="wu", length_penalty_weight="1"),
            "`length_penalty_weight`: '1'. It must be a finite number",
        ),
        (lambda model: model.force(["a", "a"], ["b", "c </s> a"]), "target line 2: it must not contain the end of the"),
        (lambda model: model.translate(["a"], search="exact", tree=True), "`tree`: True. It is for `search` beam"),
        (lambda model: model.translate(["a"], search="exact", max_expansions=0), "`max_expansions`: 0"),
        (lambda model: model.translate(["a"], decision="best"), "`decision`: best. Valid choices: map, mbr"),
        (lambda model: model.translate(["a"], decision="mbr", n_best=6), "`n_best`: 6. It must be at most"),
        (lambda model: model.translate(["a"], decision="mbr", beam_size=1), "`beam_size`: 1. `decision` mbr"),
        (lambda model: model.translate(["a"], batch_size=0), "`batch_size`: 0"),
        (lambda model: model.translate([b"a"]), "`sources`: b'a'. A line is a string, or a list of its tokens"),
        (lambda model: model.translate([["a", None]]), "`sources`: .'a', None.. A line is a string"),
        (lambda model: model.translate(None), "`sources`: None. It must be a list of lines"),
        (lambda model: model.translate(["a"], n_best="3"), "`n_best`: '3'. It must be a whole number"),
        (lambda model: model.translate(["a"], beam_size=2.5), "`beam_size`: 2.5. It must be a whole number"),
        (
            lambda model: model.translate(["a"], length_penalty="wu", length_penalty_weight=float("nan")),
            "`length_penalty_weight`: nan. It must be a finite number",
        ),
        (lambda model: model.complete(["a"], None), "`prefix`: None. A line is a string"),
        (lambda model: model.force(["a"], [b"a"]), "`targets`: b'a'. A line is a string"),
        (lambda model: onmt_entmax.load(["a.pt"]), r"paths of checkpoints, one by one; \['a.pt'\] is none"),
        (lambda model: onmt_entmax.load("a.pt", gpu="0"), "`gpu`: '0'. It must be a whole number"),
        (lambda model: model.translate(["a￨x"]), "source line 1: `a￨x` has 1 features .* trained with 0"),
        (lambda model: model.force(["a", "b"], ["a"]), "There are 2 sources, but 1 targets"),
        (lambda model: model.force(["a"], ["a"], max_support=0), "`max_support`: 0"),
        (lambda model: model.complete(["a"], "a </s>"), "`prefix`: a </s>. It must not contain the end"),
        (lambda model: onmt_entmax.load(), "`load` needs a checkpoint"),
        (lambda model: onmt_entmax.load("none.pt"), "none.pt: there is no such file"),
    ],
)
def test_mistakes_are_named(model, call, message):
    with pytest.raises(UserError, match=message):
        call(model)


def test_a_gpu_that_is_not_there_is_named(entmax_model, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match="`gpu`: 0. torch sees no CUDA device"):
        onmt_entmax.load(entmax_model, gpu=0)
