"""Sparse sequence-to-sequence models for OpenNMT-py: alpha-entmax in attention and output layer.

Importing this package imports neither torch nor OpenNMT-py (it happens at every start of Python, see
``onmt_entmax/autoload.py``); :func:`load` does. Installing it makes ``import onmt`` call :func:`register`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # for type checkers: `typing` itself is not imported at every start of Python
if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from onmt_entmax.api import Model

__all__ = ["__version__", "load", "register"]


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


def load(
    *paths: str | os.PathLike[str], gpu: int = -1, log: Callable[[str], None] | None = None, progress: bool = False
) -> Model:
    """Load a checkpoint, or several as an ensemble, whose probabilities are averaged where any has an alpha above 1.

    Args:
        paths: checkpoints of ``onmt_train``; an ensemble's vocabularies must agree.
        gpu: index of the GPU, -1 for the CPU.
        log: function that gets a sentence on unknown tokens for each text; None: only warnings, by ``logging``.
        progress: show a bar on standard error, where that is a terminal.

    Returns:
        A :class:`onmt_entmax.api.Model`: ``translate``, ``force``, ``complete``, ``sparsity``.

    Raises:
        UserError: a file that is missing, broken or no sequence-to-sequence model; no such GPU.
    """
    from onmt_entmax.api import Model

    return Model(paths, gpu, log, progress)


def __getattr__(name: str) -> str:
    if name == "__version__":  # found when asked for: this package is imported at every start of Python
        from onmt_entmax.version import version

        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
