"""Import OpenNMT-py first: it warns of its own old calls while it loads, and warnings are errors in our tests."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import onmt
    import onmt.trainer  # noqa: F401
