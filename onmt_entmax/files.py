r"""The one reader of text and JSON lines, and the one writer: files are whole or absent, whatever happens meanwhile.

Reading, for every kind of file that a user brings: only U+000A ends a line (U+2028, U+0085 and a bare carriage return
stay inside it), one ``\r`` before it and a byte order mark at the start of the file are dropped, and what is not UTF-8
is refused by file, line and byte. Tokens are separated by runs of U+0020 only (:func:`split_tokens`); fields between
tabs keep their blanks.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO, Callable, Union

from onmt_entmax.errors import UserError, invalid_setting

PathLike = Union[str, "os.PathLike[str]"]

BLANK_LINE = "blank input line"  # the `reason` of the record of an input line without tokens
_MARK = b"\xef\xbb\xbf"  # the byte order mark that some editors put before UTF-8
_STREAM = re.compile(r"/dev/(stdout|stderr|fd/\d+)|/proc/[^/]+/fd/\d+")  # written as they are, even if it is a file
_inputs: ContextVar[Union[set[str], None]] = ContextVar("inputs", default=None)  # read inside `inputs_kept`


def split_tokens(line: str) -> list[str]:
    """Tokens of a line, separated by runs of U+0020; a blank line has none. U+00A0 and tabs are part of a token."""
    return [token for token in line.split(" ") if token]


def byte_lines(path: PathLike) -> Iterator[bytes]:
    r"""The lines of a file as bytes that end with ``\n`` (the last one perhaps not); see the head of this file.

    Raises:
        UserError: no such file, a folder, or no permission.
    """
    _note_input(path)
    try:
        with open(path, "rb") as file:
            for number, raw in enumerate(file):  # a binary file's lines end with U+000A only
                if number == 0 and raw.startswith(_MARK):
                    raw = raw[len(_MARK) :]
                    if not raw:
                        return
                yield raw[:-2] + b"\n" if raw.endswith(b"\r\n") else raw
    except FileNotFoundError:
        raise UserError(f"{path}: no such file.") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; a file is needed.") from None
    except PermissionError:
        raise UserError(f"{path}: no permission to read it.") from None


def iterate_lines(path: PathLike) -> Iterator[str]:
    r"""Read a text file line by line, without their ends; see the head of this file.

    A last line without ``\n`` counts as a line; an empty file, or one with a byte order mark only, has none.

    Raises:
        UserError: no such file, a folder, no permission, or invalid UTF-8 (with line and byte).
    """
    for number, raw in enumerate(byte_lines(path), 1):
        yield _decode(raw, path, number)


def read_lines(path: PathLike) -> list[str]:
    """All of :func:`iterate_lines`."""
    return list(iterate_lines(path))


def read_text(path: PathLike) -> str:
    r"""A whole text file, its lines joined by ``\n``, read as :func:`iterate_lines` does."""
    return "\n".join(iterate_lines(path))


def count_lines(path: PathLike) -> int:
    """The number of lines that :func:`iterate_lines` gives; the text is checked as there."""
    return sum(1 for _ in iterate_lines(path))


def iterate_records(path: PathLike, may_be_cut: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    r"""Read JSON lines one by one: the number of each line, from 1, and its object. Blank lines are passed over.

    ``may_be_cut`` leaves out a last line that a kill cut short (one without ``\n`` that cannot be read).

    Raises:
        UserError: as :func:`iterate_lines`; a line that is no JSON object, or holds NaN or Infinity.
    """
    for number, raw in enumerate(byte_lines(path), 1):
        try:
            text = _decode(raw, path, number)
            if not text.strip():
                continue
            record = _parse(text, f"{path}, line {number}")
        except UserError:
            if may_be_cut and not raw.endswith(b"\n"):
                return
            raise
        yield number, record


def read_records(path: PathLike, may_be_cut: bool = False) -> list[dict[str, Any]]:
    """The objects of :func:`iterate_records`."""
    return [record for _, record in iterate_records(path, may_be_cut)]


def read_json(path: PathLike) -> dict[str, Any]:
    """Read a file that holds one JSON object; raises as :func:`iterate_records`, and for an empty file."""
    text = read_text(path)
    if not text.strip():
        raise UserError(f"{path} is empty; a JSON object is needed.")
    return _parse(text, str(path))


def parse_yaml(text: str, where: str) -> Any:
    """Read a text of YAML. A key that stands twice in one mapping is an error; YAML's own readers take the last one.

    Args:
        text: the document.
        where: its name in errors.
    """
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        nodes, seen = [root], {id(root)}
        for node in nodes:
            inside = node.value if isinstance(node, (yaml.MappingNode, yaml.SequenceNode)) else []
            if isinstance(node, yaml.MappingNode):
                _refuse_doubled(node.value, where)
                inside = [value for _, value in inside]
            nodes += [child for child in inside if id(child) not in seen]  # an alias may lead back
            seen.update(map(id, inside))
        return None if root is None else loader.construct_document(root)
    except UserError:
        raise
    except RecursionError:
        raise UserError(f"{where}: not YAML: brackets in too many brackets") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist, say
        raise UserError(f"{where}: not YAML: {' '.join(str(error).split())}") from None


def _refuse_doubled(pairs: list[tuple[Any, Any]], where: str) -> None:
    lines: dict[object, int] = {}
    for key, _ in pairs:
        line = key.start_mark.line + 1
        name = key.value if isinstance(key.value, str) else id(key)
        if name in lines:
            raise UserError(f"{where}, line {line}: the key `{name}` is there already, in line {lines[name]}.")
        lines[name] = line


def check_output(name: str, output: PathLike, setting: str, path: PathLike) -> None:
    """Refuse an output (the setting ``name``) that is an input (``setting``: ``path``), however it is written."""
    with contextlib.suppress(OSError):  # what is not there cannot be overwritten
        if os.path.samefile(output, path):
            raise invalid_setting(name, output, f"It is the input of `{setting}`, which would be overwritten.")


@contextlib.contextmanager
def inputs_kept() -> Iterator[None]:
    """Inside the block a :class:`WholeFile` refuses to take the place of a file that was read there.

    :func:`check_output` says so at once, where a setting names the file; this knows those in folders, too.
    """
    token = _inputs.set(set())
    try:
        yield
    finally:
        _inputs.reset(token)


def _note_input(path: PathLike) -> None:
    known = _inputs.get()
    if known is not None:
        known.add(os.path.realpath(path))


def part_of(path: PathLike) -> Path:
    """The temporary name of a file while it is written: always the same, so that a kill leaves at most one behind."""
    path = Path(path)
    return path.with_name(f".{path.name}.part")


class WholeFile:
    """A file that appears under its name, on the disk, when it is whole.

    Bytes go to ``.NAME.part`` in the same folder, which is made if need be; :meth:`finish` gives it its name, and
    :meth:`discard` leaves what lay there as it was. As a context manager it does the one or, after an error, the other.
    A pipe or a device (``/dev/stdout``) cannot be replaced and is written directly.

    Raises:
        OSError: the disk's own error (``ENOSPC`` ...), with the file's name.
        UserError: the file was read inside :func:`inputs_kept`.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        special = self.path.exists() and not self.path.is_file()
        self._direct = special or _STREAM.fullmatch(str(self.path)) is not None
        self._place = self.path if self._direct else part_of(self.path)
        if not self._direct and os.path.realpath(self.path) in (_inputs.get() or ()):
            raise UserError(f"{self.path} is an input, which would be overwritten: name another output.")
        with self._named():
            self._file = self._open()

    def _open(self) -> BinaryIO:
        standard = {"/dev/stdout": sys.stdout, "/dev/stderr": sys.stderr}.get(str(self.path))
        if standard is not None:  # may be a file that the shell opened: opened again it would be overwritten
            standard.flush()
            return os.fdopen(os.dup(1 if standard is sys.stdout else 2), "wb")
        if self._direct:
            return open(self._place, "ab")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return open(self._place, "wb")

    def write(self, data: bytes) -> int:
        """Append bytes."""
        with self._named():
            return self._file.write(data)

    def sync(self) -> None:
        """Have on the disk what was written, so that :meth:`finish` has nothing left that takes room."""
        with self._named():
            self._file.flush()
            if not self._direct:
                os.fsync(self._file.fileno())

    def finish(self) -> None:
        """Put the file in its place; after an error it is discarded."""
        try:
            self.sync()
            with self._named():
                self._file.close()
                if not self._direct:
                    os.replace(self._place, self.path)
                    _sync_folder(self.path.parent)
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Remove what was written; nothing happens to a file that is finished."""
        with contextlib.suppress(OSError):
            self._file.close()
        if not self._direct:
            with contextlib.suppress(OSError):
                self._place.unlink()

    def __enter__(self) -> WholeFile:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.finish()
        else:
            self.discard()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Name the file that is meant, not its part, in the disk's errors; those of a write have no name at all."""
        try:
            yield
        except OSError as error:
            if error.filename not in (None, str(self._place)):
                raise
            raise OSError(error.errno, error.strerror, str(self.path)) from error


