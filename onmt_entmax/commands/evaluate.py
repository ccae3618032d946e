"""``onmt_entmax evaluate TASK``: score what ``onmt_translate`` wrote.

onmt_entmax evaluate inflection --gold runs/inflection/test --predictions runs/inflection/test.pred
"""

from __future__ import annotations

import argparse

from onmt_entmax.files import add_task_parsers, task_module

# task -> (module, what it does); a module is imported only when its task is asked for
TASKS = {
    "inflection": ("onmt_entmax.tasks.inflection.evaluate", "accuracy and edit distance per language"),
    "translation": ("onmt_entmax.tasks.translation.evaluate", "BLEU, tokenised and detokenised"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one sub-parser per task."""
    add_task_parsers(parser, TASKS)


def run(args: argparse.Namespace) -> int:
    """Run the task that was asked for and return its exit status."""
    return task_module(TASKS, args.task).run(args)
