"""``onmt_entmax evaluate TASK``: score what ``onmt_translate`` wrote; ``search``: what a model and its search find.

onmt_entmax evaluate inflection --gold runs/medium/test --predictions test.pred --certificates test.jsonl
onmt_entmax evaluate inflection --gold runs/medium/test --predictions test.pred --train runs/medium
onmt_entmax evaluate translation --data runs/de-en --predictions seed1.pred seed2.pred seed3.pred --json scores.json
onmt_entmax evaluate search --model best.pt --src test.src --tgt test.tgt --measure bleu --json search.json
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from onmt_entmax.commands import shared
from onmt_entmax.errors import UserError
from onmt_entmax.files import split_tokens, write_json
from onmt_entmax.signatures import signature
from onmt_entmax.tasks.translation.text import RAW_TOKENIZERS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one sub-parser per task."""
    shared.add_tasks(
        parser,
        inflection=("accuracy and edit distance per language", _inflection_arguments),
        translation=("BLEU, tokenised and detokenised", _translation_arguments),
        search=("search errors of beams, exact search and empty outputs, with a model", _search_arguments),
    )


def run(args: argparse.Namespace) -> int:
    """Score, write the JSON asked for, print the table, return 0."""
    if args.task == "inflection":
        from onmt_entmax.tasks.inflection.evaluate import Options, evaluate, table

        result = evaluate(Options(**{name: getattr(args, name) for name in Options.__dataclass_fields__}))
    elif args.task == "search":
        from onmt_entmax.tasks.search import table

        result = _searched(args)
    else:
        from onmt_entmax.tasks.results import training_fields
        from onmt_entmax.tasks.translation.evaluate import evaluate, table

        for setting in ("predictions", "compare", "certificates"):
            shared.check_distinct(getattr(args, setting) or [], setting)
        result = evaluate(
            args.data,
            args.predictions,
            split=args.split,
            n_best=args.n_best,
            compare=args.compare,
            samples=args.bootstrap_samples,
            bootstrap_seed=args.bootstrap_seed,
            certificates=args.certificates,
            raw_tokenizer=args.raw_tokenizer,
            about=training_fields(args),
        )
    if args.json:
        write_json(args.json, result)
    print(table(result))
    return 0


def _inflection_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--gold", required=True, nargs="+", type=Path, metavar="PATH", help="folder with LANG.gold, or gold files")
    system = "output of onmt_translate, all languages in one file or a folder of LANG.pred"
    add("--predictions", required=True, type=Path, metavar="PATH", help=system)
    add("--submitted", action="store_true", help="predictions are a folder of LANG-SETTING-out files with three fields")
    add("--n-best", type=int, default=1, metavar="N", help="lines per input (default: %(default)s)")
    train = "also accuracy by whether the lemma is in these training rows: prepared folder, or official files"
    add("--train", nargs="+", type=Path, metavar="PATH", help=train)
    certificates = "one JSON object per input; a file, or a folder of LANG.jsonl"
    add("--certificates", type=Path, metavar="PATH", help=certificates)
    add("--compare", type=Path, metavar="PATH", help="predictions of a second system: paired bootstrap")
    add("--submission", type=Path, metavar="FOLDER", help="write LANG-SETTING-out files, the shared task's format")
    add("--name", help="the task's name in the signature (default: from the manifest)")
    add("--setting", help="for the signature (default: from the manifest)")
    add("--split", help="for the signature (default: the gold folder's name)")
    _common_arguments(parser, "1+2+3 for an ensemble")


