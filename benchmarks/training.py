"""Training speed of OpenNMT-py's softmax model against ours, step for step: ``python benchmarks/training.py``.

Each side is trained as its `onmt_train` does it, ours by our trainer and OpenNMT-py's by its own, on the same batches,
which are read on the CPU, in turns of a few steps.
Sources are random with the frequencies of words (Zipf), and each target is its source with every token renamed, so that
after ``--warm-up`` steps the models are sure of much, as trained ones are, and supports are small.

    python benchmarks/training.py --task translation --warm-up 500 --output training.json
    python benchmarks/training.py --task inflection --curve vocab --output vocab.json  # and see draw.py

With ``--corpus`` both sides train on real text instead, and ours goes on from trained models:

    python benchmarks/training.py --corpus runs/data/train --checkpoints 1.5=entmax15_best.pt 1.33=entmax133_best.pt
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import sys
import tempfile
from argparse import Namespace
from itertools import accumulate
from pathlib import Path

import torch
from onmt.decoders.decoder import InputFeedRNNDecoder
from onmt.encoders.rnn_encoder import RNNEncoder
from onmt.inputters.dynamic_iterator import OnDeviceDatasetIter
from onmt.models import NMTModel
from onmt.modules import Embeddings
from onmt.utils import Statistics
from onmt.utils.optimizers import Optimizer
from timing import add_options, alternate, report, row, set_up
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from onmt_entmax.engines.cpu.products import CHOICES, choose, products
from onmt_entmax.entmax import entmax
from onmt_entmax.files import read_lines, split_tokens
from onmt_entmax.plugin.modules import Encoder, InputFeedDecoder
from onmt_entmax.plugin.train.data import on_device
from onmt_entmax.plugin.train.losses import DeviceStatistics, EntmaxLossCompute, StockLossCompute
from onmt_entmax.plugin.train.optimiser import Adam
from onmt_entmax.plugin.train.processes import keep_memory
from onmt_entmax.plugin.train.trainer import SparseTrainer, StockTrainer

TASKS = {  # hidden units, types, sentences of a batch, shortest and longest target
    "inflection": {"hidden": 300, "vocab": 784, "batch": 64, "lengths": (8, 20)},
    "translation": {"hidden": 500, "vocab": 18000, "batch": 64, "lengths": (15, 35)},
}
QUICK = {"hidden": 20, "vocab": 50, "batch": 4, "lengths": (3, 6)}
ALPHAS = (1.0, 1.33, 1.5, 2.0)
GOALS = {("inflection", 1.5): 1.9, ("inflection", 1.0): 1.35, ("translation", 1.5): 2.0, ("translation", 1.33): 1.4}
CURVES = {
    "vocab": [{"vocab": n} for n in (1000, 4000, 16000, 64000)],
    "length": [{"lengths": (n, n)} for n in (10, 25, 50, 100, 200)],
    "batch": [{"batch": n} for n in (16, 64, 256)],
}
PAD, BOS, EOS, FIRST = 1, 2, 3, 4


def batches_of(task: dict, count: int) -> list[tuple[dict[str, Tensor], int]]:
    """Batches as OpenNMT-py reads them, on the CPU; sentences of one batch have similar lengths, as in its buckets."""
    low, high = task["lengths"]
    vocab = task["vocab"] - FIRST
    frequency = 1 / torch.arange(1, vocab + 1, dtype=torch.float64)
    found = []
    for _ in range(count):
        middle = int(torch.randint(low, high + 1, (1,)))
        lengths = torch.randint(max(low, middle - 2), min(high, middle + 2) + 1, (task["batch"],))
        longest = int(lengths.max())
        tokens = torch.multinomial(frequency, task["batch"] * longest, replacement=True).view(-1, longest)
        inside = torch.arange(longest) < lengths.unsqueeze(1)
        src = torch.where(inside, tokens + FIRST, PAD)
        tgt = torch.full((task["batch"], longest + 2), PAD)
        tgt[:, 0] = BOS
        tgt[:, 1:-1] = torch.where(inside, (tokens * 7 + 3) % vocab + FIRST, PAD)
        tgt.scatter_(1, lengths.unsqueeze(1) + 1, EOS)
        found.append(({"src": src.unsqueeze(-1), "srclen": lengths, "tgt": tgt.unsqueeze(-1)}, 0))
    return found


def real_batches(task: dict, prefix: str, count: int) -> list[tuple[dict[str, Tensor], int]]:
    """Batches of ``PREFIX.src`` and ``PREFIX.tgt``, drawn from all lines in the order of their lengths."""
    sides = []
    for side in ("src", "tgt"):
        numbers = {token: number for number, token in enumerate(task["tokens"][side])}
        lines = read_lines(f"{prefix}.{side}")
        sides.append([torch.tensor([numbers.get(token, 0) for token in split_tokens(line)]) for line in lines])
    pairs = sorted(zip(*sides), key=lambda pair: (len(pair[0]), len(pair[1])))
    size = task["batch"]
    found = []
    for start in (torch.randperm(len(pairs) // size)[:count] * size).tolist():
        sources, targets = zip(*pairs[start : start + size])
        targets = [F.pad(F.pad(target, (1, 0), value=BOS), (0, 1), value=EOS) for target in targets]
        src, tgt = (nn.utils.rnn.pad_sequence(part, True, PAD).unsqueeze(-1) for part in (sources, targets))
        found.append(({"src": src, "srclen": torch.tensor([len(source) for source in sources]), "tgt": tgt}, 0))
    return found


def task_of(checkpoints: list[dict]) -> dict:
    """Sizes and tokens of trained models, which have to be the same in all of them."""
    tasks = [
        {
            "hidden": checkpoint["opt"].hidden_size,
            "vocab": len(checkpoint["vocab"]["tgt"]),
            "batch": checkpoint["opt"].batch_size,
            "tokens": {side: checkpoint["vocab"][side] for side in ("src", "tgt")},
        }
        for checkpoint in checkpoints
    ]
    if any(task != tasks[0] for task in tasks):
        sys.exit("training.py: the checkpoints differ in their sizes or vocabularies.")
    return tasks[0]


class Side:
    """One model and its trainer, OpenNMT-py's or ours.

    Args:
        task: see ``TASKS``.
        alpha: None for OpenNMT-py's softmax model, else ours with this alpha in attention and output.
        checkpoint: of a trained model of these sizes and this alpha, to go on from; None: untrained.
    """

    def __init__(self, task: dict, alpha: float | None, device: torch.device, checkpoint: dict | None = None) -> None:
        torch.manual_seed(1)
        self.alpha = 1.0 if alpha is None else alpha
        hidden, vocab = task["hidden"], task["vocab"]
        options = Namespace(
            rnn_type="LSTM",
            brnn=True,
            enc_layers=2,
            dec_layers=2,
            enc_hid_size=hidden,
            dec_hid_size=hidden,
            dropout=[0.3],
            bridge=False,
            global_attention="general",
            global_attention_function="softmax" if alpha is None or alpha == 1 else "entmax",
            global_attention_alpha=alpha,
            coverage_attn=False,
            context_gate=None,
            copy_attn=False,
            reuse_copy_attn=False,
            copy_attn_type="general",
        )
        encoder, decoder = (RNNEncoder, InputFeedRNNDecoder) if alpha is None else (Encoder, InputFeedDecoder)
        sizes = (len(task["tokens"]["src"]), vocab) if "tokens" in task else (vocab, vocab)
        parts = zip((encoder, decoder), sizes)
        model = NMTModel(*(part.from_opt(options, Embeddings(hidden, n, PAD, dropout=0.3)) for part, n in parts))
        model.generator = nn.Linear(hidden, vocab)
        for parameter in model.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)
        if checkpoint is not None:
            generator = {f"generator.{name}": value for name, value in checkpoint["generator"].items()}
            nn.Module.load_state_dict(model, {**checkpoint["model"], **generator})
        model.to(device)
        criterion = nn.CrossEntropyLoss(ignore_index=PAD, reduction="sum")
        loss = (StockLossCompute if alpha is None else EntmaxLossCompute)(criterion, model.generator)
        if alpha is not None:
            loss.alpha, loss.fused = alpha, True
        adam = (torch.optim.Adam if alpha is None else Adam)(model.parameters(), 0.001)
        if checkpoint is not None:
            adam.load_state_dict(checkpoint["optim"]["optimizer"])
        self.prepare(model, loss, Optimizer(adam, 0.001, max_grad_norm=5), device)

    def prepare(self, model: NMTModel, loss: nn.Module, optimizer: Optimizer, device: torch.device) -> None:
        """Make the trainer; the loss says whose."""
        ours, self.device = isinstance(loss, EntmaxLossCompute), device
        trainer, statistics = (SparseTrainer, DeviceStatistics) if ours else (StockTrainer, Statistics)
        self.trainer = trainer(model, loss, loss, None, {}, optimizer, norm_method="tokens")
        self.totals, self.reported = statistics(), statistics()

    def train(self, batches: list) -> None:
        """One step on each batch."""
        batches = [({**batch}, bucket) for batch, bucket in batches]
        if type(self.trainer) is StockTrainer and self.device.type != "cpu":
            batches = OnDeviceDatasetIter(batches, self.device)
        for accumulated, normalization in self.trainer._accum_batches(batches):
            self.trainer._gradient_accumulation(accumulated, normalization, self.totals, self.reported)

    def support(self, batch: dict[str, Tensor]) -> float:
        """Mean number of types of non-zero probability, over the tokens of a batch."""
        batch = on_device(batch, self.device)
        model, target = self.trainer.model, batch["tgt"][:, 1:, 0]
        with torch.no_grad():
            outputs, _ = model(batch["src"], batch["tgt"], batch["srclen"])
            sizes = [(entmax(model.generator(row), self.alpha) > 0).sum(-1) for row in outputs]  # a sentence at a time
        return float(torch.stack(sizes)[target.ne(PAD)].float().mean())


class Worker:
    """A side in a process of its own, with what its training sets for a process; ours keeps the memory it freed."""

    def __init__(
        self,
        args: argparse.Namespace,
        task: dict,
        alpha: float | None,
        checkpoint: str | None = None,
        how: str = "fp32",
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, args, task, alpha, checkpoint, how), daemon=True)
        self._process.start()
        theirs.close()

    def __call__(self, name: str, *arguments) -> object:
        """The result of a function of :func:`serve`."""
        self._pipe.send((name, arguments))
        try:
            return self._pipe.recv()
        except EOFError:
            sys.exit("training.py: a process ended early; what it said stands above.")

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join()


def serve(pipe, args: argparse.Namespace, task: dict, alpha: float | None, checkpoint: str | None, how: str) -> None:
    """Do what the other end asks for, with float32 products as ``how`` says, until it closes."""
    with products(how, training=True):
        _serve(pipe, args, task, alpha, checkpoint)


def _serve(pipe, args: argparse.Namespace, task: dict, alpha: float | None, checkpoint: str | None) -> None:
    device = set_up(args)
    torch.set_flush_denormal(not args.keep_subnormals)  # before there are threads, which inherit it
    if alpha is not None or args.keep_memory:
        keep_memory()
    side = Side(task, alpha, device, load(checkpoint) if checkpoint else None)
    blocks: list[list] = []

    def receive(packed: bytes) -> None:
        blocks.extend(unpack(packed))

    def warm_up(steps: int) -> None:
        for step in range(steps):
            torch.manual_seed(2 + step)  # the same batches for all
            side.train(batches_of({**task, "batch": max(1, task["batch"] // 4)}, 1))

    def train() -> None:
        side.train(blocks.pop(0))
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # here, since the other process can't wait for this one's work

    functions = {
        "receive": receive,
        "warm_up": warm_up,
        "train": train,
        "support": lambda packed: side.support(unpack(packed)[0][0][0]),
        "peak_memory": lambda: peak_memory(side, task, device),
    }
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        pipe.send(functions[name](*arguments))


def load(checkpoint: str) -> dict:
    """A file of OpenNMT-py's."""
    return torch.load(checkpoint, "cpu", weights_only=False)


