"""What prepared folders of all tasks share: ``data.yaml``, the manifest, and how they replace an earlier one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import yaml

from onmt_entmax.errors import UserError
from onmt_entmax.files import read_json, sha256, whole_folder, write_json, write_text

MANIFEST = "manifest.json"
_STOCK_VOCAB_SIZE = 32768  # OpenNMT-py cuts vocabularies there, special tokens counted, unless told otherwise
_SPECIAL_TOKENS = 64  # room for OpenNMT-py's own and those of transforms


def data_yaml(folder: Path, vocabularies: dict[str, int]) -> str:
    """Return YAML for ``onmt_train -config``: training and validation files and vocabularies.

    Args:
        folder: absolute, since OpenNMT-py resolves paths from where it is started; it holds ``train`` and ``dev`` as
            ``.src`` and ``.tgt``, ``vocab.src`` and ``vocab.tgt``.
        vocabularies: the number of tokens of ``src`` and ``tgt``.
    """

    def corpus(name: str) -> dict[str, object]:
        return {f"path_{side}": str(folder / f"{name}.{side}") for side in ("src", "tgt")}

    sizes = {side: size + _SPECIAL_TOKENS for side, size in vocabularies.items()}
    content = {
        # no `transforms`: those of `onmt_train -transforms` would not count then
        "data": {"corpus_1": {**corpus("train"), "weight": 1}, "valid": corpus("dev")},
        "save_data": str(folder / "sample"),
        "src_vocab": str(folder / "vocab.src"),
        "tgt_vocab": str(folder / "vocab.tgt"),
        **{f"{side}_vocab_size": size for side, size in sizes.items() if size > _STOCK_VOCAB_SIZE},
    }
    # plain ASCII: OpenNMT-py opens its configuration in the locale's encoding
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=False, width=10_000)


@contextmanager
def prepared_folder(output: Path) -> Iterator[Path]:
    """Give a fresh folder that takes the place of what an earlier run wrote to ``output``, when the block has ended.

    After an error in the block ``output`` is as it was; what else lies there stays.
    """
    earlier = _outputs(output)
    with whole_folder(output) as fresh:
        yield fresh
    for stale in earlier - _outputs(output):
        (output / stale).unlink(missing_ok=True)


def write_manifest(fresh: Path, output: Path, vocabularies: dict[str, int], about: dict) -> dict:
    """Write ``data.yaml`` and the manifest of a prepared folder: ``about``, and the SHA-256 of all files.

    Args:
        fresh: holds all other files, which will lie in ``output``.
        vocabularies: sizes of ``src`` and ``tgt``.
    """
    write_text(fresh / "data.yaml", data_yaml(output.resolve(), vocabularies))
    files = sorted(path for path in fresh.rglob("*") if path.is_file())
    manifest = {**about, "outputs": {path.relative_to(fresh).as_posix(): sha256(path) for path in files}}
    write_json(fresh / MANIFEST, manifest)
    return manifest


def input_name(path: Path, folders: Sequence[Path]) -> str:
    """Name an input by its path inside the data folder: a manifest does not depend on where the data lie."""
    inside = next((folder for folder in folders if folder in path.parents), None)
    return path.name if inside is None else path.relative_to(inside).as_posix()


def _outputs(folder: Path) -> set[str]:
    """The files that an earlier run wrote into a folder, by its manifest; a path that leads out of it is none."""
    try:
        found = read_json(folder / MANIFEST)["outputs"]
    except (UserError, KeyError):
        return set()
    paths = [PurePosixPath(name) for name in found] if isinstance(found, dict) else []
    return {str(path) for path in paths if not path.is_absolute() and ".." not in path.parts}
