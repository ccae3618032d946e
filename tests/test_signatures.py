"""Signatures are written and read in one way, and those of older files still read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onmt_entmax import signatures
from onmt_entmax.signatures import parse_signature, signature


@pytest.fixture
def released(monkeypatch):
    monkeypatch.setattr(signatures, "code_version", lambda: "0.1.0")


def test_a_signature_names_the_number_its_making_and_the_code(released):
    fields = {"task": "conll2018.1", "langs": 2, "forced": None, "alpha": "1.5/2"}
    assert signature("acc", fields) == "acc|task:conll2018.1|langs:2|forced|alpha:1.5/2|version:0.1.0"
    assert signature(None, {"measure": "valid"}) == "measure:valid|version:0.1.0"
    assert signature("mappings", {"dtype": "float64"}, version=False) == "mappings|dtype:float64"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (
            "acc_difference|task:conll2018.1|set:medium|alpha:1.5/1.5|seed:1|bootstrap:1000|version:0.1.0",
            {"metric": "acc_difference", "task": "conll2018.1", "set": "medium", "alpha": "1.5/1.5", "seed": "1",
             "bootstrap": "1000", "version": "0.1.0"},
        ),
        (
            "sparsity|src:dev.src|lines:1014|forced|alpha:1.33/1.33|version:0.1.0",
            {"metric": "sparsity", "src": "dev.src", "lines": "1014", "forced": "", "alpha": "1.33/1.33",
             "version": "0.1.0"},
        ),
        (
            "measure:valid|alpha:2/1.5|step:59600|decay:valid_lossx0.5|stop:10xaccuracy|dtype:fp32|onmt:3.5.1|version:0.1.0",
            {"measure": "valid", "alpha": "2/1.5", "step": "59600", "decay": "valid_lossx0.5", "stop": "10xaccuracy",
             "dtype": "fp32", "onmt": "3.5.1", "version": "0.1.0"},
        ),
        (
            "chrf|dir:de-en|nrefs:1|case:lc|eff:yes|nc:6|nw:0|space:no|sacrebleu:2.6.0|version:0.1.0",
            {"metric": "chrf", "dir": "de-en", "nrefs": "1", "case": "lc", "eff": "yes", "nc": "6", "nw": "0",
             "space": "no", "sacrebleu": "2.6.0", "version": "0.1.0"},
        ),
        (
            "output_layer|torch:2.13.0+cpu|device:cpu (16 cores)|threads:2",
            {"metric": "output_layer", "torch": "2.13.0+cpu", "device": "cpu (16 cores)", "threads": "2"},
        ),
        ("sparsity|a_b|alpha:1.5/learned:1.2", {"metric": "sparsity", "a_b": "", "alpha": "1.5/learned:1.2"}),
    ],
)  # fmt: skip
def test_signatures_of_older_files(text, fields):
    assert parse_signature(text) == fields


def test_a_file_name_cannot_break_a_signature(released):
    text = signature("sparsity", {"src": "a|b:50%\n.src"})
    assert text == "sparsity|src:a%7Cb:50%25%0A.src|version:0.1.0"
    assert parse_signature(text)["src"] == "a|b:50%\n.src"


@given(st.dictionaries(st.text("abc_", min_size=1), st.text()))
def test_fields_come_back(fields):
    assert parse_signature(signature(None, {"first": "1", **fields}, version=False)) == {"first": "1", **fields}
