"""``onmt_entmax prepare inflection`` on a tiny corpus of odd characters, read back by OpenNMT-py, and on real data."""

from __future__ import annotations

import argparse
import json
import tarfile
import warnings
from collections import Counter

import pytest
import yaml

from onmt_entmax import cli
from onmt_entmax.files import read_lines, sha256
from onmt_entmax.tasks.inflection import prepare as inflection_prepare
from onmt_entmax.tasks.inflection.format import Row, decode_form, decode_source, encode_row, find_corpora, read_rows
from onmt_entmax.tasks.inflection.prepare import prepare

# a no-break space, a trailing blank, a line separator, a next-line, the feature separator, a BOM, look-alikes of
# special tokens, decomposed and composed é, NUL, a pair that occurs twice
ODD = [
    ("a\xa0b", "a\xa0", "N;SG"),
    ("c", "c ", "N;PL"),
    ("d\u2028", "\x85d\u3000", "V;non{NOM}"),
    ("\uffe8", "e\uffe8\ufeff", "V; N"),
    ("<unk>", "<s>", "N"),
    ("e\u0301", "\xe9", "N"),
    ("f\0", "f\x1f", "N;50%"),
    ("g", "g1", "N"),
    ("g", "g2", "N"),
]


def write_corpus(folder, language, rows, covered=False):
    folder.mkdir(parents=True, exist_ok=True)
    full = "".join("\t".join(row) + "\n" for row in rows)
    for split in ("train-low", "dev", "test"):
        (folder / f"{language}-{split}").write_text(full, encoding="utf-8", newline="\n")
    if covered:
        (folder / f"{language}-test").unlink()
        hidden = "".join(f"{lemma}\t{tags}\n" for lemma, _, tags in rows)
        (folder / f"{language}-covered-test").write_text(hidden, encoding="utf-8", newline="\n")


@pytest.fixture
def without_vocabularies(monkeypatch):
    """Leave OpenNMT-py out: starting it takes seconds, and its part is tested on the ``prepared`` corpus."""
    monkeypatch.setattr(inflection_prepare, "_build_vocabularies", lambda folder, train: {"src": 1, "tgt": 1})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inflection")
    write_corpus(folder / "data" / "all", "odd", ODD)
    write_corpus(folder / "data" / "surprise", "zed", [("z", "zz", "N")] * 3, covered=True)
    output = folder / "runs" / "o\u00fct"
    manifest = prepare([folder / "data"], output, "low", name="tiny")
    return folder / "data", output, manifest


def rows_of(output, split):
    pairs = zip(read_lines(output / f"{split}.src"), read_lines(output / f"{split}.tgt"))
    return [(*decode_source(source), decode_form(target)) for source, target in pairs]


def test_every_row_is_there_and_decodes(prepared):
    _, output, _ = prepared
    wanted = [("odd", lemma, tags, form) for lemma, form, tags in ODD] + [("zed", "z", "N", "zz")] * 3
    assert Counter(rows_of(output, "train")) == Counter(wanted)
    assert rows_of(output, "train") != wanted  # the languages are mixed
    assert rows_of(output, "dev") == wanted
    assert rows_of(output, "test") == [*wanted[:-3], *[("zed", "z", "N", "")] * 3]


def test_languages_are_kept_apart_for_scoring(prepared):
    data, output, _ = prepared
    assert (output / "test" / "odd.gold").read_bytes() == (data / "all" / "odd-test").read_bytes()
    assert (output / "dev" / "zed.gold").read_bytes() == (data / "surprise" / "zed-dev").read_bytes()
    assert read_lines(output / "test" / "zed.covered") == ["z\t\tN"] * 3
    assert not (output / "test" / "zed.gold").exists()
    joint = read_lines(output / "test" / "odd.src") + read_lines(output / "test" / "zed.src")
    assert joint == read_lines(output / "test.src")


def test_manifest_counts_and_checksums(prepared):
    data, output, manifest = prepared
    assert json.loads((output / "manifest.json").read_text(encoding="utf-8")) == manifest
    assert manifest["languages"] == {
        "odd": {"train": 9, "dev": 9, "test": 9},
        "zed": {"train": 3, "dev": 3, "test": 3},
    }
    assert manifest["rows"] == {"train": 12, "dev": 12, "test": 12}
    assert (manifest["task"], manifest["setting"]) == ("tiny", "low")
    assert manifest["inputs"]["all/odd-train-low"] == sha256(data / "all" / "odd-train-low")
    assert len(manifest["inputs"]) == 6
    files = {path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file()}
    assert files == {*manifest["outputs"], "manifest.json"}
    assert all(sha256(output / name) == checksum for name, checksum in manifest["outputs"].items())


