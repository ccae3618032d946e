"""``onmt_entmax heads``: what each head of a Transformer looks at, by forced decoding.

onmt_entmax heads --model best.pt --src dev.src --tgt dev.tgt --output heads.json
onmt_entmax heads --model best.pt --src few.src --tgt few.tgt --weights head.jsonl --layer 2 --head 3
onmt_entmax figure attention --input head.jsonl --output head.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

from onmt_entmax.commands import shared
from onmt_entmax.errors import invalid_setting
from onmt_entmax.files import write_json
from onmt_entmax.signatures import signature

HEADS = ("encoder_self_attention", "decoder_self_attention", "context_attention")
WORDS = {
    "previous": "the token before",
    "itself": "the token itself",
    "next": "the token behind",
    "first": "the first token",
    "last": "the last token",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_forced_arguments(parser)
    parser.add_argument("--weights", metavar="FILE", help="instead: one head's weights as JSON lines")
    parser.add_argument("--attention", choices=HEADS, help="weights: which (default: context_attention)")
    parser.add_argument("--layer", type=int, metavar="N", help="weights: from 1 (default: the last)")
    parser.add_argument("--head", type=int, metavar="N", help="weights: from 1 (default: 1)")


def run(args: argparse.Namespace) -> int:
    """Print (and write) one row for each head, or write the weights of one."""
    sources, targets = shared.required_pairs(args)
    which = {name: getattr(args, name) for name in ("attention", "layer", "head") if getattr(args, name) is not None}
    if args.weights:
        if args.output:
            raise invalid_setting("output", args.output, "`weights` writes another file; leave one of the two out.")
        weights = shared.load_model(args).head_weights(sources, targets, **which, batch_size=args.batch_size)
        shared.write_records(args.weights, weights)
        return 0
    for name, value in which.items():
        raise invalid_setting(name, value, "It is for `weights`; the table has all heads.")
    model = shared.load_model(args)
    heads = model.heads(sources, targets, args.batch_size)
    source = args.src.name if args.src else "text"
    made = signature("heads", {"src": source, "lines": len(sources), "forced": None, "alpha": model.alphas})
    print(f"{'attention':24}{'layer':>5}{'head':>5}{'alpha':>8}{'non-zeros':>10}{'density %':>10}{'JS':>7}  looks at")
    for one in heads:
        where = one["looks_at"]
        seen = "" if where is None else f"{WORDS[where]} ({100 * one[where]:.0f}%)"
        print(
            f"{one['attention'].replace('_', ' '):24}{one['layer']:5}{one['head']:5}{one['alpha']:8.3f}"
            f"{one['support']:10.2f}{100 * one['density']:10.1f}{one['jensen_shannon']:7.3f}  {seen}".rstrip()
        )
    print(made)
    if args.output:
        models = [Path(path).name for path in args.model]
        write_json(args.output, {"heads": heads, "models": models, "signature": made})
    return 0
