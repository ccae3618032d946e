"""Learning and writing the subword models of a prepared corpus."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from onmt_entmax.files import write_text
from onmt_entmax.tasks.translation.bpe import (
    Bpe,
    Segmenter,
    SentencePiece,
    count_pieces,
    learn_codes,
    train_sentencepiece,
)
from onmt_entmax.tasks.translation.settings import Settings


class Whole:
    """No subwords: tokens stay whole."""

    def encode(self, line: str) -> str:
        """Return the line."""
        return line


def write_segmenters(folder: Path, settings: Settings, source: list[str], target: list[str]) -> dict[str, Segmenter]:
    """Learn subwords from the training text and write the models.

    Args:
        folder: gets ``bpe.codes`` or ``sentencepiece.model``; with separate codes ``bpe.src.codes`` and so on.
        settings: completed.
        source, target: tokenised training lines.

    Returns:
        The segmenters of ``src`` and ``tgt``.
    """
    if settings.subwords == "none":
        return {"src": Whole(), "tgt": Whole()}
    texts = {"": source + target} if settings.codes == "joint" else {".src": source, ".tgt": target}
    if settings.subwords == "sentencepiece":
        models = {name: train_sentencepiece(lines, settings.merges) for name, lines in texts.items()}
        for name, model in models.items():
            (folder / f"sentencepiece{name}.model").write_bytes(model)
        return {side: SentencePiece(models.get("", models.get(f".{side}"))) for side in ("src", "tgt")}
    counts = {side: count_pieces(lines) for side, lines in (("src", source), ("tgt", target))}
    words = (
        {"": counts["src"] + counts["tgt"]} if settings.codes == "joint" else {f".{s}": c for s, c in counts.items()}
    )
    codes = {name: learn_codes(count, settings.merges) for name, count in words.items()}
    for name, text in codes.items():
        write_text(folder / f"bpe{name}.codes", text)
    segmenters = {}
    for side in ("src", "tgt"):
        text = codes.get("", codes.get(f".{side}"))
        segmenters[side] = Bpe(text, _frequent(Bpe(text), counts[side], settings.vocabulary_threshold))
    return segmenters


def _frequent(bpe: Bpe, words: Counter[str], threshold: int) -> set[str] | None:
    """The pieces of one language that occur at least ``threshold`` times; ``None`` without a threshold."""
    if threshold <= 1:
        return None
    pieces: Counter[str] = Counter()
    for word, count in words.items():
        for piece in bpe.encode(word).split(" "):
            pieces[piece] += count
    return {piece for piece, count in pieces.items() if count >= threshold}
