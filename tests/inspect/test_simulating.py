"""The simulated translator, strokes counted by hand; the command on a model of the tiny corpus."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onmt_entmax import cli
from onmt_entmax.errors import UserError
from onmt_entmax.inspect.simulating import Effort, Proposal, Simulation, by_characters, by_words
from tests.inspect.test_completing import completer
from tests.stock import write


class Script:
    """Proposes the first of its sentences that begins as what is typed, and lists the words of all that do."""

    def __init__(self, *sentences):
        self.sentences = [sentence.split() for sentence in sentences]

    def fitting(self, words, letters):
        size = len(words)
        return [
            sentence[size:]
            for sentence in self.sentences
            if sentence[:size] == [*words] and (not letters or (sentence[size:] or [""])[0].startswith(letters))
        ]

    def propose(self, words, letters):
        found = self.fitting(words, letters)
        return Proposal(found[0], True) if found else Proposal([], False)

    def listed(self, words, letters):
        return sorted({rest[0] for rest in self.fitting(words, letters) if rest}), True


MODEL = Script("a dog runs", "a cat sits here", "a cow sits there")


def test_a_right_proposal_costs_nothing_but_its_acceptance():
    reference = ["a", "dog", "runs"]
    assert by_words(MODEL, reference) == Effort()
    assert by_characters(MODEL, reference) == Effort(moves=2)  # to the end of the proposal, and accepting


def test_words_are_typed_where_the_proposal_is_wrong():
    # a | cow | sits there
    assert by_words(MODEL, ["a", "cow", "sits", "there"]) == Effort(strokes=1, stops=1)
    # the list there: cat, cow, dog
    picked = Effort(picked=1, stops=1, in_list=1, whole_lists=1, shown=3)
    assert by_words(MODEL, ["a", "cow", "sits", "there"], picks=True) == picked
    # nothing begins with `the`: every word is typed, and nothing says where to end
    assert by_words(MODEL, ["the", "end"]) == Effort(strokes=2, stops=2, blind=1, ends=1)


def test_characters_are_typed_where_the_proposal_is_wrong():
    # `a ` is right; c is typed, and `a cat sits here` proposed; `a c` stands, o is typed; `w sits there` is right
    assert by_characters(MODEL, ["a", "cow", "sits", "there"]) == Effort(strokes=2, moves=3, stops=2)
    # behind `a ` the word is picked, then all is right
    picked = Effort(picked=1, moves=3, stops=1, in_list=1, whole_lists=1, shown=3)
    assert by_characters(MODEL, ["a", "cow", "sits", "there"], picks=True) == picked


def test_a_proposal_that_would_go_on_has_a_wrong_end():
    assert by_words(MODEL, ["a", "dog"]).ends == 1
    assert by_characters(MODEL, ["a", "dog"]) == Effort(moves=2, ends=1)
    assert by_characters(MODEL, ["a", "do"]).ends == 1  # in the middle of a word
    assert by_words(MODEL, ["a", "dog", "runs", "off"]) == Effort(strokes=1, stops=1, ends=1)


@given(st.lists(st.sampled_from(["a", "dog", "cat", "cow", "sits", "here", "x"]), min_size=1, max_size=5))
def test_no_way_costs_more_than_typing_all(reference):
    for picks in (False, True):
        words, keys = by_words(MODEL, reference, picks), by_characters(MODEL, reference, picks)
        assert words.strokes + words.picked == words.stops <= len(reference)
        assert keys.strokes + keys.picked == keys.stops <= len(" ".join(reference))
        assert 1 <= keys.moves <= keys.stops + 2 and keys.in_list == keys.picked


def test_a_table_is_simulated_and_what_it_holds_impossible_is_counted():
    _, made = completer()
    simulation = Simulation(most=10)
    simulation.add(made, ["the", "machine", "ends"])
    # `the man sleeps` is proposed: `machine` is typed; by characters `c` of `the mac`, as `the ma` is right
    assert (simulation.efforts["words"].strokes, simulation.efforts["characters"].strokes) == (1, 1)
    assert simulation.efforts["characters_and_lists"].picked == 1
    simulation.add(made, ["the", "zebra"])  # `<unk>`, of probability zero; behind it the table ends
    record = simulation.record()
    assert (record["lines"], record["words"], record["characters"]) == (2, 5, 25)
    assert record["impossible_words"] == pytest.approx(20)
    assert record["wsr"] == pytest.approx(40) and record["lists"]["wsr"] == pytest.approx(20)
    assert record["lists"]["right_word_listed"] == pytest.approx(50)  # machine is, zebra not
    # machine: 1 key; zebra: z has no proposal any more, so all five
    assert record["ksr"] == pytest.approx(100 * 6 / 25)


def test_nothing_simulated_has_no_ratios():
    record = Simulation(most=10).record()
    assert (record["wsr"], record["ksr"], record["lists"]["mean_size"], record["milliseconds"]["p50"]) == (None,) * 4


@pytest.fixture
def files(tmp_path):
    return write(tmp_path / "a.src", ["a b c", "", "d e"]), write(tmp_path / "a.ref", ["c b a", "b", "e d"])


def test_the_command_prints_ratios_with_their_signature(entmax_model, files, tmp_path, capsys):
    source, reference = files
    words = ["simulate-completion", "--model", str(entmax_model), "--src", str(source), "--ref", str(reference)]
    assert cli.main([*words, "--output", str(tmp_path / "out.json")]) == 0
    record = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    out = capsys.readouterr().out
    assert record["lines"] == 2 and record["words"] == 5  # the blank line does not count
    assert f"words typed (WSR)               {record['wsr']:11.1f}{record['lists']['wsr']:14.1f}" in out
    assert record["signature"].startswith(
        "completion|src:a.src|lines:2|ref:a.ref|list:10|beam:5|alpha:1.5/1.5|version:"
    )
    assert record["lists"]["wsr"] <= record["wsr"] <= 100


def test_mistakes_are_told_on_one_line(entmax_model, files, tmp_path, capsys):
    source, reference = (str(path) for path in files)
    base = ["simulate-completion", "--model", str(entmax_model), "--src", source]
    short, blank = str(write(tmp_path / "short", ["a"])), str(write(tmp_path / "blank", ["", "", ""]))
    for words, says in (
        (["--ref", short], "`--src` has 3 lines, but `--ref` has 1."),
        (["--ref", blank], "every line is blank on one of its sides"),
        (["--ref", reference, "--words", "0"], "`words`: 0. It must be at least 1."),
        (["--ref", reference, "--prepared", str(tmp_path)], "manifest.json"),
        (["--ref", reference, "--output", source], "output"),
    ):
        assert cli.main([*base, *words]) == 2
        error = capsys.readouterr().err.strip().split("\n")[-1]
        assert says in error, error


def test_inflection_and_loose_pieces_are_refused(loaded):
    from onmt_entmax.inspect.simulating import simulate

    one = loaded[0]
    kept = one.target
    try:
        one.target = [*kept, "ma@@"]
        with pytest.raises(UserError, match=r"pieces of words \(ma@@\): give `--prepared`"):
            simulate(one, [("a", "a")], 10)
    finally:
        one.target = kept
    one.texts.kind = "inflection"
    try:
        with pytest.raises(UserError, match="its output is one word"):
            simulate(one, [("a", "a")], 10)
    finally:
        del one.texts.kind
