"""Strict reading, atomic writing, folders that appear whole."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onmt_entmax import cli
from onmt_entmax.errors import UserError
from onmt_entmax.files import read_lines, sha256, whole_folder, write_json, write_lines, write_text

LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"))


@given(st.lists(LINE))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_lines_come_back_as_written(tmp_path, lines):
    write_lines(tmp_path / "text", lines)
    assert read_lines(tmp_path / "text") == lines


def test_only_line_feed_ends_a_line(tmp_path):
    (tmp_path / "text").write_bytes("a\u2028b\x85c\r\x0bd\n\nlast".encode())
    assert read_lines(tmp_path / "text") == ["a\u2028b\x85c\r\x0bd", "", "last"]


def test_invalid_utf8_names_file_and_line(tmp_path):
    (tmp_path / "bad").write_bytes(b"fine\nfine\nb\xe4d\n")
    with pytest.raises(UserError, match=r"bad, line 3: not valid UTF-8 \(byte 0xe4\)"):
        read_lines(tmp_path / "bad")


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
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "text", "\ud800")
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
