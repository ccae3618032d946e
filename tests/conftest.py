"""Set-up shared by all tests: one thread, and real data only where the environment names it."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

# No deadline: a busy machine is no failure. Where ``CI`` is set, the same code meets the same examples every time, so
# that a change is judged by what it changes; everywhere else the examples are new in every run.
settings.register_profile("untimed", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the real corpora; the test is skipped where ``ONMT_ENTMAX_DATA`` is not set."""
    folder = os.environ.get("ONMT_ENTMAX_DATA")
    if not folder:
        pytest.skip("ONMT_ENTMAX_DATA is not set: no real corpora here")
    return Path(folder).resolve()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A tiny corpus, and stock's commands on it; see ``tests/stock.py``."""
    import onmt_entmax

    onmt_entmax.register()
    from tests.stock import Corpus

    return Corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def entmax_model(corpus):
    """A 1.5-entmax model, trained until its distributions are peaked."""
    functions = ("-generator_function", "entmax15", "-global_attention_function", "entmax15")
    return corpus.train("entmax", *functions, steps=150)


@pytest.fixture(scope="session")
def softmax_model(corpus):
    return corpus.train("softmax", steps=60)
