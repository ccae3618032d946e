"""A Transformer whose every mapping is sparse: trained, searched with certificates, forced, in an ensemble."""

from __future__ import annotations

import json
import math
import sys

import onmt.bin.release_model
import pytest
import torch
from onmt.translate.translation_server import TranslationServer

import onmt_entmax
from onmt_entmax.cli import main
from onmt_entmax.errors import UserError
from onmt_entmax.files import read_json, read_records
from onmt_entmax.plugin.head_measures import head_sums
from onmt_entmax.plugin.heads import head_layers
from tests.docs.test_formats import check

LINES = ["a b c", "h g", "d e f a", "c"]
ALPHAS = ("-self_attention_alpha", "1.5", "-context_attention_alpha", "learned", "-generator_alpha", "1.5")


@pytest.fixture(scope="module")
def checkpoint(corpus):
    sizes = ("-layers", "2", "-heads", "2", "-hidden_size", "32", "-word_vec_size", "32", "-transformer_ff", "32")
    kinds = ("-encoder_type", "transformer", "-decoder_type", "transformer", "-position_encoding")
    start = ("-param_init", "0", "-param_init_glorot", "-attention_dropout", "0", "-learning_rate", "0.003")
    return corpus.train("sparse_transformer", *kinds, *sizes, *start, *ALPHAS, steps=150)


@pytest.fixture(scope="module")
def model(checkpoint):
    return onmt_entmax.load(checkpoint)


def test_loading_keeps_kernels_away_that_know_softmax_only(model):
    # although `load_test_model` builds with the default of `onmt_translate`, `scaled-dot-flash`
    layers = [layer for found in head_layers(model._models.members[0]).values() for layer in found]
    assert len(layers) == 6 and {(layer.self_attn_type, layer.flash2) for layer in layers} == {("scaled-dot", False)}


def test_certificates_are_those_of_exact_search(model):
    beam = model.translate(LINES, n_best=3, attention=True)
    exact = model.translate(LINES, n_best=3, search="exact")
    assert model.alphas.startswith("1.5/enc1.5-dec1.5-ctxlearned")
    assert all(one.certificate["reason"] is None for one in (*beam, *exact))
    assert all(one.certificate["optimal"] for one in exact) and any(one.certificate["optimal"] for one in beam)
    for one, other in zip(beam, exact):
        for place in range(one.certificate["certified_n"]):
            found, expected = one.hypotheses[place], other.hypotheses[place]
            assert found.log_prob == pytest.approx(expected.log_prob, abs=1e-4)
        total = one.certificate["mass_found"] + one.certificate["mass_dropped"]
        assert total == pytest.approx(1, abs=1e-4)
        rows = one.hypotheses[0].attention
        assert all(math.isclose(sum(row), 1, abs_tol=1e-4) for row in rows)
    assert any(weight == 0 for one in beam for row in one.hypotheses[0].attention for weight in row)


def test_forced_and_completed_agree_with_search(model):
    best = [one.hypotheses[0] for one in model.translate(LINES)]
    forced = model.force(LINES, [hypothesis.tokens for hypothesis in best])
    for one, hypothesis in zip(forced, best):
        assert one.log_prob == pytest.approx(hypothesis.log_prob, abs=1e-4)
    tree = model.translate(LINES[:1], tree=True)[0].tree
    assert tree and any(node["token"] == best[0].tokens[0] for node in tree)


def test_stocks_command_follows_the_checkpoint(model, checkpoint, corpus):
    certificates = corpus.folder / "transformer.jsonl"
    found = corpus.translate(checkpoint, LINES, "-certificates", str(certificates), "-beam_size", "5")
    assert found == [one.text for one in model.translate(LINES)]
    records = [json.loads(line) for line in certificates.read_text(encoding="utf-8").split("\n")[:-1]]
    assert [one.certificate["optimal"] for one in model.translate(LINES)] == [record["optimal"] for record in records]
    # twice the same model: its own distribution
    both = onmt_entmax.load(checkpoint, checkpoint).translate(LINES)
    for one, record in zip(both, records):
        assert one.log_prob == pytest.approx(record["hypotheses"][0]["log_prob"], abs=1e-4)


