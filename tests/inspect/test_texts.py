"""From what people write to tokens and back: a prepared folder, places of words and pieces, what follows."""

from __future__ import annotations

import pytest

from onmt_entmax.errors import UserError
from onmt_entmax.files import read_json, read_lines, write_json
from onmt_entmax.inspect.texts import Inflection, Tokens, one_line, texts_of
from onmt_entmax.tasks.translation.preparation import Preparation
from onmt_entmax.tasks.translation.prepare import Settings, prepare
from tests.stock import write

GERMAN = ["Ein Mann mit Hut.", "Eine Frau, die lacht.", "Der Mann lacht nicht!"] * 3
ENGLISH = ["A man with a hat.", "A woman who laughs.", "The man does not laugh!"] * 3
SPECIAL = ["<unk>", "<blank>", "<s>", "</s>"]


def prepared(folder, **more):
    for name in ("train", "dev", "test"):
        write(folder / f"{name}.de", GERMAN)
        write(folder / f"{name}.en", ENGLISH)
    names = {name: [str(folder / name)] for name in ("train", "dev", "test")}
    prepare(Settings("plain", "de-en", **{**names, "merges": 20, **more}), folder, folder / "out")
    return folder / "out"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("prepared"), lowercase=True)


@pytest.fixture(scope="module")
def raw(folder):
    sides = [[*SPECIAL, *sorted(Preparation(folder).vocabulary(side))] for side in ("src", "tgt")]
    return texts_of("m.pt", *sides, folder)


@pytest.mark.parametrize(
    "more",
    [
        {"subwords": "none", "merges": None},
        {"tokenizer": "none", "unescape": True},
        {"codes": "separate"},
        {"vocabulary_threshold": 4},
        {"subwords": "sentencepiece", "merges": 40},
    ],
)
def test_later_text_is_prepared_as_the_training_text_was(tmp_path, more):
    folder = prepared(tmp_path, **more)
    made = Preparation(folder)
    for side, lines in (("src", GERMAN), ("tgt", ENGLISH)):
        pieces = [made.pieces(side, made.tokens(side, line)) for line in lines]
        assert pieces == read_lines(folder / f"train.{side}")
        assert [made.text(side, line) for line in pieces] == lines
        assert [made.pieces(side, made.tokens(side, f"\t{line} ")) for line in lines] == pieces
    entity = made.tokens("src", "Max &amp; Moritz")
    assert (entity == made.tokens("src", "Max & Moritz")) is bool(more.get("unescape"))


def test_input_becomes_tokens_and_output_text(raw):
    tokens = raw.source({"text": "Ein Mann,\nmit  Hut."})
    assert "".join(tokens).replace("@@", "") == "einmann,mithut."
    assert raw.text(["a", "m@@", "an", "with", "a", "ha@@", "t", "."]) == "a man with a hat."
    assert (raw.kind, raw.joiner) == ("raw", "bpe")


def test_words_and_pieces_have_their_places(raw):
    text = "A  Woman, who"
    typed = raw.typed(text)
    assert typed.words == [("a", 0, 1), ("woman", 3, 8), (",", 8, 9)]
    assert (typed.letters, typed.start) == ("who", 10)
    woman = [piece for piece in typed.pieces if piece.word == 1]
    assert "".join(text[piece.start : piece.end] for piece in woman) == "Woman"
    assert [piece.token.removesuffix("@@") for piece in woman] == [
        text[piece.start : piece.end].lower() for piece in woman
    ]
    assert raw.typed("A hat. ").letters == "" and raw.typed("").pieces == []
    # a letter that becomes two in lower case does not shift what follows it
    assert raw.typed("İİ hat man ").words[1:] == [("hat", 3, 6), ("man", 7, 10)]
    assert [place[1:] for place in raw.typed("İstanbul hat man ").words] == [(0, 8), (9, 12), (13, 16)]


def test_text_of_a_browser_keeps_its_places():
    given = {"text": "a \t b\ud83d"}  # the last is half a character
    assert one_line(given, "text") == "a b\ufffd"
    assert one_line(given, "text", collapse=False) == "a   b\ufffd"


def test_what_follows_is_spaced_as_running_text_is(raw):
    assert raw.following(raw.typed("A man"), "A man", ["man", "."]) == "."
    assert raw.following(raw.typed("A m"), "A m", ["m@@", "an", ".@@", "."]) == "an.."
    assert raw.following(raw.typed("A man "), "A man ", ["with", "a", "hat", "."]) == "with a hat."
    assert raw.following(raw.typed(""), "", ["a", "man", "."]) == "a man."
    assert Tokens("m", [], []).following(Tokens("m", [], []).typed("a b"), "a b", ["bc", "d"]) == "c d"


def test_folders_of_other_models_are_refused(folder, tmp_path):
    sides = [sorted(Preparation(folder).vocabulary(side)) for side in ("src", "tgt")]
    with pytest.raises(UserError, match=r"m.pt was trained on other text: 1 of its \d+ tgt tokens .* such as zebra."):
        texts_of("m.pt", sides[0], [*sides[1], "zebra"], folder)
    with pytest.raises(UserError, match="m.pt inflects: its input needs no preparation"):
        texts_of("m.pt", ["<lang:a>", "<tag:b>"], [], folder)
    write_json(tmp_path / "manifest.json", {"task": "conll2018.1"})
    with pytest.raises(UserError, match="its `task` is conll2018.1, not translation"):
        texts_of("m.pt", [], [], tmp_path)
    manifest = read_json(folder / "manifest.json")
    write_json(tmp_path / "manifest.json", {**manifest, "settings": None})
    with pytest.raises(UserError, match="not a manifest of this version"):
        texts_of("m.pt", [], [], tmp_path)
    write_json(tmp_path / "manifest.json", manifest)
    with pytest.raises(UserError, match="bpe.codes"):
        texts_of("m.pt", [], [], tmp_path)


def test_inflection_is_picked():
    made = texts_of("m.pt", ["<lang:english>", "<tag:V>", "<tag:PST>", "d"], ["d"], None)
    assert isinstance(made, Inflection) and (made.languages, made.tags) == (["english"], ["PST", "V"])
    given = {"language": "english", "tags": ["V", "PST"], "lemma": "d o"}
    assert made.source(given) == ["<lang:english>", "<tag:V>", "<tag:PST>", "d", "<u+0020>", "o"]
    for wrong, says in (
        ({"language": "german"}, "`language`: german. m.pt knows english."),
        ({"tags": []}, "`tags`: \\[\\]. It must be a list"),
        ({"tags": "V"}, "`tags`: V"),
        ({"lemma": ""}, "`lemma`: ''. It must not be empty."),
        ({"lemma": None}, "`lemma` is missing"),
    ):
        with pytest.raises(UserError, match=says):
            made.source({**given, **wrong})
