"""A tiny corpus and models trained on it by stock commands, shared by the tests of the plugin."""

from __future__ import annotations

import pytest

import onmt_entmax

from ..stock import Corpus

onmt_entmax.register()  # before test modules import names from OpenNMT-py


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Corpus:
    return Corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def entmax_model(corpus):
    """A 1.5-entmax model, trained until its distributions are peaked."""
    functions = ("-generator_function", "entmax15", "-global_attention_function", "entmax15")
    return corpus.train("entmax", *functions, steps=150)


@pytest.fixture(scope="session")
def softmax_model(corpus):
    return corpus.train("softmax", steps=60)
