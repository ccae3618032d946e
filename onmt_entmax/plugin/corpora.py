"""Reading data: nothing dropped in silence, and bad text named by file and line."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

import yaml
from onmt.constants import CorpusName, CorpusTask, ModelTask
from onmt.transforms import AVAILABLE_TRANSFORMS
from onmt.utils.logging import logger

from onmt_entmax.errors import UserError, invalid_setting
from onmt_entmax.files import count_lines, iterate_lines, parse_yaml, read_lines, split_tokens
from onmt_entmax.plugin.parsing import one_line_errors

NOTHING_LEFT = "the transforms leave nothing of the line"
_COUNTED = re.compile(r"^(.*)[\t ](\d+)$", re.DOTALL)


def check_parallel(source: str, target: str | None, name: str) -> int:
    """Check that both sides are UTF-8 and have equally many lines (stock drops the surplus in silence); how many."""
    lines = count_lines(source)
    if target is not None and target != source:
        target_lines = count_lines(target)
        if target_lines != lines:
            raise UserError(f"{name}: {source} has {lines} lines, but {target} has {target_lines}.")
    return lines


def read_vocabulary(path: str, min_count: int) -> list[str]:
    """Read a vocabulary file: a token a line, or a token and its count, separated by a tab or a blank (U+0020).

    Any other blank, such as U+00A0, may be a token or part of one.

    Raises:
        UserError: no such file, invalid UTF-8, or a line without a count among lines that have one.
    """
    if not Path(path).is_file():
        raise UserError(f"Vocabulary not found at {path}: make it with onmt_build_vocab.")
    numbered = [(number, line) for number, line in enumerate(read_lines(path), start=1) if split_tokens(line)]
    if not numbered or _COUNTED.match(numbered[0][1]) is None:
        return [line for _, line in numbered]
    tokens = []
    for number, line in numbered:
        match = _COUNTED.match(line)
        if match is None:
            raise UserError(f"{path}, line {number}: {line!r} has no count, but the first line has one.")
        if int(match.group(2)) >= min_count and split_tokens(match.group(1)):
            tokens.append(match.group(1))
    return tokens


def validate_data(stock):
    def validate_data(cls, opt):
        data = parse_yaml(opt.data, "data")
        if not opt.transforms and isinstance(data, dict):  # stock says of each corpus that it has none
            for corpus in data.values():
                if isinstance(corpus, dict):
                    corpus.setdefault("transforms", [])
            opt.data = yaml.safe_dump(data, sort_keys=False)
        try:
            stock.__func__(cls, opt)
        except (AttributeError, TypeError) as error:
            raise invalid_setting("data", opt.data, "It must map names of corpora to their settings.") from error
        if not set(opt.data) - {"valid"}:
            raise invalid_setting("data", opt.data, "It has no corpus to train on.")
        for name, corpus in opt.data.items():
            if corpus.get("path_src") is not None:
                check_parallel(corpus["path_src"], corpus.get("path_tgt"), name)
                check_parallel(corpus["path_src"], corpus.get("path_align"), name)
            check_weight(name, corpus["weight"])

    return classmethod(one_line_errors(validate_data))


def check_weight(name: str, weight: object) -> None:
    """Refuse weights that are no counts: stock cuts them to whole numbers, so that 0.5 means never."""
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or weight != int(weight) or weight < 0:
        raise invalid_setting(
            f"weight` of corpus `{name}",
            weight,
            "It is a number of lines to take in turn, so a whole one: 1 and 2 in place of 0.5 and 1.",
        )


# what a transform cannot do without: options that name files, of which the last three hold a pair in each line
_NEEDED = {
    "bpe": ("src_subword_model", "tgt_subword_model"),
    "sentencepiece": ("src_subword_model", "tgt_subword_model"),
    "fuzzymatch": ("tm_path",),
    "terminology": ("termbase_path",),
    "inlinetags": ("tags_dictionary_path",),
}


def check_transforms(opt, names: Collection[str]) -> None:
    """Refuse transforms (``names`` are in use) that lack what they need: stock fails later, inside a worker."""
    for transform in [name for name in _NEEDED if name in names]:
        for name in _NEEDED[transform]:
            path = getattr(opt, name, None)
            if name == "tgt_subword_model" and getattr(opt, "share_vocab", False):
                continue
            if not path:
                raise invalid_setting(name, path, f"`transforms` has {transform}, which needs a file there.")
            if not Path(path).is_file():
                raise invalid_setting(name, path, "There is no such file.")
            delimiter = getattr(opt, "tm_delimiter", "") if transform == "fuzzymatch" else "\t"
            for number, line in enumerate(iterate_lines(path) if "subword" not in name else (), 1):
                if line.count(delimiter) != 1:
                    rule = f"Line {number} is not a pair, with {delimiter!r} between its two sides."
                    raise invalid_setting(name, path, rule)
    if "terminology" in names:
        import spacy

        for name in ("src_spacy_language_model", "tgt_spacy_language_model"):
            value = getattr(opt, name)
            if not value or not (spacy.util.is_package(value) or Path(value).is_dir()):
                rule = "`transforms` has terminology, which needs one that is installed: python -m spacy download NAME."
                raise invalid_setting(name, value, rule)
    if "inlinetags" in names:
        for name in ("paired_stag", "paired_etag", "isolated_tag"):
            if getattr(opt, name).count("#") != 1:
                raise invalid_setting(name, getattr(opt, name), "It needs one `#`, where the number of a tag goes.")
    if "bart" in names and opt.mask_length == "subword":
        if opt.src_subword_type == "none":
            rule = "`src_subword_type` is none: there are no subwords. Valid choices: word, span-poisson."
            raise invalid_setting("mask_length", "subword", rule)
        if opt.replace_length == -1:
            raise invalid_setting("replace_length", -1, "With `mask_length: subword` it must be 0 or 1.")


def check_file(path: str, info: str) -> None:
    """Refuse a file that options name and that is not there."""
    if not Path(path).is_file():
        raise UserError(f"Cannot read {path} ({info}): there is no such file.")


class _Line(str):
    """A line of text whose ``strip`` leaves tokens such as U+0009, U+00A0 and U+2028 at its ends alone."""

    def strip(self, characters: str | None = None) -> str:
        """Strip the line's end, and leave one blank (U+0020) between tokens; see ``str.strip``."""
        if characters is not None:
            return super().strip(characters)
        return " ".join(split_tokens(self[:-2] if self.endswith("\r\n") else super().strip("\n")))


