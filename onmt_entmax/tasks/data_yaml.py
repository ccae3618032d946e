"""The part of OpenNMT-py's configuration that says where a prepared corpus lies."""

from __future__ import annotations

from pathlib import Path

_STOCK_VOCAB_SIZE = 32768  # OpenNMT-py cuts vocabularies there unless told otherwise


def data_yaml(folder: Path, vocabularies: dict[str, int]) -> str:
    """Return YAML for ``onmt_train -config``: training and validation files and vocabularies.

    Args:
        folder: absolute, since OpenNMT-py resolves paths from where it is started; it holds ``train`` and ``dev`` as
            ``.src`` and ``.tgt``, ``vocab.src`` and ``vocab.tgt``.
        vocabularies: the number of tokens of ``src`` and ``tgt``.
    """

    def path(name: str) -> str:
        return _quoted(str(folder / name))

    text = (
        "data:\n"
        f"  corpus_1:\n    path_src: {path('train.src')}\n    path_tgt: {path('train.tgt')}\n"
        f"  valid:\n    path_src: {path('dev.src')}\n    path_tgt: {path('dev.tgt')}\n"
        f"save_data: {path('sample')}\n"
        f"src_vocab: {path('vocab.src')}\n"
        f"tgt_vocab: {path('vocab.tgt')}\n"
    )
    for side, size in vocabularies.items():
        if size > _STOCK_VOCAB_SIZE:
            text += f"{side}_vocab_size: {size}\n"
    return text


def _quoted(text: str) -> str:
    """Quote for YAML in plain ASCII: OpenNMT-py opens its configuration in the locale's encoding."""
    plain = (c if c.isascii() and c.isprintable() and c not in '"\\' else f"\\U{ord(c):08X}" for c in text)
    return '"' + "".join(plain) + '"'