def test_opennmt_reads_every_token(prepared):
    # OpenNMT-py's own vocabulary and corpus readers must see exactly the tokens of the training text
    with warnings.catch_warnings():  # of OpenNMT-py under a new torch, nothing we can mend
        warnings.simplefilter("ignore")
        from onmt.inputters.inputter import build_vocab
        from onmt.inputters.text_corpus import ParallelCorpus, ParallelCorpusIterator
        from onmt.transforms import TransformPipe

    _, output, manifest = prepared
    config = yaml.safe_load((output / "data.yaml").read_text(encoding="utf-8"))
    files = config["data"]["corpus_1"]
    corpus = ParallelCorpus("corpus_1", files["path_src"], files["path_tgt"])
    read = [example for example, *_ in ParallelCorpusIterator(corpus, TransformPipe([], []))]
    for side in ("src", "tgt"):
        assert [example[side] for example in read] == [line.split(" ") for line in read_lines(output / f"train.{side}")]
    opt = argparse.Namespace(
        default_specials=["<unk>", "<blank>", "<s>", "</s>"],
        src_vocab=config["src_vocab"], tgt_vocab=config["tgt_vocab"], share_vocab=False, src_words_min_frequency=1,
        tgt_words_min_frequency=1, src_vocab_size=32768, tgt_vocab_size=32768, vocab_size_multiple=1, n_src_feats=0,
        data_task="seq2seq", decoder_start_token="<s>",
    )  # fmt: skip
    vocabularies = build_vocab(opt, {"src": [], "tgt": []})
    for side in ("src", "tgt"):
        wanted = {token for line in read_lines(output / f"train.{side}") for token in line.split(" ")}
        assert wanted <= set(vocabularies[side].ids_to_tokens)
        assert manifest["vocabularies"][side] == len(wanted)


def test_preparing_again_removes_what_is_no_longer_made(prepared, without_vocabularies, tmp_path):
    data, _, _ = prepared
    output = tmp_path / "out"
    first = prepare([data], output, "low")
    (output / "mine.txt").write_text("a user's own file")
    second = prepare([data], output, "low", ["zed"])
    assert "dev/odd.gold" in first["outputs"] and "dev/odd.gold" not in second["outputs"]
    assert not (output / "dev" / "odd.gold").exists()
    assert (output / "mine.txt").exists()
    assert first["seed"] == second["seed"] == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bad-dev", b"a\tb\tN\nc\tN\n", "bad-dev, line 2: a row has lemma, form and tags"),
        ("bad-train-low", b"a\tb\tN\n\xff\tb\tN\n", "bad-train-low, line 2: not valid UTF-8"),
        ("bad-train-low", b"", "bad-train-low has no rows"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, capsys, name, content, message):
    write_corpus(tmp_path / "data", "bad", [("a", "b", "N")])
    (tmp_path / "data" / name).write_bytes(content)
    arguments = ["--data", str(tmp_path / "data"), "--setting", "low", "--output", str(tmp_path / "out")]
    assert cli.main(["prepare", "inflection", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_empty_test_file_is_no_test_file(without_vocabularies, tmp_path):
    # two languages of the shared task's archive have one
    write_corpus(tmp_path / "data", "x", [("a", "b", "N")])
    (tmp_path / "data" / "x-test").write_bytes(b"")
    manifest = prepare([tmp_path / "data"], tmp_path / "out", "low")
    assert manifest["languages"] == {"x": {"train": 1, "dev": 1}}


@pytest.fixture(scope="module")
def conll2018(real_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("conll2018")
    with tarfile.open(real_data / "conll2018_task1.tar.xz") as archive:
        for member in archive:
            if member.isfile() and not member.name.endswith("train-high"):
                path = folder / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.extractfile(member).read())
    return folder


@pytest.mark.realdata
def test_all_medium_training_rows_round_trip(conll2018):
    corpora = find_corpora([conll2018], "medium", None)
    assert len(corpora) == 102
    rows = no_break = 0
    for language, corpus in corpora.items():
        for row in read_rows(corpus.train):
            encode_row(language, row, language)  # raises where the text does not decode to the row
            rows += 1
            no_break += "\xa0" in row.form + row.lemma
    assert rows == 95323
    assert no_break > 0


@pytest.mark.realdata
def test_real_languages_are_prepared(conll2018, without_vocabularies, tmp_path):
    languages = ["english", "finnish", "tibetan"]
    manifest = prepare([conll2018], tmp_path / "out", "medium", languages)
    assert {name: counts["train"] for name, counts in manifest["languages"].items()} == {
        "english": 1000, "finnish": 1000, "tibetan": 158,
    }  # fmt: skip
    for language in languages:
        folder = conll2018 / ("surprise" if language == "english" else "all")
        assert (tmp_path / "out" / "test" / f"{language}.gold").read_bytes() == (
            folder / f"{language}-test"
        ).read_bytes()


@pytest.mark.realdata
def test_a_form_that_ends_in_a_blank_keeps_it(conll2018):
    ends = [
        row
        for path in sorted(conll2018.glob("*/*-test"))
        if not path.name.endswith("-covered-test")
        for row in read_rows(path)
        if row.form != row.form.strip()
    ]
    assert ends
    for row in ends:
        assert decode_form(encode_row("x", row, "x")[1]) == row.form
        assert Row(*"\t".join(row).split("\t")) == row
