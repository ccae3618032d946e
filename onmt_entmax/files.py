"""Small helpers of the tasks: strict reading, atomic writing, checksums, and the sub-commands of one command.

Only U+000A ends a line: U+2028, U+0085 and a bare carriage return stay inside it, whatever Python's own readers think.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Union

from onmt_entmax.errors import UserError

PathLike = Union[str, "os.PathLike[str]"]


def decode_lines(content: bytes, name: PathLike) -> list[str]:
    r"""Decode strict UTF-8 and split it at ``\n`` only.

    Args:
        content: the bytes of a whole file.
        name: the file's name for the message.

    Returns:
        The lines without their ``\n``. A last line without one counts as a line; an empty file has none.

    Raises:
        UserError: invalid UTF-8, with the file and the number of the line.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        bad = content[error.start]
        raise UserError(
            f"{name}, line {number}: not valid UTF-8 (byte 0x{bad:02x}). Convert the file to UTF-8."
        ) from None
    if not text:
        return []
    return (text[:-1] if text.endswith("\n") else text).split("\n")


def read_lines(path: PathLike) -> list[str]:
    """Read a text file with :func:`decode_lines`; a missing file or a folder is a :class:`UserError` that names it."""
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file.") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; a file is needed.") from None
    except PermissionError:
        raise UserError(f"{path}: no permission to read it.") from None
    return decode_lines(content, path)


def write_text(path: PathLike, text: str) -> None:
    """Write UTF-8 under a temporary name in the same folder, then rename: the file is whole or absent."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(text.encode("utf-8"))
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes it readable to its owner alone
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def json_line(record: Mapping) -> str:
    """A record as one line of JSON, without the line break; no NaN, no infinity."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False)


def write_lines(path: PathLike, lines: Iterable[str]) -> None:
    r"""Write each line followed by ``\n``, atomically. A line that holds ``\n`` is a ``ValueError``."""
    lines = list(lines)
    for number, line in enumerate(lines, 1):
        if "\n" in line:
            raise ValueError(f"{path}, line {number}: a line cannot contain a line feed: {line!r}")
    write_text(path, "".join(line + "\n" for line in lines))


def write_json(path: PathLike, value: object) -> None:
    """Write indented JSON, atomically; NaN and Infinity are a ``ValueError``."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def sha256(path: PathLike) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def whole_folder(folder: PathLike) -> Iterator[Path]:
    """Give a fresh folder beside ``folder`` and move its content into place when the block ends without an error.

    Files are moved one by one, ``manifest.json`` last, so what else lies in ``folder`` stays; after an error nothing of
    it has changed.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; the output must be a folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        yield fresh
        files = (path for path in fresh.rglob("*") if path.is_file())
        for source in sorted(files, key=lambda path: (path.name == "manifest.json", path)):
            target = folder / source.relative_to(fresh)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(source, target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def add_task_parsers(parser: argparse.ArgumentParser, tasks: Mapping[str, tuple[str, str]]) -> None:
    """Add ``TASK`` sub-parsers to a command: task -> (module, description).

    The module's ``add_arguments`` is called only when argparse reaches the task, so ``--help`` of the command imports
    nothing. A task whose module is not there is not listed.
    """
    subparsers = parser.add_subparsers(dest="task", metavar="TASK", required=True, parser_class=_LazyParser)
    for task, (module, description) in tasks.items():
        if importlib.util.find_spec(module) is not None:
            subparser = subparsers.add_parser(task, help=description, description=description, allow_abbrev=False)
            subparser.module = module


def task_module(tasks: Mapping[str, tuple[str, str]], task: str) -> ModuleType:
    """Import the module of one task."""
    return importlib.import_module(tasks[task][0])


class _LazyParser(argparse.ArgumentParser):
    """A parser that asks its module for the arguments when it is first used."""

    module: str | None = None

    def parse_known_args(self, args=None, namespace=None):
        if self.module is not None:
            module, self.module = self.module, None
            importlib.import_module(module).add_arguments(self)
        return super().parse_known_args(args, namespace)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
