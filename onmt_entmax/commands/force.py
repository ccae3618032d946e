"""``onmt_entmax force``: what a model thinks of a given target, and what else it would allow at each step (Fig. 2).

onmt_entmax force --model best.pt --src dev.src --tgt dev.tgt --output forced.jsonl
onmt_entmax force --model best.pt --src-text "<lang:english> <tag:V> <tag:PST> d r a w" --complete "d r"

One JSON object per line; ``docs/formats.md`` describes them. With ``--complete``, the possible next tokens and the most
probable completions of a prefix (predictive translation).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from onmt_entmax.commands import shared
from onmt_entmax.errors import invalid_setting
from onmt_entmax.files import BLANK_LINE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shared.add_model_arguments(parser)
    shared.add_text_argument(parser, "src", "the inputs")
    shared.add_text_argument(parser, "tgt", "the targets to force")
    parser.add_argument("--complete", metavar="TOKENS", help="complete this prefix of every output instead of a target")
    parser.add_argument("--beam-size", type=int, help="completions per input (default: 5)")
    parser.add_argument("--max-length", type=int, help="of a completion (default: 250)")
    parser.add_argument("--max-support", type=int, default=50, help="tokens listed per step (default: %(default)s)")
    parser.add_argument("--output", metavar="FILE", help="JSON lines (default: standard output)")


def run(args: argparse.Namespace) -> int:
    """Force or complete every line and write one JSON object for each, blank ones included."""
    sources = shared.required_lines(args, "src")
    _refuse_unused(args)
    make = _forced if args.complete is None else _completed
    shared.write_records(args.output, make(args, sources))
    return 0


def _refuse_unused(args: argparse.Namespace) -> None:
    """Name the options of the other way of working: targets with a prefix, settings of a search without one."""
    if args.complete is not None:
        for name in ("tgt", "tgt_text"):
            if getattr(args, name) is not None:
                raise invalid_setting(name, getattr(args, name), "`complete` searches; leave one of the two out.")
        return
    for name in ("beam_size", "max_length"):
        if getattr(args, name) is not None:
            raise invalid_setting(name, getattr(args, name), "It is for `complete`; given targets are not searched.")


def _forced(args: argparse.Namespace, sources: list[str]) -> Iterator[dict[str, Any]]:
    targets = shared.required_lines(args, "tgt")
    shared.check_counts(sources, targets)
    for one in shared.load_model(args).force(sources, targets, args.max_support, args.batch_size):
        if not one.source:
            yield {"line": one.line, "reason": BLANK_LINE}
            continue
        yield {
            "line": one.line,
            "log_prob": one.log_prob,
            "impossible_at": one.impossible_at,
            "steps": one.steps,
            "source": one.source,
        }


def _completed(args: argparse.Namespace, sources: list[str]) -> Iterator[dict[str, Any]]:
    settings = {name: getattr(args, name) for name in ("beam_size", "max_length", "max_support", "batch_size")}
    given = {name: value for name, value in settings.items() if value is not None}
    for one in shared.load_model(args).complete(sources, args.complete, **given):
        yield {
            **one.certificate,
            "prefix": one.prefix,
            "prefix_impossible_at": one.prefix_impossible_at,
            "next_tokens": [{"token": token, "prob": prob} for token, prob in one.next_tokens],
        }
