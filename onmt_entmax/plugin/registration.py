"""Puts the plugin's pieces into OpenNMT-py: options, model, loss, decoding and compatibility, in that order."""

from __future__ import annotations

import re

SUPPORTED = "3.5"
REMEDY = "pip install OpenNMT-py==3.5.1"

_registered = False


def check_version(version: str) -> None:
    """Raise unless ``version`` (of OpenNMT-py) is one we know the inside of.

    Raises:
        RuntimeError: naming the version found and the one needed.
    """
    if re.match(rf"{re.escape(SUPPORTED)}(\.|$)", version) is None:
        raise RuntimeError(f"OpenNMT-py {version} is installed, but {SUPPORTED}.x is needed: {REMEDY}")


def is_registered() -> bool:
    """Whether :func:`register` has run in this process."""
    return _registered


def register() -> None:
    """Register once; later calls return at once.

    Raises:
        RuntimeError: OpenNMT-py is not 3.5.x, or a place to hook into has moved.
    """
    global _registered
    if _registered:
        return
    import onmt

    check_version(onmt.__version__)
    # inside a partly registered program every `import onmt` would try again and wrap twice
    _registered = True
    try:
        from onmt_entmax.plugin import checkpoints, corpora, models, options
        from onmt_entmax.plugin import entry_points as commands
        from onmt_entmax.plugin.train import losses
        from onmt_entmax.plugin.train import main as training
        from onmt_entmax.plugin.translate import decoding, server

        for piece in (commands, checkpoints, options, corpora, models, losses, training, decoding, server):
            piece.install()
    except (ImportError, AttributeError) as error:
        _registered = False
        raise RuntimeError(f"OpenNMT-py {onmt.__version__} is not as expected: {error}") from error
