"""Import OpenNMT-py first: it warns of its own old calls while it loads, and warnings are errors in our tests."""

from __future__ import annotations

import warnings

import pytest

from onmt_entmax import engines

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import onmt
    import onmt.trainer  # noqa: F401


@pytest.fixture(scope="package", autouse=True)
def default_engine():
    """These tests say themselves which engine they mean, whatever the environment they run in says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(engines.VARIABLE, raising=False)
        yield
