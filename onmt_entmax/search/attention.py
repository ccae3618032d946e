"""The attention of hypotheses as JSON, for any beam size: one object per input line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

from onmt_entmax.search.certificates import SearchResult


def attention_record(
    result: SearchResult, line: int, lookup: Callable[[int], str], source_tokens: Sequence[str], eos: str
) -> dict:
    """What an attention file says of one line, ready for JSON.

    Args:
        result: of one sentence, searched with ``return_attention``.
        line: number of the input line, from 1.
        lookup: from a token's index to its text.
        source_tokens: text of the source; one column each.
        eos: text for the end of a finished hypothesis, which has a row of its own.

    Returns:
        ``{"line": ..., "source": [...], "hypotheses": [{"tokens": [...], "attention": [[...], ...]}]}``, with one row
        of ``attention`` per entry of ``tokens``, or ``null`` for a model without attention.
    """
    hypotheses = []
    for hypothesis in result.hypotheses:
        weights = hypothesis.attention
        if weights is not None:
            weights = weights[:, : len(source_tokens)].tolist()
        tokens = [lookup(token) for token in hypothesis.tokens] + [eos] * hypothesis.finished
        hypotheses.append({"tokens": tokens, "attention": weights})
    return {"line": line, "source": list(source_tokens), "hypotheses": hypotheses}
