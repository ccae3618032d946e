"""Running OpenNMT-py's own commands in this process, on a tiny corpus: copy the letters, or reverse them."""

from __future__ import annotations

import importlib
import json
import random
import sys
from pathlib import Path

LETTERS = "abcdefgh"


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return path


class Corpus:
    """A folder with train and valid text, vocabularies and the arguments of a small model."""

    def __init__(self, folder: Path, rows: int = 60) -> None:
        self.folder = folder
        generator = random.Random(1)
        words = ["".join(generator.choices(LETTERS, k=generator.randint(2, 6))) for _ in range(rows)]
        self.sources = [" ".join(word) for word in words]
        self.targets = [" ".join(reversed(word)) for word in words]
        write(folder / "train.src", self.sources)
        write(folder / "train.tgt", self.targets)
        write(folder / "valid.src", self.sources[:20])
        write(folder / "valid.tgt", self.targets[:20])
        write(folder / "vocab", [f"{letter}\t9" for letter in LETTERS])

    def data(self) -> str:
        return json.dumps(
            {
                "corpus_1": {
                    "path_src": f"{self.folder}/train.src",
                    "path_tgt": f"{self.folder}/train.tgt",
                    "weight": 1,
                },
                "valid": {"path_src": f"{self.folder}/valid.src", "path_tgt": f"{self.folder}/valid.tgt"},
            }
        )

    def train_args(self, name: str, *extra: str, steps: int = 4) -> list[str]:
        base = {
            "data": self.data(),
            "src_vocab": f"{self.folder}/vocab",
            "tgt_vocab": f"{self.folder}/vocab",
            "save_data": f"{self.folder}/sample",
            "save_model": f"{self.folder}/{name}",
            "encoder_type": "brnn",
            "rnn_type": "LSTM",
            "layers": "1",
            "hidden_size": "32",
            "word_vec_size": "16",
            "dropout": "0",
            "optim": "adam",
            "learning_rate": "0.01",
            "batch_size": "16",
            "bucket_size": "256",
            "num_workers": "0",
            "train_steps": str(steps),
            "valid_steps": str(steps),
            "save_checkpoint_steps": str(steps),
            "report_every": str(steps),
            "seed": "3",
        }
        given = {word.lstrip("-") for word in extra if word.startswith("-")}
        words = []
        for key, value in base.items():
            if key not in given:
                words += [f"-{key}", value]
        return [*words, *extra]

    def train(self, name: str, *extra: str, steps: int = 4) -> Path:
        """Train with stock's ``onmt_train`` and return the last checkpoint."""
        run_main("train", self.train_args(name, *extra, steps=steps))
        return self.folder / f"{name}_step_{steps}.pt"

    def translate(self, model: Path | list[Path], lines: list[str], *extra: str) -> list[str]:
        """Translate with stock's ``onmt_translate`` and return the lines of its output."""
        source = write(self.folder / "input.src", lines)
        output = self.folder / "output.txt"
        models = [str(path) for path in (model if isinstance(model, list) else [model])]
        run_main("translate", ["-model", *models, "-src", str(source), "-output", str(output), *extra])
        text = output.read_text(encoding="utf-8")
        assert text == "" or text.endswith("\n")
        return text.split("\n")[:-1]


def run_main(command: str, args: list[str]) -> None:
    """Run ``onmt.bin.COMMAND`` as its console script would, in this process."""
    main = importlib.import_module(f"onmt.bin.{command}").main
    before = sys.argv
    sys.argv = [f"test_{command}", *args]
    try:
        main()
    finally:
        sys.argv = before
