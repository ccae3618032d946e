"""Registers the plugin before test modules import names from OpenNMT-py."""

from __future__ import annotations

import onmt_entmax

onmt_entmax.register()
