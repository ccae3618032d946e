"""Preparing inflection: SIGMORPHON files to source and target text, vocabularies and a YAML for training.

The output folder holds ``train``, ``dev`` and ``test`` as ``.src`` (and ``.tgt``), all languages in one; ``dev/LANG.*``
and ``test/LANG.*`` per language, with ``LANG.gold`` for scoring; ``vocab.src``, ``vocab.tgt``, ``data.yaml`` and
``manifest.json``. Its files appear only when all of them are done.
"""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from pathlib import Path

from tqdm import tqdm

from onmt_entmax.errors import UserError
from onmt_entmax.files import iterate_lines, sha256, write_lines, write_text
from onmt_entmax.tasks.inflection.format import Corpus, Row, encode_row, find_corpora, read_rows
from onmt_entmax.tasks.prepared import data_yaml, input_name, prepared_folder, write_manifest
from onmt_entmax.version import version


def prepare(
    folders: list[Path],
    output: Path,
    setting: str | None = None,
    languages: list[str] | None = None,
    name: str = "inflection",
    seed: int = 1,
) -> dict:
    """Write the training text of a corpus; see the head of this file.

    Args:
        folders, setting, languages: as for :func:`onmt_entmax.tasks.inflection.format.find_corpora`.
        output: the folder to write; what an earlier run wrote there and this one does not is removed.
        name: the task's name, kept in the manifest for the signatures.
        seed: of the order of the training rows. OpenNMT-py shuffles within a bucket only, so languages are mixed here.

    Returns:
        The manifest: counts per language, SHA-256 of inputs and outputs, setting and version.

    Raises:
        UserError: bad input; then the output folder is as it was.
    """
    corpora = find_corpora(folders, setting, languages)
    counts, inputs, train = {}, {}, []
    together: dict[str, list[tuple[str, str]]] = {"dev": [], "test": []}
    with prepared_folder(output) as fresh:
        for language, corpus in tqdm(corpora.items(), desc="languages", disable=None):
            pairs = _encode(language, read_rows(corpus.train), corpus.train)
            if not pairs:
                raise UserError(f"{corpus.train} has no rows.")
            train += pairs
            counts[language] = {"train": len(pairs)}
            for split, (path, covered) in _held_out(corpus).items():
                pairs = _write_split(fresh / split, language, path, covered)
                together[split] += pairs
                counts[language][split] = len(pairs)
            for path in corpus:
                if path is not None:
                    inputs[input_name(path, folders)] = sha256(path)
        random.Random(seed).shuffle(train)
        _write_pairs(fresh, "train", train)
        for split, pairs in together.items():
            _write_pairs(fresh, split, pairs)
        vocabularies = _build_vocabularies(fresh, train)
        about = {
            "task": name,
            "setting": setting,
            "version": version(),
            "seed": seed,
            "rows": {split: sum(c.get(split, 0) for c in counts.values()) for split in ("train", "dev", "test")},
            "vocabularies": vocabularies,
            "languages": counts,
            "inputs": inputs,
        }
        return write_manifest(fresh, output, vocabularies, about)


def _held_out(corpus: Corpus) -> dict[str, tuple[Path, bool]]:
    """Split -> (file, whether its forms are missing)."""
    splits = {"dev": (corpus.dev, False)}
    if corpus.test and corpus.test.stat().st_size:  # the shared task's archive has empty ones
        splits["test"] = (corpus.test, False)
    elif corpus.covered:
        splits["test"] = (corpus.covered, True)
    return splits


def _encode(language: str, rows: list[Row], path: Path) -> list[tuple[str, str]]:
    return [encode_row(language, row, f"{path}, line {number}") for number, row in enumerate(rows, 1)]


def _write_split(folder: Path, language: str, path: Path, covered: bool) -> list[tuple[str, str]]:
    """Write one language's ``.src`` and its rows as they were: ``.gold`` with forms, ``.covered`` without."""
    rows = read_rows(path, covered)
    if not rows:
        raise UserError(f"{path} has no rows.")
    pairs = _encode(language, rows, path)
    write_lines(folder / f"{language}.src", (source for source, _ in pairs))
    write_lines(folder / f"{language}.{'covered' if covered else 'gold'}", ("\t".join(row) for row in rows))
    return pairs


def _write_pairs(folder: Path, split: str, pairs: list[tuple[str, str]]) -> None:
    write_lines(folder / f"{split}.src", (source for source, _ in pairs))
    write_lines(folder / f"{split}.tgt", (target for _, target in pairs))


def _build_vocabularies(folder: Path, train: list[tuple[str, str]]) -> dict[str, int]:
    """Run OpenNMT-py's ``build_vocab`` on the training text and check that no token is missing. Returns both sizes."""
    if importlib.util.find_spec("onmt") is None:
        raise UserError(
            "OpenNMT-py is not installed: vocabularies are built with it. Run `pip install OpenNMT-py==3.5.1`."
        )
    config = folder / "build_vocab.yaml"
    write_text(config, data_yaml(folder.resolve(), {}) + "n_sample: -1\n")
    command = [sys.executable, "-m", "onmt.bin.build_vocab", "-config", str(config)]
    result = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False)
    if result.returncode != 0:
        last = (result.stderr.strip() or result.stdout.strip() or "no message").split("\n")[-1]
        raise UserError(f"onmt.bin.build_vocab failed with status {result.returncode}: {last}")
    config.unlink()
    sizes = {}
    for index, side in enumerate(("src", "tgt")):
        written = [line.rpartition("\t")[0] for line in iterate_lines(folder / f"vocab.{side}")]
        wanted = {token for pair in train for token in pair[index].split(" ")}
        if len(written) != len(wanted) or set(written) != wanted:
            lost = sorted(wanted.symmetric_difference(written))[:3]
            raise UserError(f"vocab.{side}: the vocabulary differs from the training text's tokens: {lost}.")
        sizes[side] = len(written)
    return sizes
