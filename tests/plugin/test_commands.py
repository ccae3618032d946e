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
    (record,) = run(capsys, "force", "--model", entmax_model, "--src_text", source, "--tgt_text", target)
    assert record["source"] == source.split(" ")
    assert [step["token"] for step in record["steps"]] == [*target.split(" "), "</s>"]
    for step in record["steps"]:
        assert sum(entry["prob"] for entry in step["support"]) == pytest.approx(1.0, abs=1e-5)
        assert len(step["support"]) == step["support_size"]
    impossible = [index for index, step in enumerate(record["steps"]) if step["log_prob"] is None]
    assert record["impossible_at"] == (impossible[0] if impossible else None)


def test_completions_start_with_the_prefix(entmax_model, corpus, capsys):
    source, first = corpus.sources[0], corpus.targets[0].split(" ")[0]
    (record,) = run(capsys, "force", "--model", entmax_model, "--src_text", source, "--complete", first)
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
    assert records[1]["reason"] == "blank input line"
    for record in (records[0], records[2]):
        parents = {node["parent"] for node in record["tree"]}
        leaves = [node["prob"] for index, node in enumerate(record["tree"]) if index not in parents]
        assert sum(leaves) == pytest.approx(1.0, abs=1e-4)


def test_sparsity_of_both_models(entmax_model, softmax_model, corpus, tmp_path, capsys):
    files = ["--src", f"{corpus.folder}/valid.src", "--tgt", f"{corpus.folder}/valid.tgt"]
    numbers = {}
    for name, model in (("entmax", entmax_model), ("softmax", softmax_model)):
        output = tmp_path / f"{name}.json"
        assert main(["sparsity", "--model", str(model), *files, "--output", str(output)]) == 0
        numbers[name] = json.loads(output.read_text(encoding="utf-8"))
    tokens = sum(len(target.split(" ")) + 1 for target in corpus.targets[:20])
    assert numbers["entmax"]["steps"] == numbers["softmax"]["steps"] == tokens
    assert numbers["softmax"]["target_types"] > numbers["entmax"]["target_types"] >= 1
    assert "alpha:1.5/1.5" in numbers["entmax"]["signature"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--src_text", "a"], "Give `--tgt FILE` or `--tgt_text TOKENS`."),
        (["--tgt_text", "a"], "Give `--src FILE` or `--src_text TOKENS`."),
        (["--src_text", "a", "--tgt_text", "a", "--max_support", "0"], "`max_support`: 0"),
    ],
)
def test_missing_text_is_one_line(entmax_model, words, message, capsys):
    assert main(["force", "--model", str(entmax_model), *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
