"""One way to read lines and records, files and folders that appear only when whole."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onmt_entmax import cli, files
from onmt_entmax.errors import UserError
from onmt_entmax.files import (
    WholeFile,
    count_lines,
    iterate_lines,
    iterate_records,
    link_or_copy,
    parse_yaml,
    part_of,
    read_json,
    read_lines,
    read_records,
    read_text,
    sha256,
    split_tokens,
    whole_folder,
    write_json,
    write_lines,
    write_stream,
    write_text,
    write_whole,
)

LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"))


@given(st.lists(LINE))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_lines_come_back_as_written(tmp_path, lines):
    lines = [line.rstrip("\r") for line in lines]
    if lines:
        lines[0] = lines[0].lstrip("\ufeff")
    write_lines(tmp_path / "text", lines)
    assert read_lines(tmp_path / "text") == lines
    assert count_lines(tmp_path / "text") == len(lines)


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"\xef\xbb\xbf", []),  # a byte order mark and nothing else
        (b"\xef\xbb\xbfa\r\n\xef\xbb\xbfb\r\n", ["a", "\ufeffb"]),  # dropped at the file's start only
        (b"a\r\r\n\rb\nc\r", ["a\r", "\rb", "c\r"]),  # one carriage return, before a line feed
        ("a\u2028b\x85c\x0bd\n\nlast".encode(), ["a\u2028b\x85c\x0bd", "", "last"]),
    ],
)
def test_lines(tmp_path, content, lines):
    (tmp_path / "text").write_bytes(content)
    assert read_lines(tmp_path / "text") == lines
    assert read_text(tmp_path / "text") == "\n".join(lines)
    assert count_lines(tmp_path / "text") == len(lines)


@pytest.mark.parametrize(
    ("line", "tokens"),
    [("", []), ("  ", []), ("a", ["a"]), ("  a  b ", ["a", "b"]), ("\u00a0 a\tb", ["\u00a0", "a\tb"])],
)
def test_only_runs_of_blanks_separate_tokens(line, tokens):
    assert split_tokens(line) == tokens


def test_invalid_utf8_names_file_line_and_byte(tmp_path):
    (tmp_path / "bad").write_bytes(b"fine\nfine\nb\xe4d\n")
    lines = iterate_lines(tmp_path / "bad")
    assert [next(lines), next(lines)] == ["fine", "fine"]
    with pytest.raises(UserError, match=r"bad, line 3: not valid UTF-8 \(byte 0xe4, number 2 of the line\)"):
        next(lines)
    with pytest.raises(UserError, match="line 3"):
        count_lines(tmp_path / "bad")


def test_records_with_their_lines(tmp_path):
    (tmp_path / "r.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n \n{"a": "\xe2\x80\xa8"}\n')
    assert list(iterate_records(tmp_path / "r.jsonl")) == [(1, {"a": 1}), (3, {"a": "\u2028"})]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not JSON"),
        (b'{"a": NaN}', "not JSON .NaN is no number in JSON"),
        (b'{"a": -Infinity}', "not JSON .-Infinity is no number"),
        (b"[1]", "not a JSON object"),
        (b"[" * 100000, "not JSON"),
        (b'{"a": "\xff"}', "not valid UTF-8"),
    ],
)
def test_bad_records_are_named_by_file_and_line(tmp_path, line, reason):
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line + b"\n")
    with pytest.raises(UserError, match=f"r.jsonl, line 2: {reason}"):
        read_records(path)
    with pytest.raises(UserError, match="line 2"):
        read_records(path, may_be_cut=True)  # a whole line: not the work of a kill
    path.write_bytes(b'{"a": 1}\n' + line)
    assert read_records(path, may_be_cut=True) == [{"a": 1}]


def test_a_json_file_holds_one_object(tmp_path):
    write_json(tmp_path / "o", {"a": "\u2028"})
    assert read_json(tmp_path / "o") == {"a": "\u2028"}
    write_text(tmp_path / "o", " \n")
    with pytest.raises(UserError, match="o is empty"):
        read_json(tmp_path / "o")


def test_missing_file_and_folder_are_named(tmp_path):
    with pytest.raises(UserError, match="nothing: no such file"):
        read_lines(tmp_path / "nothing")
    with pytest.raises(UserError, match="is a folder"):
        read_lines(tmp_path)


def test_a_line_feed_inside_a_line_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(ValueError, match="line 2"):
        write_lines(tmp_path / "text", ["a", "b\nc"])
    assert list(tmp_path.iterdir()) == []


def test_failed_write_keeps_the_old_file(tmp_path):
    write_text(tmp_path / "text", "old")
    with pytest.raises(ValueError):
        write_lines(tmp_path / "text", ["new", "a\nb"])
    with pytest.raises(ValueError):
        write_json(tmp_path / "text", float("nan"))
    assert [path.name for path in tmp_path.iterdir()] == ["text"]
    assert (tmp_path / "text").read_text() == "old"


def test_sha256(tmp_path):
    (tmp_path / "text").write_bytes(b"abc")
    assert sha256(tmp_path / "text") == hashlib.sha256(b"abc").hexdigest()


def test_whole_folder_changes_nothing_after_an_error(tmp_path):
    target = tmp_path / "out"
    write_text(target / "kept", "old")
    with pytest.raises(RuntimeError), whole_folder(target) as fresh:
        write_text(fresh / "kept", "new")
        raise RuntimeError
    assert (target / "kept").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_whole_folder_never_has_a_manifest_of_other_files(tmp_path, monkeypatch):
    target = tmp_path / "out"
    for name in ("a", "b", "manifest.json"):
        write_text(target / name, "old")
    (target / "c").mkdir()
    with pytest.raises(UserError, match="c is a folder, where a file is to be written"), whole_folder(target) as fresh:
        for name in ("a", "c", "manifest.json"):
            write_text(fresh / name, "new")
    assert (target / "a").read_text() == (target / "manifest.json").read_text() == "old"
    moved, replace = [], os.replace

    def full(source, path):
        if moved:
            raise OSError(28, "No space left on device", str(path))
        moved.append(path)
        replace(source, path)

    with pytest.raises(OSError, match="No space left"), whole_folder(target) as fresh:
        for name in ("a", "b", "manifest.json"):
            write_text(fresh / name, "new")
        monkeypatch.setattr(os, "replace", full)
    assert (target / "a").read_text() == "new" and (target / "b").read_text() == "old"
    assert not (target / "manifest.json").exists()


def test_whole_folder_moves_everything_and_keeps_strangers(tmp_path):
    target = tmp_path / "out"
    write_text(target / "stranger", "stays")
    with whole_folder(target) as fresh:
        write_text(fresh / "in" / "deep", "new")
    assert (target / "stranger").read_text() == "stays"
    assert (target / "in" / "deep").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("command", ["prepare", "evaluate"])
def test_commands_list_their_tasks(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    assert "inflection" in capsys.readouterr().out


class FullDisk:
    """Writes up to a number of bytes, then the disk is full."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        if len(data) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= len(data)
        return self.file.write(data)

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()