def test_an_ensemble_with_a_recurrent_model(checkpoint, entmax_model, corpus):
    both = onmt_entmax.load(checkpoint, entmax_model)
    assert both.alphas.startswith("1.5/enc1.5") and "+" in both.alphas
    for beam, exact in zip(both.translate(LINES), both.translate(LINES, search="exact")):
        assert exact.certificate["optimal"] and exact.log_prob >= beam.log_prob - 1e-4
        # the mean of two probabilities
        alone = [
            model.force([beam.source], [exact.hypotheses[0].tokens])[0]
            for model in map(onmt_entmax.load, (checkpoint, entmax_model))
        ]
        first = [one.steps[0]["prob"] for one in alone]
        forced = both.force([beam.source], [exact.hypotheses[0].tokens])[0]
        assert forced.steps[0]["prob"] == pytest.approx(sum(first) / 2, abs=1e-5)


def test_the_server_and_released_models_follow(checkpoint, model, corpus, tmp_path, monkeypatch, capsys):
    pytest.importorskip("flask")
    released = tmp_path / "released.pt"
    words = ["onmt_release_model", "-model", str(checkpoint), "-output", str(released)]
    monkeypatch.setattr(sys, "argv", words)
    onmt.bin.release_model.main()
    assert onmt_entmax.load(released).alphas == model.alphas
    entry = {"id": 1, "model": released.name, "opt": {"beam_size": 5, "certificates": "-", "length_penalty": "none"}}
    config = {"models_root": str(tmp_path), "models": [entry]}
    (tmp_path / "conf.json").write_text(json.dumps(config), encoding="utf-8")
    server = TranslationServer()
    server.start(str(tmp_path / "conf.json"))
    answers = server.run([{"id": 1, "src": line} for line in LINES])[0]
    server.models[1].translator.out_file.close()
    assert answers == [one.text for one in model.translate(LINES)]
    # softmax is all that CTranslate2 knows
    monkeypatch.setattr(sys, "argv", [*words[:-1], str(tmp_path / "ct2"), "-format", "ctranslate2"])
    with pytest.raises(SystemExit) as ended:
        onmt.bin.release_model.main()
    said = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2 and "CTranslate2 decodes with softmax" in said and "`generator_alpha` 1.5" in said


def test_batches_of_any_size_are_searched_alike(checkpoint, corpus):
    # those of size 1 and 2 are joined, all of one length or not
    found = []
    for size, search in (("1", "beam"), ("2", "beam"), ("30", "beam"), ("2", "exact")):
        certificates = corpus.folder / f"transformer{size}{search}.jsonl"
        options = ("-certificates", str(certificates), "-batch_size", size, "-search", search, "-n_best", "2")
        corpus.translate(checkpoint, [*LINES, "", *LINES[::-1]], *options)
        records = [json.loads(line) for line in certificates.read_text(encoding="utf-8").split("\n")[:-1]]
        found.append([one["hypotheses"][0] for one in records if one["hypotheses"]])
    assert [len(one) for one in found] == [8] * 4
    for one in found[:3]:
        assert [each["tokens"] for each in one] == [each["tokens"] for each in found[0]]
        assert [each["log_prob"] for each in one] == pytest.approx([e["log_prob"] for e in found[0]], abs=1e-4)
    for beam, exact in zip(found[0], found[3]):
        assert exact["log_prob"] >= beam["log_prob"] - 1e-4


def test_heads_are_measured(checkpoint, model, tmp_path, capsys):
    source, target = tmp_path / "a.src", tmp_path / "a.tgt"
    source.write_text("\n".join([*LINES, ""]) + "\n", encoding="utf-8")
    target.write_text("\n".join(line[::-1] for line in [*LINES, ""]) + "\n", encoding="utf-8")
    words = ["heads", "--model", checkpoint, "--src", source, "--tgt", target, "--output", tmp_path / "heads.json"]
    assert main([*map(str, words)]) == 0
    shown = capsys.readouterr().out.splitlines()
    written = read_json(tmp_path / "heads.json")
    assert len(shown) == 1 + 12 + 1 and shown[-1] == written["signature"]
    check("Heads", [written])
    lines = [*LINES, ""]
    again = model.heads(lines, [line[::-1] for line in lines], batch_size=1)
    for one, other in zip(written["heads"], again):  # whatever the batches
        assert one["attention"] == other["attention"] and 1 < one["alpha"] < 2
        assert one["support"] == pytest.approx(other["support"])
        for name in ("density", "jensen_shannon", "first"):
            assert one[name] == pytest.approx(other[name], abs=1e-5)
        assert 0 < one["density"] <= 1 and 0 <= one["jensen_shannon"] <= math.log(2) + 1e-9
    learned = [one["alpha"] for one in again if one["learned"]]
    assert len(learned) == 4 and {one["alpha"] for one in again if not one["learned"]} == {1.5}


