"""How long the page of `onmt_entmax inspect` waits for its answers: somebody types a translation, letter by letter.

    python benchmarks/page.py --model best.pt --prepared data --src test.de --ref test.en --lines 20 --output page.json

Starts the server, sends for each line a search, a completion after every letter of the reference, and the attention of
the best output, one after the other; prints the median and the 95th percentile of each in milliseconds.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch

from onmt_entmax.files import read_lines, write_json
from onmt_entmax.signatures import signature


def started(args: argparse.Namespace) -> tuple[subprocess.Popen, int]:
    """The server and its port."""
    command = [sys.executable, "-W", "ignore", "-m", "onmt_entmax", "inspect", "--no-browser", "--port", "0"]
    command += ["--threads", str(args.threads), "--model", args.model]
    if args.prepared:
        command += ["--prepared", args.prepared]
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    line = next((line for line in server.stdout if "Ctrl-C ends" in line), None)
    if line is None:
        sys.exit("page.py: the server did not start")
    return server, int(line.split("http://")[1].split("/")[0].rpartition(":")[2])


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--prepared", default="", help="prepared folder: src and ref are running text")
    parser.add_argument("--src", required=True, type=Path)
    parser.add_argument("--ref", required=True, type=Path)
    parser.add_argument("--lines", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch (default: 2)")
    parser.add_argument("--output", default="", help="write the figures to this JSON file")
    args = parser.parse_args()
    pairs = list(zip(read_lines(args.src), read_lines(args.ref)))[: args.lines]
    server, port = started(args)
    seconds: dict[str, list[float]] = defaultdict(list)
    sequence = 0

    def ask(path: str, **body: object) -> dict:
        nonlocal sequence
        sequence += 1
        given = json.dumps({"model": 0, "client": "benchmark", "sequence": sequence, **body})
        began = time.perf_counter()
        connection.request("POST", f"/api/{path}", given, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        told = json.loads(answer.read())
        seconds[path].append(time.perf_counter() - began)
        if answer.status != 200:
            sys.exit(f"page.py: {path}: {told['error']}")
        return told

    try:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        ask("search", input={"text": pairs[0][0]})  # to warm up
        seconds.clear()
        for source, reference in pairs:
            given = {"text": source}
            found = ask("search", input=given)
            for size in range(len(reference) + 1):
                ask("complete", input=given, text=reference[:size])
            tokens = found["hypotheses"][0]["tokens"]
            name = "context_attention"
            ask("attention", input=given, tokens=tokens, attention=name, layer=1, head=1)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()
    rows = []
    for path, times in seconds.items():
        p95 = statistics.quantiles(times, n=20, method="inclusive")[-1] if times[1:] else times[0]
        rows.append(
            {"request": path, "count": len(times), "p50_ms": 1000 * statistics.median(times), "p95_ms": 1000 * p95}
        )
        print("{request:10} {count:6} requests   p50 {p50_ms:7.1f} ms   p95 {p95_ms:7.1f} ms".format(**rows[-1]))
    about = {"src": args.src.name, "lines": len(pairs), "threads": args.threads, "cores": os.cpu_count()}
    made = signature("page", {"model": Path(args.model).name, **about, "torch": torch.__version__})
    print(made)
    if args.output:
        write_json(args.output, {"signature": made, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
