"""Prepared folders replace earlier ones, and nothing outside."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from onmt_entmax.files import write_json, write_text
from onmt_entmax.tasks.prepared import data_yaml, input_name, prepared_folder, write_manifest


def prepare(output, *names):
    with prepared_folder(output) as fresh:
        for name in names:
            write_text(fresh / name, "x")
        return write_manifest(fresh, output, {"src": 1, "tgt": 1}, {"task": "t"})


def test_what_an_earlier_run_wrote_goes_and_strangers_stay(tmp_path):
    output = tmp_path / "out"
    manifest = prepare(output, "a", "in/b")
    # SHA-256 of "x"
    assert manifest["outputs"]["in/b"] == "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    write_text(output / "stranger", "stays")
    prepare(output, "a")
    assert sorted(p.name for p in output.rglob("*") if p.is_file()) == ["a", "data.yaml", "manifest.json", "stranger"]


def test_a_manifest_cannot_name_files_elsewhere(tmp_path):
    other = tmp_path / "other"
    write_text(other, "stays")
    write_json(tmp_path / "out" / "manifest.json", {"outputs": {"../other": "", str(other): "", "gone": ""}})
    prepare(tmp_path / "out", "a")
    assert other.read_text() == "stays"
    write_json(tmp_path / "out" / "manifest.json", {"outputs": 3})
    assert json.loads((tmp_path / "out/manifest.json").read_text()) and prepare(tmp_path / "out", "a")["task"] == "t"


def test_yaml_is_ascii_and_reads_back():
    folder = Path("/with blank/{x}: \u00e9\u2028'\"#")
    text = data_yaml(folder, {"src": 32_765, "tgt": 32_704})
    assert text.isascii()
    content = yaml.safe_load(text)
    assert content["data"]["valid"] == {"path_src": f"{folder}/dev.src", "path_tgt": f"{folder}/dev.tgt"}
    assert content["src_vocab"] == f"{folder}/vocab.src"
    assert content["src_vocab_size"] == 32_829 and "tgt_vocab_size" not in content


def test_inputs_are_named_inside_their_folder():
    assert input_name(Path("/d/e/f"), [Path("/x"), Path("/d")]) == "e/f"
    assert input_name(Path("/d/e/f"), [Path("/x")]) == "f"
