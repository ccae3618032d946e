"""Puts our translator in the places where OpenNMT-py binds its own."""

from __future__ import annotations

from onmt_entmax.plugin.hooks import replace


def install() -> None:
    """Rebind ``Translator`` for the stock commands, the server, validation scorers and the Python API."""
    import onmt.translate
    import onmt.translate.translator
    import onmt.utils.scoring_utils

    from onmt_entmax.plugin.translator import SparseTranslator

    for module in (onmt.translate.translator, onmt.translate, onmt.utils.scoring_utils):
        replace(module, "Translator", lambda stock: SparseTranslator)
