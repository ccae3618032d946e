"""``onmt_entmax prepare translation``: from corpora to training text, by the command and by the function."""

from __future__ import annotations

import codecs
import json
import subprocess
import sys
import warnings
from argparse import Namespace
from pathlib import Path

import pytest
import yaml

from onmt_entmax.cli import main
from onmt_entmax.errors import UserError
from onmt_entmax.files import read_lines, sha256, write_lines
from onmt_entmax.tasks.prepared import data_yaml
from onmt_entmax.tasks.translation.prepare import Settings, prepare
from onmt_entmax.tasks.translation.subwords import undo_bpe, undo_sentencepiece
from tests.tasks.translation.archives import lines_of, sentences, write_iwslt, write_kftt, write_wmt
from tests.tasks.translation.test_readers import real, unpack


def write_plain(folder: Path, source: str = "de", target: str = "en", **texts: list[tuple[str, str]]) -> Path:
    """Write ``train``, ``dev`` and ``test``; pairs may be given for each."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, number, start in (("train", 12, 0), ("dev", 2, 12), ("test", 3, 14)):
        pairs = texts.get(split) or list(zip(sentences(source, number, start), sentences(target, number, start)))
        for side, language in ((0, source), (1, target)):
            (folder / f"{split}.{language}").write_bytes(lines_of([pair[side] for pair in pairs]).encode())
    return folder


def plain(direction: str = "de-en", **settings) -> Settings:
    merges = {} if settings.get("subwords") == "none" else {"merges": 20}
    return Settings("plain", direction, train=["train"], dev=["dev"], test=["test"], **{**merges, **settings})


def test_the_folder_that_is_written(tmp_path):
    output = tmp_path / "out"
    manifest = prepare(plain(), write_plain(tmp_path / "data"), output)
    assert sorted(path.name for path in output.iterdir()) == [
        *("bpe.codes", "data.yaml", "dev.ref", "dev.ref.tok", "dev.src", "dev.tgt", "manifest.json"),
        *("test.ref", "test.ref.tok", "test.src", "test.tgt", "train.src", "train.tgt", "vocab.src", "vocab.tgt"),
    ]
    assert json.loads((output / "manifest.json").read_text(encoding="utf-8")) == json.loads(json.dumps(manifest))
    assert manifest["counts"] == {
        "train": {"read": 12, "empty": 0, "too_long": 0, "kept": 12},
        "dev": {"read": 2, "empty": 0, "kept": 2},
        "test": {"read": 3, "empty": 0, "kept": 3},
    }
    assert manifest["outputs"] == {p.name: sha256(p) for p in output.iterdir() if p.name != "manifest.json"}
    assert manifest["inputs"]["train.de"] == sha256(tmp_path / "data/train.de")
    assert read_lines(output / "test.ref") == sentences("en", 3, 14)
    assert read_lines(output / "test.ref.tok") == [line.replace(".", " .") for line in sentences("en", 3, 14)]
    assert [undo_bpe(line) for line in read_lines(output / "test.tgt")] == read_lines(output / "test.ref.tok")
    # every token of the training text is in the vocabulary, with its count
    counts = dict(line.split("\t") for line in read_lines(output / "vocab.tgt"))
    words = " ".join(read_lines(output / "train.tgt")).split(" ")
    assert counts == {word: str(words.count(word)) for word in set(words)}
    assert manifest["vocabularies"]["tgt"] == len(counts)


def test_the_same_input_gives_the_same_output(tmp_path):
    data = write_plain(tmp_path / "data")
    first, second = (prepare(plain(), data, tmp_path / name) for name in ("one", "two"))
    # data.yaml holds the folder's own path
    assert {k: v for k, v in first["outputs"].items() if k != "data.yaml"} == {
        k: v for k, v in second["outputs"].items() if k != "data.yaml"
    }
    assert first["settings"] == second["settings"]


def test_the_command_prints_counts_and_vocabulary_sizes(tmp_path, capsys):
    data = write_plain(tmp_path / "data")
    arguments = "prepare translation --corpus plain --direction de-en --train train --dev dev --test test --merges 9"
    assert main([*arguments.split(), "--data", str(data), "--output", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    manifest = json.loads((tmp_path / "out/manifest.json").read_text(encoding="utf-8"))
    sizes = manifest["vocabularies"]
    assert "train: 12 read, 0 empty, 0 too long, 12 kept\n" in out
    assert f"vocabularies: {sizes['src']} source, {sizes['tgt']} target types" in out


def test_a_user_error_is_one_line_and_leaves_the_output_alone(tmp_path, capsys):
    output = tmp_path / "out"
    data = write_plain(tmp_path / "data")
    prepare(plain(), data, output)
    before = {path.name: sha256(path) for path in output.iterdir()}
    (data / "dev.en").write_bytes(b"one line\n")
    arguments = "prepare translation --corpus plain --direction de-en --train train --dev dev --test test"
    assert main([*arguments.split(), "--data", str(data), "--output", str(output)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert "dev.de has 2 lines, " in err and "dev.en has 1: both sides need as many" in err
    assert {path.name: sha256(path) for path in output.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "out"]


def test_a_second_run_removes_what_the_first_one_wrote(tmp_path):
    data = write_plain(tmp_path / "data")
    output = tmp_path / "out"
    prepare(plain(codes="separate"), data, output)
    (output / "notes.txt").write_text("mine", encoding="utf-8")
    assert (output / "bpe.src.codes").exists() and (output / "bpe.tgt.codes").exists()
    prepare(plain(codes="joint"), data, output)
    assert not (output / "bpe.src.codes").exists() and (output / "bpe.codes").exists()
    assert (output / "notes.txt").exists()


def test_empty_sides_and_long_pairs(tmp_path):
    long = "der " * 8
    pairs = [("der Hund", ""), ("", "the dog"), ("\u00a0", "\u3000"), (long, "the dog"), ("der Hund", "the dog")]
    data = write_plain(tmp_path / "data", train=pairs, dev=pairs, test=pairs)
    manifest = prepare(plain(max_length=7), data, tmp_path / "out")
    assert manifest["counts"] == {
        "train": {"read": 5, "empty": 3, "too_long": 1, "kept": 1},
        "dev": {"read": 5, "empty": 3, "kept": 2},
        "test": {"read": 5, "empty": 3, "kept": 5},  # never dropped: scores stay comparable
    }
    assert read_lines(tmp_path / "out/test.ref") == ["", "the dog", "", "the dog", "the dog"]
    assert prepare(plain(max_length=8), data, tmp_path / "out")["counts"]["train"]["kept"] == 2
    with pytest.raises(UserError, match="train: no sentence pair is left of the 5 read"):
        prepare(plain(max_length=1), data, tmp_path / "out")


def test_odd_characters_reach_opennmt(tmp_path):
    """U+2028 and the like inside a line, OpenNMT-py's own signs, subword marks: line counts and words survive."""
    pairs = [("ein\u2028Hund\u0085da", "a@@ dog"), ("x\uffe8y <s>", "</s> z\r"), ("\u00a0a\u00a0", "b <unk> \u2581")]
    data = write_plain(tmp_path / "data", train=pairs, dev=pairs, test=pairs)
    settings = plain(pretokenised=("train", "dev", "test"))
    prepare(settings, data, tmp_path / "out")
    assert read_lines(tmp_path / "out/test.ref.tok") == ["a@@ dog", "</s> z", "b <unk> \u2581"]
    assert [undo_bpe(line) for line in read_lines(tmp_path / "out/train.src")] == ["ein Hund da", "x|y <s>", "a"]
    for side in ("src", "tgt"):
        text = (tmp_path / f"out/train.{side}").read_bytes().decode()
        assert "\uffe8" not in text and all(c in " \n" or not c.isspace() for c in text)
        assert not {"<s>", "</s>", "<unk>"} & set(text.split())