@pytest.mark.parametrize("room", [0, 100, 3000])
def test_full_disk_gives_its_reason_and_leaves_the_old_file(tmp_path, monkeypatch, room):
    path = tmp_path / "m.pt"
    write_whole(path, b"old")
    monkeypatch.setattr(files, "open", lambda *args: FullDisk(open(*args), room), raising=False)  # noqa: SIM115
    with pytest.raises(OSError) as caught:
        write_stream(path, lambda file: torch.save({"w": torch.ones(1000), "v": torch.ones(1000)}, file))
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["m.pt"]


def test_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "m.pt"
    write_whole(path, b"old")

    def write(file):
        file.write(b"new, but not")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_stream(path, write)
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["m.pt"]


def test_checkpoint_reads_back(tmp_path):
    write_stream(tmp_path / "m.pt", lambda file: torch.save({"w": torch.arange(5)}, file))
    assert torch.load(tmp_path / "m.pt", weights_only=True)["w"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("links", [True, False])
def test_second_name(tmp_path, monkeypatch, links):
    def no_links(*args):
        raise OSError(errno.EPERM, "no links here")

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    write_whole(tmp_path / "a", b"new")
    write_whole(tmp_path / "b", b"old")
    link_or_copy(tmp_path / "a", tmp_path / "b")
    link_or_copy(tmp_path / "a", tmp_path / "b")  # already the same file
    assert (tmp_path / "b").read_bytes() == b"new"
    write_whole(tmp_path / "a", b"newer")
    assert (tmp_path / "b").read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_a_part_of_a_killed_run_is_written_over(tmp_path):
    assert part_of(tmp_path / "m.pt").name == ".m.pt.part"
    part_of(tmp_path / "text").write_bytes(b"left over by a kill, and longer than the new text")
    write_text(tmp_path / "text", "new")
    assert (tmp_path / "text").read_text() == "new"
    assert os.listdir(tmp_path) == ["text"]


def test_the_disks_error_names_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "open", lambda *args: FullDisk(open(*args), 0), raising=False)  # noqa: SIM115
    with pytest.raises(OSError, match="No space left on device: '.*/text'$"):
        write_text(tmp_path / "text", "new")
    assert os.listdir(tmp_path) == []


