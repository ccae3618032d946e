"""``onmt_entmax prepare TASK``: turn a corpus into the text files, vocabularies and YAML that OpenNMT-py trains from.

onmt_entmax prepare inflection --data conll2018/task1 --setting medium --output runs/medium
onmt_entmax prepare translation --corpus iwslt17 --direction de-en --data iwslt17 --output runs/de-en
onmt_train -config runs/de-en/data.yaml ...
"""

from __future__ import annotations

import argparse
from pathlib import Path

from onmt_entmax.commands import shared
from onmt_entmax.tasks.inflection.format import SETTINGS
from onmt_entmax.tasks.translation.prepare import SUBWORDS, Settings, prepare
from onmt_entmax.tasks.translation.readers import CORPORA
from onmt_entmax.tasks.translation.text import DICTIONARIES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one sub-parser per task."""
    shared.add_tasks(
        parser,
        inflection=("SIGMORPHON files: lemma, form, tags", _inflection_arguments),
        translation=("parallel text: IWSLT, KFTT, WMT, your own", _translation_arguments),
    )


def run(args: argparse.Namespace) -> int:
    """Prepare the corpus, say what was made, return 0."""
    (_inflection if args.task == "inflection" else _translation)(args)
    return 0


def _inflection(args: argparse.Namespace) -> None:
    from onmt_entmax.tasks.inflection.prepare import prepare

    manifest = prepare(args.data, args.output, args.setting, args.languages, args.name, args.seed)
    rows, sizes = manifest["rows"], manifest["vocabularies"]
    if without := [language for language, counts in manifest["languages"].items() if "test" not in counts]:
        print(f"without a test set (no LANG-test, or an empty one): {', '.join(without)}")
    print(
        f"{args.output}: {len(manifest['languages'])} languages, {rows['train']} training rows, {rows['dev']} dev, "
        f"{rows['test']} test; vocabularies {sizes['src']} and {sizes['tgt']}"
    )


def _translation(args: argparse.Namespace) -> None:
    settings = Settings(**{name: getattr(args, name) for name in Settings.__dataclass_fields__})
    manifest = prepare(settings, args.data, args.output)
    for split, counts in manifest["counts"].items():
        print(f"{split}: " + ", ".join(f"{number} {step.replace('_', ' ')}" for step, number in counts.items()))
    sizes = manifest["vocabularies"]
    print(f"vocabularies: {sizes['src']} source, {sizes['tgt']} target types (without special tokens)")
    print(f"{args.output}: {manifest['corpus']} {manifest['direction']}, {manifest['counts']['train']['kept']} pairs")


def _inflection_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    layout = "holds LANG-train-SETTING or LANG-train, LANG-dev, LANG-test; or `all` and `surprise` that do"
    add("--data", required=True, nargs="+", type=Path, metavar="FOLDER", help=layout)
    add("--setting", metavar="SETTING", help=f"{', '.join(SETTINGS)}; leave out for data without settings")
    add("--languages", nargs="+", metavar="LANG", help="default: all that have a training and a development file")
    add("--output", required=True, type=Path, metavar="FOLDER", help="where the text goes")
    add("--name", default="inflection", help="the task's name in signatures, e.g. conll2018.1 (default: %(default)s)")
    add("--seed", type=int, default=1, help="order of the training rows, all languages mixed (default: %(default)s)")


def _translation_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--corpus", required=True, metavar="NAME", help=", ".join(CORPORA))
    add("--direction", required=True, metavar="SRC-TGT", help="such as de-en; plain takes any two languages")
    add("--data", required=True, type=Path, metavar="FOLDER", help="the unpacked corpus, at any depth below")
    add("--output", required=True, type=Path, metavar="FOLDER", help="where the text goes")
    add("--train", nargs="+", metavar="PREFIX", help="plain: files below --data, without .LANGUAGE")
    add("--dev", nargs="+", metavar="SET", help="sets of the corpus; plain: prefixes; " + _default_sets("dev"))
    add("--test", nargs="+", metavar="SET", help="like --dev; " + _default_sets("test"))
    add("--pretokenised", nargs="+", default=(), metavar="SPLIT", help="plain: which of train, dev, test are tokenised")
    add("--unescape", action="store_true", help="plain: undo &amp; &quot; &#91; ...; always done for iwslt17 and wmt16")
    add("--lowercase", action="store_true", help="lower-case all tokens; scores are then caseless")
    add("--tokenizer", metavar="NAME", help="moses, none; not for Japanese (default: moses; for sentencepiece none)")
    add("--japanese", metavar="NAME", help="kftt (its own tokens), mecab, none (default: kftt or mecab; as above)")
    add("--mecab-dictionary", metavar="NAME", help=f"{', '.join(DICTIONARIES)} (default: ipadic)")
    add("--romanian", metavar="FORM", help="plain: no diacritics (default); comma: cedilla to comma; keep")
    longest = "drop training pairs with a side above N tokens; 0: none"
    add("--max-length", type=int, default=0, metavar="N", help=longest)
    add("--subwords", default="bpe", metavar="KIND", help=", ".join(SUBWORDS))
    add("--codes", metavar="KIND", help="joint or separate for each language (default: joint; for wmt16 separate)")
    add("--merges", type=int, metavar="N", help="merges, or sentencepiece's size (default: 32000; for wmt16 25000)")
    add("--vocabulary-threshold", type=int, default=0, metavar="N", help="BPE: undo merges to pieces rarer than N")
    add("--min-frequency", type=int, default=1, metavar="N", help="leave tokens rarer than N out of the vocabularies")
    add("--any-size", action="store_true", help="accept another number of training pairs than the official one")


def _default_sets(kind: str) -> str:
    defaults = ((name, getattr(corpus, kind)) for name, corpus in CORPORA.items())
    return "default: " + ", ".join(f"{name} {' '.join(sets)}" for name, sets in defaults if sets)
