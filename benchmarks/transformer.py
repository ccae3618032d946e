"""Speed of Transformers: sparse output, heads or both against softmax (``python benchmarks/transformer.py``).

Each side is trained as its `onmt_train` does it, all in one process on the same batches, in turns of a few steps. A
warm-up on random text (see ``training.py``) makes supports small, as in trained models. On a GPU stock's softmax is
measured twice: with its fused kernels (``scaled-dot-flash``) and without. Decoding, with a beam of 5, is OpenNMT-py's
own of the softmax model against ours of each; both stop at the source's length, so that they take equally many steps
(``decoding.py`` measures trained checkpoints).

    python benchmarks/transformer.py --shape small --warm-up 300 --memory --output transformer.json
"""

from __future__ import annotations

import argparse
import sys

import onmt.opts
import torch
from onmt.decoders.transformer import TransformerDecoder
from onmt.encoders.transformer import TransformerEncoder
from onmt.models import NMTModel
from onmt.modules import Embeddings
from onmt.translate import GNMTGlobalScorer
from onmt.utils.optimizers import Optimizer
from onmt.utils.parse import ArgumentParser
from timing import add_options, alternate, report, row, set_up
from torch import nn
from training import FIRST, PAD, Side, batches_of, peak_memory

from onmt_entmax.plugin.alphas import HEADS
from onmt_entmax.plugin.heads import begin_queries, drop_by_engine, map_heads
from onmt_entmax.plugin.standins import build_vocab_from_tokens
from onmt_entmax.plugin.train.data import on_device
from onmt_entmax.plugin.train.losses import EntmaxLossCompute, StockLossCompute
from onmt_entmax.plugin.train.optimiser import Adam
from onmt_entmax.plugin.train.processes import keep_memory
from onmt_entmax.plugin.translate.batching import MOST
from onmt_entmax.plugin.translate.translator import SparseTranslator, StockTranslator

SHAPES = {  # 64 sentences of 25 tokens on the average
    "base": {"layers": 6, "hidden": 512, "heads": 8, "vocab": 18000, "batch": 64, "lengths": (15, 35)},
    "small": {"layers": 3, "hidden": 256, "heads": 4, "vocab": 5200, "batch": 64, "lengths": (15, 35)},
}
QUICK = {"layers": 1, "hidden": 16, "heads": 2, "vocab": 50, "batch": 4, "lengths": (3, 6)}
DECODING = 1.1  # how many times as fast as stock's search of its softmax model
# alpha of output and heads, and how many times as fast as stock the side is to be
OURS = {
    "output 1.5": (1.5, 1.0, 1.1),
    "heads 1.5": (1.0, 1.5, 0.95),
    "output and heads 1.5": (1.5, 1.5, 1.05),
    "output 1.5, heads learned": (1.5, "learned", 0.85),
}


class Transformer(Side):
    """One Transformer and its trainer, OpenNMT-py's or ours.

    Args:
        task: see ``SHAPES``.
        output, heads: their alphas.
        stock: take OpenNMT-py's loss, optimizer and trainer.
        kernels: ``self_attn_type``.
    """

    def __init__(
        self, task: dict, output: float, heads: float | str, device: torch.device, stock: bool, kernels: str
    ) -> None:
        torch.manual_seed(1)
        self.alpha, self.stock, hidden, vocab = output, stock, task["hidden"], task["vocab"]
        options = ArgumentParser.defaults(onmt.opts.model_opts)
        options.enc_layers = options.dec_layers = task["layers"]
        options.enc_hid_size = options.dec_hid_size = hidden
        options.heads, options.transformer_ff, options.self_attn_type = task["heads"], 4 * hidden, kernels
        options.dropout = options.attention_dropout = [0.1]
        options.parallel_mode, options.world_size = "data_parallel", 1
        model = NMTModel(
            *(
                part.from_opt(options, Embeddings(hidden, vocab, PAD, position_encoding=True, dropout=0.1))
                for part in (TransformerEncoder, TransformerDecoder)
            )
        )
        model.generator = nn.Linear(hidden, vocab)
        model.generator.alpha = output
        for parameter in model.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        if not stock:
            map_heads(model, dict.fromkeys(HEADS, heads))
            begin_queries(model, None)
            drop_by_engine(model)
        if kernels != "scaled-dot-flash":
            for layer in model.modules():
                if hasattr(layer, "self_attn_type"):
                    layer.self_attn_type = kernels
        model.to(device)
        criterion = nn.CrossEntropyLoss(ignore_index=PAD, reduction="sum")
        loss = (StockLossCompute if stock else EntmaxLossCompute)(criterion, model.generator)
        if not stock:
            loss.alpha, loss.fused = output, True
        adam = (torch.optim.Adam if stock else Adam)(model.parameters(), 0.0005)
        self.prepare(model, loss, Optimizer(adam, 0.0005, max_grad_norm=5), device)

    def translator(self, vocab: int) -> StockTranslator:
        """OpenNMT-py's translator for stock's side, else ours."""
        tokens = build_vocab_from_tokens(
            [f"t{number}" for number in range(FIRST, vocab)], special_tokens=["<unk>", "<blank>", "<s>", "</s>"]
        )
        vocabs = {"src": tokens, "tgt": tokens, "decoder_start_token": "<s>"}
        no_penalty = GNMTGlobalScorer(0, 0, "none", "none")
        settings = {"beam_size": 5, "global_scorer": no_penalty, "max_length_ratio": 0, "dump_beam": ""}
        model = self.trainer.model.eval()
        return (StockTranslator if self.stock else SparseTranslator)(model, vocabs, **settings)


