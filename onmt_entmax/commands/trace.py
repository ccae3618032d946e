"""``onmt_entmax trace``: the whole beam search of an input, every prefix with its probability (the paper's Fig. 1).

onmt_entmax trace --model best.pt --src_text "<lang:english> <tag:V> <tag:V.PTCP> <tag:PST> d r a w" --output draw.jsonl
onmt_entmax figure beam --input draw.jsonl --output draw.png
"""

from __future__ import annotations

import argparse
import math

import onmt_entmax
from onmt_entmax.commands.force import write_records


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``onmt_entmax trace``."""
    onmt_entmax.register()
    from onmt_entmax.plugin.translate.inference import add_model_arguments, add_text_argument

    add_model_arguments(parser)
    add_text_argument(parser, "src", "the inputs")
    parser.add_argument("--beam_size", type=int, default=5, help="prefixes kept per step (default: %(default)s)")
    parser.add_argument("--max_length", type=int, default=250, help="of a hypothesis (default: %(default)s)")
    parser.add_argument("--output", metavar="FILE", help="JSON lines (default: standard output)")


def run(args: argparse.Namespace) -> int:
    """Search every line and write its certificate with the tree, one JSON object each."""
    from onmt_entmax.plugin.translate import inference
    from onmt_entmax.search.beam import beam_search
    from onmt_entmax.search.result import certificate_record

    sources = inference.required_lines(args, "src")
    models = inference.Models(args.model, args.gpu)

    def traced(batch: inference.Batch) -> list[dict]:
        settings = models.search_settings(args.beam_size, args.max_length, return_attention=True, return_tree=True)
        records = []
        for result, line, source in zip(beam_search(batch.scorer, settings), batch.lines, batch.sources):
            record = certificate_record(result, line + 1, models.token)
            record["source"] = source
            record["tree"] = [
                {
                    "parent": node.parent,
                    "token": models.token(node.token),
                    "log_prob": node.log_prob,
                    "prob": math.exp(node.log_prob),
                    "status": node.status,
                }
                for node in result.tree or []
            ]
            for hypothesis, found in zip(record["hypotheses"], result.hypotheses):
                attention = found.attention
                hypothesis["attention"] = None if attention is None else attention[:, : len(source)].tolist()
            records.append(record)
        return records

    write_records(args, models, sources, traced)
    return 0