def test_opennmt_reads_vocabularies_and_text_as_they_are(tmp_path):
    from onmt.inputters.inputter import _read_vocab_file

    output = tmp_path / "out"
    prepare(plain(), write_plain(tmp_path / "data"), output)
    tokens = [line.split("\t")[0] for line in read_lines(output / "vocab.src")]
    assert _read_vocab_file(str(output / "vocab.src"), 1) == tokens


def test_data_yaml_is_what_onmt_train_wants(tmp_path):
    import yaml

    output = tmp_path / "out put"
    prepare(plain(), write_plain(tmp_path / "data"), output)
    config = yaml.safe_load((output / "data.yaml").read_text(encoding="ascii"))
    assert config["data"] == {
        "corpus_1": {"path_src": str(output / "train.src"), "path_tgt": str(output / "train.tgt"), "weight": 1},
        "valid": {"path_src": str(output / "dev.src"), "path_tgt": str(output / "dev.tgt")},
    }
    assert config["src_vocab"] == str(output / "vocab.src") and config["tgt_vocab"] == str(output / "vocab.tgt")


def test_a_corpus_is_not_overwritten(tmp_path):
    pairs = {split: [("a b .", "c d .")] * 3 for split in ("train", "dev", "test")}
    data = write_plain(tmp_path / "data", "src", "tgt", **pairs)
    before = {path.name: path.read_bytes() for path in data.iterdir()}
    with pytest.raises(UserError, match="`output`: .*data/dev.src. It is the input of `data`"):
        prepare(plain("src-tgt"), data, data)
    assert {path.name: path.read_bytes() for path in data.iterdir()} == before


