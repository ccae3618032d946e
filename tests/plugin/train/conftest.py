"""Import OpenNMT-py first: it warns of its own old calls while it loads, and warnings are errors in our tests."""

from __future__ import annotations

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import onmt_entmax

    onmt_entmax.register()
    import onmt.bin.train  # noqa: F401

from tests.plugin.train.helpers import write_data


@pytest.fixture
def folder(tmp_path):
    """A folder with a tiny task."""
    write_data(tmp_path)
    return tmp_path
