"""``onmt_entmax inspect``: a page in the browser on which a model is tried: its search, its completions, its attention.

onmt_entmax inspect --model best.pt
onmt_entmax inspect --model softmax.pt entmax15.pt --prepared runs/multi30k/data

Each model is one of its own, side by side; those of an ensemble are joined by ``+`` (``a.pt+b.pt``).

``onmt_entmax simulate-completion``: how much typing the completions would save a translator.

onmt_entmax simulate-completion --model best.pt --prepared runs/multi30k/data --src test.de --ref test.en
"""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path

from onmt_entmax.commands import shared
from onmt_entmax.errors import invalid_setting
from onmt_entmax.files import read_lines, write_json
from onmt_entmax.signatures import signature

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", nargs="+", required=True, metavar="FILE", help="checkpoints, side by side; A.pt+B.pt is an ensemble")
    add("--prepared", type=Path, metavar="FOLDER", help="of `onmt_entmax prepare translation`: input is running text")
    add("--port", type=int, default=8642, help="0: any that is free (default: %(default)s)")
    add("--host", default="127.0.0.1", help="address to listen at (default: %(default)s, this machine alone)")
    add("--token", help="what browsers must bring; needed where other machines can reach the address")
    add("--no-browser", action="store_true", help="do not open a browser")
    add("--threads", type=int, help="of PyTorch (default: its own choice)")


def add_simulate_completion_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", nargs="+", required=True, metavar="FILE", help="checkpoint, or several: an ensemble")
    add("--src", type=Path, required=True, metavar="FILE", help="the inputs, one line each")
    add("--ref", type=Path, required=True, metavar="FILE", help="the translations wanted")
    add("--prepared", type=Path, metavar="FOLDER", help="of `onmt_entmax prepare translation`: both are running text")
    add("--words", type=int, default=10, metavar="N", help="possible next words shown (default: %(default)s)")
    add("--lines", type=int, metavar="N", help="only the first N (default: all)")
    add("--output", metavar="FILE", help="also write the numbers as JSON")


def run_simulate_completion(args: argparse.Namespace) -> int:
    """Simulate a translator of every line; print (and write) the ratios."""
    for name in ("words", "lines"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise invalid_setting(name, getattr(args, name), "It must be at least 1.")
    sources, references = read_lines(args.src), read_lines(args.ref)
    shared.check_counts(sources, references, "ref")
    import onmt_entmax

    onmt_entmax.register()
    from onmt_entmax.inspect.completing import BEAM_SIZE
    from onmt_entmax.inspect.loaded import Loaded
    from onmt_entmax.inspect.simulating import describe, simulate
    from onmt_entmax.plugin.models import float32_products

    loaded = Loaded(0, args.model, args.prepared)
    with float32_products(False):
        simulation = simulate(loaded, list(zip(sources, references))[: args.lines], args.words)
    fields = {
        "src": args.src.name,
        "lines": simulation.lines,
        "ref": args.ref.name,
        "list": args.words,
        "beam": BEAM_SIZE,
        "alpha": loaded.models.alphas,
    }
    record = {
        **simulation.record(),
        "models": [Path(path).name for path in args.model],
        "signature": signature("completion", fields),
    }
    print(describe(record))
    print(record["signature"])
    if args.output:
        write_json(args.output, record)
    return 0


def run(args: argparse.Namespace) -> int:
    """Load the models, serve the page until interrupted."""
    if not 0 <= args.port <= 65535:
        raise invalid_setting("port", args.port, "It must be from 0 to 65535.")
    if args.threads is not None and args.threads < 1:
        raise invalid_setting("threads", args.threads, "It must be at least 1.")
    if args.host not in LOOPBACK and not args.token:
        raise invalid_setting("host", args.host, "Other machines can reach it: give a `--token`, too.")
    if args.token is not None and not args.token.strip():
        raise invalid_setting("token", "''", "It must not be empty.")
    from onmt_entmax.inspect.serving import listen, serve

    sockets = listen(args.host, args.port)
    try:
        serve(sockets, args.host, _models(args), args.token, None if args.no_browser else webbrowser.open)
    finally:
        sockets.close()
    return 0


def _models(args: argparse.Namespace) -> list:
    import torch

    import onmt_entmax

    onmt_entmax.register()
    from onmt_entmax.inspect.loaded import Loaded, check_side_by_side

    if args.threads is not None:
        torch.set_num_threads(args.threads)
    loaded = []
    for number, name in enumerate(args.model):
        paths = [name] if Path(name).exists() else name.split("+")
        loaded.append(Loaded(number, paths, args.prepared))
    check_side_by_side(loaded)
    return loaded