def process_stream(stock):
    def process_stream(self, stream):
        return stock(self, map(_guard, stream))

    return process_stream


def _guard(example: dict) -> dict:
    for side in ("src", "tgt", "src_original", "tgt_original"):
        if isinstance(example.get(side), str):
            example[side] = _Line(example[side])
    return example


def parse_features(stock):
    def parse_features(line, n_feats=0, defaults=None):
        text = _Line(line).strip()
        if not text:  # stock takes a blank line for a token without features
            return "", [""] * n_feats or None
        try:
            return stock(text, n_feats=n_feats, defaults=defaults)
        except AssertionError as error:  # U+FFE8 in the text: stock takes what follows it for a feature
            raise UserError(f"Invalid line {line.strip()[:60]!r}: {error}") from error

    return parse_features


def numericalize(stock):
    def numericalize(vocabs, example):
        """A blank is no token: stock makes one of what is between two blanks, and of a blank line."""
        for side in ("src", "tgt"):
            if example[side] is not None and (side == "tgt" or "feats" not in example[side]):
                example[side][side] = " ".join(split_tokens(example[side][side]))
        numeric = stock(vocabs, example)
        target = numeric["tgt"]
        if target is not None and not target["tgt"] and vocabs["data_task"] == ModelTask.SEQ2SEQ:
            del target["tgt_ids"][1:-1]  # start and end are left
        return numeric

    return numericalize


def tensorify(stock):
    """Batches to decode keep the tokens as they were given: ``src_tokens``, a list per sentence."""

    def tensorify(vocabs, minibatch, *args, **kwargs):
        batch = stock(vocabs, minibatch, *args, **kwargs)
        if minibatch[0][0]["cid"] in (CorpusName.INFER, "text"):  # the latter is the server's
            batch["src_tokens"] = [split_tokens(example["src"]["src"]) for example, _ in minibatch]
        return batch

    return tensorify


