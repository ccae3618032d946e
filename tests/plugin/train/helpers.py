"""A tiny reversal task and runs of ``onmt_train`` inside the test's process."""

from __future__ import annotations

import random
from pathlib import Path

import torch

LETTERS = "abcdefgh"


def write_corpus(folder: Path, name: str, lines: int, seed: int) -> None:
    """``NAME.src`` with random letters and ``NAME.tgt`` with each line reversed."""
    draw = random.Random(seed)
    rows = [[draw.choice(LETTERS) for _ in range(draw.randint(1, 9))] for _ in range(lines)]
    for side, step in (("src", 1), ("tgt", -1)):
        text = "".join(" ".join(row[::step]) + "\n" for row in rows)
        (folder / f"{name}.{side}").write_text(text, encoding="utf-8", newline="\n")


def write_data(folder: Path) -> None:
    """Two training corpora, a validation corpus and vocabularies."""
    for name, lines, seed in (("a", 57, 1), ("b", 23, 2), ("valid", 20, 3)):
        write_corpus(folder, name, lines, seed)
    for side in ("src", "tgt"):
        (folder / f"vocab.{side}").write_text("".join(f"{c}\n" for c in LETTERS), encoding="utf-8", newline="\n")


def config(folder: Path, **changes) -> Path:
    """A YAML for ``onmt_train``: two corpora with weights, noise on one of them, dropout, buckets of 30 lines."""
    lines = ["data:"]
    for name, extra in (("a", "weight: 2"), ("b", "weight: 1, transforms: [tokendrop]"), ("valid", "")):
        paths = f"path_src: {folder / (name + '.src')}, path_tgt: {folder / (name + '.tgt')}"
        lines.append(f"  {name}: {{{paths}{', ' + extra if extra else ''}}}")
    values = {
        "tokendrop_temperature": 2.0,
        "src_vocab": folder / "vocab.src",
        "tgt_vocab": folder / "vocab.tgt",
        "hidden_size": 8,
        "word_vec_size": 8,
        "encoder_type": "brnn",
        "layers": 2,
        "dropout": "[0.3]",
        "generator_function": "entmax15",
        "global_attention_function": "sparsemax",
        "batch_size": 4,
        "valid_batch_size": 8,
        "bucket_size": 30,
        "seed": 7,
        "optim": "adam",
        "learning_rate": 0.05,
        "valid_steps": 4,
        "report_every": 5,
        "num_workers": 0,
        "save_checkpoint_steps": 0,
    }
    values.update(changes)
    lines += [f"{name}: {value}" for name, value in values.items()]
    path = folder / "train.yaml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    return path


def train(yaml: Path, prefix: Path, steps: int, *arguments: str) -> dict:
    """Run ``onmt_train`` to ``steps`` and return the last checkpoint."""
    import onmt.bin.train as command

    parser = command._get_parser()
    argv = ["-config", str(yaml), "-save_model", str(prefix), "-train_steps", str(steps), *arguments]
    opt, _ = parser.parse_known_args(argv)
    command.train(opt)
    return load(f"{prefix}_step_{steps}.pt") if steps else {}


def load(path) -> dict:
    from onmt.models.model_saver import load_checkpoint

    return load_checkpoint(str(path))


def tensors(value, name: str = "") -> dict[str, object]:
    """Every leaf of nested dictionaries and lists, by its path."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        return {name: value}
    return {k: v for key, part in items for k, v in tensors(part, f"{name}/{key}").items()}


def assert_identical(first, second, skip: tuple[str, ...] = ()) -> None:
    """Both have the same leaves, bit for bit."""
    first, second = tensors(first), tensors(second)
    assert first.keys() == second.keys()
    for name, value in first.items():
        if any(part in name for part in skip):
            continue
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, second[name]), name
        else:
            assert value == second[name], name