def _translation_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--data", required=True, type=Path, metavar="FOLDER", help="the output of `onmt_entmax prepare translation`")
    add("--split", default="test", metavar="SPLIT", help="test, dev (default: %(default)s)")
    runs = "output of onmt_translate, one file per run (seed)"
    add("--predictions", required=True, nargs="+", type=Path, metavar="FILE", help=runs)
    add("--n-best", type=int, default=1, metavar="N", help="lines per input; the first counts (default: %(default)s)")
    add("--compare", nargs="+", type=Path, metavar="FILE", help="runs of a second system: paired bootstrap")
    add("--certificates", nargs="+", type=Path, metavar="FILE", help="one JSON object per input; a file per run")
    raw = f"sacreBLEU's tokeniser for running text: {', '.join(RAW_TOKENIZERS)} (default: 13a; ja-mecab for Japanese)"
    add("--raw-tokenizer", metavar="NAME", help=raw)
    _common_arguments(parser, "e.g. 1,2,3")


def _search_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    shared.add_model_arguments(parser)
    shared.add_text_argument(parser, "src", "the inputs")
    shared.add_text_argument(parser, "tgt", "the references, as tokens of the model")
    add("--measure", required=True, help="acc: percent of the lines that are right; bleu: of words, subwords undone")
    beams = "their sizes (default: 1 2 5 10 50)"
    add("--beams", nargs="+", type=int, default=[1, 2, 5, 10, 50], metavar="N", help=beams)
    add("--max-expansions", type=int, default=10_000, metavar="N", help="of exact search, per line (%(default)s)")
    add("--max-length", type=int, default=250, metavar="N", help="most tokens of an output (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write all numbers")


def _searched(args: argparse.Namespace) -> dict[str, Any]:
    """Search with every beam and exactly, and compare."""
    from onmt_entmax.tasks.search import Output, check, finite, search_numbers

    beams = check(args.measure, args.beams)
    pairs = [(split_tokens(source), split_tokens(target)) for source, target in zip(*shared.required_pairs(args))]
    filled = [pair for pair in pairs if pair[0]]
    if not filled:
        raise UserError("There is nothing to search: all sources are blank.")
    sources, targets = zip(*filled)
    model = shared.load_model(args)
    searches, proven = {}, []
    settings = {"max_length": args.max_length, "batch_size": args.batch_size}
    for number, beam in enumerate([*beams, None], 1):
        what = "exact search" if beam is None else f"beam {beam}"
        print(f"{what} ({number} of {len(beams) + 1}), {len(sources):,} lines", file=sys.stderr)
        if beam is None:
            found = model.translate(sources, search="exact", max_expansions=args.max_expansions, **settings)
            proven = [one.certificate["optimal"] is True for one in found]
        else:
            found = model.translate(sources, beam_size=beam, certificates=False, **settings)
        searches[beam] = [Output(one.tokens, finite(one.log_prob, one.hypotheses[0].finished)) for one in found]
    empty = [one.log_prob for one in model.force(sources, [[]] * len(sources), 1, args.batch_size)]
    result = search_numbers(searches, proven, empty, targets, args.measure)
    about = {
        "src": args.src.name if args.src else "text",
        "lines": len(sources),
        "measure": args.measure,
        "subwords": result["subwords"],
        "max_expansions": args.max_expansions,
        "max_length": args.max_length,
        "alpha": model.alphas,
        **result.pop("fields"),
    }
    return {
        **result,
        "blank": len(pairs) - len(sources),
        "max_expansions": args.max_expansions,
        "models": [Path(path).name for path in args.model],
        "signature": signature("search", about),
    }


def _common_arguments(parser: argparse.ArgumentParser, seeds: str) -> None:
    add = parser.add_argument
    add("--bootstrap-samples", type=int, default=1000, metavar="N", help="(default: %(default)s)")
    add("--bootstrap-seed", type=int, default=1, metavar="N", help="(default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write all numbers")
    add("--alpha", default="unknown", metavar="OUT/ATT", help="alphas of output and attention, for the signature")
    add("--seed", default="unknown", metavar="SEED", help=f"of the training, for the signature; {seeds}")
    add("--steps", metavar="STEPS", help="the training's length, for the signature")
    shared.add_recipe_argument(parser)
