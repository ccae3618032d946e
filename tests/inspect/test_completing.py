"""Completion by literal tables: words from pieces, half-typed words, what is impossible, and what a keystroke costs."""

from __future__ import annotations

import pytest

from onmt_entmax.inspect.completing import Completer, possible_words
from onmt_entmax.inspect.session import Cancelled
from onmt_entmax.inspect.texts import Inflection, Spelling, Tokens
from tests.inspect.toys import Table

# the man sleeps / the manual / the machine ends
PIECES = ["the", "ma@@", "man", "chine", "nual", "n", "sleeps", "ends", "a"]
TABLE = {
    "": {"the": 0.75, "a": 0.25},
    "the": {"man": 0.5, "ma@@": 0.5},
    "the ma@@": {"chine": 0.5, "nual": 0.25, "n": 0.25},
    "the man": {"sleeps": 0.75, "</s>": 0.25},
    "the ma@@ n": {"</s>": 1.0},
    "the ma@@ chine": {"ends": 1.0},
    "a": {"man": 1.0},
}


class Bpe(Tokens):
    """Words by their usual pieces."""

    style = joiner = "bpe"

    def pieces(self, word):
        return {"machine": ["ma@@", "chine"], "manual": ["ma@@", "nual"]}.get(word, [word])


def completer(table=None, tokens=PIECES, texts=Bpe, mixed_lengths=True, wanted=lambda: None):
    model = Table(tokens, TABLE if table is None else table, mixed_lengths)
    made = Completer(
        model.session(wanted), texts("toy", [], model.tokens), model.ids, model.tokens.__getitem__, source_length=3
    )
    return model, made


def listed(found):
    return {entry["word"]: entry["prob"] for entry in found["words"]}


@pytest.mark.parametrize("mixed_lengths", [True, False])
def test_words_are_put_together_from_pieces(mixed_lengths):
    _, made = completer(mixed_lengths=mixed_lengths)
    found = made.complete("the ", 10)
    # man: 1/2, and as ma@@ n 1/2 * 1/4
    assert listed(found) == pytest.approx({"man": 0.625, "machine": 0.25, "manual": 0.125})
    assert list(listed(found)) == ["man", "machine", "manual"] and found["words_complete"]
    assert found["tokens"] == [{"token": "the", "start": 0, "end": 3, "prob": pytest.approx(0.75)}]
    assert (found["impossible"], found["can_end"]) == (None, 0.0)
    # the man sleeps: 1/2 * 3/4; the man </s>: 1/8 + 1/8 by two spellings; the machine ends: 1/4
    assert (found["completion"], found["certificate_class"]) == ("man sleeps", "complete")


def test_half_a_word_filters_by_its_letters():
    _, made = completer()
    found = made.complete("the mac", 10)
    assert listed(found) == pytest.approx({"machine": 0.25}) and found["words_complete"]
    assert (found["completion"], found["certificate_class"]) == ("hine ends", "single")
    found = made.complete("the man", 10)
    assert listed(found) == pytest.approx({"man": 0.625, "manual": 0.125})
    # `man` is a word too: its tokens are told, and the text may end there
    assert found["tokens"][1] == {"token": "man", "start": 4, "end": 7, "prob": pytest.approx(0.5), "half_typed": True}
    assert (found["completion"], found["can_end"]) == (" sleeps", pytest.approx(0.25))


def test_the_typed_word_has_a_place():
    _, made = completer()
    assert made.complete("the mac", 10)["word_start"] == 4  # what a listed word takes the place of
    assert made.complete("the ", 10)["word_start"] == 4 and made.complete("", 10)["word_start"] == 0


def test_words_are_listed_after_a_prefix_that_was_forgotten():
    _, made = completer()
    made.complete("the ", 10)
    made.session._known.clear()  # as after many other requests
    words, _ = made.words(made._ids(["the"]), 10)
    assert [word.text for word in words] == ["man", "machine", "manual"]


def test_the_list_says_when_it_is_cut():
    _, made = completer()
    found = made.complete("the ", 2)
    assert list(listed(found)) == ["man", "machine"] and not found["words_complete"]
    _, made = completer({"": {"a": 0.5, "<unk>": 0.5}})  # any unknown word is possible
    assert listed(made.complete("", 9)) == {"a": 0.5} and not made.complete("", 9)["words_complete"]


