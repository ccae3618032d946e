"""``onmt_entmax evaluate TASK``: score what ``onmt_translate`` wrote.

onmt_entmax evaluate inflection --gold runs/inflection/test --predictions runs/inflection/test.pred
"""

from __future__ import annotations

import argparse
import importlib

# task -> (module, what it does)
TASKS = {
    "inflection": ("onmt_entmax.tasks.inflection.evaluate", "accuracy and edit distance per language"),
    "translation": ("onmt_entmax.tasks.translation.evaluate", "BLEU, tokenised and detokenised"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one sub-parser per task."""
    tasks = parser.add_subparsers(dest="task", metavar="TASK", required=True)
    for task, (module, description) in TASKS.items():
        own = tasks.add_parser(task, help=description, description=description, allow_abbrev=False)
        importlib.import_module(module).add_arguments(own)


def run(args: argparse.Namespace) -> int:
    """Run the task that was asked for and return its exit status."""
    return importlib.import_module(TASKS[args.task][0]).run(args)
