"""``onmt_entmax prepare TASK``: turn a corpus into the text files, vocabularies and YAML that OpenNMT-py trains from.

onmt_entmax prepare inflection --data data/inflection --output runs/inflection
"""

from __future__ import annotations

import argparse

from onmt_entmax.files import add_task_parsers, task_module

# task -> (module, what it does); a module is imported only when its task is asked for
TASKS = {
    "inflection": ("onmt_entmax.tasks.inflection.prepare", "SIGMORPHON files: lemma, form, tags"),
    "translation": ("onmt_entmax.tasks.translation.prepare", "parallel text: IWSLT, KFTT, WMT, your own"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one sub-parser per task."""
    add_task_parsers(parser, TASKS)


def run(args: argparse.Namespace) -> int:
    """Run the task that was asked for and return its exit status."""
    return task_module(TASKS, args.task).run(args)
