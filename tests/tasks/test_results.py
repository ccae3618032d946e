"""Predictions as ``onmt_translate`` writes them, and the parts of the printed table."""

from __future__ import annotations

import numpy as np
import pytest

from onmt_entmax.errors import UserError
from onmt_entmax.tasks.results import compare, comparison_line, layout, read_predictions, void_line


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b"", []),
        (b"d r e w\n\n", ["d r e w", ""]),
        (b"\xef\xbb\xbfd r e w\r\ng o\r\n", ["d r e w", "g o"]),
        (b"d r e w\t-0.25\n\t0.0\ng o\t-inf\nx\t-1e-05\n", ["d r e w", "", "g o", "x"]),  # -with_score
        # -report_align; a blank input has none, an empty hypothesis or one without alignments has the sign alone
        (b"d r e w ||| 0-0 1-1\n\ng o ||| \n ||| 0-0\n ||| \n", ["d r e w", "", "g o", "", ""]),
        (b"d r e w ||| 0-0 1-1\t-0.25\n", ["d r e w"]),  # both
        (b"a ||| b\nc ||| 0-0\n", ["a ||| b", "c ||| 0-0"]),  # text that holds the sign
    ],
)
def test_predictions_are_read_without_scores_and_alignments(tmp_path, content, texts):
    (tmp_path / "p").write_bytes(content)
    assert read_predictions(tmp_path / "p", len(texts), 1) == texts


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\nb\tc\n", "p, line 2: 'c' behind the tab is no score"),
        (b'{"line": 1}\n{"line": 2}\n', "p: JSON; the output of `onmt_translate -output` is needed"),
        (b"a\n", "p has 1 lines for 2 inputs."),
        (b"a\nb\nc\nd\n", "p has 4 lines for 2 inputs; that would be --n-best 2."),
        (b"a\nb\xff\n", r"p, line 2: not valid UTF-8 \(byte 0xff"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    (tmp_path / "p").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_predictions(tmp_path / "p", 2, 1)


def test_interval_and_p_value_by_hand():
    # sorted 0, 1, 2, 3, 4: the 2.5th percentile is 0.1, the 97.5th 3.9; no draw is 2 or more away from 2 but 0 and 4
    assert compare(2.0, np.array([4.0, 0.0, 1.0, 3.0, 2.0])) == pytest.approx((2, 0.1, 3.9, 3 / 6))
    assert compare(0.0, np.zeros(1)) == (0, 0, 0, 1)


def test_the_table():
    rows = {"a": {"acc": 100.0, "lev": 0.125}, "macro average": {"acc": 5}}
    assert layout("language", {"acc": "acc %", "lev": "lev"}, rows.items()).split("\n") == [
        "language         acc %    lev",
        "a               100.00   0.12",
        "macro average     5.00      -",
    ]
    comparison = {"difference": 1.0, "low": -0.5, "high": 2.25, "p_value": 0.04}
    assert comparison_line("acc", comparison) == "acc: +1.00 (95% interval -0.50 to +2.25, p = 0.0400)"
    assert void_line([{"void_certificates": 2}, {}]) == [
        "2 certificates are void (see their `reason`) and count as not certified."
    ]
    assert void_line([{"void_certificates": 0}]) == []