def pack(blocks: list[list]) -> bytes:
    """Blocks of batches, to be sent."""
    packed = io.BytesIO()
    torch.save([[batch for batch, _ in block] for block in blocks], packed)
    return packed.getvalue()


def unpack(packed: bytes) -> list[list]:
    """What :func:`pack` was given."""
    return [[(batch, 0) for batch in block] for block in torch.load(io.BytesIO(packed))]


def compare(name: str, task: dict, args: argparse.Namespace, checkpoints: dict[float, str]) -> list[dict[str, object]]:
    """One row for each alpha: milliseconds of a step, words per second, and peak memory if asked for."""
    how = args.matmul_precision if args.device == "cpu" else "fp32"
    sides = {"stock": Worker(args, task, None)}
    if choose(how, training=True).library != "PyTorch":
        sides["stock, same products"] = Worker(args, task, None, how=how)
    stock = list(sides)
    sides.update({f"{a:g}": Worker(args, task, a, checkpoints.get(a), how) for a in args.alphas})
    for side, worker in sides.items():
        if side not in (*stock, "1"):  # softmax takes its time, whatever it has learned
            worker("warm_up", args.warm_up)
    count = args.block * (args.repeats + 2)
    batches = real_batches(task, args.corpus, count) if args.corpus else batches_of(task, count)
    blocks = [batches[start : start + args.block] for start in range(0, count, args.block)]
    words = sum(int(batch["tgt"][:, 1:].ne(PAD).sum()) for batch, _ in batches) / count
    for worker in sides.values():
        worker("receive", pack(blocks))
    times = alternate({side: lambda s=side: sides[s]("train") for side in sides}, torch.device("cpu"), args.repeats)
    supports = {side: worker("support", pack(blocks[-1:])) for side, worker in sides.items() if side not in stock}
    for worker in sides.values():
        worker.close()
    memory = {}
    for side in ("stock", *supports) if args.memory else ():
        worker = Worker(args, task, None if side == "stock" else float(side))
        memory[side] = worker("peak_memory")
        worker.close()
    rows = []
    for side, support in supports.items():
        ours, theirs = times[side] / args.block, times["stock"] / args.block
        more = {"alpha": float(side), "words_per_second": words / ours, "words_per_second_stock": words / theirs}
        more |= {"support": support, "products": choose(how, training=True).name}
        if len(stock) > 1:
            more["ratio_same_products"] = times[stock[1]] / times[side]
        if side in memory:
            more |= {"peak_mib": memory[side], "peak_mib_stock": memory["stock"]}
        goal = GOALS.get((name, float(side)), 1.0)
        what = f"{name}, alpha {side} (support {support:.0f})"
        rows.append(row(what, "OpenNMT-py, softmax", goal, ours, theirs, **more))
    return rows