class _Stages:
    """Stands for a pipe of transforms while decoding: remembers which of them left out a line.

    Attributes:
        reasons: number of a line, from 0 -> why it is not among the outputs.
    """

    def __init__(self, pipe) -> None:
        self.pipe = pipe
        self.reasons: dict = {}

    def batch_apply(self, batch: list, **kwargs) -> list:
        """See stock's ``TransformPipe``."""
        for transform in self.pipe.transforms:
            before = {example["cid_line_number"] for example, _, _ in batch}
            batch = transform.batch_apply(batch, stats=self.pipe.statistics, **kwargs) or []
            name = next((name for name, kind in AVAILABLE_TRANSFORMS.items() if type(transform) is kind), "of your own")
            for line in before - {example["cid_line_number"] for example, _, _ in batch}:
                self.reasons[line] = f"left out by transform {name}"
        return batch


def read_bucket(stock):
    def _tuple_to_json_with_tokIDs(self, tuple_bucket):
        """While decoding a blank line meets no transform, and lines that one leaves out are remembered."""
        if self.task != CorpusTask.INFER:
            return stock(self, tuple_bucket)
        if not hasattr(self, "left_out"):
            self.left_out = {}
        filled = [entry for entry in tuple_bucket if any(entry[0]["src"])]
        if not filled:
            return []
        stages = _Stages(filled[0][1])
        lines = [example["cid_line_number"] for example, _, _ in filled]
        bucket = stock(self, [(example, stages, corpus) for example, _, corpus in filled])
        found = {example["cid_line_number"] for example in bucket}
        self.left_out.update({line: stages.reasons.get(line, NOTHING_LEFT) for line in lines if line not in found})
        return bucket

    return _tuple_to_json_with_tokIDs


def filter_too_long(stock):
    def apply(self, example, *args, **kwargs):
        if example["tgt"] is not None:
            return stock(self, example, *args, **kwargs)
        return example if stock(self, {**example, "tgt": []}, *args, **kwargs) is not None else None

    return apply


def process_bucket(stock):
    """Stock returns None for a bucket in which every line is blank, and its caller then iterates over it.

    Where there are targets to learn from, pairs with a blank side are left out before a transform could fill it (stock
    means to, but takes a blank for a token), and those of which transforms leave one. :func:`log_blank_pairs` says how
    many lines are blank.
    """

    def process(task, bucket, **kwargs):
        if task == CorpusTask.INFER:
            return stock(task, bucket, **kwargs) or []
        filled = [
            (example, *rest)
            for example, *rest in bucket
            if any(example["src"]) and (example["tgt"] is None or any(example["tgt"]))
        ]
        examples = stock(task, filled, **kwargs) or []
        return [example for example in examples if example["tgt"] is None or example["tgt"]["tgt"] != ""]

    return process


def log_blank_pairs(data: dict[str, dict], level: str) -> None:
    """Say of each corpus of `data` how many of its pairs are left out because a side is blank.

    Raises:
        UserError: `skip_empty_level` is `error` and there is such a pair; or the corpus `valid` has no other.
    """
    for name, corpus in data.items():
        if corpus.get("path_src") is None or corpus.get("path_tgt") is None:
            continue
        pairs, lines, blank = zip(iterate_lines(corpus["path_src"]), iterate_lines(corpus["path_tgt"])), 0, []
        for lines, pair in enumerate(pairs, 1):
            if not all(map(split_tokens, pair)):
                blank.append(lines)
        if name == "valid" and len(blank) == lines:
            raise UserError(f"Corpus {name} has no line to validate on: {lines} lines, each blank on one side.")
        if blank and level == "error":
            raise UserError(f"Corpus {name}, line {blank[0]}: a blank side (`skip_empty_level` is error).")
        if blank and level != "silent":
            found = f"{len(blank)} pairs have" if len(blank) > 1 else "1 pair has"
            logger.warning(f"Corpus {name}: {found} a blank side and will be left out (the first is line {blank[0]}).")
