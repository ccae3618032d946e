"""Scores of inflection as the CoNLL–SIGMORPHON 2018 shared task counts them, and a paired bootstrap of two systems.

What the official scorer (the shared task's ``evalm.py``) does, this does too: a line is stripped as a whole, so blanks
before a lemma and after the tags are ignored and those around a form count; of the rows with the same lemma and tags,
the last one read is kept, in the gold file and in the guesses; a pair without a guess counts as the empty word. It
rounds a language's scores to two decimals; here only the table is rounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from rapidfuzz.distance import Levenshtein

from onmt_entmax.tasks.inflection.format import Row
from onmt_entmax.tasks.results import Comparison, compare


class Outcome(NamedTuple):
    """One scored (lemma, tags) pair: is the first guess right, its Levenshtein distance, is any of the n-best right."""

    correct: bool
    distance: int
    any_correct: bool


def pair_of(row: Row) -> tuple[str, str]:
    """What the official scorer knows a row by: lemma and tags, without the blanks at the ends of the line."""
    return row.lemma.lstrip(), row.tags.rstrip()


def score(gold: Sequence[Row], guesses: Sequence[tuple[Row, Sequence[str]]]) -> list[Outcome]:
    """Score one language.

    Args:
        gold: rows with forms.
        guesses: rows (their form is not used) with their guesses, the best first; in any order, some may be missing.

    Returns:
        One outcome per different (lemma, tags) pair of ``gold``, in the order in which the pairs first occur.
    """
    wanted = {pair_of(row): row.form for row in gold}  # the last one read is kept
    given = {pair_of(row): forms for row, forms in guesses}
    outcomes = []
    for pair, form in wanted.items():
        forms = given.get(pair) or ("",)
        outcomes.append(Outcome(forms[0] == form, Levenshtein.distance(form, forms[0]), form in forms))
    return outcomes


def paired_bootstrap(
    first: Mapping[str, Sequence[bool]], second: Mapping[str, Sequence[bool]], samples: int = 1000, seed: int = 1
) -> Comparison:
    """Compare two systems' macro-averaged accuracies by resampling the pairs of every language (Koehn, 2004).

    A resample of n pairs matters only through how many of them one system alone, the other alone, or neither gets
    right, which is a multinomial draw: no pair needs to be drawn by itself.

    Args:
        first: language -> whether each of its pairs is right, n values.
        second: the same of the other system, pair by pair.
        samples: number of resamples.
        seed: of the resampling.

    Returns:
        The difference in percent, its interval and its p-value.
    """
    if first.keys() != second.keys():
        raise ValueError("the systems were not scored on the same languages")
    generator = np.random.default_rng(seed)
    differences = np.zeros(samples)  # (samples,)
    observed = 0.0
    for language in sorted(first):
        delta = np.asarray(first[language], dtype=np.int64) - np.asarray(second[language], dtype=np.int64)  # (n,)
        shares = np.array([(delta == -1).mean(), (delta == 0).mean(), (delta == 1).mean()])
        drawn = generator.multinomial(len(delta), shares, size=samples)  # (samples, 3)
        differences += (drawn[:, 2] - drawn[:, 0]) / len(delta)
        observed += float(delta.mean())
    differences *= 100 / len(first)
    observed *= 100 / len(first)
    return compare(observed, differences)