def test_permissions_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "text", "new")
    finally:
        os.umask(before)
    assert (tmp_path / "text").stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
def test_a_pipe_is_written_directly(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_lines(tmp_path / "pipe", ["a", "b"])
        assert os.read(reader, 100) == b"a\nb\n"
    finally:
        os.close(reader)
    assert os.listdir(tmp_path) == ["pipe"]


def test_standard_output_stays_what_the_shell_made_of_it(tmp_path):
    code = "from onmt_entmax.files import write_text; print(1); write_text('/dev/stdout', '2\\n'); print(3)"
    with open(tmp_path / "out", "wb") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True, timeout=60)
    assert (tmp_path / "out").read_bytes() == b"1\n2\n3\n"


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no memory file system")
def test_a_file_in_memory_is_a_file():
    """Below ``/dev`` there are not only devices: what is there is replaced, and kept after an error."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder, "new", "text")
        for text in ("first", "second"):
            write_text(path, text)
        with pytest.raises(ZeroDivisionError), WholeFile(path) as file:
            file.write(b"third")
            raise ZeroDivisionError
        assert path.read_text() == "second" and os.listdir(path.parent) == ["text"]


def test_an_open_file_named_by_its_number_is_written_on(tmp_path):
    with open(tmp_path / "out", "ab") as out:
        out.write(b"1\n")
        out.flush()
        write_text(f"/dev/fd/{out.fileno()}", "2\n")
    assert (tmp_path / "out").read_bytes() == b"1\n2\n"


def test_names_that_are_not_utf8_are_written_as_escapes(tmp_path):
    name = os.fsdecode(b"caf\xe9.pred")
    write_json(tmp_path / "x.json", {name: 1})
    assert b'"caf\\udce9.pred"' in (tmp_path / "x.json").read_bytes()
    assert list(read_json(tmp_path / "x.json")) == [name]
    write_lines(tmp_path / "x", [name, "\u00e9"])
    assert read_lines(tmp_path / "x") == ["caf\\udce9.pred", "\u00e9"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: b\x0cc", "special characters are not allowed"),
        ("save_model: 2026-02-30", "day is out of range for month"),
        ("x: !!int abc", "invalid literal"),
        ("[" * 5000, "too many brackets"),
        ("a: 1\na: 2", "line 2: the key `a` is there already, in line 1"),
    ],
)
def test_what_is_not_yaml(text, words):
    with pytest.raises(UserError, match=f"^f.yaml.*{words}"):
        parse_yaml(text, "f.yaml")