def test_large_vocabularies_are_not_cut(tmp_path):
    # OpenNMT-py keeps 32,768 tokens unless told otherwise, and its own special tokens are among them
    with warnings.catch_warnings():  # of OpenNMT-py under a new torch, nothing we can mend
        warnings.simplefilter("ignore")
        from onmt.inputters.inputter import build_vocab
    types = {"src": 32_765, "tgt": 32_764}
    for side, count in types.items():
        write_lines(tmp_path / f"vocab.{side}", [f"w{number}\t9" for number in range(count)])
    opt = Namespace(
        default_specials=["<unk>", "<blank>", "<s>", "</s>"], src_vocab=tmp_path / "vocab.src", share_vocab=False,
        tgt_vocab=tmp_path / "vocab.tgt", src_words_min_frequency=0, tgt_words_min_frequency=0, src_vocab_size=32768,
        tgt_vocab_size=32768, vocab_size_multiple=8, n_src_feats=0, data_task="seq2seq", decoder_start_token="<s>",
    )  # fmt: skip
    found = build_vocab(opt, {"src": [], "tgt": []})
    assert "w32764" not in found["src"].ids_to_tokens and "w32763" in found["tgt"].ids_to_tokens
    for key, value in yaml.safe_load(data_yaml(tmp_path, types)).items():
        if key.endswith("vocab_size"):
            setattr(opt, key, value)
    found = build_vocab(opt, {"src": [], "tgt": []})
    assert "w32764" in found["src"].ids_to_tokens and "w32763" in found["tgt"].ids_to_tokens


def test_subword_nmt_applies_our_codes_alike(tmp_path):
    """Whoever translates new text may use the ``subword-nmt`` command with ``bpe.codes``."""
    output = tmp_path / "out"
    prepare(plain(), write_plain(tmp_path / "data"), output)
    code = "import sys; from subword_nmt.apply_bpe import BPE; bpe = BPE(open(sys.argv[1]))\n"
    code += "sys.stdout.writelines(bpe.process_line(line) for line in open(sys.argv[2]))"
    command = [sys.executable, "-W", "ignore", "-X", "utf8", "-c", code, output / "bpe.codes", output / "test.ref.tok"]
    result = subprocess.run(command, capture_output=True, check=True)
    assert result.stdout == (output / "test.tgt").read_bytes()


def test_vocabulary_threshold_and_min_frequency(tmp_path):
    data = write_plain(tmp_path / "data")
    output = tmp_path / "out"
    prepare(plain(merges=200, vocabulary_threshold=8), data, output)
    restricted = dict(line.split("\t") for line in read_lines(output / "vocab.src"))
    prepare(plain(merges=200), data, output)
    free = dict(line.split("\t") for line in read_lines(output / "vocab.src"))
    rare = {piece for piece, count in free.items() if int(count) < 8 and len(piece.replace("@@", "")) > 1}
    assert rare and not rare & set(restricted)  # rarer pieces were cut further
    manifest = prepare(plain(merges=200, min_frequency=6), data, output)
    kept = dict(line.split("\t") for line in read_lines(output / "vocab.src"))
    assert kept == {piece: count for piece, count in free.items() if int(count) >= 6}
    assert manifest["vocabularies"]["src"] == len(kept) < len(free)


def test_no_subwords_and_lower_case(tmp_path):
    output = tmp_path / "out"
    prepare(plain("en-de", subwords="none", lowercase=True), write_plain(tmp_path / "data"), output)
    assert read_lines(output / "test.tgt") == [s.replace(".", " .").lower() for s in sentences("de", 3, 14)]
    assert read_lines(output / "test.ref") == sentences("de", 3, 14)  # scored without regard to case


