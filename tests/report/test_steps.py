"""Forced decoding: stretches, choices, and the drawing in a terminal."""

from __future__ import annotations

import pytest

from onmt_entmax.errors import UserError
from onmt_entmax.report.steps import forced_of
from onmt_entmax.report.terminal import BOLD, forced_text
from onmt_entmax.report.text import cells
from tests.report import samples


def test_stretches_without_a_choice_are_joined():
    forced = forced_of(samples.TREE_OF_LIFE)
    assert [block.choices[0].text for block in forced.blocks if block.single] == ["the", "of life . </s>"]
    assert forced.notes[0] == "5 of 11 steps without a choice."


def test_gold_is_shown_even_where_it_is_improbable_or_impossible():
    support = {"a": 0.5, "b": 0.3, "c": 0.15, "d": 0.05}
    (block,) = forced_of(samples.forced(["d"], [support]), max_choices=3).blocks
    assert [(choice.text, choice.gold) for choice in block.choices] == [("a", False), ("b", False), ("d", True)]
    assert block.more == "+ 1 more"
    forced = forced_of(samples.forced(["zebra"], [support]), max_choices=3)
    assert [choice.percent for choice in forced.blocks[0].choices] == ["50.0%", "30.0%", "0%"]
    assert "impossible: probability 0% for zebra" in forced.notes[1]


def test_the_only_possible_token_need_not_be_the_gold_one():
    forced = forced_of(samples.forced(["a"], [{"b": 1.0}]))
    assert [(choice.text, choice.percent, choice.gold) for choice in forced.blocks[0].choices] == [
        ("b", "100%", False),
        ("a", "0%", True),
    ]


def test_a_word_that_the_model_does_not_know_is_shown_as_given():
    example = samples.forced(["zebra"], [{"a": 0.75, "<unk>": 0.25}])
    example["steps"][0].update(token="zebra", unknown=True, prob=0.25)
    assert [(choice.text, choice.percent, choice.gold) for choice in forced_of(example).blocks[0].choices] == [
        ("a", "75.0%", False),
        ("zebra (unknown)", "25.0%", True),
    ]


def test_long_targets_are_cut_with_a_notice():
    forced = forced_of(samples.forced(["word"] * 200, [{"word": 0.5, "other": 0.5}] * 200), max_steps=50)
    assert len(forced.blocks) == 50
    assert forced.notes[-1] == "Cut: the first 50 of 200 steps are shown."


def test_nothing_to_show():
    with pytest.raises(UserError, match="no `steps`"):
        forced_of({"line": 1, "certificate": {}})


def test_terminal_drawing():
    example = samples.forced(["a", "of", "</s>"], [{"a": 0.75, "the": 0.25}, {}, {}])
    assert forced_text(forced_of(example), 60).split("\n")[:3] == [
        "│ > a  75.0%   │ of </s>",
        "│   the  25.0% │",
        "",
    ]
    assert f"{BOLD}a  75.0%" in forced_text(forced_of(example), 60, bold=True)


@pytest.mark.parametrize("width", [40, 90])
def test_terminal_drawing_of_200_tokens_fits(width):
    tokens = [samples.WORDS[step % 19] for step in range(200)]
    supports = [{} if step % 7 else {tokens[step]: 0.5, "zebra": 0.5} for step in range(200)]
    text = forced_text(forced_of(samples.forced(tokens, supports), max_steps=200), width)
    assert max(map(cells, text.split("\n"))) <= width
    assert text.count("zebra") == 29  # steps 0, 7, ..., 196
