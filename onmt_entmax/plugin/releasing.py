"""``onmt_average_models`` and ``onmt_release_model``: nothing averaged that does not belong together, nothing run.

OpenNMT-py's own load checkpoints without a word of what is wrong with them, and average whatever has the same names.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence

import onmt.opts
import torch
from onmt.utils.parse import ArgumentParser

from onmt_entmax.errors import UserError, invalid_setting
from onmt_entmax.files import cannot_write, check_output, write_stream
from onmt_entmax.plugin.alphas import PLACES, alpha_of
from onmt_entmax.plugin.checkpoints import KEY, refuse_sparse_export
from onmt_entmax.plugin.options import FOR_NEW_MODELS, OF_TRAINING
from onmt_entmax.plugin.parsing import one_line_errors

_OF_CTRANSLATE2 = re.compile(r"model\.bin|config\.json|(\w+_)?vocabulary\.(json|txt)")  # what a conversion writes


def _load(path: str) -> dict:
    """A checkpoint with its weights.

    Raises:
        UserError: it cannot be loaded, would run code, or has no weights.
    """
    from onmt.models.model_saver import load_checkpoint

    checkpoint = load_checkpoint(path)
    for part in ("model", "generator"):
        if not isinstance(checkpoint.get(part), dict):
            raise UserError(f"Cannot load {path}: it has no weights (`save_format: safetensors` keeps them elsewhere).")
    return checkpoint


def _check_alike(first: str, one: dict, path: str, other: dict) -> None:
    """Refuse models whose weights mean different things."""

    def differ(what: str, here: object, there: object) -> UserError:
        return UserError(
            f"Models that differ cannot be averaged: `{what}` is {here} in {first}, but {there} in {path}."
        )

    for place in PLACES:
        alphas = [alpha_of(checkpoint["opt"], place) for checkpoint in (one, other)]
        if alphas[0] != alphas[1]:
            raise differ(f"{place}_alpha", *alphas)
    for name in sorted(set(vars(ArgumentParser.defaults(onmt.opts.model_opts))) - OF_TRAINING - set(FOR_NEW_MODELS)):
        if name.startswith(PLACES) or name.startswith("freeze") or "embeddings" in name:
            continue
        values = [getattr(checkpoint["opt"], name, None) for checkpoint in (one, other)]
        if values[0] != values[1] and None not in values:
            raise differ(name, *values)
    for side in ("src", "tgt", "src_feats"):
        if one["vocab"].get(side) != other["vocab"].get(side):
            raise UserError(f"Models that differ cannot be averaged: the {side} vocabularies of {first} and {path}.")
    for part in ("model", "generator"):
        shapes = [{name: tuple(value.shape) for name, value in checkpoint[part].items()} for checkpoint in (one, other)]
        for name in sorted(shapes[0].keys() | shapes[1].keys()):
            if shapes[0].get(name) != shapes[1].get(name):
                raise differ(name, shapes[0].get(name), shapes[1].get(name))


def average_models(model_files: Sequence[str], fp32: bool = False) -> dict:
    """The mean of the weights of models of one kind; sums are float32.

    Args:
        model_files: checkpoints.
        fp32: keep the means in float32; else each has its weight's own type.

    Returns:
        A checkpoint that can be decoded; vocabularies and options are the first one's.

    Raises:
        UserError: a checkpoint that cannot be loaded, or that differs in more than the values of its weights.
    """
    first = _load(model_files[0])
    kinds = {part: {name: value.dtype for name, value in first[part].items()} for part in ("model", "generator")}
    sums = {part: {name: _wide(value) for name, value in first[part].items()} for part in kinds}
    for path in model_files[1:]:
        other = _load(path)
        _check_alike(model_files[0], first, path, other)
        for part, weights in sums.items():
            for name, value in weights.items():
                if value.is_floating_point():  # counters stay as they are
                    value += other[part][name]
    for part, weights in sums.items():
        for name, value in weights.items():
            if value.is_floating_point():
                value /= len(model_files)
                weights[name] = value if fp32 else value.to(kinds[part][name])
    return {"vocab": first["vocab"], "opt": first["opt"], "optim": None, **sums}


def _wide(value: torch.Tensor) -> torch.Tensor:
    if not value.is_floating_point():
        return value
    return value.clone() if value.dtype == torch.float64 else value.to(torch.float32, copy=True)


@one_line_errors
def average_main() -> None:
    """``onmt_average_models -models A B -output C [-fp32]``; takes the place of stock's ``main``."""
    parser = ArgumentParser(description="Average the weights of models.")
    parser.add("--models", "-models", "-m", nargs="+", required=True, help="checkpoints")
    parser.add("--output", "-output", "-o", required=True, help="the file to write")
    parser.add("--fp32", "-fp32", "-f", action="store_true", help="keep the means in float32")
    opt = parser.parse_args()
    for model in opt.models:
        check_output("output", opt.output, "models", model)
    _save(average_models(opt.models, opt.fp32), opt)


