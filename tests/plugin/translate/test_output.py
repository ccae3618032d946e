"""From batches to output files: line for line, with the true reason for blanks, and no memory of what is written."""

from __future__ import annotations

import gc
import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_entmax.errors import UserError
from onmt_entmax.files import read_records
from onmt_entmax.plugin.translate import output, translator
from onmt_entmax.plugin.translate.output import _Line
from onmt_entmax.search.result import SearchResult
from tests.plugin.translate.test_translator import engine


@pytest.fixture
def log(caplog, monkeypatch):
    """What OpenNMT-py's logger says."""
    monkeypatch.setattr(logging.getLogger("onmt"), "propagate", True)
    caplog.set_level(logging.INFO)
    return caplog


def certificates(corpus, model, lines, *options):
    path = corpus.folder / "certificates.jsonl"
    written = corpus.translate(model, lines, "-certificates", str(path), *options)
    return written, [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_lines_that_a_transform_leaves_out_are_blank_and_say_so(corpus, entmax_model, log):
    lines = ["a b c", "a b c d e f", "", "d e", "h g f e d"]
    filtering = ("-transforms", "filtertoolong", "-src_seq_length", "4", "-n_best", "1")
    written, records = certificates(corpus, entmax_model, lines, *filtering)
    alone = corpus.translate(entmax_model, ["a b c", "d e"], "-length_penalty", "none", "-max_length_ratio", "0")
    assert written == [alone[0], "", "", alone[1], ""]
    left_out = "left out by transform filtertoolong"
    assert [record["reason"] for record in records] == [None, left_out, "blank input line", None, left_out]
    assert [record["line"] for record in records] == [1, 2, 3, 4, 5]
    assert f"2 input lines (2, 5) have a blank output: {left_out}." in log.text
    corpus.translate(entmax_model, ["a b"] * 7, "-transforms", "filtertoolong", "-src_seq_length", "1")
    assert f"7 input lines (1, 2, 3, 4, 5, ...) have a blank output: {left_out}." in log.text


def test_a_run_that_fails_leaves_earlier_files_as_they_were(corpus, entmax_model, monkeypatch):
    _, records = certificates(corpus, entmax_model, ["a b c", "d e"])
    stock = output.Outputs._write

    def write(self, line):
        stock(self, line)
        if line.number == 1:
            raise RuntimeError("killed")

    monkeypatch.setattr(output.Outputs, "_write", write)
    path = corpus.folder / "out"
    path.write_text("earlier\n", encoding="utf-8")
    with pytest.raises(RuntimeError, match="killed"):
        certificates(corpus, entmax_model, ["e d", "c b", "a"], "-output", str(path))
    assert path.read_text(encoding="utf-8") == "earlier\n"
    assert read_records(corpus.folder / "certificates.jsonl") == records
    assert not list(corpus.folder.glob(".*.part"))


def test_left_out_lines_with_targets(corpus, entmax_model):
    # a target of three tokens has five with its ends; filtertoolong allows two fewer than it says
    target = corpus.folder / "gold.tgt"
    target.write_text("c b a\ne d\n", encoding="utf-8")
    options = ("-transforms", "filtertoolong", "-tgt", str(target), "-tgt_seq_length", "4")
    assert [bool(line) for line in corpus.translate(entmax_model, ["a b c", "d e"], *options)] == [False, True]


@pytest.fixture(scope="module")
def filtering(entmax_model):
    """An engine that leaves out lines of more than two tokens."""
    options = ("-transforms", "filtertoolong", "-src_seq_length", "2", "-certificates", "-", "-batch_size", "2")
    translating = engine(entmax_model, *options)
    yield translating
    translating.terminate()


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["", "  ", "a", "b", "a  b", "a b c", "h g f e"]), max_size=6))
def test_as_many_outputs_as_inputs_in_order(filtering, lines):
    scores, predictions = filtering.infer_list(lines)
    records = predictions.certificates
    assert len(scores) == len(predictions) == len(records) == len(lines)
    for number, (line, record) in enumerate(zip(lines, records), 1):
        tokens = line.split()
        expected = (
            "blank input line" if not tokens else "left out by transform filtertoolong" if len(tokens) > 2 else None
        )
        assert (record["line"], record["reason"]) == (number, expected)
        alone = filtering.infer_list([line])[1]
        assert predictions[number - 1] == alone[0] and (expected is None or alone[0] == [""])


def test_a_prefix_does_not_fill_a_blank_line(corpus, entmax_model):
    lines = ["b c", "", "  "]
    written = corpus.translate(entmax_model, lines, "-transforms", "prefix", "-src_prefix", "a")
    assert written == [corpus.translate(entmax_model, ["a b c"])[0], "", ""]


