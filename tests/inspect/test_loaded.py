"""A Transformer behind the page: what its heads look at, and completions from kept states."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from onmt_entmax.inspect.loaded import INPUTS, STATE_BYTES, Loaded

CHECKPOINT = Path(__file__).parents[1] / "fixtures" / "checkpoints" / "transformer.pt.xz"
SOURCE = ["a", "b", "c"]


def nobody():
    """Never given up."""


@pytest.fixture(scope="module")
def transformer(tmp_path_factory):
    path = tmp_path_factory.mktemp("transformer") / "transformer.pt"
    path.write_bytes(lzma.decompress(CHECKPOINT.read_bytes()))
    return Loaded(0, [path])


def test_each_head_can_be_seen(transformer):
    told = {entry["name"]: entry for entry in transformer.describe()["attention"]}
    assert sorted(told) == ["context_attention", "decoder_self_attention", "encoder_self_attention"]
    sides = {
        "context_attention": (["b", "a", "</s>"], SOURCE),
        "decoder_self_attention": (["b", "a", "</s>"], ["<s>", "b", "a"]),
        "encoder_self_attention": (SOURCE, SOURCE),
    }
    for name, (queries, keys) in sides.items():
        seen = transformer.attention(SOURCE, ["b", "a"], name, told[name]["layers"], told[name]["heads"], nobody)
        assert (seen["queries"], seen["keys"]) == (queries, keys)
        assert [sum(row) for row in seen["weights"]] == pytest.approx([1.0] * len(queries), abs=1e-5)
    seen = transformer.attention(SOURCE, ["b", "a"], "decoder_self_attention", 1, 1, nobody)
    assert seen["weights"][0][1:] == [0, 0]  # nobody looks ahead


def test_kept_states_outlast_other_searches(transformer):
    def complete(text):
        found = transformer.complete(SOURCE, text, 10, nobody)
        probs = [entry["prob"] for entry in found["tokens"] + found["words"]]
        return found["completion"], [entry["word"] for entry in found["words"]], probs

    fresh = complete("b ")
    for kind in ("beam", "exact"):
        transformer.search(SOURCE, [], [], kind, 3, 9, nobody)
    transformer.complete(["c"], "a ", 10, nobody)
    kept = complete("b a ")
    with transformer.session(SOURCE, nobody) as session:
        assert session.scorer._scorer.view.store.most_bytes == STATE_BYTES
    transformer._sessions.clear()
    for text, (completion, words, probs) in (("b a ", kept), ("b ", fresh)):
        assert complete(text) == (completion, words, pytest.approx(probs, abs=1e-5))
    for letter in "abcdefgh"[: INPUTS + 1]:
        transformer.complete([letter], "", 1, nobody)
    assert len(transformer._sessions) == INPUTS
