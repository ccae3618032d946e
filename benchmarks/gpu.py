"""The parts of ``gpu.sh`` that are no benchmark: what is there, models to decode with, and the table at the end."""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from onmt_entmax.entmax import entmax
from onmt_entmax.entmax.engine import why_not_gpu
from onmt_entmax.files import read_json, write_json, write_lines
from onmt_entmax.signatures import signature

# What a row is to reach on a GPU, by the beginning of its description and what it is against; elsewhere 0.
GOALS = {
    "inflection, alpha 1.5": 1.1,
    "translation, alpha 1.5": 1.4,
    "inflection, alpha 1.33": 0.95,
    "translation, alpha 1.33": 0.95,
    "base, output and heads 1.5": 1.05,
    "loss flat alpha 1.5": 1 / 1.3,
    "loss middling alpha 1.5": 1 / 1.3,
    "loss peaked alpha 1.5": 1 / 1.3,
    "1.5-entmax, beam 5": 1.5,
}
MODELS = {"softmax": "softmax", "entmax15": "entmax15"}  # file: function of attention and output


def check(args: argparse.Namespace) -> int:
    """Say what is measured on, in a line; 2 where the kernels cannot serve."""
    reason = why_not(args.device) if args.device == "cuda" else None
    if reason is not None:
        print(f"gpu.sh: {reason} `--device cpu --quick` tries the script without a GPU.", file=sys.stderr)
        return 2
    print(f"gpu.sh: {device_name(args.device)}, torch {torch.__version__}, Python {platform.python_version()}")
    return 0


def why_not(device: str) -> str | None:
    """Why nothing can be measured on a GPU, or None: a first kernel is compiled and has run."""
    try:
        torch.cuda.init()
    except (AssertionError, RuntimeError) as error:  # an old driver, a PyTorch for CPUs
        return f"PyTorch sees no GPU: {first_line(error)}."
    missing = why_not_gpu(device, torch.float32)
    if missing is not None:
        return f"The kernels cannot serve: {missing}."
    try:
        entmax(torch.ones(2, 4, device=device)).sum().item()
    except Exception as error:  # no compiler, no Python headers, no place for Triton's cache
        return f"The kernels cannot serve: {type(error).__name__}: {first_line(error)}."
    return None


def first_line(error: Exception) -> str:
    """What an error says first."""
    return (str(error).strip() or "no reason is given").splitlines()[0].rstrip(".")


def device_name(device: str) -> str:
    """The GPU's name, or the number of cores."""
    return torch.cuda.get_device_name() if device == "cuda" else f"{os.cpu_count()} cores"


def models(args: argparse.Namespace) -> int:
    """Train a softmax and a 1.5-entmax model by ``onmt_train`` on made data: each token renamed, in the same order."""
    folder, steps, size = Path(args.folder), 10 if args.quick else 400, 16 if args.quick else 300
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    chance = random.Random(1)
    tokens = [f"t{i}" for i in range(200)]
    for name, count in {"train": 200 if args.quick else 20000, "test": 40 if args.quick else 1000}.items():
        lines = [[chance.choice(tokens) for _ in range(chance.randint(8, 20))] for _ in range(count)]
        write_lines(folder / f"{name}.src", [" ".join(line) for line in lines])
        renamed = [" ".join("u" + token[1:] for token in line) for line in lines]
        write_lines(folder / f"{name}.tgt", renamed)
    for side, letter in (("src", "t"), ("tgt", "u")):
        write_lines(folder / f"vocab.{side}", [f"{letter}{token[1:]}\t1" for token in tokens])
    for name, function in MODELS.items():
        train(folder, name, function, steps, size, args.device)
    return 0


def train(folder: Path, name: str, function: str, steps: int, size: int, device: str) -> None:
    """Train one model and leave it at ``NAME.pt``."""
    corpus = {"corpus_1": {"path_src": str(folder / "train.src"), "path_tgt": str(folder / "train.tgt"), "weight": 1}}
    write_json(folder / f"{name}.yaml", {"data": corpus})  # JSON is YAML
    options = {
        "src_vocab": folder / "vocab.src",
        "tgt_vocab": folder / "vocab.tgt",
        "save_data": folder / "sample",
        "save_model": folder / name,
        "train_steps": steps,
        "save_checkpoint_steps": steps,
        "valid_steps": 10 * steps,
        "report_every": steps,
        "encoder_type": "brnn",
        "decoder_type": "rnn",
        "input_feed": 1,
        "layers": 2,
        "hidden_size": size,
        "word_vec_size": size,
        "global_attention_function": function,
        "generator_function": function,
        "optim": "adam",
        "learning_rate": 0.001,
        "batch_size": 64,
        "batch_type": "sents",
        "num_workers": 0,
        "bucket_size": 20000,
        "seed": 1,
    }
    words = [word for key, value in options.items() for word in (f"-{key}", str(value))]
    if device == "cuda":
        words += ["-world_size", "1", "-gpu_ranks", "0"]
    command = [sys.executable, "-W", "ignore", "-m", "onmt.bin.train", "-config", str(folder / f"{name}.yaml"), *words]
    subprocess.run(command, check=True)
    (folder / f"{name}_step_{steps}.pt").replace(folder / f"{name}.pt")


def table(args: argparse.Namespace) -> int:
    """Write ``gpu.json`` from the parts' files, and print their rows as a Markdown table."""
    folder = Path(args.folder)
    parts = {path.stem: read_json(path) for path in sorted(folder.glob("*.json")) if path.stem != "gpu"}
    failed = args.failed.split()
    print("| | against | ours, ms | theirs, ms | times as fast | goal | per second | peak memory, MiB |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for part in parts.values():
        for row in part["rows"]:
            row["at_least"] = goal_of(row)
            goal = f"{row['at_least']:.2f}" if row["at_least"] else ""
            rate = next((f"{row[key]:,.0f}" for key in ("words_per_second", "sentences_per_second") if key in row), "")
            memory = f"{row['peak_mib']:,.0f} ({row['peak_mib_stock']:,.0f})" if "peak_mib" in row else ""
            print(
                f"| {row['what']} | {row['against']} | {row['ours_ms']:.3f} | {row['theirs_ms']:.3f} "
                f"| {row['ratio']:.2f} | {goal} | {rate} | {memory} |"
            )
    about = {"torch": torch.__version__, "device": device_name(args.device), "python": platform.python_version()}
    made = signature("gpu", about)
    print(f"\n    {made}")
    if failed:
        print(f"\nFailed: {', '.join(failed)}.")
    write_json(folder / "gpu.json", {"signature": made, "failed": failed, "parts": parts})
    return 0


def goal_of(row: dict) -> float:
    """A row's goal on a GPU, 0 without one."""
    if "entmax package" in row["against"]:
        return 1.0
    return max((goal for what, goal in GOALS.items() if row["what"].startswith(what)), default=0.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["check", "models", "table"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda", help="default: %(default)s")
    parser.add_argument("--folder", default="", help="of the models, or of the parts' JSON files")
    parser.add_argument("--failed", default="", help="names of the parts that failed")
    parser.add_argument("--quick", action="store_true", help="small models, few steps: does it run at all?")
    args = parser.parse_args()
    return {"check": check, "models": models, "table": table}[args.command](args)


if __name__ == "__main__":
    sys.exit(main())
