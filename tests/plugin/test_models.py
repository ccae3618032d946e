"""Models loaded for search: source features, and what tokens become."""

from __future__ import annotations

import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

import onmt_entmax
from onmt_entmax.cli import main
from onmt_entmax.errors import UserError
from onmt_entmax.plugin import models
from tests.stock import write


@pytest.fixture(scope="module")
def featured(corpus):
    """A model whose source words have one feature, X or Y."""
    sources = [
        " ".join(f"{token}￨{'XY'[place % 2]}" for place, token in enumerate(line.split())) for line in corpus.sources
    ]
    train, valid = write(corpus.folder / "feats.src", sources), write(corpus.folder / "valid.feats", sources[:20])
    vocabulary = write(corpus.folder / "featvocab", [f"{letter}\t9" for letter in "abcdefgh"])
    write(corpus.folder / "featvocab_feat0", ["X\t9", "Y\t9"])
    data = corpus.data().replace(f"{corpus.folder}/train.src", str(train))
    data = data.replace(f"{corpus.folder}/valid.src", str(valid))
    words = (
        "-data",
        data,
        "-src_vocab",
        str(vocabulary),
        "-n_src_feats",
        "1",
        "-feat_merge",
        "sum",
        "-transforms",
        "inferfeats",
    )
    return corpus.train("featured", *words, "-generator_function", "entmax15", steps=20)


def test_source_features_reach_the_model(featured):
    model = onmt_entmax.load(featured)
    one, other, double = model.force(["a￨X b￨Y", "a￨Y b￨Y", "a￨X   b￨Y"], ["b a"] * 3)
    assert one.source == ["a￨X", "b￨Y"] and one.log_prob == double.log_prob
    assert [step["support"] for step in one.steps] != [step["support"] for step in other.steps]
    # lines of different length together, and a word and a feature that the model does not know
    long, short = model.translate(["a￨X b￨Y c￨X", "q￨Z"], tree=True)
    assert long.unknown == [] and short.unknown == ["q￨Z"] and short.certificate["reason"] is None


@pytest.mark.parametrize("command", ["force", "trace", "sparsity"])
def test_the_commands_take_source_features(featured, command, capsys):
    words = [command, "--model", str(featured), "--src-text", "a￨X b￨Y"]
    assert main([*words, *([] if command == "trace" else ["--tgt-text", "b a"])]) == 0
    assert '"a￨X"' in capsys.readouterr().out or command == "sparsity"


@pytest.mark.parametrize(("line", "found"), [("a￨X b", "`b` has 0 features"), ("a￨X￨Y", "`a￨X￨Y` has 2 features")])
def test_another_number_of_features_is_refused(featured, line, found):
    with pytest.raises(UserError, match=f"source line 2: {found} .*trained with 1"):
        onmt_entmax.load(featured).translate(["a￨X", line])


def test_members_of_an_ensemble_need_the_same_features(featured, softmax_model):
    with pytest.raises(UserError, match=r"featured.*: its feature vocabulary is not that of the first"):
        onmt_entmax.load(softmax_model, featured)


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (["a b"], [], "`n_src_feats`: 0. The model was trained with 1"),
        (["a￨X"], [], "`n_src_feats`: 0. The model was trained with 1"),
        (["a￨X￨X"], ["-n_src_feats", "2"], "`n_src_feats`: 2. The model was trained with 1"),
    ],
)
def test_features_that_are_missing_are_refused_when_translating(corpus, featured, lines, options, message):
    with pytest.raises(UserError, match=message):
        corpus.translate(featured, lines, *options)


def test_lines_with_features_are_translated_blank_ones_too(corpus, featured):
    path = corpus.folder / "attention.jsonl"
    lines = ["a￨X b￨Y", "", "c￨X   d￨Y"]
    assert len(corpus.translate(featured, lines, "-n_src_feats", "1", "-attention", str(path))) == 3
    sources = [json.loads(line)["source"] for line in path.read_text(encoding="utf-8").splitlines()]
    assert sources == [["a", "b"], [], ["c", "d"]]


def test_products_are_set_while_batches_are_searched(softmax_model, monkeypatch):
    uses = []

    @contextmanager
    def products(wanted):
        uses.append(wanted)
        yield SimpleNamespace(precision="fp32")
        uses.append("done")

    monkeypatch.setattr(models, "products", products)
    model = onmt_entmax.load(softmax_model)
    text = models.Text(model._models, [["a"], ["b"]])
    seen = [list(uses) for _ in text.batches(1, progress=False)]
    assert seen == [["auto"], ["auto"]] and uses == ["auto", "done"]
    with models.float32_products(on_gpu=True, wanted="bf16"):
        assert uses[-1] == "fp32"  # older PyTorch has one setting for CPUs and GPUs
