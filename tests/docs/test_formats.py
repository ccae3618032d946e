"""docs/formats.md lists every key of the files that are written, and no other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from onmt_entmax.cli import main
from onmt_entmax.files import read_json, read_records
from onmt_entmax.tasks.trust import trust
from tests.stock import Corpus, write

FORMATS = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## ([^:`\n]+?)(?::[^\n]*)?\n(.*?)(?=^## |\Z)", FORMATS, re.DOTALL | re.MULTILINE))
# with options that are not used here; heads and learned alphas: of Transformers (tests/end_to_end/test_transformer.py)
OPTIONAL = {"comparison", "conditional_on_prefix", "prefix_log_prob", "mbr", "heads", "alpha_start"}


def keys(
    value: object, names: frozenset[str] = frozenset({"languages", "files", "signatures", "void"})
) -> Iterator[str]:
    """Every key, at any depth, but for those below ``names``, which are no words of ours."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield key
            parts = part.values() if key == "languages" else [] if key in names else [part]
            for each in parts:
                yield from keys(each)
    elif isinstance(value, list):
        for part in value:
            yield from keys(part)


def check(section: str, records: list[dict], *also: str) -> None:
    """All keys stand in the section (or in those named, too), and all first columns of its tables among the keys."""
    text = SECTIONS[section]
    known = set(re.findall(r"`(\w+)`", text + "".join(SECTIONS[name] for name in also)))
    found = set(keys(records))
    assert found - known == set()
    rows = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
    assert {key for row in rows for key in re.findall(r"`(\w+)`", row)} - OPTIONAL - found == set()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A tiny model and what the commands write with it."""
    folder = tmp_path_factory.mktemp("formats")
    corpus = Corpus(folder)
    entmax = ["-generator_alpha", "1.5", "-global_attention_alpha", "1.5"]
    model = corpus.train("m", "-keep_best", *entmax)
    corpus.translate(
        model, ["a b", "", "c"], "-certificates", f"{folder}/certificates", "-attention", f"{folder}/attention"
    )
    source, target = write(folder / "a.src", ["a b", "", "c"]), write(folder / "a.tgt", ["b a", "", "c"])
    for command, *more in (
        ["trace"],
        ["force", "--tgt", target],
        ["force", "--complete", "a"],
        ["sparsity", "--tgt", target],
    ):
        words = [command, "--model", model, "--src", source, *more, "--output", folder / "-".join([command, *more[:1]])]
        assert main(list(map(str, words))) == 0
    return folder


def test_certificates(folder):
    check("Certificates", read_records(folder / "certificates"))


def test_attention(folder):
    check("Attention", read_records(folder / "attention"))


def test_traces(folder):
    check("Traces", read_records(folder / "trace"), "Certificates")


def test_forced_decodings_and_completions(folder):
    check("Forced decoding", read_records(folder / "force---tgt"))
    check(
        "Forced decoding",
        [*read_records(folder / "force---tgt"), *read_records(folder / "force---complete")],
        "Certificates",
    )


def test_metrics_and_best_checkpoint(folder):
    check("Metrics", read_records(folder / "m_metrics.jsonl"))
    check("Best checkpoint", [read_json(folder / "m_best.json")])


def test_sparsity(folder):
    check("Sparsity", [read_json(folder / "sparsity---tgt")])


def test_completion(folder):
    words = ["--model", folder / "m_best.pt", "--src", folder / "a.src", "--ref", folder / "a.tgt"]
    assert main(["simulate-completion", *map(str, [*words, "--output", folder / "completion"])]) == 0
    check("Completion", [read_json(folder / "completion")])


def test_search(folder):
    words = ["--model", folder / "m_best.pt", "--src", folder / "a.src", "--tgt", folder / "a.tgt", "--max-length", 9]
    words += ["--beams", 2, "--max-expansions", 20]
    for measure in ("acc", "bleu"):
        more = ["--measure", measure, "--json", folder / f"{measure}.json"]
        assert main(["evaluate", "search", *map(str, [*words, *more])]) == 0
    check("Search", [read_json(folder / f"{measure}.json") for measure in ("acc", "bleu")])


def test_results(folder, tmp_path):
    (tmp_path / "test").mkdir()
    write(tmp_path / "test" / "x.gold", ["a\tab\tV", "b\tc\tV"])
    write(tmp_path / "pred", ["a b", "c", "a b", "c"])
    records = read_records(folder / "certificates")[:2]  # the second is void
    write(tmp_path / "certificates", [json.dumps(record) for record in records])
    words = [
        "--gold",
        tmp_path / "test",
        "--predictions",
        tmp_path / "pred",
        "--n-best",
        2,
        "--json",
        tmp_path / "r.json",
    ]
    write(tmp_path / "x-train", ["a\tb\tN"])
    words += ["--certificates", tmp_path / "certificates", "--train", tmp_path / "x-train"]
    assert main(["evaluate", "inflection", *map(str, words)]) == 0
    inflection = read_json(tmp_path / "r.json")
    scores = {"bleu_tok": 1.0, "bleu_raw": 1.0, "chrf": 1.0, "complete": 1.0}
    # to evaluate translations takes a corpus: tests/tasks does it
    graded = trust(records, [50, 50], "chrf", 1, corpus=lambda counted: {"bleu": lambda weights: 1.0})
    runs = [{"predictions": "p", "sha256": "0", **scores, "trust": graded}]
    translation = {"runs": runs, "mean": scores, "sd": scores}
    check("Results", [inflection, translation])


def test_accepted_outputs(folder, tmp_path):
    lines = [json.dumps({**read_records(folder / "certificates")[0], "line": line}) for line in range(1, 4)]
    write(tmp_path / "c", lines)
    write(tmp_path / "d", lines[:2])
    write(tmp_path / "p", ["a", "b", "a"])
    write(tmp_path / "q", ["a", "b"])
    words = ["--predictions", tmp_path / "q", "--certificates", tmp_path / "d", "--at", 0.2, "--output", tmp_path / "o"]
    words += ["--dev-gold", tmp_path / "p", "--dev-predictions", tmp_path / "p", "--dev-certificates", tmp_path / "c"]
    assert main(["accept", *map(str, words)]) == 0
    check("Accepted outputs", [read_json(tmp_path / "o.accept.json")])
