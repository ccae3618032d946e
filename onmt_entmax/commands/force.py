"""``onmt_entmax force``: what a model thinks of a given target, and what else it would allow at each step (Fig. 2).

onmt_entmax force --model best.pt --src dev.src --tgt dev.tgt --output forced.jsonl
onmt_entmax force --model best.pt --src_text "<lang:english> <tag:V> <tag:PST> d r a w" --complete "d r"

One JSON object per line; ``docs/formats.md`` describes them. With ``--complete``, the possible next tokens and the most
probable completions of a prefix (predictive translation).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from tqdm import tqdm

import onmt_entmax
from onmt_entmax.errors import invalid_setting
from onmt_entmax.files import BLANK_LINE, json_line, split_tokens, write_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``onmt_entmax force``."""
    onmt_entmax.register()
    from onmt_entmax.plugin.translate.inference import add_model_arguments, add_text_argument

    add_model_arguments(parser)
    add_text_argument(parser, "src", "the inputs")
    add_text_argument(parser, "tgt", "the targets to force")
    parser.add_argument("--complete", metavar="TOKENS", help="complete this prefix of every output instead of a target")
    parser.add_argument("--beam_size", type=int, default=5, help="completions per input (default: %(default)s)")
    parser.add_argument("--max_length", type=int, default=250, help="of a completion (default: %(default)s)")
    parser.add_argument("--max_support", type=int, default=50, help="tokens listed per step (default: %(default)s)")
    parser.add_argument("--output", metavar="FILE", help="JSON lines (default: standard output)")


def run(args: argparse.Namespace) -> int:
    """Force every line and write one JSON object for each, blank ones included."""
    from onmt_entmax.plugin.translate import inference
    from onmt_entmax.search.forced import complete_prefix, force, forced_record

    sources = inference.required_lines(args, "src")
    if args.max_support < 1:
        raise invalid_setting("max_support", args.max_support, "It must be at least 1.")
    targets = None
    if args.complete is None:
        targets = inference.required_lines(args, "tgt")
        inference.check_counts(sources, targets)
    models = inference.Models(args.model, args.gpu)

    def forced(batch: inference.Batch) -> list[dict]:
        ids = [models.target_ids(targets[line]) for line in batch.lines]
        lengths = [len(source) for source in batch.sources]
        results = force(batch.scorer, ids, models.start, models.eos, args.max_support, lengths)
        records = []
        for result, line, source in zip(results, batch.lines, batch.sources):
            records.append({**forced_record(result, line + 1, models.token, source), "source": source})
        return records

    def completed(batch: inference.Batch) -> list[dict]:
        from onmt_entmax.search.result import certificate_record

        prefix = models.target_ids(split_tokens(args.complete))
        settings = models.search_settings(
            args.beam_size, args.max_length, source_lengths=[len(source) for source in batch.sources]
        )
        found = complete_prefix(batch.scorer, [prefix] * len(batch.lines), settings)
        records = []
        for completion, line in zip(found, batch.lines):
            record = certificate_record(completion.result, line + 1, models.token)
            record["prefix"] = [models.token(token) for token in prefix]
            record["prefix_impossible_at"] = completion.prefix.impossible_at
            listed = completion.next_tokens[: args.max_support]
            record["next_tokens"] = [{"token": models.token(token), "prob": prob} for token, prob in listed]
            records.append(record)
        return records

    write_records(args, models, sources, forced if args.complete is None else completed)
    return 0


def write_records(args: argparse.Namespace, models, sources: list[list[str]], describe: Callable) -> None:
    """Run ``describe(batch) -> records`` over all batches; write in order, a null record for each blank line."""
    records = [json_line({"line": line, "reason": BLANK_LINE}) for line in range(1, len(sources) + 1)]
    with tqdm(total=len(sources), unit="line", disable=None, leave=False, desc=args.command) as progress:
        for batch in models.batches(sources, args.batch_size):
            for line, record in zip(batch.lines, describe(batch)):
                records[line] = json_line(record)
            progress.update(len(batch.lines))
    if args.output:
        write_lines(args.output, records)
    else:
        sys.stdout.writelines(f"{record}\n" for record in records)