def test_validations_tell_what_heads_do(checkpoint, corpus, model):
    records = read_records(corpus.folder / "sparse_transformer_metrics.jsonl")
    check("Metrics", records)
    heads = records[-1]["heads"]
    for place, layers in head_layers(model._models.members[0]).items():
        assert [len(layer) for layer in heads[place]["density"]] == [layer.head_count for layer in layers] == [2, 2]
        for layer, alphas in zip(layers, heads[place]["alpha"]):
            learned = layer.softmax.learned_alpha
            expected = [1.5, 1.5] if learned is None else learned().flatten().tolist()
            assert alphas == pytest.approx(expected, abs=1e-4)
        assert all(0 < value <= 1 for layer in heads[place]["density"] for value in layer)
        assert len(heads[place]["jensen_shannon"]) == 2


def test_weights_of_one_head(checkpoint, model, tmp_path, capsys):
    source, target = tmp_path / "a.src", tmp_path / "a.tgt"
    lines = [*LINES, ""]
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    target.write_text("\n".join(line[::-1] for line in lines) + "\n", encoding="utf-8")
    words = [*("heads", "--model", checkpoint, "--src", source, "--tgt", target), "--weights", tmp_path / "w.jsonl"]
    assert main([*map(str, words)]) == 0
    written = read_records(tmp_path / "w.jsonl")
    assert [one["line"] for one in written] == [1, 2, 3, 4, 5] and not written[4]["hypotheses"]
    # the last layer's first head is what OpenNMT-py gives
    for one, forced in zip(written, model.force(lines, [line[::-1] for line in lines])):
        for row, step in zip(one["hypotheses"][0]["attention"] if one["hypotheses"] else (), forced.steps):
            given = {entry["position"]: entry["weight"] for entry in step["attention"]}
            assert row == pytest.approx([given.get(place, 0.0) for place in range(len(row))], abs=1e-5)
        assert (one["layer"], one["head"], one["attention"]) == (2, 1, "context_attention")
    for place, sides in (("decoder_self_attention", "<s> c b a"), ("encoder_self_attention", "a b c")):
        record = model.head_weights(LINES, [line[::-1] for line in LINES], place, layer=1, head=2)[0]
        assert record["source"] == record["hypotheses"][0]["tokens"] == sides.split()
        rows = record["hypotheses"][0]["attention"]
        assert all(sum(row) == pytest.approx(1, abs=1e-5) for row in rows) and len(rows) == len(rows[0])
    assert main(["figure", "attention", "--input", f"{tmp_path}/w.jsonl", "--output", f"{tmp_path}/w.svg"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--weights", "{w}", "--layer", "3"], "`layer`: 3. The model has layers 1 to 2"),
        (["--weights", "{w}", "--head", "0"], "`head`: 0. The model has heads 1 to 2"),
        (["--weights", "{w}", "--output", "{w}"], "`weights` writes another file"),
        (["--layer", "1"], "`layer`: 1. It is for `weights`"),
    ],
)
def test_heads_that_are_not_there_are_refused(checkpoint, tmp_path, capsys, options, message):
    words = ["heads", "--model", str(checkpoint), "--src-text", "a b", "--tgt-text", "b a"]
    assert main([*words, *(option.format(w=tmp_path / "w") for option in options)]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert message in error and not list(tmp_path.iterdir())


def test_heads_that_look_at_one_place_are_named():
    # one sentence of three tokens, two heads: the first looks at the token before (the first one at itself), the
    # second always at the last; both have one non-zero, and where they differ the divergence is log 2
    before = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0]])
    last = torch.tensor([[0, 0, 1.0]] * 3)
    probs = torch.stack([before, last]).unsqueeze(0).double()
    found = head_sums(probs, torch.tensor([3]), torch.tensor([3]), "encoder_self_attention")
    assert found["previous"].tolist() == [2, 0] and found["itself"].tolist() == [1, 1]
    assert found["next"].tolist() == [0, 1] and found["first"].tolist() == [2, 0]
    assert found["last"].tolist() == [0, 3] and found["support"].tolist() == [3, 3]
    assert found["jensen_shannon"].tolist() == pytest.approx([3 * math.log(2)] * 2)


def test_models_without_heads_are_refused(entmax_model, checkpoint):
    with pytest.raises(UserError, match="no Transformer"):
        onmt_entmax.load(entmax_model).heads(["a"], ["a"])
    with pytest.raises(UserError, match="give one checkpoint"):
        onmt_entmax.load(checkpoint, checkpoint).heads(["a"], ["a"])
    with pytest.raises(UserError, match="every source line is blank"):
        onmt_entmax.load(checkpoint).heads([""], ["a"])
