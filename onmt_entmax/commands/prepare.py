"""``onmt_entmax prepare TASK``: turn a corpus into the text files, vocabularies and YAML that OpenNMT-py trains from.

onmt_entmax prepare inflection --data data/inflection --output runs/inflection
"""

from __future__ import annotations

import argparse
import importlib

# task -> (module, what it does)
TASKS = {
    "inflection": ("onmt_entmax.tasks.inflection.prepare", "SIGMORPHON files: lemma, form, tags"),
    "translation": ("onmt_entmax.tasks.translation.prepare", "parallel text: IWSLT, KFTT, WMT, your own"),
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
