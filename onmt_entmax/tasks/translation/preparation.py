"""A prepared folder's way from text to pieces and back, for text that comes later: a page's, a translator's."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from onmt_entmax.errors import UserError
from onmt_entmax.files import iterate_lines, read_json
from onmt_entmax.tasks.prepared import MANIFEST
from onmt_entmax.tasks.translation.prepare import Settings, tokens_of
from onmt_entmax.tasks.translation.readers import cleaner, split_direction
from onmt_entmax.tasks.translation.subwords import read_segmenter, undo_subwords
from onmt_entmax.tasks.translation.text import make_tokenizer, normalise_romanian


class Preparation:
    """What ``onmt_entmax prepare translation`` did to a corpus, by the manifest of the folder that it wrote.

    Args:
        folder: holds ``manifest.json``, the subword models and the vocabularies.

    Attributes:
        subwords: ``bpe``, ``sentencepiece`` or ``none``.

    Raises:
        UserError: no manifest, that of another task, or a file that it needs is missing.
    """

    def __init__(self, folder: Path) -> None:
        manifest = read_json(folder / MANIFEST)
        if manifest.get("task") != "translation":
            raise UserError(f"{folder / MANIFEST}: its `task` is {manifest.get('task')}, not translation.")
        try:
            known = {field.name for field in fields(Settings)}
            given = {name: value for name, value in manifest["settings"].items() if name in known}
            kinds = {side: manifest["tokenizers"][side] for side in ("src", "tgt")}
            self._settings = Settings(**given)
            languages = dict(zip(("src", "tgt"), split_direction(manifest["corpus"], manifest["direction"])))
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{folder / MANIFEST}: not a manifest of this version ({error}).") from None
        self.folder, self.subwords = folder, self._settings.subwords
        self._languages = languages
        self._clean = cleaner(self._settings.corpus, self._settings.unescape)
        self._tokenizers = {side: make_tokenizer(kind, languages[side]) for side, kind in kinds.items()}
        self._segmenters = {side: read_segmenter(folder, self._settings, side) for side in ("src", "tgt")}

    def vocabulary(self, side: str) -> set[str]:
        """The tokens of ``vocab.src`` or ``vocab.tgt``."""
        return {line.rpartition("\t")[0] for line in iterate_lines(self.folder / f"vocab.{side}")}

    def tokens(self, side: str, text: str) -> str:
        """The tokens (words) of running text of ``src`` or ``tgt``, separated by U+0020."""
        text = self._clean(text)
        if self._languages[side] == "ro":
            text = normalise_romanian(text, self._settings.romanian)
        return tokens_of(text, self._tokenizers[side], self._settings)

    def pieces(self, side: str, tokens: str) -> str:
        """The pieces of a tokenised line, separated by U+0020."""
        return self._segmenters[side].encode(tokens)

    def text(self, side: str, pieces: str) -> str:
        """Running text from pieces."""
        return self.running(side, undo_subwords(self.subwords, pieces))

    def running(self, side: str, tokens: str) -> str:
        """Running text from tokens."""
        return self._tokenizers[side].detokenise(tokens)
