"""Our own commands on a tiny trained model: force, complete, trace, sparsity; and what they refuse."""

from __future__ import annotations

import json

import pytest

from onmt_entmax.cli import main


def run(capsys, *words) -> list[dict]:
    assert main([str(word) for word in words]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.split("\n") if line.startswith("{")]


def test_force_gives_the_support_at_each_step(entmax_model, corpus, capsys):
    source, target = corpus.sources[0], corpus.targets[0]
    (record,) = run(capsys, "force", "--model", entmax_model, "--src-text", source, "--tgt-text", target)
    assert record["source"] == source.split(" ")
    assert [step["token"] for step in record["steps"]] == [*target.split(" "), "</s>"]
    for step in record["steps"]:
        assert sum(entry["prob"] for entry in step["support"]) == pytest.approx(1.0, abs=1e-5)
        assert len(step["support"]) == step["support_size"]
    impossible = [index for index, step in enumerate(record["steps"]) if step["log_prob"] is None]
    assert record["impossible_at"] == (impossible[0] if impossible else None)


def test_completions_start_with_the_prefix(entmax_model, corpus, capsys):
    source, first = corpus.sources[0], corpus.targets[0].split(" ")[0]
    (record,) = run(capsys, "force", "--model", entmax_model, "--src-text", source, "--complete", first)
    assert record["prefix"] == [first]
    if record["prefix_impossible_at"] is None:
        assert sum(entry["prob"] for entry in record["next_tokens"]) == pytest.approx(1.0, abs=1e-5)
        assert record["hypotheses"] and all(h["tokens"][0] == first for h in record["hypotheses"])
        assert record["conditional_on_prefix"] is True


def test_trace_is_a_tree_whose_leaves_hold_the_mass(entmax_model, tmp_path, capsys):
    source = tmp_path / "in.src"
    source.write_text("a b c\n\nd e\n", encoding="utf-8")
    output = tmp_path / "trace.jsonl"
    assert main(["trace", "--model", str(entmax_model), "--src", str(source), "--output", str(output)]) == 0
    records = [json.loads(line) for line in output.read_text(encoding="utf-8").split("\n")[:-1]]
    assert [record["line"] for record in records] == [1, 2, 3]
    assert records[1]["reason"] == "blank input line" and records[1]["tree"] == []
    for record in (records[0], records[2]):
        parents = {node["parent"] for node in record["tree"]}
        leaves = [node["prob"] for index, node in enumerate(record["tree"]) if index not in parents]
        assert sum(leaves) == pytest.approx(1.0, abs=1e-4)


def test_sparsity_of_both_models(entmax_model, softmax_model, corpus, tmp_path, capsys):
    files = ["--src", f"{corpus.folder}/valid.src", "--tgt", f"{corpus.folder}/valid.tgt"]
    numbers = {}
    for name, model in (("entmax", entmax_model), ("softmax", softmax_model)):
        output = tmp_path / f"{name}.json"
        recipe = ["--recipe", "smoothing 0.1"] if name == "softmax" else []
        assert main(["sparsity", "--model", str(model), *files, "--output", str(output), *recipe]) == 0
        numbers[name] = json.loads(output.read_text(encoding="utf-8"))
    assert numbers["entmax"]["gold_zero_unknown"] == 0  # every letter is known
    tokens = sum(len(target.split(" ")) + 1 for target in corpus.targets[:20])
    assert numbers["entmax"]["steps"] == numbers["softmax"]["steps"] == tokens
    assert numbers["softmax"]["target_types"] > numbers["entmax"]["target_types"] >= 1
    assert "|alpha:1.5/1.5|version:" in numbers["entmax"]["signature"]
    assert "|alpha:1/1|recipe:smoothing 0.1|version:" in numbers["softmax"]["signature"]


def test_unknown_words_are_shown_as_given_and_their_share_is_said(entmax_model, capsys):
    words = ["force", "--model", str(entmax_model), "--src_text", "a  NEVER", "--tgt_text", "SEEN"]  # the old spelling
    assert main(words) == 0
    output = capsys.readouterr()
    record = json.loads(output.out)
    assert record["source"] == ["a", "NEVER"]
    assert [(step["token"], step["unknown"]) for step in record["steps"]] == [("SEEN", True), ("</s>", False)]
    assert "Unknown tokens: source 50.0% (1 of 2), target 100.0% (1 of 1)." in output.err


def test_blank_lines_of_force_have_a_reason_only_and_a_blank_target_is_its_end(entmax_model, tmp_path, capsys):
    source, target = tmp_path / "in.src", tmp_path / "in.tgt"
    source.write_text(" \na b\n", encoding="utf-8")
    target.write_text("a\n  \n", encoding="utf-8")
    blank, ended = run(capsys, "force", "--model", entmax_model, "--src", source, "--tgt", target)
    assert blank == {"line": 1, "reason": "blank input line"}
    assert [step["token"] for step in ended["steps"]] == ["</s>"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--src-text", "a"], "Give `--tgt FILE` or `--tgt-text TOKENS`."),
        (["--tgt-text", "a"], "Give `--src FILE` or `--src-text TOKENS`."),
        (["--src-text", "a", "--tgt-text", "a", "--max_support", "0"], "`max_support`: 0"),
    ],
)
def test_missing_text_is_one_line(entmax_model, words, message, capsys):
    assert main(["force", "--model", str(entmax_model), *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "words, setting",
    [
        (("--complete", "x", "--tgt-text", "x"), "`tgt_text`: x"),
        (("--tgt-text", "x", "--beam-size", "2"), "`beam_size`: 2"),
        (("--tgt-text", "x", "--max-length", "9"), "`max_length`: 9"),
    ],
)
def test_options_of_the_other_way_of_working_are_refused(entmax_model, capsys, words, setting):
    assert main(["force", "--model", str(entmax_model), "--src-text", "a", *words]) == 2
    error = capsys.readouterr().err
    assert f"Invalid setting for {setting}. " in error and error.count("\n") == 1