class _RememberingFile(io.RawIOBase):
    """Passes bytes on until the first error, then swallows them and remembers the error.

    torch's writer turns an error in the middle of an archive into one without a reason.
    """

    def __init__(self, file: WholeFile) -> None:
        self.file = file
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.error is None:
            try:
                self.file.write(data)
            except OSError as error:
                self.error = error
        return len(data)


def write_stream(path: PathLike, write: Callable[[BinaryIO], object]) -> None:
    """Let ``write`` (``torch.save``, a figure's ``savefig``) fill a :class:`WholeFile`."""
    with WholeFile(path) as file:
        remembering = _RememberingFile(file)
        write(remembering)  # type: ignore[arg-type]
        if remembering.error is not None:
            raise remembering.error


def write_whole(path: PathLike, content: bytes) -> None:
    """Write bytes at hand as a :class:`WholeFile`."""
    with WholeFile(path) as file:
        file.write(content)


def write_text(path: PathLike, text: str) -> None:
    """Write UTF-8 as a :class:`WholeFile`."""
    write_whole(path, _encoded(text))


def write_lines(path: PathLike, lines: Iterable[str]) -> None:
    r"""Write each line followed by ``\n``, as a :class:`WholeFile`. A line that holds ``\n`` is a ``ValueError``."""
    with WholeFile(path) as file:
        for number, line in enumerate(lines, 1):
            if "\n" in line:
                raise ValueError(f"{path}, line {number}: a line cannot contain a line feed: {line!r}")
            file.write(_encoded(line + "\n"))


