"""Decoding speed on real lines: stock OpenNMT-py against ours, beam against exact search, certificates on and off.

    python benchmarks/decoding.py --softmax softmax.pt --entmax entmax15.pt --src dev.src --lines 1000

Each measurement is a process of its own that loads the model, translates once to warm up and once on the clock; the
two sides take turns. Stock's side runs the same OpenNMT-py with the plugin switched off.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timing import add_options, report, row, set_up

from onmt_entmax.files import read_lines, read_records, write_lines

COMMON = ["-beam_size", "5", "-batch_size", "64", "-length_penalty", "none", "-max_length_ratio", "0"]


def child(args: argparse.Namespace) -> int:
    """Load, translate twice, print the seconds of the second time; runs with or without the plugin."""
    import torch

    torch.set_num_threads(args.threads)
    if hasattr(torch.serialization, "add_safe_globals"):  # stock on a torch that loads plain data only
        torch.serialization.add_safe_globals([argparse.Namespace])
    from onmt.inference_engine import InferenceEnginePY
    from onmt.opts import translate_opts
    from onmt.utils.misc import set_random_seed
    from onmt.utils.parse import ArgumentParser

    parser = ArgumentParser()
    translate_opts(parser)
    opt = parser.parse_args(args.words)
    ArgumentParser.validate_translate_opts(opt)
    ArgumentParser._get_all_transform_translate(opt)
    ArgumentParser.validate_translate_opts_dynamic(opt)
    set_random_seed(1, False)
    engine = InferenceEnginePY(opt)
    lines = read_lines(opt.src)
    engine.infer_list(lines[:64])
    start = time.perf_counter()
    engine.infer_list(lines)
    print(f"seconds {time.perf_counter() - start}", flush=True)
    return 0


def seconds(words: list[str], threads: int, stock: bool = False) -> float:
    """Measure one configuration in a fresh process."""
    environment = {**os.environ, "ONMT_ENTMAX_DISABLE": "1" if stock else "0", "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-W", "ignore", __file__, "--threads", str(threads), "--child", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}\n{done.stderr}")
    return float(next(line.split()[1] for line in done.stdout.split("\n") if line.startswith("seconds ")))


def optimal_lines(path: Path) -> tuple[list[int], int]:
    """Numbers of the lines whose certificate is not `optimal`, and how many lines there are."""
    records = read_records(path)
    return [record["line"] for record in records if not record["optimal"]], len(records)


def main() -> int:
    """Measure all rows of the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--softmax", help="checkpoint of a softmax model")
    parser.add_argument("--entmax", help="checkpoint of a 1.5-entmax model of the same size")
    parser.add_argument("--src", help="source lines")
    parser.add_argument("--lines", type=int, default=1000, help="translate this many of them (default: %(default)s)")
    parser.add_argument("--child", dest="words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.words is not None:
        return child(args)
    set_up(args)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "input.src"
        write_lines(source, [line for line in read_lines(args.src)[: args.lines] if line])
        certificates = Path(folder) / "exact.jsonl"

        def words(model: str, *more: str) -> list[str]:
            where = ["-gpu", "0"] if args.device.startswith("cuda") else []
            return ["-model", model, "-src", str(source), "-output", os.devnull, *COMMON, *where, *more]

        sides = {
            "stock softmax": (words(args.softmax), True),
            "our softmax": (words(args.softmax), False),
            "our 1.5": (words(args.entmax), False),
            "certificates": (words(args.entmax, "-certificates", "-"), False),
            "exact": (words(args.entmax, "-search", "exact"), False),
        }
        times: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(args.repeats):
            for name, (command, stock) in sides.items():
                times[name].append(seconds(command, args.threads, stock))
        median = {name: statistics.median(values) for name, values in times.items()}
        seconds(words(args.entmax, "-search", "exact", "-certificates", str(certificates)), args.threads)
        open_lines, count = optimal_lines(certificates)
    per_second = {"sentences_per_second": count / median["our 1.5"]}
    rows = [
        row("1.5-entmax, beam 5", "stock, softmax", 2.0, median["our 1.5"], median["stock softmax"], **per_second),
        row("softmax, beam 5", "stock, softmax", 1.2, median["our softmax"], median["stock softmax"]),
        row("1.5-entmax with certificates", "without", 0.97, median["certificates"], median["our 1.5"]),
        row(
            f"1.5-entmax, exact ({count} lines, not optimal: {open_lines})",
            "beam 5",
            0.5,
            median["exact"],
            median["our 1.5"],
        ),
    ]
    report(rows, args, f"decoding|lines:{count}|src:{Path(args.src).name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
