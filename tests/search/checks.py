"""Checks of a result against the enumeration of all strings."""

from __future__ import annotations

import math

import pytest


def check_against_enumeration(result, finished, cut, tolerance=1e-9, prefix_log_prob=0.0, bounded=False):
    """Everything that a certificate claims, and everything that it must claim.

    Args:
        result: of one sentence.
        finished: every string that ends, with its log-probability.
        cut: every prefix cut by the length limit, likewise.
        tolerance: of masses; what the dtype permits.
        prefix_log_prob: of a forced prefix; ``finished`` and ``cut`` then hold what continues it.
        bounded: whether an exact search stopped at a bound. It may then have found everything without knowing it.
    """
    certificate, hypotheses = result.certificate, result.hypotheses
    assert certificate.reason is None
    everything = {**finished, **cut}
    total = sum(math.exp(log_prob - prefix_log_prob) for log_prob in everything.values())
    assert total == pytest.approx(1, abs=tolerance)
    found = [hypothesis for hypothesis in hypotheses if hypothesis.finished]
    strings = [tuple(hypothesis.tokens) for hypothesis in found]
    assert len(set(strings)) == len(strings)
    for hypothesis, string in zip(found, strings):
        assert hypothesis.log_prob == finished[string] == hypothesis.score
    log_probs = [hypothesis.log_prob for hypothesis in found]
    assert log_probs == sorted(log_probs, reverse=True)
    best = sorted(everything.values(), reverse=True)

    found_all = certificate.found == len(finished) and not cut
    assert certificate.complete == found_all or (bounded and found_all)
    if certificate.complete:
        assert certificate.mass_dropped == 0
        assert certificate.best_dropped_log_prob is None and certificate.margin is None
        assert certificate.mass_found == pytest.approx(1, abs=tolerance)
        assert certificate.certified_n == len(found) > 0
    else:
        assert certificate.mass_dropped > -tolerance
        assert certificate.best_dropped_log_prob is not None
    if not found:
        assert len(hypotheses) == 1 and not certificate.optimal and certificate.certified_n == 0
        assert math.isfinite(hypotheses[0].log_prob)
    if certificate.optimal:
        assert log_probs[0] == best[0]
    assert certificate.optimal == (certificate.certified_n > 0)
    # the certified part is the head of the true list, ties in any order; what is cut competes too
    assert log_probs[: certificate.certified_n] == best[: certificate.certified_n]
    assert certificate.mass_found + certificate.mass_dropped == pytest.approx(1, abs=tolerance)
    if certificate.margin is not None:
        assert certificate.margin == log_probs[0] - certificate.best_dropped_log_prob
        assert certificate.optimal == (certificate.margin >= 0)
    if certificate.found == len(found):  # the list is all that was found
        missing = [log_prob for string, log_prob in everything.items() if string not in strings]
        assert certificate.mass_found == pytest.approx(
            math.fsum(math.exp(log_prob - prefix_log_prob) for log_prob in log_probs), abs=tolerance
        )
        assert certificate.mass_dropped == pytest.approx(
            math.fsum(math.exp(log_prob - prefix_log_prob) for log_prob in missing), abs=tolerance
        )
        if missing:
            assert certificate.best_dropped_log_prob >= max(missing)
    single = len(everything) == 1 and bool(finished)
    if single and certificate.complete:
        assert certificate.found == 1


def same(first, second):
    """Whether two results are equal, attention aside."""
    return first.certificate == second.certificate and [
        (hypothesis.tokens, hypothesis.log_prob, hypothesis.score, hypothesis.finished)
        for hypothesis in first.hypotheses
    ] == [
        (hypothesis.tokens, hypothesis.log_prob, hypothesis.score, hypothesis.finished)
        for hypothesis in second.hypotheses
    ]
