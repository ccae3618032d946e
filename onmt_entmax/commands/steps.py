"""``onmt_entmax steps``: epochs to steps, since OpenNMT-py counts steps only.

onmt_entmax steps --config runs/medium/train.yaml --epochs 10
onmt_train -config runs/medium/train.yaml -valid_steps $(onmt_entmax steps --config runs/medium/train.yaml --epochs 10)

Standard output holds the number alone; how it comes about is said on standard error.
"""

from __future__ import annotations

import argparse
import math
import sys
from fractions import Fraction
from pathlib import Path

from onmt_entmax.errors import UserError, invalid_setting
from onmt_entmax.files import count_lines, parse_yaml, read_text
from onmt_entmax.progress import steps_per_epoch

DEFAULTS = {"batch_size": 64, "accum_count": 1, "world_size": 1}  # OpenNMT-py's own


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", type=Path, metavar="YAML", help="configuration of onmt_train: corpora, batch_size, accum_count ...")
    add(
        "--train", type=Path, nargs="+", metavar="FILE", help="source text of the training corpora, instead of --config"
    )
    add("--epochs", type=float, default=1.0, help="passes over the training text (default: %(default)g)")
    for name, default in DEFAULTS.items():
        add(f"--{name.replace('_', '-')}", type=int, help=f"default: what the YAML says, or {default}")


def run(args: argparse.Namespace) -> int:
    """Print the number of steps; returns 0.

    Raises:
        UserError: neither or both of --config and --train, batches that count tokens, or a missing or empty file.
    """
    if (args.config is None) == (args.train is None):
        raise UserError("Give either `--config YAML` or `--train FILE ...`.")
    if not 0 < args.epochs < math.inf:
        raise invalid_setting("epochs", args.epochs, "It must be above 0, and finite.")
    settings, files = dict(DEFAULTS), args.train
    if args.config is not None:
        files, found = read_config(args.config)
        settings.update(found)
    settings.update({name: getattr(args, name) for name in DEFAULTS if getattr(args, name) is not None})
    for name, value in settings.items():
        if value < 1:
            raise invalid_setting(name, value, "It must be at least 1.")
    lines = sum(count_lines(path) for path in files)
    if lines == 0:
        raise UserError(f"{', '.join(map(str, files))}: no lines to train on.")
    per_epoch = steps_per_epoch(lines, **settings)
    steps = math.ceil(Fraction(str(args.epochs)) * per_epoch)  # as written: 0.07 of 100 are 7, in binary a little more
    factors = " x ".join(f"{name} {value}" for name, value in settings.items())
    print(f"{lines} lines / ({factors}): {per_epoch} steps per epoch, {steps} in {args.epochs:g}", file=sys.stderr)
    print(steps)
    return 0


def read_config(path: Path) -> tuple[list[Path], dict[str, int]]:
    """Training files and batch settings of a configuration for ``onmt_train``.

    Raises:
        UserError: no such file, not YAML, no training corpora, or batches that count tokens.
    """
    content = parse_yaml(read_text(path), str(path))
    data = content.get("data") if isinstance(content, dict) else None
    corpora = {name: corpus for name, corpus in data.items() if name != "valid"} if isinstance(data, dict) else {}
    files = []
    for name, corpus in corpora.items():
        if not isinstance(corpus, dict) or "path_src" not in corpus or corpus.get("weight", 1) == 0:
            continue  # a weight of 0 leaves a corpus out
        if not isinstance(corpus["path_src"], str):
            raise invalid_setting(
                "path_src", corpus["path_src"], f"It must name the file of corpus {name} (in {path})."
            )
        files.append(Path(corpus["path_src"]))
    if not files:
        raise UserError(f"{path}: `data` names no training corpus with a `path_src`.")
    if content.get("batch_type", "sents") != "sents":
        raise invalid_setting("batch_type", content["batch_type"], "Steps per epoch are known for `sents` only.")
    settings = {}
    for name in DEFAULTS:
        value = content.get(name)
        if isinstance(value, list) and value:
            if len(set(map(str, value))) > 1:
                raise invalid_setting(
                    name,
                    value,
                    f"It changes during the run (in {path}): give --{name.replace('_', '-')} for a part of it.",
                )
            value = value[-1]
        if value is not None:
            if not isinstance(value, int) or isinstance(value, bool):
                raise invalid_setting(name, value, f"It must be a whole number (in {path}).")
            settings[name] = value
    return files, settings
