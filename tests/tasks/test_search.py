"""Search errors, empty outputs and scores by hand; the command on a tiny model."""

from __future__ import annotations

import math

import pytest

from onmt_entmax.cli import main
from onmt_entmax.errors import UserError
from onmt_entmax.files import read_json
from onmt_entmax.tasks.search import Output, check, finite, search_numbers, subwords_of, table


def outputs(*found: tuple[str, float]) -> list[Output]:
    return [Output(text.split(), math.log(prob)) for text, prob in found]


# four lines: the beam is right and best; misses the empty mode; is right where exact search gave up and found less; and
# found another string of the same probability, but for rounding
BEAM = outputs(("a b", 0.5), ("c d", 0.2), ("e", 0.3), ("g h", 0.25))
EXACT = outputs(("a b", 0.5), ("", 0.4), ("f", 0.1), ("h g", 0.250001))
TARGETS = [["a", "b"], ["c", "d"], ["e"], ["g", "h", "i"]]


def numbers(measure: str = "acc", **changes):
    given = {
        "searches": {5: BEAM, None: EXACT},
        "proven": [True, True, False, True],
        "empty": [None, math.log(0.4), None, None],
        "targets": TARGETS,
        **changes,
    }
    return search_numbers(**given, measure=measure)


def test_numbers_by_hand():
    result = numbers()
    beam, exact = result["searches"]
    # line 2: exact search found more; of the proven lines 1 and 2 are right
    assert beam == {
        "beam": 5,
        "acc": 75,
        "acc_proven": pytest.approx(200 / 3),
        "errors": 25,
        "length_ratio": 7 / 8,
        "empty": 0,
    }
    # line 3: the beam found more; outputs of 2 + 0 + 1 + 2 tokens for 8
    assert exact == {
        "beam": None,
        "acc": 25,
        "acc_proven": pytest.approx(100 / 3),
        "errors": 25,
        "length_ratio": 5 / 8,
        "empty": 25,
    }
    assert (result["lines"], result["proven"], result["empty_impossible"]) == (4, 3, 75)
    assert result["empty_is_mode"] == pytest.approx(100 / 3)
    assert result["fields"] == {"avg": "micro"}


def test_nothing_is_said_of_modes_that_nobody_knows():
    result = numbers(proven=[False] * 4)
    assert result["empty_is_mode"] is None and result["searches"][0]["acc_proven"] is None
    text = table({**result, "blank": 2, "signature": "search|x"})
    assert "the most probable one for unknown of the proven" in text and "Left out: 2 blank sources." in text
    assert text.split("\n")[1].split()[:4] == ["beam", "5", "75.00", "-"]


def test_an_unfinished_prefix_is_less_than_any_string():
    assert (finite(-1.5, True), finite(-0.1, False), finite(None, True)) == (-1.5, -math.inf, -math.inf)
    unfinished = [Output(["a"], -math.inf)]
    both = search_numbers({1: unfinished, None: unfinished}, [False], [None], [["a"]], "acc")
    assert [row["errors"] for row in both["searches"]] == [0, 0]


def test_bleu_is_that_of_whole_words():
    # five words right of five, cut in two ways; then brevity alone: exp(1 - 5/4)
    target = ["the", "sm@@", "all", "cat", "sat", "down"]
    found = outputs(("the small ca@@ t sat down", 0.5)), outputs(("the small cat sat", 0.6))
    result = search_numbers({1: found[0], None: found[1]}, [True], [None], [target], "bleu")
    assert result["subwords"] == "bpe"
    assert [row["bleu"] for row in result["searches"]] == pytest.approx([100, 100 * math.exp(-0.25)])
    assert [row["length_ratio"] for row in result["searches"]] == [1, 0.8]
    assert result["fields"]["tok"] == "none"
    with pytest.raises(UserError, match="'▁x' is left over in an output: the references' subwords are bpe"):
        search_numbers({1: found[0], None: outputs(("▁x", 0.1))}, [True], [None], [target], "bleu")
    assert subwords_of([["▁x"], []]) == "sentencepiece" and subwords_of([["x"]]) == subwords_of([[]]) == "none"


@pytest.mark.parametrize(
    ("settings", "message"),
    [(("wer", [1]), "`measure`: wer. Valid choices: acc, bleu."), (("acc", [5, 0]), "`beams`: 0. Each must be")],
)
def test_wrong_settings(settings, message):
    with pytest.raises(UserError, match=message):
        check(*settings)


def test_the_command(entmax_model, corpus, tmp_path, capsys):
    sources, targets = [*corpus.sources[:6], " "], [*corpus.targets[:6], "a"]
    for name, lines in (("x.src", sources), ("x.tgt", targets)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ["evaluate", "search", "--model", entmax_model, "--src", tmp_path / "x.src", "--tgt", tmp_path / "x.tgt"]
    words += ["--measure", "acc", "--beams", "3", "1", "3", "--json", tmp_path / "s.json", "--max-length", "12"]
    assert main(list(map(str, words))) == 0
    shown = capsys.readouterr()
    result = read_json(tmp_path / "s.json")
    assert [row["beam"] for row in result["searches"]] == [1, 3, None]
    assert (result["lines"], result["blank"], result["models"]) == (6, 1, [entmax_model.name])
    assert result["searches"][-1]["errors"] == 0 or result["proven"] < 6
    about = (
        "search|src:x.src|lines:6|measure:acc|subwords:none|max_expansions:10000|max_length:12|alpha:1.5/1.5|avg:micro"
    )
    assert result["signature"].startswith(about) and shown.out.rstrip().endswith(result["signature"])
    assert "beam 1 (1 of 3), 6 lines" in shown.err and "exact search (3 of 3)" in shown.err
    # what a beam of 1 finds is right as often as the table says
    import onmt_entmax

    found = onmt_entmax.load(entmax_model).translate(sources[:6], beam_size=1, max_length=12)
    right = sum(one.text == target for one, target in zip(found, targets))
    assert result["searches"][0]["acc"] == pytest.approx(100 * right / 6)


def test_nothing_to_search(entmax_model, capsys):
    words = ["evaluate", "search", "--model", str(entmax_model), "--src-text", " ", "--tgt-text", "a"]
    assert main([*words, "--measure", "acc"]) == 2
    assert "nothing to search: all sources are blank" in capsys.readouterr().err
