"""Several batches searched as one: which are joined, and that nobody can tell."""

from __future__ import annotations

import json

import pytest
import torch

from onmt_entmax.plugin.translate import batching as joining
from onmt_entmax.plugin.translate import translator
from onmt_entmax.plugin.translate.batching import in_groups, join_batches


def batch(sentences, length, **more):
    return {"src": torch.full((sentences, length, 1), 5), "srclen": torch.full((sentences,), length), **more}


def sizes(batches, joins=True):
    return [([len(member["srclen"]) for member in group], bucket) for group, bucket in in_groups(batches, joins)]


def test_groups():
    batches = [(batch(size, 6), 0) for size in (1, 2, 3, 4, 5)] + [(batch(6, 6), 1)]
    assert sizes(batches) == [([1, 2, 3, 4], 0), ([5], 0), ([6], 1)]
    assert sizes(batches, joins=False) == [([size], 0) for size in (1, 2, 3, 4, 5)] + [([6], 1)]
    assert sizes([]) == []


def test_a_long_line_stays_alone():
    # joined: 8 * 1000 places, apart 4 * 10 + 4 * 1000, so that padding would double the memory
    assert sizes([(batch(4, 10), 0), (batch(4, 1000), 0), (batch(4, 900), 0)]) == [([4], 0), ([4, 4], 0)]


def test_batches_with_and_without_targets_stay_apart():
    assert sizes([(batch(2, 3, tgt=torch.ones(2, 4, 1)), 0), (batch(3, 3), 0)]) == [([2], 0), ([3], 0)]


def test_join_pads_with_the_token_of_the_side():
    joined = join_batches(
        [
            {"src": torch.tensor([[[5], [6]]]), "srclen": torch.tensor([2]), "tgt": torch.tensor([[[7]]])},
            {"src": torch.tensor([[[8]]]), "srclen": torch.tensor([1]), "tgt": torch.tensor([[[9], [4]]])},
        ],
        {"src": 1, "tgt": 0},
    )
    assert joined["src"].squeeze(-1).tolist() == [[5, 6], [8, 1]]
    assert joined["tgt"].squeeze(-1).tolist() == [[7, 0], [9, 4]]
    assert joined["srclen"].tolist() == [2, 1]


@pytest.mark.parametrize(
    "options",
    [
        ["-n_best", "3"],
        ["-search", "exact", "-n_best", "2"],
        ["-min_length", "3", "-block_ngram_repeat", "2"],
        ["-coverage_penalty", "wu", "-beta", "0.3"],
        ["-report_align"],
    ],
    ids=lambda options: options[0],
)
def test_joined_batches_give_what_single_ones_give(corpus, entmax_model, options, monkeypatch):
    written, groups = {}, []
    searched = translator.join_batches
    monkeypatch.setattr(translator, "join_batches", lambda *given: groups.append(len(given[0])) or searched(*given))
    for most, small in ((1, 1 << 22), (4, 1 << 22), (3, 0)):  # without room for more rows they take turns
        monkeypatch.setattr(joining, "MOST", most)
        monkeypatch.setattr(translator, "SMALL", small)
        records = corpus.folder / "joined.jsonl"
        lines = ["a b c d e", "", *corpus.sources[:20], ""]
        text = corpus.translate(
            entmax_model, lines, "-batch_size", "3", "-beam_size", "4", "-attention", str(records), *options
        )
        attention = [json.loads(line)["hypotheses"] for line in records.read_text(encoding="utf-8").splitlines()]
        written[most] = text, attention
    assert set(groups) >= {3, 4}
    text, attention = written[1]
    for other_text, other_attention in (written[4], written[3]):
        assert other_text == text
        for hypotheses, others in zip(attention, other_attention):
            assert [found["tokens"] for found in hypotheses] == [found["tokens"] for found in others]
            for found, other in zip(hypotheses, others):
                torch.testing.assert_close(torch.tensor(found["attention"]), torch.tensor(other["attention"]))


def test_samples_are_drawn_batch_by_batch(corpus, entmax_model, monkeypatch):
    monkeypatch.setattr(translator, "join_batches", None)  # would fail
    options = ("-batch_size", "2", "-beam_size", "1", "-random_sampling_topk", "-1", "-seed", "3")
    assert len(corpus.translate(entmax_model, corpus.sources[:9], *options)) == 9
