"""Checkpoints and results of earlier versions: they load, decode and train on as they did when they were made.

The optimizer's state goes by the order of the parameters, so names and order are part of the format. Nothing here names
a module of the plugin: only stock commands, and the files that they write.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.fixtures.checkpoints import make

EXPECTED = json.loads((make.HERE / "expected.json").read_text(encoding="utf-8"))
FIELDS = (
    *("step", "epoch", "learning_rate", "n_words", "alpha_output", "alpha_attention", "alpha_learned", "signature"),
    *("loss", "accuracy", "support_output", "support_attention", "sparsemax_score", "jensen_shannon"),
)


def fields(entry: dict) -> dict:
    """Some fields of a metrics entry; the signature without the version of the code, which goes on."""
    signature, _, version = entry["signature"].partition("|version:")
    assert version
    return {**{key: entry[key] for key in FIELDS}, "signature": signature}


def rounded(values: dict) -> dict:
    """Numbers equal but for rounding, which differs between processors."""
    return {k: pytest.approx(v, rel=1e-5, abs=1e-6) if isinstance(v, float) else v for k, v in values.items()}


def check_sums(found: dict, expected: dict) -> None:
    assert list(found) == list(expected)
    for name, (total, size) in expected.items():
        assert found[name] == pytest.approx([total, size], rel=0, abs=1e-5 * size + 1e-6), name


@pytest.mark.parametrize("name", make.MODELS)
def test_decodes_as_before(name, tmp_path):
    found = make.decode(tmp_path, make.unpack(tmp_path, name))
    expected = EXPECTED[name]["decoded"]
    assert [line["complete"] for line in found] == [line["complete"] for line in expected]
    for line, old in zip(found, expected):
        assert [text for text, _ in line["hypotheses"]] == [text for text, _ in old["hypotheses"]]
        # a small probability of a sparse model is a small difference, squared: few of its digits are certain
        log_probs = [log_prob for _, log_prob in old["hypotheses"]]
        assert [log_prob for _, log_prob in line["hypotheses"]] == pytest.approx(log_probs, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", make.MODELS)
def test_trains_on_as_before(name, tmp_path):
    expected = EXPECTED[name]
    path = make.unpack(tmp_path, name)
    old, before = make.load(path), make.metrics(tmp_path, name)

    # names and order in the weights, the averages and the optimizer; first in a new model, for with another order
    # PyTorch's fused Adam would end the process
    def check_order(checkpoint):
        assert make.shapes(checkpoint) == expected["shapes"]
        assert make.moments(checkpoint) == expected["moments"]
        assert list(checkpoint["entmax_training"].get("raw_weights", {})) == list(expected["raw_sums"])

    check_order(old)
    check_order(make.start(tmp_path, name))
    new = make.resume(tmp_path, name, path)
    check_order(new)

    # the metrics file goes on, with the numbers that came then
    after = make.metrics(tmp_path, name)
    assert after[:-1] == before
    assert [entry["step"] for entry in after] == [60, 120, 180, 240, 300]
    assert fields(after[-1]) == rounded(fields(expected["validation"]))

    check_sums(make.sums(make.weights(new)), expected["sums"])
    check_sums(make.sums(new["entmax_training"].get("raw_weights", {})), expected["raw_sums"])
    assert new["entmax_training"]["step"] == make.LAST
    assert new["optim"]["training_step"] == old["optim"]["training_step"] + make.LAST - make.STEP


# Signatures as they stand in results/, one of each kind
INFLECTION = "task:conll2018.1|set:medium|split:test|langs:102|avg:macro|alpha:2/1.5|seed:1"
TRANSLATION = (
    "task:multi30k|dir:de-en|split:test|lines:1000|train:29000|text:moses|subwords:bpe-joint-10000|alpha:1.5/1.5"
    "|seed:1|runs:1|nrefs:1|case:lc"
)
SIGNATURES = {
    "acc": f"acc|{INFLECTION}|version:0.1.0",
    "acc_difference": f"acc_difference|{INFLECTION}|bootstrap:1000|bootstrap_seed:1|version:0.1.0",
    "bleu_raw": f"bleu_raw|{TRANSLATION}|eff:no|tok:13a|smooth:exp|sacrebleu:2.6.0|version:0.1.0",
    "bleu_tok": f"bleu_tok|{TRANSLATION}|eff:no|tok:none|smooth:exp|sacrebleu:2.6.0|version:0.1.0",
    "chrf": f"chrf|{TRANSLATION}|eff:yes|nc:6|nw:0|space:no|sacrebleu:2.6.0|version:0.1.0",
    "sparsity": "sparsity|src:dev.src|lines:1014|forced|alpha:1.33/1.33|version:0.1.0",
    "measure": "measure:valid|alpha:2/1.5|step:59600|seed:1|lr:0.001|decay:valid_lossx0.5|smoothing:0|average:0"
    "|stop:10xaccuracy|dtype:fp32|onmt:3.5.1|version:0.1.0",
}


def signed(*kinds: str) -> dict[str, str]:
    return {kind: SIGNATURES[kind] for kind in kinds}


def onmt_entmax(*words: object) -> str:
    """Run a subcommand and return what it printed."""
    command = [sys.executable, "-m", "onmt_entmax", *map(str, words)]
    done = subprocess.run(command, cwd=make.ROOT, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_signatures_are_read(tmp_path):
    inflection, translation, sparsity = (tmp_path / f"{name}.json" for name in ("inflection", "translation", "dev"))
    scores = {"macro": {"acc": 84.5}, "signatures": signed("acc", "acc_difference")}
    inflection.write_text(json.dumps(scores), encoding="utf-8")
    run = {"predictions": "test.pred", "sha256": "0", "bleu_tok": 41.25}
    scores = {"runs": [run], "mean": {"bleu_tok": 41.25}, "signatures": signed("bleu_raw", "bleu_tok", "chrf")}
    translation.write_text(json.dumps(scores), encoding="utf-8")
    numbers = {"target_types": 6.75, "source_words": 2.25, "signature": SIGNATURES["sparsity"]}
    sparsity.write_text(json.dumps(numbers), encoding="utf-8")
    row = {**EXPECTED["averaged"]["validation"], "signature": SIGNATURES["measure"]}
    (tmp_path / "m_metrics.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")

    # the tables find place and origin of a number in its signature
    table = onmt_entmax("table", 1, "--input", inflection, "--format", "markdown")
    assert " 84.50 " in table and SIGNATURES["acc"] in table and "Not the paper's data" not in table
    table = onmt_entmax("table", 2, "--input", translation, "--format", "markdown")
    assert " 41.25 " in table and SIGNATURES["bleu_tok"] in table and "de-en, test set, trained on 29000 pairs" in table
    table = onmt_entmax("table", 3, "--input", sparsity, "--format", "markdown")
    assert " 6.75 " in table and " 2.25 " in table and SIGNATURES["sparsity"] in table

    # the report shows all of them, and that of a training field by field
    onmt_entmax("report", tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for signature in SIGNATURES.values():
        assert signature in page
    for field in SIGNATURES["measure"].split("|")[3:]:
        key, _, value = field.partition(":")
        assert f"<dt>{key}</dt><dd>{value}</dd>" in page