def test_sentencepiece_on_raw_text(tmp_path, capfd):
    output = tmp_path / "out"
    manifest = prepare(plain(subwords="sentencepiece", merges=40), write_plain(tmp_path / "data"), output)
    assert manifest["tokenizers"] == {"src": "none", "tgt": "none"}
    assert [undo_sentencepiece(line) for line in read_lines(output / "dev.tgt")] == sentences("en", 2, 12)
    assert (output / "sentencepiece.model").exists()
    prepare(plain(subwords="sentencepiece", merges=40, codes="separate"), tmp_path / "data", output)
    assert (output / "sentencepiece.src.model").exists() and not (output / "sentencepiece.model").exists()
    assert "trainer" not in capfd.readouterr().err


def test_train_only_pretokenised(tmp_path):
    pairs = [("es ist &apos;gut&apos; .", "it &apos;s good .")] * 3
    data = write_plain(tmp_path / "data", train=pairs, test=[("Es ist gut.", "It's good.")])
    prepare(plain(pretokenised=("train",), unescape=True, lowercase=True), data, tmp_path / "out")
    assert undo_bpe(read_lines(tmp_path / "out/train.tgt")[0]) == "it 's good ."
    assert read_lines(tmp_path / "out/test.ref.tok") == ["it 's good ."]
    assert read_lines(tmp_path / "out/test.ref") == ["It's good."]


def test_plain_files_may_lie_elsewhere(tmp_path):
    data = write_plain(tmp_path / "data")
    settings = plain()
    settings.train = [str(write_plain(tmp_path / "elsewhere") / "train")]
    manifest = prepare(settings, data, tmp_path / "out")
    assert list(manifest["inputs"]) == ["train.de", "train.en", "dev.de", "dev.en", "test.de", "test.en"]


