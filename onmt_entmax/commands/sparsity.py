"""``onmt_entmax sparsity``: mean attended source words and mean target types, by forced decoding (Table 3).

onmt_entmax sparsity --model best.pt --src dev.src --tgt dev.tgt --output sparsity.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tqdm import tqdm

import onmt_entmax
from onmt_entmax.files import write_json
from onmt_entmax.version import __version__


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``onmt_entmax sparsity``."""
    onmt_entmax.register()
    from onmt_entmax.plugin.translate.inference import add_model_arguments, add_text_argument

    add_model_arguments(parser)
    add_text_argument(parser, "src", "the inputs")
    add_text_argument(parser, "tgt", "the gold targets")
    parser.add_argument("--output", metavar="FILE", help="also write the numbers as JSON")


def run(args: argparse.Namespace) -> int:
    """Print (and write) the means over all target tokens, EOS included."""
    from onmt_entmax.plugin.models import attention_alpha_text, generator_alpha
    from onmt_entmax.plugin.translate import inference
    from onmt_entmax.search.forced import force, sparsity

    sources, targets = inference.required_lines(args, "src"), inference.required_lines(args, "tgt")
    inference.check_counts(sources, targets)
    models = inference.Models(args.model, args.gpu)
    results = []
    with tqdm(total=len(sources), unit="line", disable=None, leave=False, desc="sparsity") as progress:
        for batch in models.batches(sources, args.batch_size):
            ids = [models.target_ids(targets[line]) for line in batch.lines]
            lengths = [len(source) for source in batch.sources]
            results += force(batch.scorer, ids, models.start, models.eos, 1, lengths)
            progress.update(len(batch.lines))
    numbers = sparsity(results)
    impossible = sum(result.impossible_at is not None for result in results)
    gold_zero = sum(step.log_prob is None for result in results for step in result.steps)
    alphas = "+".join(f"{generator_alpha(m):g}/{attention_alpha_text(m)}" for m in models.members)
    source_name = args.src.name if args.src else "text"
    record = {
        **numbers,
        "lines": len(results),
        "impossible_lines": impossible,
        "gold_zero": gold_zero / numbers["steps"] if numbers["steps"] else None,
        "models": [Path(path).name for path in args.model],
        "signature": f"sparsity|src:{source_name}|lines:{len(results)}|forced|alpha:{alphas}|version:{__version__}",
    }
    attended = "none" if record["source_words"] is None else f"{record['source_words']:.2f}"
    types = "none" if record["target_types"] is None else f"{record['target_types']:.2f}"
    print(f"attended source words {attended}, target types {types}, impossible targets {impossible} of {len(results)}")
    print(record["signature"])
    if args.output:
        write_json(args.output, record)
    return 0
