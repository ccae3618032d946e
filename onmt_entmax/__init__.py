"""Sparse sequence-to-sequence models for OpenNMT-py: alpha-entmax in attention and output layer.

Importing this package imports neither torch nor OpenNMT-py (it happens at every start of Python, see
``onmt_entmax/plugin/autoload.py``). Installing it makes ``import onmt`` call :func:`register`.
"""

from __future__ import annotations

from onmt_entmax.version import __version__

__all__ = ["__version__", "register"]


def register() -> None:
    """Teach OpenNMT-py alpha-entmax. Happens by itself on ``import onmt``; calling it again does no harm.

    Raises:
        RuntimeError: the installed OpenNMT-py is not 3.5.x, or a place to hook into has moved.
    """
    from onmt_entmax.plugin.registration import register as register_plugin

    register_plugin()