def test_official_counts_are_checked(tmp_path):
    folder = unpack(write_iwslt(tmp_path / "a"), tmp_path / "b")
    with pytest.raises(
        UserError, match="iwslt17: 6 training pairs read, the official data have 206,112: 206,106 fewer"
    ):
        prepare(Settings("iwslt17", "de-en"), folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_kftt_its_own_tokens_or_raw(tmp_path):
    folder = unpack(write_kftt(tmp_path / "a"), tmp_path / "b")
    manifest = prepare(Settings("kftt", "en-ja", merges=20, any_size=True), folder, tmp_path / "tok")
    assert manifest["tokenizers"] == {"src": "given", "tgt": "given"}
    assert read_lines(tmp_path / "tok/test.ref") == sentences("ja", 4)  # from data/orig
    assert read_lines(tmp_path / "tok/test.ref.tok") == [" ".join(line) for line in sentences("ja", 4)]
    settings = Settings("kftt", "en-ja", subwords="sentencepiece", merges=60, any_size=True)
    manifest = prepare(settings, folder, tmp_path / "raw")
    assert manifest["counts"]["train"] == {"read": 6, "empty": 1, "too_long": 0, "kept": 5}
    assert read_lines(tmp_path / "raw/test.ref.tok") == sentences("ja", 4)
    with pytest.raises(UserError, match="6 training pairs read, the official data have 440,288"):
        prepare(Settings("kftt", "en-ja", subwords="sentencepiece"), folder, tmp_path / "raw")


def test_wmt16_removes_diacritics_on_either_side(tmp_path):
    (tmp_path / "a").mkdir()
    folder = unpack(write_wmt(tmp_path / "a"), tmp_path / "b")
    manifest = prepare(Settings("wmt16", "en-ro", merges=20, any_size=True), folder, tmp_path / "plain")
    assert (tmp_path / "plain/bpe.src.codes").exists()  # separate by default
    assert manifest["settings"]["codes"] == "separate"
    text = (tmp_path / "plain/train.tgt").read_text(encoding="utf-8") + (tmp_path / "plain/test.ref").read_text(
        encoding="utf-8"
    )
    assert text.isascii()
    prepare(Settings("wmt16", "ro-en", merges=20, romanian="keep", any_size=True), folder, tmp_path / "keep")
    assert "ă" in (tmp_path / "keep/train.src").read_text(encoding="utf-8")


def test_defaults_of_the_paper_and_nothing_for_what_is_not_used():
    names = ("tokenizer", "codes", "merges", "romanian", "japanese", "mecab_dictionary")
    for settings, expected in (
        (Settings("iwslt17", "de-en"), ("moses", "joint", 32_000, None, None, None)),
        (Settings("kftt", "ja-en"), (None, "joint", 32_000, None, "kftt", None)),  # its tokens are given
        (Settings("wmt16", "ro-en"), ("moses", "separate", 25_000, "plain", None, None)),
        (Settings("plain", "ja-en", japanese="mecab"), ("moses", "joint", 32_000, None, "mecab", "ipadic")),
        (Settings("plain", "de-en", subwords="none"), ("moses", None, None, None, None, None)),
    ):
        settings.complete()
        assert tuple(getattr(settings, name) for name in names) == expected


@pytest.mark.parametrize(
    "change, message",
    [
        ({"subwords": "wordpiece"}, "`--subwords`: wordpiece. Valid choices: bpe, sentencepiece, none"),
        ({"tokenizer": "spacy"}, "`--tokenizer`: spacy. Valid choices: moses, none"),
        ({"romanian": "x"}, "`--romanian`: x. Valid choices: plain, comma, keep"),
        ({"codes": "x"}, "`--codes`: x. Valid choices: joint, separate"),
        ({"pretokenised": ("valid",)}, "`--pretokenised`: valid. Valid choices: train, dev, test"),
        ({"merges": 0}, "`--merges`: 0. It must be at least 1"),
        ({"min_frequency": 0}, "`--min-frequency`: 0. It must be at least 1"),
        ({"max_length": -1}, "`--max-length`: -1. It must be at least 0"),
        ({"japanese": "kftt"}, "`--japanese`: kftt. Only --corpus kftt has its own tokens"),
        ({"japanese": "mecab"}, "`--japanese`: mecab. Neither language of de-en is Japanese"),
        ({"vocabulary_threshold": 5, "subwords": "none"}, "`--vocabulary-threshold`: 5. It is for --subwords bpe"),
        ({"corpus": "multi30k", "pretokenised": ("dev",)}, "`--pretokenised`: dev. It is for --corpus plain"),
        ({"corpus": "multi30k", "unescape": True}, "`--unescape`: true. It is for --corpus plain"),
        (
            {"corpus": "kftt", "direction": "ja-en", "tokenizer": "none"},
            "`--tokenizer`: none. All of the text",
        ),
        ({"pretokenised": ("train", "dev", "test"), "tokenizer": "moses"}, "`--tokenizer`: moses. All of the text"),
        ({"mecab_dictionary": "ipadic"}, "`--mecab-dictionary`: ipadic. It is for --japanese mecab"),
        ({"romanian": "keep"}, "`--romanian`: keep. Neither language of de-en is Romanian"),
        ({"subwords": "none", "codes": "separate"}, "`--codes`: separate. It is for --subwords bpe or sentencepiece"),
        ({"subwords": "none", "merges": 500}, "`--merges`: 500. It is for --subwords bpe or sentencepiece"),
        ({"dev": ["a", "b", "a"]}, "`--dev`: a. It is given twice"),
        ({"train": ["a"], "dev": ["b"], "test": ["b"]}, "`--test`: b. It is --dev already"),
    ],
)
def test_wrong_settings(change, message):
    settings = Settings(**{"corpus": "plain", "direction": "de-en", **change})
    with pytest.raises(UserError, match=message):
        settings.complete()


@pytest.mark.realdata
def test_real_multi30k(real_data, tmp_path):
    folder = real("multi30k_deen", real_data, tmp_path)
    output = tmp_path / "out"
    manifest = prepare(Settings("multi30k", "de-en", merges=300), folder, output)
    assert {split: counts["kept"] for split, counts in manifest["counts"].items()} == {
        "train": 29_000,
        "dev": 1_014,
        "test": 1_000,
    }
    # the traps of this file: U+00A0, a tab, doubled blanks, `@@` in running text
    with codecs.open(str(folder / "multi30k/raw/train.de"), encoding="utf-8") as stream:
        raw = stream.read()
    assert "@@" in raw and "\u00a0" in raw
    assert len(read_lines(output / "train.src")) == len(read_lines(output / "train.tgt")) == 29_000
