"""Options of decoding: those the plugin adds, and what is said of those that would have no effect."""

from __future__ import annotations

import math
import os
from argparse import Namespace

from onmt_entmax.errors import invalid_setting
from onmt_entmax.files import check_output
from onmt_entmax.plugin.corpora import check_transforms
from onmt_entmax.plugin.options import Ranges, action, add, add_matmul_precision, check_gpu, check_ranges, refuse
from onmt_entmax.plugin.parsing import UnsetFloat, UnsetStr, is_unset
from onmt_entmax.search.exact import MAX_EXPANSIONS
from onmt_entmax.search.mbr import DECISIONS, UTILITIES, check_decision
from onmt_entmax.search.settings import check_neutral

_RANGES: Ranges = (
    ("max_expansions batch_size max_length", lambda value: value >= 1, "It must be at least 1."),
    ("min_length block_ngram_repeat", lambda value: value >= 0, "It must be at least 0."),
    ("random_sampling_topk", lambda value: value >= -1, "It must be -1 (all tokens), 0 or more."),
    ("random_sampling_topp", lambda value: 0 <= value <= 1, "It must lie in [0, 1]."),
)


def add_decoding_options(parser) -> None:
    group = parser.add_argument_group("Search (onmt_entmax)")
    what = "beam search, or exact (best-first) search for the most probable outputs."
    add(group, "search", what, default="beam", choices=["beam", "exact"])
    what = (
        "Write one JSON object per input line: hypotheses, and whether they are provably the best ones. `-` writes no "
        "file: for the server and the Python API, which return them."
    )
    add(group, "certificates", what, default="", metavar="FILE")
    what = "Write the attention of every hypothesis, one JSON object per input line."
    add(group, "attention", what, default="", metavar="FILE")
    what = "With -search exact: list every output of non-zero probability in the certificates, not n_best of them."
    add(group, "whole_support", what, action="store_true")
    what = "Exact search gives up (and says so) after this many expanded prefixes per line."
    add(group, "max_expansions", what, type=int, default=MAX_EXPANSIONS)
    what = "map: the most probable hypothesis; mbr: of those found, the one of the highest expected utility (minimum "
    add(group, "decision", what + "Bayes risk).", default="map", choices=list(DECISIONS))
    what = "For -decision mbr: sentence chrF, or 1 minus the normalised edit distance in tokens."
    add(group, "mbr_utility", what, default="chrf", choices=list(UTILITIES))
    add_matmul_precision(group)
    penalty, ratio = action(parser, "length_penalty"), action(parser, "max_length_ratio")
    penalty.default, ratio.default = UnsetStr(penalty.default), UnsetFloat(ratio.default)


# the options that name files which decoding reads, beside source and target
READ = (
    *("models", "config", "phrase_table", "tm_path", "termbase_path", "tags_dictionary_path"),
    *("src_subword_model", "tgt_subword_model", "src_subword_vocab", "tgt_subword_vocab"),
)


def check_files(opt: Namespace) -> None:
    """Check what decoding will write before it starts: folders exist, and no file is named twice."""
    named: dict = {}
    for name in ("src", "tgt", "output", "certificates", "attention", "log_file"):
        path = getattr(opt, name, None)
        if not isinstance(path, str) or path in ("", "-"):
            continue
        if name not in ("src", "tgt") and not os.path.isdir(os.path.dirname(path) or "."):
            raise invalid_setting(name, path, f"The folder {os.path.dirname(path)} does not exist.")
        if os.path.isdir(path):
            raise invalid_setting(name, path, "It is a folder; a file is needed.")
        if os.path.exists(path) and not os.path.isfile(path):  # a device or a pipe
            if name in ("src", "tgt") and path != os.devnull:
                raise invalid_setting(name, path, "It is read twice, so it must be a file, not a pipe.")
            continue
        first = named.setdefault(os.path.realpath(path), name)
        if first != name and name != "tgt":
            raise invalid_setting(name, path, f"`{first}` names the same file.")
        for setting in READ if name not in ("src", "tgt") else ():
            value = getattr(opt, setting, None) or []
            for other in value if isinstance(value, list) else [value]:
                check_output(name, path, setting, other)


def validate_translate(opt: Namespace) -> None:
    """Check decoding options and set the defaults that certificates need (see ``docs/search.md``)."""
    if opt.beam_size < 1:
        raise invalid_setting("beam_size", opt.beam_size, "It must be at least 1.")
    if not 1 <= opt.n_best <= opt.beam_size:
        raise invalid_setting("n_best", opt.n_best, f"It must be between 1 and `beam_size`, which is {opt.beam_size}.")
    check_ranges(opt, _RANGES)
    if opt.min_length > opt.max_length:
        raise invalid_setting("min_length", opt.min_length, f"It must be at most `max_length`, {opt.max_length}.")
    for name in ("alpha", "beta", "max_length_ratio", "random_sampling_temp"):
        value = getattr(opt, name)
        least = {"max_length_ratio": " of at least 0; 0 is no such limit", "random_sampling_temp": " of at least 0"}
        if not math.isfinite(value) or (value < 0 and name in least):
            raise invalid_setting(name, value, f"It must be a finite number{least.get(name, '')}.")
    if opt.ratio < 0:
        raise invalid_setting("ratio", opt.ratio, "It must be at least 0; 0 is no such rule.")
    _refuse_what_does_nothing(opt)
    check_files(opt)
    for name, value in (
        ("gpu", opt.gpu),
        ("gpu_ranks", max(opt.gpu_ranks, default=-1)),
        ("world_size", opt.world_size - 2),
    ):
        if value >= 0:
            check_gpu(name, getattr(opt, name))
    if opt.certificates or opt.search == "exact" or opt.decision == "mbr":
        if is_unset(opt.length_penalty):
            opt.length_penalty = "none"
        if is_unset(opt.max_length_ratio):
            opt.max_length_ratio = 0.0
    penalties = {name: getattr(opt, name) for name in ("length_penalty", "coverage_penalty", "ratio")}
    check_decision(opt.decision, opt.mbr_utility, opt.beam_size, **penalties)
    if opt.decision == "mbr" and (opt.random_sampling_topk == 1 or (_samples(opt) and opt.random_sampling_temp == 0)):
        name = "random_sampling_topk" if opt.random_sampling_topk == 1 else "random_sampling_temp"
        raise invalid_setting(name, getattr(opt, name), "`decision` mbr chooses among samples; these are all the same.")
    if opt.whole_support and (opt.search != "exact" or not opt.certificates):
        rule = "It needs `search: exact` and `certificates`, which list the outputs."
        raise invalid_setting("whole_support", True, rule)
    if opt.search == "exact":
        check_neutral("`search` exact", **penalties)
        for name in ("random_sampling_topk", "random_sampling_topp", "block_ngram_repeat"):
            if getattr(opt, name) != 0:
                raise invalid_setting(name, getattr(opt, name), "`search` exact needs 0: it goes by probability alone.")


