"""Scores, files, sums and alignments that a run of decoding hands on and writes."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from onmt_entmax.errors import UserError
from onmt_entmax.plugin.translate.written import LateOutput, Score, Total, build_translator, pharaoh
from tests.plugin.translate.test_options import translate_options


def test_totals():
    total = Total()
    assert total.text("PRED", True) == "PRED No translations"
    total.add(-0.5, -1.0, 2)
    total.add(-1.5, -3.0, 2)
    # exp(4 / 4 tokens) = 2.718; the score is a mean over lines
    assert total.text("PRED", True) == "PRED SCORE: -1.0000, PRED PPL: 2.72, NB SENTENCES: 2"
    assert total.text("GOLD", False) == "GOLD SCORE: -1.0000, NB SENTENCES: 2"
    total.add(0.0, -float("inf"), 1)
    assert "PPL" not in total.text("PRED", True)
    empty = Total()
    empty.add(0.0, 0.0, 0)  # one line, cut before its first token
    assert empty.text("PRED", True) == "PRED SCORE: 0.0000, NB SENTENCES: 1"


def test_alignments_as_text():
    # rows sum to 1 and 2; in order of the source: 0-1 before 1-0
    assert pharaoh(torch.tensor([[0.25, 0.75], [2.0, 0.0]])) == ("0-1 1-0", "0-0.75000 1-1.00000")
    assert pharaoh(torch.zeros(1, 2)) == ("0-0", "0-0.00000")
    assert pharaoh(None) == ("", "")


def test_an_output_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    late = LateOutput(str(tmp_path / "file" / "o"))
    with pytest.raises(UserError, match="Cannot write .*file/o: "):
        late.write("a\n")


def test_an_output_is_whole_or_what_it_was(tmp_path):
    path = tmp_path / "new" / "o"
    first = LateOutput(str(path))
    first.write("a\n")
    first.flush()
    assert not path.exists()
    first.finish()
    first.close()
    assert path.read_bytes() == b"a\n"
    second = LateOutput(str(path))
    second.write("x\n")
    second.discard()
    assert path.read_bytes() == b"a\n" and list(path.parent.iterdir()) == [path]
    first.write("b\n")  # a later run of the first translator
    first.close()
    assert path.read_bytes() == b"a\nb\n"
    empty = LateOutput(str(path))
    empty.finish()  # no input lines
    assert path.read_bytes() == b""


def test_a_score_of_one_segment_keeps_its_certificate():
    score, other = Score(-0.5), Score(-1.5)
    score.certificate = other.certificate = {"line": 1}
    alone = sum([score]) / 1
    assert alone == -0.5 and alone.certificate == {"line": 1}
    both = sum([score, other]) / 2
    assert both == -1.0 and not hasattr(both, "certificate")


@pytest.mark.parametrize("words", [["-certificates", "c"], ["-attention", "a"], ["-search", "exact"]])
@pytest.mark.parametrize("reason", [None, "Document-level models", ""])
def test_what_stock_decodes_has_no_certificates(words, reason, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("onmt"), "propagate", True)
    made = SimpleNamespace() if reason is None else SimpleNamespace(not_ours=reason)  # a language model's knows nothing
    build = build_translator(lambda opt, device, report, logger, out_file: made)
    if reason == "":
        assert build(translate_options(*words)) is made and caplog.text == ""
        return
    with pytest.raises(UserError, match=f"`{words[0][1:]}`: {words[1]}. {reason or 'Language models'}"):
        build(translate_options(*words))
    assert build(translate_options()) is made
    assert ("leaves out blank input lines" in caplog.text) == (reason is None)
