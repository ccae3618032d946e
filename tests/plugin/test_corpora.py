"""Reading data: odd tokens in vocabularies, bad text named by file and line, no line dropped in silence."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest
from onmt.constants import CorpusTask
from onmt.inputters import dynamic_iterator, inputter, text_corpus
from onmt.inputters import text_utils as inputter_text

from onmt_entmax.errors import UserError
from onmt_entmax.plugin.corpora import check_parallel, check_transforms, log_blank_pairs, read_vocabulary


def write(path, content: bytes):
    path.write_bytes(content)
    return str(path)


def test_vocabulary_with_counts_and_odd_tokens(tmp_path):
    content = "a\t9\n\u00a0\t5\n\u2028\t4\nx\u00a0y\t3\nb 2\n".encode()
    path = write(tmp_path / "v", content)
    assert read_vocabulary(path, 1) == ["a", "\u00a0", "\u2028", "x\u00a0y", "b"]
    assert read_vocabulary(path, 4) == ["a", "\u00a0", "\u2028"]


def test_vocabulary_from_another_system(tmp_path):
    path = write(tmp_path / "v", b"\xef\xbb\xbfa\t2\r\nb\t1\r\n")
    assert read_vocabulary(path, 1) == ["a", "b"]
    assert read_vocabulary(write(tmp_path / "w", b"\xef\xbb\xbfa\r\nb"), 1) == ["a", "b"]


def test_vocabulary_without_counts(tmp_path):
    assert read_vocabulary(write(tmp_path / "v", "\u00a0\na\n7\n".encode()), 1) == ["\u00a0", "a", "7"]


def test_a_blank_is_no_token_of_a_vocabulary(tmp_path):
    assert read_vocabulary(write(tmp_path / "v", b"a\n\n \nb\n\n"), 1) == ["a", "b"]
    assert read_vocabulary(write(tmp_path / "w", b"a\t9\n\t7\n \t6\n\nb\t5\n"), 1) == ["a", "b"]


def test_vocabulary_line_without_its_count(tmp_path):
    with pytest.raises(UserError, match=r"v, line 2: 'b' has no count"):
        read_vocabulary(write(tmp_path / "v", b"a\t1\nb\n"), 1)


def test_missing_vocabulary(tmp_path):
    with pytest.raises(UserError, match="Vocabulary not found at .*none"):
        read_vocabulary(str(tmp_path / "none"), 1)


def test_sides_of_different_length_name_both_counts(tmp_path):
    source, target = write(tmp_path / "s", b"a\nb\n"), write(tmp_path / "t", b"a\n")
    with pytest.raises(UserError, match=r"corpus_1: .*s has 2 lines, but .*t has 1"):
        check_parallel(source, target, "corpus_1")
    check_parallel(source, None, "corpus_1")


def test_training_on_unequal_sides_is_refused(corpus, tmp_path):
    short = write(tmp_path / "short.tgt", b"a\n")
    data = corpus.data().replace(f"{corpus.folder}/train.tgt", short)
    with pytest.raises(UserError, match="has 60 lines, but .* has 1"):
        corpus.train("never", "-data", data)


@pytest.mark.parametrize("option", ["src_vocab", "tgt_vocab"])
def test_a_missing_file_is_named(corpus, tmp_path, option):
    with pytest.raises(UserError, match=rf"Cannot read .*/none \({option.replace('_', ' ')}\): there is no such file"):
        corpus.train("never", f"-{option}", str(tmp_path / "none"))


def test_a_feature_separator_in_the_text_names_the_line(corpus, entmax_model):
    with pytest.raises(UserError, match="Invalid line 'a b\uffe8c': .*features"):
        corpus.translate(entmax_model, ["a", "a b\uffe8c"])


def test_tabs_and_unicode_blanks_are_tokens(corpus, entmax_model):
    path = corpus.folder / "attention.jsonl"
    lines = ["\u2028 a \u00a0", "\u00a0", "a\r", " ", " \t", "\ta b\tc"]
    corpus.translate(entmax_model, lines, "-attention", str(path))
    sources = [json.loads(line)["source"] for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    assert sources == [["\u2028", "a", "\u00a0"], ["\u00a0"], ["a"], [], ["\t"], ["\ta", "b\tc"]]  # as given


def test_runs_of_blanks_separate_tokens(corpus, entmax_model):
    path = corpus.folder / "attention.jsonl"
    output = corpus.translate(entmax_model, ["  a   b c ", "a b c"], "-attention", str(path))
    assert output[0] == output[1]
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    assert records[0]["source"] == records[1]["source"] == ["a", "b", "c"]


VOCABS = {"src": ["<unk>", "a", "b"], "tgt": ["<unk>", "<s>", "</s>", "c"], "data_task": "seq2seq"}


@pytest.mark.parametrize(
    ("target", "ids"),
    [("c", [1, 3, 2]), ("", [1, 2]), ("  ", [1, 2]), ("c  d ", [1, 3, 0, 2]), (None, None)],  # <s> is 1, </s> is 2
)
def test_blanks_are_no_tokens(target, ids):
    example = {"src": {"src": " a   b"}, "tgt": None if target is None else {"tgt": target}}
    numeric = inputter_text.numericalize(inputter.dict_to_vocabs(VOCABS), example)
    assert numeric["src"]["src_ids"] == [1, 2]
    assert ids is None if target is None else numeric["tgt"]["tgt_ids"] == ids


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a\uffe8X  b\uffe8Y\n", ("a b", ["X Y"])),
        (" \n", ("", [""])),
        ("a b\n", UserError),
    ],
)
def test_features_of_a_line(line, expected):
    if expected is UserError:
        with pytest.raises(UserError, match="'a b': .*features"):
            text_corpus.parse_features(line, n_feats=1)
    else:
        assert text_corpus.parse_features(line, n_feats=1) == expected


def blank_pairs(tmp_path) -> dict:
    source, target = write(tmp_path / "s", b"a b\n\nc\n  \n\t\n"), write(tmp_path / "t", b"b\na\n \n\na\n")
    return {"some": {"path_src": source, "path_tgt": target}, "one_side": {"path_src": source, "path_tgt": None}}


def test_pairs_with_a_blank_side_are_counted(tmp_path, caplog):
    # lines 2 (source), 3 (target) and 4 (both); the tab of line 5 is a token
    log_blank_pairs(blank_pairs(tmp_path), "warning")
    assert [record.getMessage() for record in caplog.records] == [
        "Corpus some: 3 pairs have a blank side and will be left out (the first is line 2)."
    ]


def test_levels_of_blank_pairs(tmp_path, caplog):
    log_blank_pairs(blank_pairs(tmp_path), "silent")
    assert not caplog.records
    with pytest.raises(UserError, match=r"Corpus some, line 2: a blank side \(`skip_empty_level` is error\)"):
        log_blank_pairs(blank_pairs(tmp_path), "error")


class Marks:
    """A transform that puts a token in front, in blank lines too."""

    def batch_apply(self, batch, **kwargs):
        for example, _, _ in batch:
            example["src"], example["tgt"] = ["<m>", *example["src"]], ["<m>", *example["tgt"]]
        return batch


@pytest.mark.parametrize("task", [CorpusTask.TRAIN, CorpusTask.VALID])
def test_no_transform_fills_a_blank_side(task):
    pairs = [("a", "b"), ("", "b"), ("a", ""), ("", "")]  # as stock splits blank lines: one empty token
    bucket = [({"src": [source], "tgt": [target]}, Marks(), "some") for source, target in pairs]
    assert [(one["src"]["src"], one["tgt"]["tgt"]) for one in dynamic_iterator.process(task, bucket)] == [
        ("<m> a", "<m> b")
    ]
    assert dynamic_iterator.process(task, bucket[1:]) == []


@pytest.mark.parametrize(("source", "message"), [([""], "has no line to train on"), ([], "is empty: .*no line")])
def test_a_corpus_without_a_line_is_named(corpus, tmp_path, source, message):
    data = {"hollow": {"path_src": write(tmp_path / "s", "\n".join([*source, ""]).encode()), "weight": 1}}
    data["hollow"]["path_tgt"] = write(tmp_path / "t", "\n".join([*source, ""]).encode())
    with pytest.raises(UserError, match=f"Corpus hollow {message}"):
        corpus.train("never", "-data", json.dumps(data))


def test_a_validation_corpus_without_a_line_trains(corpus, tmp_path):
    data = json.loads(corpus.data())
    data["valid"] = {"path_src": write(tmp_path / "s", b"\n"), "path_tgt": write(tmp_path / "t", b"\n")}
    with pytest.raises(UserError, match="Corpus valid has no line to validate on"):
        corpus.train("never", "-data", json.dumps(data))


@pytest.mark.parametrize("data", ["{}", "text", "[a]", "{a: text}", '{"valid": {"path_src": "x", "path_tgt": "x"}}'])
def test_data_without_a_corpus_is_refused(corpus, data):
    with pytest.raises(UserError, match=r"`data`|Cannot read x"):
        corpus.train("never", "-data", data)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_filter_that_leaves_nothing_ends_the_run(corpus, workers):
    with pytest.raises(UserError, match=r"Corpus corpus_1 has no line to train on.*`transforms` \(filtertoolong\)"):
        corpus.train("never", "-transforms", "filtertoolong", "-src_seq_length", "0", "-num_workers", workers)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("bpe", {"src_subword_model": "{}"}, "`tgt_subword_model`: None. `transforms` has bpe"),
        ("inlinetags", {}, "`tags_dictionary_path`: None. `transforms` has inlinetags, which needs a file there"),
        ("fuzzymatch", {"tm_path": "none"}, "`tm_path`: none. There is no such file"),
        ("fuzzymatch", {"tm_path": "{}", "tm_delimiter": "\t"}, "`tm_path`: .*Line 2 is not a pair, with '\\\\t'"),
        ("terminology", {}, "`termbase_path`: None. `transforms` has terminology"),
        ("bart", {"mask_length": "subword", "src_subword_type": "none"}, "`mask_length`: subword. `src_subword_type`"),
        ("bart", {"mask_length": "subword", "src_subword_type": "bpe", "replace_length": -1}, "`replace_length`: -1"),
    ],
)
def test_transforms_that_lack_what_they_need(tmp_path, name, options, message):
    pairs = write(tmp_path / "pairs", b"a\tb\nc\n")
    given = {key: pairs if value == "{}" else value for key, value in options.items()}
    with pytest.raises(UserError, match=message):
        check_transforms(Namespace(**given), [name])


def test_transforms_that_have_what_they_need(tmp_path):
    pairs = write(tmp_path / "pairs", b"a\tb\n")
    check_transforms(Namespace(tm_path=pairs, tm_delimiter="\t"), ["fuzzymatch", "filtertoolong"])
    check_transforms(Namespace(src_subword_model=pairs, share_vocab=True), ["sentencepiece"])
    tags = dict.fromkeys(("paired_stag", "paired_etag", "isolated_tag"), "<#>")
    check_transforms(Namespace(tags_dictionary_path=pairs, **tags), ["inlinetags"])
    with pytest.raises(UserError, match="`isolated_tag`: <>. It needs one `#`"):
        check_transforms(Namespace(tags_dictionary_path=pairs, **{**tags, "isolated_tag": "<>"}), ["inlinetags"])
