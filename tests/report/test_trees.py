"""Search trees: segments, what is left out, certificates in words, and the drawing in a terminal."""

from __future__ import annotations

import math

import pytest

from onmt_entmax.errors import UserError
from onmt_entmax.report.terminal import tree_text
from onmt_entmax.report.text import cells
from onmt_entmax.report.trees import certificate_statement, tree_of
from tests.report import samples


def test_hypotheses_make_the_tree_of_the_papers_figure_1():
    tree = tree_of({"line": 1, "certificate": samples.draw()})
    assert tree.text(tree.root) == "draw"
    assert [(tree.text(child), round(child.branch, 3)) for child in tree.root.children] == [
        ("ed </s>", 0.664),
        ("n </s>", 0.322),
        ("</s>", 0.014),
    ]
    assert tree.certified and "Exactly 3 strings have non-zero probability" in tree.statement


def test_a_recorded_tree_gives_the_same():
    record = samples.trace(1, samples.DRAW_PATHS, samples.SOURCE)
    tree = tree_of({"line": 1, "tree": record["tree"], "certificate": record})
    assert [tree.text(leaf) for leaf in tree.root.leaves()] == ["ed </s>", "n </s>", "</s>"]


def test_incomplete_hypotheses_keep_their_own_probabilities():
    found = samples.certificate([("ab", 0.5), ("ac", 0.25)], complete=False)
    tree = tree_of({"line": 1, "certificate": found})
    assert [round(math.exp(leaf.log_prob), 3) for leaf in tree.root.leaves()] == [0.5, 0.25]
    # the branches behind the common prefix are shares of 0.75, so the strings' own probabilities are shown too
    assert tree.shows_totals and "lower bound" in tree.notices[0]


def test_listed_strings_are_not_taken_for_all():
    """Strings of 0.4 and 0.3 are no 57.1% and 42.9%."""
    found = samples.certificate([("a", 0.4), ("b", 0.3)], complete=False, found=4)
    tree = tree_of({"line": 1, "certificate": found})
    assert [round(child.branch, 3) for child in tree.root.children] == [0.4, 0.3]
    assert tree.notices[0] == "2 finished strings not listed in the certificate."
    complete = samples.certificate([("a", 0.4)], found=3)  # the best of three: `-n_best 1`
    tree = tree_of({"line": 1, "certificate": complete})
    assert tree.shows_totals and tree.notices == ["2 finished strings not listed in the certificate."]
    whole = tree_of({"line": 1, "certificate": samples.draw()})
    assert whole.exact and not whole.shows_totals and whole.notices == []


def test_finished_strings_are_shown_before_what_was_dropped():
    paths = [
        (["a", "</s>"], [0.1, 1.0], "finished"),
        (["b"], [0.6], "dropped"),
        (["c"], [0.3], "dropped"),
    ]
    tree = tree_of({"line": 1, "tree": samples.tree(paths)}, max_leaves=2)
    assert sorted(leaf.status for leaf in tree.root.leaves()) == ["dropped", "finished"]
    assert tree.notices == ["1 prefix that the search dropped not shown."]
    assert tree_of({"line": 1, "tree": samples.tree(paths)}, max_leaves=1).root.hidden == 2


def test_nothing_to_show():
    with pytest.raises(UserError, match="input line 3: neither a search tree nor a hypothesis"):
        tree_of({"line": 3, "certificate": {"hypotheses": []}})


@pytest.mark.parametrize(
    ("changes", "words", "certified"),
    [
        ({}, "Exactly 3 strings", True),
        ({"found": 1}, "This one string has all the probability", True),
        ({"conditional_on_prefix": True}, "after the forced prefix", True),
        (
            {"complete": False, "best_dropped_log_prob": math.log(0.1)},
            "optimal. None of what was dropped (of at most 10.0%",
            True,
        ),
        ({"complete": False, "optimal": False, "best_dropped_log_prob": -1.0}, "Not certified", False),
        ({"reason": "length_penalty is set"}, "No certificate: length_penalty is set.", False),
    ],
)
def test_statements(changes, words, certified):
    statement, sure = certificate_statement({**samples.draw(), **changes})
    assert words in statement and sure is certified


def test_terminal_drawing():
    text = tree_text(tree_of({"line": 1, "certificate": samples.draw(), "source": ["d", "r"]}), 80)
    assert text.split("\n") == [
        "Input: d r",
        "",
        "draw ┬ 66.4% ─ ed </s>",
        "     ├ 32.2% ─ n </s>",
        "     └  1.4% ─ </s>",
        "",
        "Certificate: complete. Exactly 3 strings have non-zero probability.",
    ]


def test_terminal_drawing_with_two_choices_and_totals():
    paths = [
        (["a", "b", "</s>"], [0.5, 0.8, 1.0], "finished"),
        (["a", "c"], [0.5, 0.2], "dropped"),
        (["d", "</s>"], [0.5, 1.0], "finished"),
    ]
    lines = tree_text(tree_of({"line": 1, "tree": samples.tree(paths)}), 80).split("\n")
    assert lines[:3] == [
        " ┬ 50.0% ─ a ┬ 80.0% ─ b </s>  40.0%",
        " │           └ 20.0% ─ c ✕     10.0%",
        " └ 50.0% ─ d </s>              50.0%",
    ]
    assert lines[-1] == "✕ dropped by the search."


@pytest.mark.parametrize("width", [40, 80, 130])
def test_a_sentence_of_200_tokens_fits_any_terminal(width):
    tree = tree_of({"line": 1, "tree": samples.long_tree(200)})
    text = tree_text(tree, width)
    assert max(map(cells, text.split("\n"))) <= width
    shown = "".join(text.split())
    for leaf in tree.root.leaves():
        assert "".join(leaf.tokens[0].split()) in shown


def test_wide_characters_stay_aligned():
    paths = [(["これ", "は", "</s>"], [1, 0.9, 1], "finished"), (["これ", "が", "</s>"], [1, 0.1, 1], "finished")]
    lines = tree_text(tree_of({"line": 1, "tree": samples.tree(paths)}), 80).split("\n")
    assert cells(lines[0].partition("┬")[0]) == cells(lines[1].partition("└")[0]) == 5
