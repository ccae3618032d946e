"""What the benchmarks share: alternating measurements, ratios of medians, a table and a JSON file."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable

import torch

from onmt_entmax.files import write_json
from onmt_entmax.signatures import signature


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of every benchmark."""
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: 2)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--repeats", type=int, default=0, help="measurements of each (default: 15, with --quick 3)")
    parser.add_argument("--quick", action="store_true", help="small shapes and few repeats: does it run at all?")
    parser.add_argument("--output", default="", help="write the figures to this JSON file")


def set_up(args: argparse.Namespace) -> torch.device:
    """Set the number of threads and of repeats, and the seed."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    if args.repeats == 0:
        args.repeats = 3 if args.quick else 15
    return torch.device(args.device)


def _seconds(call: Callable[[], object], device: torch.device, loops: int) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(loops):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / loops


def alternate(
    calls: dict[str, Callable[[], object]], device: torch.device, repeats: int, loops: int = 1
) -> dict[str, float]:
    """Median seconds of each call. They take turns, so that a busy machine slows all of them alike."""
    for call in calls.values():
        for _ in range(2):
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            times[name].append(_seconds(call, device, loops))
    return {name: statistics.median(values) for name, values in times.items()}


def row(what: str, against: str, target: float, ours: float, theirs: float, **more: object) -> dict[str, object]:
    """One line of a table: how many times as fast as ``against`` we are, and how fast we mean to be."""
    return {
        "what": what,
        "against": against,
        "ours_ms": 1000 * ours,
        "theirs_ms": 1000 * theirs,
        "ratio": theirs / ours,
        "at_least": target,
        **more,
    }


def report(rows: list[dict[str, object]], args: argparse.Namespace, name: str) -> None:
    """Print the rows as a table; with ``--output`` write them with what they were measured on."""
    same = "ratio_same_products"  # against their side with our setting for float32 products
    last = f" {'same products':>13}" if any(same in line for line in rows) else ""
    print(f"{'what':58} {'against':26} {'ours ms':>9} {'theirs':>9} {'ratio':>6} {'goal':>5}{last}")
    for line in rows:
        more = f"{line[same]:13.2f} " if same in line else ""
        missed = "" if line["ratio"] >= line["at_least"] else "missed"
        print(
            f"{line['what']:58} {line['against']:26} {line['ours_ms']:9.3f} {line['theirs_ms']:9.3f} "
            f"{line['ratio']:6.2f} {line['at_least']:5.2f} {more}{missed}"
        )
    device = torch.cuda.get_device_name() if args.device.startswith("cuda") else f"{os.cpu_count()} cores"
    about = {
        "torch": torch.__version__,
        "device": f"{args.device} ({device})",
        "threads": args.threads,
        "repeats": args.repeats,
        "quick": args.quick,
        "python": platform.python_version(),
    }
    made = signature(name, about)
    print(made)
    if args.output:
        write_json(args.output, {"signature": made, "rows": rows})