def _refuse_what_does_nothing(opt: Namespace) -> None:
    """Refuse what OpenNMT-py accepts, and then does not do."""
    nothing = "OpenNMT-py 3.5 writes nothing there; `onmt_entmax trace` writes a search as JSON."
    files = ("phrase_table", *(f"{side}_subword_{what}" for side in ("src", "tgt") for what in ("model", "vocab")))
    missing = [name for name in files if getattr(opt, name) and not os.path.isfile(getattr(opt, name))]
    rules = (
        (opt.dump_beam, "dump_beam", nothing),
        (opt.precision == "int8", "precision", "OpenNMT-py 3.5 decodes in float32 then; leave it out."),
        (opt.data_type != "text", "data_type", "Valid choices: text."),
        (opt.attention == "-", "attention", "A file is needed: attention is only written."),
        *((True, name, "There is no such file.") for name in missing),
    )
    refuse(opt, rules)
    if "clean" in opt.transforms:
        raise invalid_setting("transforms", "clean", "It has settings for training corpora only.")
    check_transforms(opt, opt.transforms)


def _samples(opt: Namespace) -> bool:
    return opt.random_sampling_topk != 0 or opt.random_sampling_topp != 0


def without_effect(opt: Namespace) -> list[str]:
    """A sentence for each option that was set and changes nothing, because of another one."""
    samples = _samples(opt)
    takes_best = opt.random_sampling_topk == 1
    covers = opt.coverage_penalty != "none" and opt.beta != 0 and not samples
    conditions: tuple[tuple, ...] = (  # option, value that does nothing, whether it has an effect, why not
        ("max_expansions", MAX_EXPANSIONS, opt.search == "exact", "`search` is beam"),
        ("mbr_utility", "chrf", opt.decision == "mbr", "`decision` is map"),
        ("alpha", 1.0, opt.length_penalty != "none", "`length_penalty` is none"),
        ("coverage_penalty", "none", opt.beta != 0, "`beta` is 0"),
        ("coverage_penalty", "none", not samples, "outputs are sampled"),
        ("beta", 0.0, opt.coverage_penalty != "none", "`coverage_penalty` is none"),
        ("stepwise_penalty", False, covers, "there is no coverage penalty"),
        ("ratio", 0.0, not samples, "outputs are sampled"),
        ("random_sampling_temp", 1.0, samples and not takes_best, "nothing is sampled"),
        ("random_sampling_topp", 0.0, not takes_best, "`random_sampling_topk` 1 takes the most probable token"),
        ("ignore_when_blocking", [], opt.block_ngram_repeat > 0, "`block_ngram_repeat` is 0"),
        ("phrase_table", "", opt.replace_unk, "`replace_unk` is not set"),
        ("align_debug", False, opt.report_align, "`report_align` is not set"),
        ("avg_raw_probs", False, len(opt.models) > 1, "there is one model"),
        ("quant_type", "", bool(opt.quant_layers), "`quant_layers` names none"),
        ("quant_layers", [], bool(opt.quant_type), "`quant_type` is not set"),
        ("src_feats_defaults", None, opt.n_src_feats > 0, "`n_src_feats` is 0"),
    )
    found = [(name, why) for name, idle, works, why in conditions if getattr(opt, name) != idle and not works]
    found += _of_unused_transforms(opt)
    return [f"`{name}` {getattr(opt, name)} has no effect: {why}." for name, why in found]


def _of_unused_transforms(opt: Namespace) -> list[tuple[str, str]]:
    """Options of transforms, none of which is in use, with the reason."""
    from onmt.transforms import AVAILABLE_TRANSFORMS
    from onmt.utils.parse import ArgumentParser

    owners: dict[str, list[str]] = {}
    defaults = {}
    for transform, kind in AVAILABLE_TRANSFORMS.items():
        parser = ArgumentParser()
        kind.add_options(parser)
        for option in parser._actions:
            if option.dest != "help":
                owners.setdefault(option.dest, []).append(transform)
                defaults[option.dest] = option.default
    return [
        (name, f"`transforms` has no {' or '.join(transforms)}")
        for name, transforms in owners.items()
        if getattr(opt, name, defaults[name]) != defaults[name] and not set(transforms) & set(opt.transforms)
    ]
