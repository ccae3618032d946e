"""Import OpenNMT-py first: it warns of its own old calls while it loads, and warnings are errors in our tests."""

from __future__ import annotations

import warnings

import pytest

from onmt_entmax import engines

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import onmt
    import onmt.trainer  # noqa: F401


@pytest.fixture(params=["reference", "auto"])
def each_engine(request, monkeypatch):
    """Run the test with the reference, and with the engine that is taken by default."""
    monkeypatch.setenv(engines.VARIABLE, request.param)
    return request.param
