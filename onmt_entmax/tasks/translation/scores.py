"""BLEU and chrF by sacreBLEU, and a paired bootstrap of two systems that may have several runs each.

BLEU: Papineni et al. (2002); signatures and the 13a tokeniser: Post (2018); chrF: Popović (2015).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

from onmt_entmax.errors import UserError, choices, invalid_setting
from onmt_entmax.signatures import parse_signature
from onmt_entmax.tasks.results import Comparison, compare
from onmt_entmax.tasks.translation.text import RAW_TOKENIZERS, import_optional


def tokenised_bleu(lowercase: bool = False) -> BLEU:
    """BLEU on text that is tokenised already, as in the paper; sacreBLEU adds no tokenisation of its own."""
    return BLEU(tokenize="none", lowercase=lowercase, force=True)  # force: no warning that the text is tokenised


def raw_bleu(tokenizer: str, lowercase: bool = False) -> BLEU:
    """BLEU on running text, tokenised by sacreBLEU.

    Raises:
        UserError: an unknown tokeniser, or ``ja-mecab`` without its packages.
    """
    if tokenizer not in RAW_TOKENIZERS:
        raise invalid_setting("--raw-tokenizer", tokenizer, choices(RAW_TOKENIZERS))
    if tokenizer == "ja-mecab":
        try:
            import_optional("MeCab", "mecab-python3", "ja-mecab")
            import_optional("ipadic", "ipadic", "ja-mecab")
        except UserError as error:
            raise UserError(f"{error}; or choose `--raw-tokenizer char`") from None
    return BLEU(tokenize=tokenizer, lowercase=lowercase, force=True)


def raw_tokenizer_for(language: str) -> str:
    """The tokeniser of :func:`raw_bleu` that a target language is usually scored with."""
    return "ja-mecab" if language == "ja" else "13a"


def chrf(lowercase: bool = False) -> CHRF:
    """chrF2 on running text: character 6-grams, no word n-grams, recall counts twice."""
    return CHRF(lowercase=lowercase)


def corpus_score(metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Score a whole text; one reference per line, as many lines as hypotheses."""
    return metric.corpus_score(list(hypotheses), [list(references)]).score


def metric_fields(metric: BLEU | CHRF) -> dict[str, str]:
    """Return sacreBLEU's signature, its version as ``sacrebleu``; the metric must have scored a text."""
    fields = parse_signature(metric.get_signature().format(short=False))
    return {"sacrebleu" if key == "version" else key: value for key, value in fields.items()}


def sentence_statistics(metric: BLEU, hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Return what corpus BLEU sums over lines: matched 1- to 4-grams, their totals, both lengths; shape (lines, 10)."""
    rows = []
    for hypothesis, reference in zip(hypotheses, references):
        score = metric.corpus_score([hypothesis], [[reference]])
        rows.append([*score.counts, *score.totals, score.sys_len, score.ref_len])
    return np.array(rows, dtype=np.float64)


def paired_bootstrap(
    first: Sequence[np.ndarray], second: Sequence[np.ndarray], samples: int = 1000, seed: int = 1
) -> Comparison:
    """Compare two systems on the same resampled lines (Koehn 2004).

    Args:
        first, second: for each run of a system, :func:`sentence_statistics`, all of the same shape. A system's score is
            the mean BLEU of its runs; runs are not resampled.
        samples, seed: how often the lines are drawn, with replacement, and from where on.
    """
    lines = len(first[0])

    def difference(weights: np.ndarray) -> float:
        return fmean(summed_bleu(weights @ run) for run in first) - fmean(summed_bleu(weights @ run) for run in second)

    observed = difference(np.ones(lines))
    generator = np.random.default_rng(seed)
    drawn = np.array(
        [
            difference(np.bincount(generator.integers(0, lines, lines), minlength=lines).astype(np.float64))
            for _ in range(samples)
        ]
    )
    return compare(observed, drawn)


def sentence_scores(metric: CHRF, hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """The chrF of each line."""
    return [metric.sentence_score(own, [reference]).score for own, reference in zip(hypotheses, references)]


def summed_bleu(sums: np.ndarray) -> float:
    """BLEU from sums over lines of :func:`sentence_statistics`, shape (10,)."""
    counts, totals, lengths = (part.astype(int).tolist() for part in (sums[:4], sums[4:8], sums[8:]))
    return BLEU.compute_bleu(counts, totals, *lengths, smooth_method="exp").score
