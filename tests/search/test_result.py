"""Certificates of beam and exact search against the enumeration of every string."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_entmax.errors import UserError
from onmt_entmax.files import json_line
from onmt_entmax.search.beam import beam_search
from onmt_entmax.search.exact import exact_search
from onmt_entmax.search.result import (
    Certificate,
    CertificateRates,
    Hypothesis,
    SearchResult,
    attention_record,
    certificate_record,
    read_certificates,
    void_record,
)
from onmt_entmax.search.settings import SearchSettings
from tests.search.checks import check_against_enumeration
from tests.search.models import EOS, START, TableScorer, enumerate_strings, random_tables

ROOT = Path(__file__).parents[2]
KINDS = ("sparse", "peaked", "dense", "ties")


def search_settings(beam=4, n_best=None, length=6, **more):
    return SearchSettings(
        START, EOS, beam_size=beam, n_best=n_best or beam, max_length=length, **{"certificates": True, **more}
    )


def test_share_of_hard_lines():
    # 216 lines: the checks mean little unless many lines are incomplete, cut by length, or stopped early.
    outcomes = Counter()
    for seed in range(36):
        kind, end = KINDS[seed % 4], (0.5, 4.0, 30.0)[seed // 4 % 3]
        scorer = TableScorer(random_tables(seed, 4 if kind == "dense" else 5, kind, end=end), 6)
        results = beam_search(scorer, search_settings(beam=2 + seed % 4, n_best=1 + seed % 2))
        for result, (finished, cut) in zip(results, enumerate_strings(scorer, 6)):
            check_against_enumeration(result, finished, cut)
            certificate = result.certificate
            outcomes["lines"] += 1
            outcomes["incomplete"] += not certificate.complete
            outcomes["complete"] += certificate.complete
            outcomes["optimal but incomplete"] += certificate.optimal and not certificate.complete
            outcomes["not optimal"] += not certificate.optimal
            outcomes["cut"] += bool(cut)
    assert outcomes["lines"] == 216
    assert outcomes["incomplete"] >= 0.3 * 216
    assert outcomes["cut"] >= 0.3 * 216
    for outcome in ("complete", "optimal but incomplete", "not optimal"):
        assert outcomes[outcome] >= 0.08 * 216, outcomes


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(3, 5),
    kind=st.sampled_from(KINDS),
    beam=st.integers(1, 6),
    n_best=st.integers(1, 6),
    length=st.integers(1, 6),
    end=st.sampled_from([0.1, 1.0, 5.0, 40.0]),
    certificates=st.booleans(),
)
def test_beam_certificates(seed, vocab, kind, beam, n_best, length, end, certificates):
    scorer = TableScorer(random_tables(seed, vocab, kind, end=end), 3)
    given_settings = search_settings(beam, min(n_best, beam), length, certificates=certificates)
    results = beam_search(scorer, given_settings)
    for result, (finished, cut) in zip(results, enumerate_strings(scorer, length)):
        check_against_enumeration(result, finished, cut)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(KINDS),
    beam=st.integers(1, 5),
    length=st.integers(1, 6),
    end=st.sampled_from([0.1, 1.0, 5.0, 40.0]),
    expansions=st.sampled_from([1, 3, 10, 10_000]),
    queue=st.sampled_from([2, 10, 1_000]),
    whole=st.booleans(),
    mixed=st.booleans(),
)
def test_exact_certificates(seed, kind, beam, length, end, expansions, queue, whole, mixed):
    scorer = TableScorer(random_tables(seed, 5, kind, end=end), 3, mixed)
    results = exact_search(scorer, search_settings(beam, 1 + seed % beam, length), expansions, whole, queue)
    for result, (finished, cut) in zip(results, enumerate_strings(scorer, length)):
        check_against_enumeration(result, finished, cut, bounded=True)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_masses(kind):
    scorer = TableScorer(random_tables(3, 4, kind, dtype=torch.float32, end=3.0), 8)
    for result, (finished, cut) in zip(beam_search(scorer, search_settings()), enumerate_strings(scorer, 6)):
        # six steps, each normalised to about 1e-7 in float32
        check_against_enumeration(result, finished, cut, tolerance=3e-6)
        assert result.certificate.dtype == "float32"


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(KINDS), exact=st.booleans())
def test_conditional_on_a_forced_prefix(seed, kind, exact):
    scorer = TableScorer(random_tables(seed, 4, kind, end=4.0), 1)
    prefix = [2 + seed % 2, 2 + seed // 2 % 2]
    finished, cut = enumerate_strings(scorer, 4, prefix)[0]
    given_settings = search_settings(4, length=4, forced_prefixes=[prefix])
    result = (exact_search if exact else beam_search)(scorer, given_settings)[0]
    record = json.loads(json_line(certificate_record(result, 1, str)))
    if not finished and not cut:
        assert result.certificate.reason == "forced prefix has probability zero"
        assert record["complete"] is None
        assert not result.hypotheses[0].finished and math.isfinite(result.hypotheses[0].log_prob)
        return
    total = math.fsum(math.exp(log_prob) for log_prob in [*finished.values(), *cut.values()])
    assert result.certificate.prefix_log_prob == pytest.approx(math.log(total), abs=1e-12)
    check_against_enumeration(result, finished, cut, prefix_log_prob=math.log(total))
    assert record["conditional_on_prefix"] is True


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"length_penalty": "avg"}, "length_penalty avg"),
        ({"length_penalty": "wu", "length_penalty_weight": 0.6}, "length_penalty wu"),
        ({"coverage_penalty": "summary", "coverage_penalty_weight": 0.2}, "coverage_penalty summary"),
        ({"coverage_penalty": "wu", "coverage_penalty_weight": 0.2, "source_lengths": [3, 2]}, "coverage_penalty wu"),
        ({"ratio": 0.5, "source_lengths": [3, 3]}, "ratio 0.5"),
        ({"min_length": 2}, "min_length 2"),
        ({"block_ngram_repeat": 2}, "block_ngram_repeat 2"),
        ({"banned": [3]}, "banned tokens"),
        ({"min_length": 1, "banned": [3]}, "min_length 1, banned tokens"),
    ],
)
def test_void_with_the_reason(setting, reason):
    results = beam_search(TableScorer(random_tables(0, 5), 2), search_settings(**setting))
    for result in results:
        record = json.loads(json_line(certificate_record(result, 1, str)))
        assert record["reason"] == reason
        for key in ("complete", "optimal", "certified_n", "margin", "mass_found", "mass_dropped", "mass_is_one"):
            assert record[key] is None
        assert record["best_dropped_log_prob"] is None
        assert record["expansions"] > 0 and record["dtype"] == "float64"


@pytest.mark.parametrize(
    "setting",
    [
        {"length_penalty": "avg", "length_penalty_weight": 0.0},
        {"coverage_penalty": "summary", "coverage_penalty_weight": 0.0},
        {"block_ngram_repeat": 0},
    ],
)
def test_penalties_without_effect_do_not_void(setting):
    assert beam_search(TableScorer(random_tables(0, 5)), search_settings(**setting))[0].certificate.reason is None


def test_json_line():
    # p(5 EOS) = .5, p(EOS) = .25, a prefix of probability .25 dropped: margin = log .5 - log .25
    certificate = Certificate(False, True, 2, math.log(2), 0.75, 0.25, math.log(0.25), False, 2, 3, "float32")
    hypotheses = [
        Hypothesis([5], math.log(0.5), math.log(0.5), True),
        Hypothesis([], math.log(0.25), math.log(0.25), True),
    ]
    line = json_line(certificate_record(SearchResult(hypotheses, certificate), 7, {5: "é"}.__getitem__))
    assert line == (
        '{"line": 7, "hypotheses": [{"tokens": ["é"], "log_prob": -0.6931471805599453, "prob": 0.5, "finished": true}, '
        '{"tokens": [], "log_prob": -1.3862943611198906, "prob": 0.25, "finished": true}], '
        '"complete": false, "optimal": true, "certified_n": 2, "margin": 0.6931471805599453, "mass_found": 0.75, '
        '"mass_dropped": 0.25, "best_dropped_log_prob": -1.3862943611198906, "mass_is_one": false, "found": 2, '
        '"expansions": 3, "dtype": "float32", "reason": null}'
    )


def test_blank_line():
    assert void_record(3) == {
        "line": 3,
        "hypotheses": [],
        "complete": None,
        "optimal": None,
        "certified_n": None,
        "margin": None,
        "mass_found": None,
        "mass_dropped": None,
        "best_dropped_log_prob": None,
        "mass_is_one": None,
        "found": 0,
        "expansions": 0,
        "dtype": None,
        "reason": "blank input line",
    }


def rates(*certificates):
    counted = CertificateRates()
    for certificate in certificates:
        counted.add(vars(certificate))
    return str(counted)


def test_rates_for_the_log():
    certificates = [
        Certificate(complete=True, optimal=True, mass_is_one=True, found=1),
        Certificate(complete=True, optimal=True, mass_is_one=True, found=2),
        Certificate(complete=False, optimal=True, mass_is_one=True, found=1),
        Certificate(reason="blank input line"),
    ]
    assert rates(*certificates) == (
        "complete 66.7%, optimal 100.0%, single hypothesis 33.3%, mass_is_one 100.0%, of 3 lines, "
        "no certificate for 1 (blank input line)"
    )
    assert rates() == "of 0 lines"


def test_written_certificates_are_read_again(tmp_path):
    results = beam_search(TableScorer(random_tables(0, 5), 2), search_settings())
    records = [certificate_record(result, line, str) for line, result in enumerate(results, 1)] + [void_record(3)]
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json_line(record) + "\n" for record in records), encoding="utf-8")
    assert read_certificates(path) == records
    path.write_text("", encoding="utf-8")
    assert read_certificates(path) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: not a JSON object"),
        (json_line({**void_record(1)}), "line 2: this certificate is of input line 1"),
        ('{"line": 2, "hypotheses": []}', "line 2: the certificate lacks `complete`"),
        (json_line({**void_record(2), "hypotheses": [{"tokens": []}]}), "line 2: a hypothesis lacks `log_prob`"),
        (
            '{"line": 2, "source": [], "hypotheses": [{"tokens": ["a"], "attention": [[1.0]]}]}',
            "a file of `-attention`",
        ),
    ],
)
def test_a_broken_certificates_file_is_named_with_its_line(tmp_path, line, message):
    path = tmp_path / "c.jsonl"
    path.write_text(f"{json_line(void_record(1))}\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match=rf"c\.jsonl.*{message}"):
        read_certificates(path)


def test_certificates_are_read_without_torch():
    code = "import sys, onmt_entmax.search.result; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, check=False).returncode == 0


def test_mass_is_one_without_completeness():
    # one continuation of probability 1e-9 is dropped by a beam of 1: the paper's count does not see it, ours does
    tables = torch.tensor([[0, 1 - 1e-9, 1e-9]], dtype=torch.float64).log()
    certificate = beam_search(TableScorer(tables), search_settings(1))[0].certificate
    assert certificate.mass_is_one and not certificate.complete and certificate.optimal
    assert certificate.best_dropped_log_prob == math.log(1e-9)


def test_attention_json():
    result = beam_search(
        TableScorer(random_tables(4, 6, "sparse"), 1),
        search_settings(n_best=2, return_attention=True),
    )[0]
    record = attention_record(result, 2, "abcdef".__getitem__, ["x", "y"], "</s>")
    assert record["line"] == 2 and record["source"] == ["x", "y"] and len(record["hypotheses"]) == 2
    for entry, found in zip(record["hypotheses"], result.hypotheses):
        assert entry["tokens"] == ["abcdef"[token] for token in found.tokens] + ["</s>"]
        assert entry["attention"] == found.attention[:, :2].tolist()
    plain = beam_search(TableScorer(random_tables(4, 6, "sparse"), 1), search_settings())[0]
    assert attention_record(plain, 1, str, [], "")["hypotheses"][0]["attention"] is None