def json_line(record: Mapping[str, Any]) -> str:
    """A record as one line of JSON, without the line break; no NaN, no infinity."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False)


def write_json(path: PathLike, value: object) -> None:
    """Write indented JSON, as a :class:`WholeFile`; NaN and Infinity are a ``ValueError``."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def link_or_copy(source: PathLike, path: PathLike) -> None:
    """Give a whole file a second name; a copy where the file system knows no links."""
    part = part_of(path)
    part.unlink(missing_ok=True)
    try:
        os.link(source, part)
    except OSError:
        with open(source, "rb") as original, WholeFile(path) as copy:
            shutil.copyfileobj(original, copy, 1 << 20)
        return
    os.replace(part, path)
    part.unlink(missing_ok=True)  # replacing a file by another name of itself does nothing
    _sync_folder(Path(path).parent)


def cannot_write(path: PathLike, error: OSError, previous: str | None = None) -> UserError:
    """The one line that ends a run whose checkpoint cannot be written."""
    rest = f" The last whole checkpoint is {previous}." if previous else ""
    return UserError(f"Cannot write {path}: {error.strerror or error}.{rest}")


def sha256(path: PathLike) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    _note_input(path)
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def whole_folder(folder: PathLike) -> Iterator[Path]:
    """Give a fresh folder beside ``folder`` and move its content into place when the block ends without an error.

    Files are moved one by one, ``manifest.json`` last, so what else lies in ``folder`` stays; after an error in the
    block nothing of it has changed. An old manifest goes first: files of two runs never have one.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; the output must be a folder.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        yield fresh
        files = (path for path in fresh.rglob("*") if path.is_file())
        moves = [(path, folder / path.relative_to(fresh)) for path in files]
        for _, target in moves:
            if target.is_dir():
                raise UserError(f"{target} is a folder, where a file is to be written. Nothing was changed.")
            target.parent.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").unlink(missing_ok=True)
        for source, target in sorted(moves, key=lambda move: (move[0].name == "manifest.json", move[0])):
            os.replace(source, target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _encoded(text: str) -> bytes:
    """UTF-8; of half characters, which stand for bytes of a file's name that is not UTF-8, the escapes of JSON."""
    return text.encode("utf-8", "backslashreplace")


def _decode(raw: bytes, path: PathLike, number: int) -> str:
    try:
        return (raw[:-1] if raw.endswith(b"\n") else raw).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, line {number}: not valid UTF-8 (byte 0x{raw[error.start]:02x}, number {error.start + 1} of the "
            "line). Convert the file to UTF-8."
        ) from None


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not JSON ({error}).") from None
    if not isinstance(value, dict):
        raise UserError(f"{where}: not a JSON object.")
    return value


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number in JSON; null stands for it")


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power failure, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
