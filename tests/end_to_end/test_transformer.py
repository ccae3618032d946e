"""A Transformer whose every mapping is sparse: trained, searched with certificates, forced, in an ensemble."""

from __future__ import annotations

import json
import math

import pytest

import onmt_entmax

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