def decode(translator: StockTranslator, batches: list[dict]) -> None:
    """Search batches, ours several as one, as in ``onmt_translate``."""
    translator.max_length = int(max(batch["srclen"].max() for batch in batches))
    if isinstance(translator, SparseTranslator):
        translator.translate_batches(batches, False)
    else:
        for batch in batches:
            translator.translate_batch(batch, False)


def compare(name: str, task: dict, args: argparse.Namespace, device: torch.device) -> list[dict[str, object]]:
    """One row for each of our sides and each of stock's."""
    kinds = {"OpenNMT-py, softmax": "scaled-dot"}
    if device.type == "cuda":
        kinds["OpenNMT-py, fused kernels"] = "scaled-dot-flash"
    makers = {side: lambda k=kernels: Transformer(task, 1.0, 1.0, device, True, k) for side, kernels in kinds.items()}
    for side, (output, heads, _) in OURS.items():
        makers[side] = lambda o=output, h=heads: Transformer(task, o, h, device, False, "scaled-dot-flash")
    sides = {side: make() for side, make in makers.items()}
    for side in sides.values():
        for step in range(args.warm_up):
            torch.manual_seed(2 + step)  # the same batches for all
            side.train(batches_of({**task, "batch": max(1, task["batch"] // 4)}, 1))
    count = args.block * (args.repeats + 2)
    batches = batches_of(task, count)
    blocks = {side: [batches[at : at + args.block] for at in range(0, count, args.block)] for side in sides}
    words = sum(int(batch["tgt"][:, 1:].ne(PAD).sum()) for batch, _ in batches) / count
    calls = {side: lambda s=side: sides[s].train(blocks[s].pop(0)) for side in sides}
    times = {side: found / args.block for side, found in alternate(calls, device, args.repeats).items()}
    supports = {side: sides[side].support(batches[-1][0]) for side in OURS}
    sources = [
        on_device({part: batch[part] for part in ("src", "srclen")}, device) for batch, _ in batches_of(task, MOST)
    ]
    translators = {side: one.translator(task["vocab"]) for side, one in sides.items()}
    calls = {side: lambda t=translator: decode(t, sources) for side, translator in translators.items()}
    decoding = alternate(calls, device, max(3, args.repeats // 3))
    del translators, calls
    memory = {}
    for side in list(sides) if args.memory else ():
        del sides[side]
        memory[side] = peak_memory(makers[side](), task, device)
    rows = []
    for side, (_, _, goal) in OURS.items():
        for against in kinds:
            more = {"words_per_second": words / times[side], "words_per_second_stock": words / times[against]}
            more["support"] = supports[side]
            if memory:
                more |= {"peak_mib": memory[side], "peak_mib_stock": memory[against]}
            rows.append(row(f"{name}, {side}", against, goal, times[side], times[against], **more))
            theirs = decoding[against]
            rows.append(row(f"{name}, {side}: beam of 5", against, DECODING, decoding[side], theirs))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_options(parser)
    parser.add_argument("--shape", choices=list(SHAPES), action="append", help="default: both")
    parser.add_argument("--warm-up", type=int, default=0, help="steps on small batches before the measurements")
    parser.add_argument("--block", type=int, default=2, help="steps of a turn (default: 2)")
    parser.add_argument("--memory", action="store_true", help="also peak memory")
    args = parser.parse_args()
    device = set_up(args)
    torch.set_flush_denormal(True)
    keep_memory()
    rows = []
    for name, task in {"quick": QUICK}.items() if args.quick else SHAPES.items():
        if args.quick or name in (args.shape or SHAPES):
            rows += compare(name, task, args, device)
    report(rows, args, "transformer")
    return 0


if __name__ == "__main__":
    sys.exit(main())