@one_line_errors
def release_main() -> None:
    """``onmt_release_model --model A --output B``: without any state of training, in place of stock's ``main``."""
    parser = ArgumentParser(description="Release an OpenNMT-py model for inference.")
    parser.add("--model", "-model", "-m", required=True, help="checkpoint")
    parser.add("--output", "-output", "-o", required=True, help="the file, or for ctranslate2 the folder, to write")
    parser.add("--format", "-format", choices=["pytorch", "ctranslate2"], default="pytorch")
    quantizations = ["int8", "int16", "float16", "int8_float16"]
    parser.add("--quantization", "-quantization", "-q", choices=quantizations, default=None, help="ctranslate2 only")
    opt = parser.parse_args()
    if opt.format == "pytorch" and opt.quantization:
        raise invalid_setting("quantization", opt.quantization, "It is for `format: ctranslate2` only.")
    check_output("output", opt.output, "model", opt.model)
    checkpoint = _load(opt.model)
    if opt.format == "pytorch":
        checkpoint["optim"] = None
        checkpoint.pop(KEY, None)
        _save(checkpoint, opt)
        return
    refuse_sparse_export(checkpoint["opt"])
    there = os.listdir(opt.output) if os.path.isdir(opt.output) else []
    others = sorted(name for name in there if not _OF_CTRANSLATE2.fullmatch(name))
    if others or os.path.isfile(opt.output):
        rule = f"It holds {others[0]}, and would be replaced." if others else "It is a file."
        raise invalid_setting("output", opt.output, f"{rule} Name a new folder, or one of an earlier conversion.")
    try:
        import ctranslate2
    except ImportError:
        raise invalid_setting("format", opt.format, "The package ctranslate2 is not installed.") from None
    converter = ctranslate2.converters.OpenNMTPyConverter(opt.model)
    converter.convert(opt.output, force=True, quantization=opt.quantization)


def _save(checkpoint: dict, opt: Namespace) -> None:
    if os.path.isdir(opt.output):
        raise invalid_setting("output", opt.output, "It is a folder; a file is needed.")
    try:
        write_stream(opt.output, lambda file: torch.save(checkpoint, file))
    except OSError as error:
        raise cannot_write(opt.output, error) from error
    print(opt.output)


def serve_modules() -> None:
    """Let ``python -m onmt.bin.average_models`` and ``... release_model`` run what stands in those modules.

    Python would read their files once more, as ``__main__``, where nothing can be rebound, and would warn of that.
    """
    for name in ("onmt.bin.average_models", "onmt.bin.release_model"):
        code = compile(f"from {name} import main\nmain()\n", name, "exec")
        sys.modules[name].__spec__.loader.get_code = lambda name, code=code: code
    warnings.filterwarnings("ignore", message=r"'onmt\.bin\.(average|release)_model", category=RuntimeWarning)
