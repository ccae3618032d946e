"""``onmt_entmax prepare inflection``: SIGMORPHON files to source and target text, vocabularies and a YAML for training.

onmt_entmax prepare inflection --data conll2018/task1 --setting medium --output runs/medium
onmt_train -config runs/medium/data.yaml ...

The output folder holds ``train``, ``dev`` and ``test`` as ``.src`` (and ``.tgt``), all languages in one; ``dev/LANG.*``
and ``test/LANG.*`` per language, with ``LANG.gold`` for scoring; ``vocab.src``, ``vocab.tgt``, ``data.yaml`` and
``manifest.json``. Its files appear only when all of them are done.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path

from tqdm import tqdm

from onmt_entmax.errors import UserError
from onmt_entmax.files import read_lines, sha256, whole_folder, write_json, write_lines, write_text
from onmt_entmax.tasks.data_yaml import data_yaml
from onmt_entmax.tasks.inflection.format import SETTINGS, Corpus, Row, encode_row, find_corpora, read_rows
from onmt_entmax.version import __version__

MANIFEST = "manifest.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``onmt_entmax prepare inflection``."""
    add = parser.add_argument
    layout = "holds LANG-train-SETTING or LANG-train, LANG-dev, LANG-test; or `all` and `surprise` that do"
    add("--data", required=True, nargs="+", type=Path, metavar="FOLDER", help=layout)
    add("--setting", metavar="SETTING", help=f"{', '.join(SETTINGS)}; leave out for data without settings")
    add("--languages", nargs="+", metavar="LANG", help="default: all that have a training and a development file")
    add("--output", required=True, type=Path, metavar="FOLDER", help="where the text goes")
    add("--name", default="inflection", help="the task's name in signatures, e.g. conll2018.1 (default: %(default)s)")
    add("--seed", type=int, default=1, help="order of the training rows, all languages mixed (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Prepare the corpus, say in one line what was made, return 0."""
    manifest = prepare(args.data, args.output, args.setting, args.languages, args.name, args.seed)
    rows = manifest["rows"]
    print(
        f"{args.output}: {len(manifest['languages'])} languages, {rows['train']} training rows, {rows['dev']} dev, "
        f"{rows['test']} test; vocabularies {manifest['vocabularies']['src']} and {manifest['vocabularies']['tgt']}"
    )
    return 0


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
    earlier = _outputs(output)
    with whole_folder(output) as fresh:
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
                    inputs[_input_name(path, folders)] = sha256(path)
        random.Random(seed).shuffle(train)
        _write_pairs(fresh, "train", train)
        for split, pairs in together.items():
            _write_pairs(fresh, split, pairs)
        vocabularies = _build_vocabularies(fresh, train)
        write_text(fresh / "data.yaml", data_yaml(output.resolve(), vocabularies))
        manifest = {
            "task": name,
            "setting": setting,
            "version": __version__,
            "seed": seed,
            "rows": {split: sum(c.get(split, 0) for c in counts.values()) for split in ("train", "dev", "test")},
            "vocabularies": vocabularies,
            "languages": counts,
            "inputs": inputs,
            "outputs": {p.relative_to(fresh).as_posix(): sha256(p) for p in sorted(fresh.rglob("*")) if p.is_file()},
        }
        write_json(fresh / MANIFEST, manifest)
    for stale in earlier - set(manifest["outputs"]):
        (output / stale).unlink(missing_ok=True)
    return manifest


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
        written = [line.rpartition("\t")[0] for line in read_lines(folder / f"vocab.{side}")]
        wanted = {token for pair in train for token in pair[index].split(" ")}
        if len(written) != len(wanted) or set(written) != wanted:
            lost = sorted(wanted.symmetric_difference(written))[:3]
            raise UserError(f"vocab.{side}: the vocabulary differs from the training text's tokens: {lost}.")
        sizes[side] = len(written)
    return sizes


def _input_name(path: Path, folders: list[Path]) -> str:
    """Name an input by its path inside the data folder: a manifest does not depend on where the data lie."""
    for folder in folders:
        if folder in path.parents:
            return path.relative_to(folder).as_posix()
    return path.name


def _outputs(folder: Path) -> set[str]:
    """The files that an earlier run wrote, by its manifest."""
    try:
        return set(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["outputs"])
    except (OSError, ValueError, KeyError, TypeError):
        return set()