def peak_memory(side: Side, task: dict, device: torch.device) -> float:
    """MiB of tensors that are there at once in five steps, beyond parameters, gradients and optimizer state."""
    side.train(batches_of({**task, "lengths": (1, 1)}, 1))  # makes that state
    side.trainer.model.zero_grad(set_to_none=True)
    gradients = sum(parameter.nbytes for parameter in side.trainer.model.parameters())
    torch.manual_seed(1)  # the same batches for all sides, whatever their dropout has drawn
    batches = batches_of(task, 5)
    if device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        side.train(batches)
        return (torch.cuda.max_memory_allocated() - before - gradients) / 2**20
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        side.train(batches)
    with tempfile.TemporaryDirectory() as folder:
        found.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]")
    return (max(accumulate(size for _, size in changes)) - gradients) / 2**20


def print_profile(task: dict, device: torch.device) -> None:
    """Print where a step's time goes, for stock and for alpha 1.5."""
    for alpha in (None, 1.5):
        side = Side(task, alpha, device)
        side.train(batches_of(task, 3))
        batches = batches_of(task, 5)
        with profile() as found:
            side.train(batches)
        print("OpenNMT-py, softmax" if alpha is None else f"ours, alpha {alpha:g}")
        print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=40))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_options(parser)
    parser.add_argument("--task", choices=list(TASKS), action="append", help="default: both")
    parser.add_argument("--alphas", type=float, nargs="+", default=ALPHAS, help="in attention and output")
    parser.add_argument(
        "--warm-up", type=int, default=0, help="steps on small batches of each sparse model before the measurements"
    )
    parser.add_argument("--corpus", metavar="PREFIX", help="real text, PREFIX.src and PREFIX.tgt, for --checkpoints")
    parser.add_argument(
        "--checkpoints", nargs="+", metavar="ALPHA=FILE", default=[], help="trained models; these alphas are measured"
    )
    parser.add_argument("--block", type=int, default=4, help="steps of a turn (default: 4)")
    parser.add_argument("--curve", choices=list(CURVES), help="growth with the vocabulary, the length or the batch")
    parser.add_argument(
        "--keep-subnormals", action="store_true", help="compute with them, on both sides (default: zero on both)"
    )
    parser.add_argument("--keep-memory", action="store_true", help="keep freed memory on OpenNMT-py's side, too")
    parser.add_argument(
        "--matmul-precision", choices=CHOICES, default="auto", help="products of our side, see onmt_train's option"
    )
    parser.add_argument("--memory", action="store_true", help="also peak memory, each in a process of its own")
    parser.add_argument("--profile", action="store_true", help="print a profile of the first task instead")
    args = parser.parse_args()
    device = set_up(args)
    torch.set_flush_denormal(not args.keep_subnormals)
    if bool(args.corpus) != bool(args.checkpoints):
        parser.error("--corpus and --checkpoints go together")
    if args.corpus and (args.warm_up or args.curve or args.memory or args.profile):
        parser.error("--corpus goes with none of --warm-up, --curve, --memory and --profile")
    checkpoints = {float(alpha): file for alpha, file in (given.split("=", 1) for given in args.checkpoints)}
    if checkpoints:
        args.alphas = list(checkpoints)
        tasks = {args.corpus: task_of([load(file) for file in checkpoints.values()])}
    else:
        tasks = {name: QUICK if args.quick else TASKS[name] for name in args.task or TASKS}
    if args.profile:
        print_profile(next(iter(tasks.values())), device)
        return 0
    rows = []
    for name, task in tasks.items():
        for change in CURVES[args.curve] if args.curve else [{}]:
            values = ", ".join(f"{key} {value}" for key, value in change.items())
            found = compare(f"{name}, {values}" if change else name, {**task, **change}, args, checkpoints)
            rows += [{**line, "at": change} for line in found] if change else found
    report(rows, args, "training")
    return 0


if __name__ == "__main__":
    sys.exit(main())