def test_the_first_impossible_word_is_named_with_what_is_possible():
    _, made = completer()
    found = made.complete("the  chine ", 10)
    wrong = found["impossible"]
    assert (wrong["start"], wrong["end"], wrong["token"]) == (5, 10, "chine")
    assert [entry["word"] for entry in wrong["instead"]] == ["man", "machine", "manual"]
    assert found["certificate_class"] == "void" and found["tokens"][1]["prob"] == 0
    found = made.complete("the x", 10)  # no word begins so
    assert (found["impossible"]["start"], found["impossible"]["token"], found["words"]) == (4, "x", [])
    assert (found["completion"], found["can_end"]) == ("", 0.0)
    # what is unknown is `<unk>`, here of probability zero; the model goes on behind it
    found = made.complete("zebra a ", 10)
    assert found["impossible"]["token"] == "zebra" and [entry["prob"] for entry in found["tokens"]] == [0, 0]


def test_a_word_whose_usual_pieces_are_impossible_is_spelled_otherwise():
    _, made = completer({"": {"ma@@": 1.0}, "ma@@": {"n": 1.0}})
    found = made.complete("man ", 10)
    assert found["impossible"] is None
    assert [(one["token"], one["start"], one["end"]) for one in found["tokens"]] == [("ma@@", 0, 2), ("n", 2, 3)]


def test_one_more_token_is_one_step_of_the_decoder():
    model, made = completer()
    made.complete("the ", 10)
    steps, model.calls = made.session.steps, []
    made.complete("the man ", 10)
    # `the man` was looked at by the search for completions, but not kept: one step for it, one for what follows it
    assert made.session.steps == steps + 1
    assert sorted(model.calls) == ["the man", "the man sleeps"]
    model.calls = []
    made.complete("the man ", 10)
    assert model.calls == ["the man sleeps"]  # the completion alone is searched again


def test_a_request_that_nobody_waits_for_stops():
    def wanted():
        raise Cancelled

    _, made = completer(wanted=wanted)
    with pytest.raises(Cancelled):
        made.complete("the ", 10)


LETTERS = ["d", "r", "e", "w", "o", "<u+0020>", "s"]
FORMS = {
    "": {"d": 1.0},
    "d": {"r": 1.0},
    "d r": {"e": 0.75, "o": 0.25},
    "d r e": {"w": 1.0},
    "d r e w": {"</s>": 0.5, "<u+0020>": 0.5},
    "d r e w <u+0020>": {"s": 1.0},
}


def test_where_a_token_is_a_letter_words_end_at_blanks_and_at_the_end():
    _, made = completer(FORMS, LETTERS, Inflection)
    found = made.complete("dr", 10)
    assert listed(found) == pytest.approx({"drew": 0.75, "dro": 0.25}) and found["words_complete"]
    assert [one["token"] for one in found["tokens"]] == ["d", "r"]
    # drew: 3/8, drew s: 3/8, dro: 1/4; the shorter of two as probable comes first
    assert found["completion"] in ("ew", "ew s") and found["certificate_class"] == "complete"
    found = made.complete("drew ", 10)
    assert listed(found) == {"s": 1.0} and (found["completion"], found["can_end"]) == ("s", 0.0)
    found = made.complete("drx", 10)
    assert (found["impossible"]["start"], found["impossible"]["end"], found["impossible"]["token"]) == (2, 3, "x")
    assert (found["impossible"]["word_start"], found["impossible"]["word_end"]) == (0, 3)
    assert [entry["word"] for entry in found["impossible"]["instead"]] == ["drew", "dro"]


def test_pieces_of_sentencepiece_begin_words():
    spelling = Spelling("sentencepiece", ["<unk>", "<blank>", "<s>", "</s>", "▁the", "▁m", "an", "▁", "y"])
    table = {"": {"▁the": 0.5, "▁m": 0.5}, "▁m": {"an": 0.5, "y": 0.5}, "▁m an": {"y": 0.5, "▁the": 0.25, "</s>": 0.25}}
    session = Table(["▁the", "▁m", "an", "▁", "y"], table).session()
    words, whole = possible_words(session, spelling, (), 10)
    # many: 1/2 * 1/2 * 1/2; man the same, ended by `▁the` or by the end
    assert {word.text: word.prob for word in words} == pytest.approx(
        {"the": 0.5, "my": 0.25, "man": 0.125, "many": 0.125}
    )
    assert whole
    words, _ = possible_words(session, spelling, (), 10, letters="ma")
    assert {word.text for word in words} == {"man", "many"}
    assert spelling.continuing("man", False) == [7, 5]  # `▁` alone may begin any word
    assert spelling.continuing("n", True) == []


def test_nothing_typed_and_nothing_possible():
    _, made = completer({})
    found = made.complete("", 10)
    assert (found["words"], found["words_complete"], found["completion"], found["can_end"]) == ([], True, "", 1.0)
    assert made.complete(" ", 10)["tokens"] == []