def test_a_line_of_which_the_transforms_leave_nothing(corpus, entmax_model, monkeypatch):
    from onmt.transforms.uppercase import UpperCaseTransform

    def apply(self, example, **kwargs):
        return {**example, "src": [token for token in example["src"] if token != "a"]}

    monkeypatch.setattr(UpperCaseTransform, "apply", apply)
    _, records = certificates(corpus, entmax_model, ["a a", "a b"], "-transforms", "uppercase")
    assert [record["reason"] for record in records] == ["the transforms leave nothing of the line", None]


def test_docify_needs_a_model_trained_with_it(corpus, entmax_model):
    with pytest.raises(UserError, match="`transforms`: docify. The model was not trained with it"):
        corpus.translate(entmax_model, ["a"], "-transforms", "docify")


def test_unknown_tokens_are_counted_and_named(corpus, entmax_model, log):
    corpus.translate(entmax_model, ["a b c d", "", "e f g h"])
    assert "Unknown tokens: source 0.0% (0 of 8)." in log.text
    corpus.translate(entmax_model, ["a x", "y y", "a"])
    assert "Unknown tokens: source 60.0% (3 of 5). Some are 'x', 'y'. Is the source text prepared" in log.text


def test_written_lines_are_not_kept(corpus, entmax_model, monkeypatch):
    monkeypatch.setattr(translator, "running_command", lambda: "onmt_translate")
    write, alive, runs = output.Outputs._write, [], []

    def count(self, line):
        write(self, line)
        runs.append(self)
        if line.number % 10 == 9:
            kinds = [type(item) for item in gc.get_objects()]
            alive.append((kinds.count(SearchResult), kinds.count(_Line)))

    monkeypatch.setattr(output.Outputs, "_write", count)
    # without search results every bucket is written at once: one bucket a batch
    monkeypatch.setattr("onmt.inputters.dynamic_iterator.DynamicDatasetIter.__init__", small_buckets())
    written, records = certificates(corpus, entmax_model, corpus.sources[:60], "-batch_size", "10", "-n_best", "2")
    assert len(written) == 120 and len(records) == 60
    results, lines = zip(*alive)
    assert max(results) <= 20 and max(lines) <= 20  # of the bucket being written, and of the next one
    assert runs[-1].scores == [] and list(runs[-1].predictions) == [] and runs[-1].predictions.certificates == []


def small_buckets():
    from onmt.inputters.dynamic_iterator import DynamicDatasetIter

    initialise = DynamicDatasetIter.__init__

    def initialise_small(self, *args, **kwargs):
        initialise(self, *args, **{**kwargs, "bucket_size": 10})

    return initialise_small


def test_a_perplexity_is_per_token_and_of_softmax_alone(corpus, entmax_model, softmax_model, log):
    target = corpus.folder / "gold.tgt"
    target.write_text("c b a\n", encoding="utf-8")
    options = ("-tgt", str(target), "-length_penalty", "none")
    corpus.translate(entmax_model, ["a b c"], *options)
    sparse = log.text
    assert "PRED SCORE: -" in sparse and "GOLD SCORE: -" in sparse and "PPL" not in sparse
    log.clear()
    corpus.translate(softmax_model, ["a b c"], *options)
    assert "PRED PPL: " in log.text and "GOLD PPL: " in log.text


def test_the_log_shows_given_targets_without_padding(corpus, entmax_model, log):
    target = corpus.folder / "gold.tgt"
    target.write_text("c b a\ne\n\n", encoding="utf-8")
    corpus.translate(entmax_model, ["a b c", "d e", "d"], "-tgt", str(target), "-verbose")
    assert [line for line in log.text.split("\n") if line.startswith("GOLD ") and "SCORE" not in line] == [
        "GOLD 1: c b a",
        "GOLD 2: e",
        "GOLD 3: ",
    ]


def test_sources_in_a_list_have_no_target_file(entmax_model, tmp_path):
    (tmp_path / "t").write_text("a\n", encoding="utf-8")
    translating = engine(entmax_model, "-tgt", str(tmp_path / "t"))
    with pytest.raises(UserError, match="`tgt`: .*the sources are a list of lines"):
        translating.infer_list(["a"])
    translating.terminate()


def test_prefixes_without_targets_are_missed(corpus, entmax_model, log):
    corpus.translate(entmax_model, ["a b"], "-tgt_file_prefix")
    assert "`tgt_file_prefix` had no effect" in log.text
