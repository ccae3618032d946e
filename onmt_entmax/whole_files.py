"""Files that appear under their name only when whole, whatever happens while they are written."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from typing import BinaryIO, Callable

from onmt_entmax.errors import UserError


class _RememberingFile(io.RawIOBase):
    """Passes bytes on until the first error, then swallows them and remembers the error.

    torch's writer turns an error in the middle of an archive into one without a reason.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        if self.error is None:
            try:
                self.file.write(data)
            except OSError as error:
                self.error = error
        return len(data)

    def flush(self) -> None:
        if self.error is None:
            try:
                self.file.flush()
            except OSError as error:
                self.error = error


def part_of(path: str | os.PathLike) -> Path:
    """The temporary name of a file while it is written: always the same, so that a kill leaves at most one behind."""
    path = Path(path)
    return path.with_name(f".{path.name}.part")


def write_stream(path: str | os.PathLike, write: Callable[[BinaryIO], None]) -> None:
    """Let ``write`` fill a file that appears as ``path``, on the disk, when it is whole.

    Raises:
        OSError: the disk's own error (``ENOSPC`` ...); what lay under ``path`` is as it was.
    """
    path = Path(path)
    part = part_of(path)
    try:
        with open(part, "wb") as file:
            remembering = _RememberingFile(file)
            write(remembering)  # type: ignore[arg-type]
            remembering.flush()
            if remembering.error is not None:
                raise remembering.error
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    _sync_folder(path.parent)


def write_whole(path: str | os.PathLike, content: bytes) -> None:
    """:func:`write_stream` for content at hand."""
    write_stream(path, lambda file: file.write(content))  # type: ignore[arg-type,return-value]


def link_or_copy(source: str | os.PathLike, path: str | os.PathLike) -> None:
    """Give a whole file a second name; a copy where the file system knows no links."""
    part = part_of(path)
    part.unlink(missing_ok=True)
    try:
        os.link(source, part)
    except OSError:
        with open(source, "rb") as file:
            write_stream(path, lambda out: _copy(file, out))
        return
    os.replace(part, path)
    part.unlink(missing_ok=True)  # replacing a file by another name of itself does nothing
    _sync_folder(Path(path).parent)


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    for block in iter(lambda: source.read(1 << 20), b""):
        target.write(block)


def cannot_write(path: str | os.PathLike, error: OSError, previous: str | None = None) -> UserError:
    """The one line that ends a run whose checkpoint cannot be written."""
    rest = f" The last whole checkpoint is {previous}." if previous else ""
    return UserError(f"Cannot write {path}: {error.strerror or error}.{rest}")


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power failure, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
