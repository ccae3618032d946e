"""Files are read strictly, with the file and the line in every message."""

from __future__ import annotations

import json

import pytest

from onmt_entmax.errors import UserError
from onmt_entmax.report.readers import (
    KINDS,
    attention_of,
    kind,
    lines_beside,
    pick,
    read_examples,
    read_object,
)
from tests.report import samples


def test_empty_file_says_so(tmp_path):
    path = tmp_path / "empty.jsonl"
    path.write_text("\n")
    for read in (read_examples, read_object):
        with pytest.raises(UserError, match=r"empty\.jsonl is empty"):
            read(path)


def test_broken_line_is_named(tmp_path):
    path = samples.write_lines(tmp_path / "a.jsonl", [samples.draw()])
    path.write_text(path.read_text() + '{"line": 2, "hypo\n')
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: not JSON"):
        read_examples(path)


ATTENTION = {
    "line": 1,
    "source": ["x", "y"],
    "hypotheses": [
        {"tokens": ["a", "</s>"], "attention": [[0.25, 0.75], [1.0, 0.0]]},
        {"tokens": ["b"], "attention": [[1.0, 0.0]]},
    ],
}
BEST = {"step": 2, "measure": "accuracy", "value": 9.0, "checkpoint": "m_best.pt", "signature": "valid|a"}


def test_kinds():
    trace = samples.trace(1, samples.DRAW_PATHS, samples.SOURCE)
    result = samples.inflection_result(1.0, "1/1", "1")
    metrics = samples.metrics_rows(1, 1, 9)[0]
    objects = [samples.draw(), trace, samples.TREE_OF_LIFE, metrics, result, ATTENTION, BEST, {"a": 1}]
    objects += [samples.search_result([1, 2, 3], "1/1"), {"heads": [], "signature": "heads|lines:0"}]
    kinds = ["certificate", "trace", "forced", "metrics", "result", "attention", "best", None, "search", "heads"]
    assert [kind(each) for each in objects] == kinds
    assert set(kinds) - {None} == set(KINDS) - {"sparsity"}


def test_another_kind_of_file_is_named_with_what_reads_it(tmp_path):
    path = samples.write_lines(tmp_path / "m_metrics.jsonl", samples.metrics_rows(1, 1, 9))
    with pytest.raises(
        UserError, match=r"m_metrics\.jsonl holds a metrics file of `onmt_train`, for `table 3`, `report` and"
    ):
        read_examples(path)
    path = samples.write_lines(tmp_path / "a.jsonl", [ATTENTION])
    wanted = r"holds attention weights of `onmt_translate -attention` or .*, for `figure attention`\. Needed: cert"
    with pytest.raises(UserError, match=wanted):
        read_examples(path, ("certificate",))
    with pytest.raises(UserError, match="is no file of ours that fits here. Needed: search trees"):
        read_examples(samples.write_lines(tmp_path / "b.jsonl", [{"a": 1}]), ("trace",))


def test_an_indented_object_is_recognised_too(tmp_path):
    path = tmp_path / "sparsity.json"
    path.write_text(json.dumps({"target_types": 2.0, "signature": "s"}, indent=2))
    with pytest.raises(UserError, match="holds a result of `onmt_entmax sparsity`"):
        read_examples(path)
    path.write_text('{\n  "a": 1,\n')
    with pytest.raises(UserError, match=r"sparsity\.json: not JSON"):
        read_object(path)


def test_attention_files_give_the_best_hypothesis_and_pass_over_blank_lines(tmp_path):
    blank = {"line": 2, "source": [], "hypotheses": []}
    (example,) = read_examples(samples.write_lines(tmp_path / "a.jsonl", [ATTENTION, blank]))
    assert attention_of(example) == (["x", "y"], ["a", "</s>"], [[0.25, 0.75], [1.0, 0.0]])
    without = {**ATTENTION, "hypotheses": [{"tokens": ["a"], "attention": None}]}  # a model without attention
    (example,) = read_examples(samples.write_lines(tmp_path / "b.jsonl", [without]))
    assert attention_of(example) is None
    short = {**ATTENTION, "source": ["x"]}
    with pytest.raises(UserError, match="2 rows of .2. attention weights, for 2 target and 1 source tokens"):
        read_examples(samples.write_lines(tmp_path / "c.jsonl", [short]))


def test_texts_beside_examples_have_as_many_lines(tmp_path, draw_file):
    text = tmp_path / "a.src"
    text.write_text("one\ntwo\n")
    with pytest.raises(UserError, match=r"a\.src has 2 lines, and .*draw\.jsonl speaks of 1 input line: they do not"):
        lines_beside(draw_file, text)
    text.write_text("one\n")
    assert lines_beside(draw_file, text) == ["one"]


def test_blank_input_lines_are_left_out(tmp_path):
    blank = {"line": 1, "reason": "blank input line"}
    path = samples.write_lines(tmp_path / "a.jsonl", [blank, {**samples.draw(), "line": 2}])
    assert [example["line"] for example in read_examples(path)] == [2]
    with pytest.raises(UserError, match="no input line in it was searched"):
        read_examples(samples.write_lines(tmp_path / "b.jsonl", [blank]))


def test_pick_names_what_is_missing(draw_file):
    with pytest.raises(UserError, match=r"draw\.jsonl: no input line 7"):
        pick(draw_file, 7, ("certificate",), lambda example: True, "a search")
    with pytest.raises(UserError, match=r"no example of line 1 with attention"):
        pick(draw_file, 1, ("certificate",), lambda example: "attention" in example, "attention")


@pytest.mark.parametrize("parent", [None, 5, 1])
def test_tree_with_a_wrong_parent_is_refused(tmp_path, parent):
    record = samples.trace(1, samples.DRAW_PATHS, samples.SOURCE)
    record["tree"][1]["parent"] = parent
    with pytest.raises(UserError, match="input line 1: node 1 of `tree` comes before its parent"):
        read_examples(samples.write_lines(tmp_path / "a.jsonl", [record]))


def test_attention_of_another_shape_is_refused(tmp_path):
    record = samples.trace(1, samples.DRAW_PATHS, samples.SOURCE)
    record["hypotheses"][0]["attention"].pop()
    with pytest.raises(UserError, match="6 rows of .8. attention weights, for 7 target and 8 source tokens"):
        read_examples(samples.write_lines(tmp_path / "a.jsonl", [record]))


def test_attention_from_the_nonzeros_of_forced_decoding():
    example = samples.forced(["a", "b"], [{}, {}], ["x", "y", "z"])
    assert attention_of(example) == (["x", "y", "z"], ["a", "b"], [[0.75, 0.25, 0.0], [0.0, 0.75, 0.25]])
    del example["source"]  # then only what is attended to has a name
    assert attention_of(example)[0] == ["x", "y", "z"]
    example["steps"][0]["attention"] = None
    assert attention_of(example) is None


def test_result_without_signatures_is_refused(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"macro": {"acc": 1}}))
    with pytest.raises(UserError, match="Needed: a result of `onmt_entmax evaluate --json`"):
        read_object(path, "result")


def test_certificate_of_an_older_version_is_refused(tmp_path):
    record = samples.draw()
    del record["found"]
    with pytest.raises(UserError, match="the certificate lacks `found`"):
        read_examples(samples.write_lines(tmp_path / "a.jsonl", [record]))
