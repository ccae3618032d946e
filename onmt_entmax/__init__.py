"""Sparse sequence-to-sequence models for OpenNMT-py: alpha-entmax in attention and output layer.

Importing this package imports neither torch nor OpenNMT-py (it happens at every start of Python, see
``onmt_entmax/autoload.py``). Installing it makes ``import onmt`` call :func:`register`.
"""

from __future__ import annotations

from onmt_entmax.version import __version__

__all__ = ["__version__", "register"]


def register() -> None:
    """Teach OpenNMT-py alpha-entmax. Happens by itself on ``import onmt``; calling it again does no harm.

    Raises:
        RuntimeError: the installed OpenNMT-py is not 3.5.x, or a place to hook into has moved.
    """
    from onmt_entmax import autoload

    autoload.install()
    try:
        import onmt  # registers by itself
    except ImportError as error:
        raise RuntimeError(f"OpenNMT-py cannot be imported ({error}): pip install OpenNMT-py==3.5.1") from error
    check_version(onmt.__version__)
    try:
        from onmt_entmax.plugin import patches

        patches.apply()  # where somebody had imported it before us
    except (ImportError, AttributeError) as error:
        raise RuntimeError(f"OpenNMT-py {onmt.__version__} is not as expected: {error}") from error


def check_version(version: str) -> None:
    """Raise unless ``version`` (of OpenNMT-py) is one we know the inside of: 3.5.x.

    Raises:
        RuntimeError: naming the version found and the one needed.
    """
    if version.split(".")[:2] != ["3", "5"]:
        raise RuntimeError(f"OpenNMT-py {version} is installed, but 3.5.x is needed: pip install OpenNMT-py==3.5.1")
