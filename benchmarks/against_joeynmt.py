"""Training speed of Joey NMT 2.3's softmax model against ours, of the same size, step for step on the same batches.

Joey NMT wants packages of its own, so it is installed into an environment of its own, which ``--joeynmt`` names:

    python3 -m venv ~/joeynmt && ~/joeynmt/bin/pip install joeynmt==2.3.0
    python benchmarks/against_joeynmt.py --joeynmt ~/joeynmt/bin/python --task translation --warm-up 500

Both sides take turns of a few steps, each in a process of its own. Sizes, batches and ``--warm-up`` are those of
training.py: two layers, a bidirectional LSTM, Luong attention with input feeding, dropout 0.3, Adam, gradients
clipped at 5.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import torch


class JoeyNMT:
    """Joey NMT's side, trained by ``--serve`` of this file under its own Python."""

    def __init__(self, python: str, threads: int, hidden: int, vocab: int, batches: str) -> None:
        command = [python, os.path.abspath(__file__), "--serve", *map(str, (threads, hidden, vocab)), batches]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        except OSError as error:
            sys.exit(f"against_joeynmt.py: {python} cannot be started: {error.strerror}.")
        self._answer(python)

    def _answer(self, who: str) -> None:
        if self._process.stdout.readline() != "done\n":
            sys.exit(f"against_joeynmt.py: {who} ended early: what it said stands above.")

    def train(self, steps: int) -> None:
        """That many steps on the next batches."""
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        self._answer("Joey NMT")

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait()


def serve(threads: int, hidden: int, vocab: int, batches: str) -> int:
    """Train as many steps as each line of standard input says, as ``TrainManager`` of Joey NMT does."""
    try:
        from joeynmt.batch import Batch
        from joeynmt.model import build_model
        from joeynmt.vocabulary import Vocabulary
    except ImportError as error:
        print(f"Joey NMT is not installed there ({error}): {sys.executable} -m pip install joeynmt", file=sys.stderr)
        return 2
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)  # as on our side
    torch.manual_seed(1)
    names = {"unk": 0, "pad": 1, "bos": 2, "eos": 3}
    special = {f"{name}_token": f"<{name}>" for name in names} | {
        f"{name}_id": number for name, number in names.items()
    }
    words = Vocabulary(
        [str(n) for n in range(vocab - len(names))], SimpleNamespace(**special, lang_tags=[], sep_token=None)
    )
    shared = {
        "rnn_type": "lstm",
        "num_layers": 2,
        "dropout": 0.3,
        "embeddings": {"embedding_dim": hidden, "dropout": 0.3},
    }
    encoder = {"type": "recurrent", "hidden_size": hidden // 2, "bidirectional": True, **shared}
    attends = {"attention": "luong", "input_feeding": True, "init_hidden": "bridge", "hidden_dropout": 0.3}
    decoder = {"type": "recurrent", "hidden_size": hidden, **attends, **shared}
    model = build_model({"encoder": encoder, "decoder": decoder}, words, words)
    model.loss_function = ("crossentropy", 0.0)
    adam = torch.optim.Adam(model.parameters(), 0.001)
    waiting = torch.load(batches)
    print("done", flush=True)
    for line in sys.stdin:
        for _ in range(int(line)):
            one = waiting.pop(0)
            sides = one["src"].squeeze(-1), one["srclen"], None, one["tgt"].squeeze(-1), None
            batch = Batch(*sides, torch.arange(len(one["srclen"])), torch.device("cpu"), names["pad"], names["eos"])
            model.train()
            batch.sort_by_src_length()
            loss, _, _, correct = model(return_type="loss", **vars(batch))
            loss = batch.normalize(loss, "tokens")
            loss.backward()
            loss.item(), correct.item()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5)
            adam.step()
            adam.zero_grad()
        print("done", flush=True)
    return 0


def main() -> int:
    if sys.argv[1:2] == ["--serve"]:
        return serve(*map(int, sys.argv[2:5]), sys.argv[5])
    from timing import add_options, alternate, report, row, set_up
    from training import PAD, QUICK, TASKS, Worker, batches_of, pack

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_options(parser)
    parser.add_argument("--joeynmt", required=True, metavar="PYTHON", help="of the environment that has Joey NMT 2.3")
    parser.add_argument("--task", choices=list(TASKS), default="translation", help="(default: %(default)s)")
    parser.add_argument("--alphas", type=float, nargs="+", default=[1.0, 1.5], help="of our side (default: 1 1.5)")
    parser.add_argument("--warm-up", type=int, default=0, help="steps of sparse models before the measurements")
    parser.add_argument("--block", type=int, default=4, help="steps of a turn (default: 4)")
    args = parser.parse_args()
    if args.device != "cpu":
        parser.error("--device is cpu: Joey NMT is measured there")
    args.keep_subnormals = args.keep_memory = False
    device = set_up(args)
    task = QUICK if args.quick else TASKS[args.task]
    count = args.block * (args.repeats + 2)
    batches = [batch for batch, _ in batches_of(task, count)]
    words = sum(int(batch["tgt"][:, 1:].ne(PAD).sum()) for batch in batches) / count
    with tempfile.TemporaryDirectory() as folder:
        torch.save(batches, f"{folder}/batches.pt")
        theirs = JoeyNMT(args.joeynmt, args.threads, task["hidden"], task["vocab"], f"{folder}/batches.pt")
    ours = {alpha: Worker(args, task, alpha) for alpha in args.alphas}
    blocks = [[(batch, 0) for batch in batches[start : start + args.block]] for start in range(0, count, args.block)]
    for alpha, worker in ours.items():
        if alpha != 1:
            worker("warm_up", args.warm_up)
        worker("receive", pack(blocks))
    calls = {"Joey NMT": lambda: theirs.train(args.block)}
    calls.update({f"{alpha:g}": lambda worker=worker: worker("train") for alpha, worker in ours.items()})
    seconds = {side: time / args.block for side, time in alternate(calls, device, args.repeats).items()}
    for side in (theirs, *ours.values()):
        side.close()
    joey = seconds.pop("Joey NMT")
    rows = [
        row(
            *(f"{args.task}, alpha {alpha}", "Joey NMT 2.3, softmax", 1.0, mine, joey),
            alpha=float(alpha),
            words_per_second=words / mine,
            words_per_second_joeynmt=words / joey,
        )
        for alpha, mine in seconds.items()
    ]
    report(rows, args, "joeynmt")
    for line in rows:
        print(f"{line['what']}: {line['words_per_second']:.0f} target tokens/s, {words / joey:.0f} Joey NMT's")
    return 0


if __name__ == "__main__":
    sys.exit(main())
