"""The options the plugin adds, and the refusals that belong to reading options.

Our options never take part in abbreviations: an abbreviation that named one stock option before still does.
"""

from __future__ import annotations

import argparse
import os
from argparse import Namespace
from collections.abc import Callable, Iterable
from typing import Any

from onmt_entmax.engines.cpu.products import CHOICES
from onmt_entmax.errors import UserError, invalid_setting
from onmt_entmax.plugin.alphas import (
    BOTH_SIDES,
    FUNCTIONS,
    HEADS,
    LEARNED,
    PLACES,
    alpha_of,
    spread_self_attention,
    store_alpha,
)
from onmt_entmax.plugin.parsing import UnsetStr, one_line_errors

_ADDED: set[str] = set()  # option strings that are ours
# stock counts these among the model's options (the rate is ours); they say how it is trained
OF_TRAINING = {
    *("model_dtype", "loss_scale", "apex_opt_level", "update_vocab", "zero_out_prompt_loss", "lambda_align"),
    *("lambda_coverage", "lm_prior_model", "lm_prior_lambda", "lm_prior_tau", "copy_loss_by_seqlength"),
    *("lora_dropout", "learned_alpha_rate"),
}
# these say how weights begin: of no use where they come from a checkpoint
FOR_NEW_MODELS = (
    *("param_init", "param_init_glorot", "query_init", "embedding_init", "learned_alpha_start"),
    *("both_embeddings", "src_embeddings", "tgt_embeddings"),
)

Ranges = tuple[tuple[str, Callable[[Any], bool], str], ...]  # names of options, whether a value is valid, the rule
_TRAINED_ATTENTION = "_trained_self_attn_type"
_FIRST: Ranges = (  # stock computes with these
    ("world_size", lambda value: value >= 1, "It must be at least 1."),
    ("timeout", lambda value: value > 0, "It must be above 0."),
)
_SIZES: Ranges = (
    (
        "enc_layers dec_layers enc_hid_size dec_hid_size src_word_vec_size tgt_word_vec_size heads transformer_ff "
        "cnn_kernel_width",
        lambda value: value >= 1,
        "It must be at least 1.",
    ),
    (
        "layers hidden_size word_vec_size",
        lambda value: value >= 1 or value == -1,
        "It must be at least 1; -1 leaves it to the options of each side.",
    ),
    ("embedding_init", lambda value: 0 <= value < float("inf"), "It must be a standard deviation of at least 0."),
    ("query_init", lambda value: value is None or 0 <= value < float("inf"), "It must be a factor of at least 0."),
)


def add(group, name: str, what: str, **settings) -> None:
    _ADDED.update((f"--{name}", f"-{name}"))
    group.add(f"--{name}", f"-{name}", help=what, **settings)


def action(parser, name: str) -> argparse.Action:
    for action in parser._actions:
        if f"--{name}" in action.option_strings:
            return action
    raise AttributeError(f"option --{name} is gone")


def add_model_options(parser) -> None:
    group = parser.add_argument_group("Model- Entmax (onmt_entmax)")
    for place, what in (("global_attention", "attention"), ("generator", "output layer and its loss")):
        function = action(parser, f"{place}_function")
        function.default = UnsetStr(function.default)
        function.choices = list(FUNCTIONS)
        function.help = (
            f"Mapping of the {what}: entmax15 (alpha 1.5), sparsemax (alpha 2), or entmax with -{place}_alpha."
        )
        values = "1 softmax, 1.5 entmax15, 2 sparsemax" + ("), or `learned`" if place == "global_attention" else ")")
        what = f"Alpha of the {what}, at least 1 ({values}; with -{place}_function entmax, or alone."
        add(group, f"{place}_alpha", what, default=None)
    for place in (BOTH_SIDES, *HEADS):
        what = f"Transformer's {place.replace('_', ' ')}"
        add(group, f"{place}_function", f"Mapping of a {what}.", default=None, choices=list(FUNCTIONS))
        add(group, f"{place}_alpha", f"Alpha of a {what}, at least 1, or `learned` for each head.", default=None)
    add(group, "learned_alpha_start", "Where learned alphas begin (1.5), in (1, 2).", type=float, default=None)
    what = "Learning rate of learned alphas, times that of the other parameters (1); for `optim: adam`."
    add(group, "learned_alpha_rate", what, type=float, default=None)
    what = "Factor of the query weights of a new Transformer's heads (0 for sparse heads, 1 for softmax)."
    add(group, "query_init", what, type=float, default=None)
    what = "Standard deviation of a new model's embeddings (0: as `param_init` says)."
    add(group, "embedding_init", what, type=float, default=0.0)


def add_matmul_precision(group) -> None:
    """The option that says how float32 products are computed."""
    what = (
        "Products of float32 matrices on a CPU: auto (oneDNN where it is as accurate as float32 and known to be "
        "faster), fp32 (as PyTorch does by itself), bf16 (oneDNN also where it rounds to bfloat16)."
    )
    add(group, "matmul_precision", what, default="auto", choices=list(CHOICES))


def check_ranges(opt: Namespace, ranges: Ranges) -> None:
    """Refuse numbers out of their range, each of those in a list; options that ``opt`` lacks are left out."""
    for names, is_valid, rule in ranges:
        for name in names.split():
            values = getattr(opt, name, [])
            for value in values if isinstance(values, list) else [values]:
                if not is_valid(value):
                    raise invalid_setting(name, value, rule)


def refuse(opt: Namespace, rules: Iterable[tuple[Any, str, str]]) -> None:
    """Refuse what is wrong: whether it is, the option, the rule; the first one counts."""
    for wrong, name, rule in rules:
        if wrong:
            raise invalid_setting(name, getattr(opt, name), rule)


def extended(add_ours):
    def make(stock):
        def add_options(parser, *args, **kwargs):
            stock(parser, *args, **kwargs)
            add_ours(parser)

        return add_options

    return make


def validate_model(opt: Namespace) -> None:
    """Check and normalise the alphas of model options; refuse by name what cannot be right with them."""
    check_ranges(opt, _SIZES)
    trained = vars(opt).pop(_TRAINED_ATTENTION, None)
    if trained is not None and "average" in (trained, opt.self_attn_type):  # has weights of its own
        opt.self_attn_type = trained
    spread_self_attention(opt)
    alphas = {place: alpha_of(opt, place) for place in PLACES}
    attention, generator = alphas["global_attention"], alphas["generator"]
    _check_heads(opt, alphas)
    _check_learned(opt, alphas)
    decoder = getattr(opt, "decoder_type", "rnn")
    if attention != 1 and decoder != "rnn":
        raise invalid_setting(
            "global_attention_alpha",
            attention,
            f"`decoder_type` is {decoder}; this attention is that of `decoder_type: rnn`; Transformers have "
            "`self_attention_alpha` and `context_attention_alpha`.",
        )
    if getattr(opt, "encoder_type", "rnn") == "brnn" and getattr(opt, "enc_hid_size", 2) % 2:
        rule = "It must be even with `encoder_type: brnn`: each direction has half of it."
        raise invalid_setting("hidden_size", opt.enc_hid_size, rule)
    transformer = "transformer" in (getattr(opt, "encoder_type", "rnn"), decoder)
    given, sparse = vars(opt), any(alpha != 1 for alpha in alphas.values())
    without = f"Without attention `global_attention_alpha` {attention} has no meaning."
    prior = f"`generator_alpha` is {generator}: a language-model prior is a divergence between softmax distributions."
    language = f"`generator_alpha` is {generator}; language models are supported with softmax only."
    copying = "OpenNMT-py 3.5 can neither load nor decode models with copy attention; leave it out."
    stateless = "A recurrent decoder begins with the encoder's last state, and a Transformer's encoder has none."
    again = "OpenNMT-py cannot load such a model again; use `pytorch`."
    recurrent = f"`decoder_type` is {decoder}, which has no coverage: it is for `decoder_type: rnn`."
    no_heads = "Neither `encoder_type` nor `decoder_type` is transformer: there are no queries."
    rules = (
        (given.get("encoder_type") == "transformer" and decoder == "rnn", "decoder_type", stateless),
        (not transformer and given.get("query_init") is not None, "query_init", no_heads),
        (attention != 1 and given.get("global_attention") == "none", "global_attention", without),
        (given.get("copy_attn"), "copy_attn", copying),
        (given.get("coverage_attn") and decoder != "rnn", "coverage_attn", recurrent),
        (generator != 1 and given.get("lm_prior_model"), "lm_prior_model", prior),
        (generator != 1 and given.get("model_task") == "lm", "model_task", language),
        (sparse and given.get("save_format") == "safetensors", "save_format", again),
    )
    refuse(opt, rules)
    for place, alpha in alphas.items():
        store_alpha(opt, place, alpha)


def _check_heads(opt: Namespace, alphas: dict[str, float | str]) -> None:
    """Refuse sparse heads where there are none, or where they would not be computed as asked."""
    sparse = {place: alphas[place] for place in HEADS if alphas[place] != 1}
    for place, alpha in sparse.items():
        side = "encoder_type" if place.startswith("encoder") else "decoder_type"
        kind = getattr(opt, side, "rnn")
        if kind != "transformer":
            rule = f"`{side}` is {kind}, which has no such attention: it is for `{side}: transformer`."
            raise invalid_setting(f"{place}_alpha", alpha, rule)
    if "decoder_self_attention" in sparse and getattr(opt, "self_attn_type", "") == "average":
        rule = f"It weighs all words alike, but `decoder_self_attention_alpha` is {sparse['decoder_self_attention']}."
        raise invalid_setting("self_attn_type", "average", rule)
    if sparse and getattr(opt, "parallel_mode", "") == "tensor_parallel" and getattr(opt, "world_size", 1) > 1:
        place, alpha = next(iter(sparse.items()))
        rule = f"It splits heads over processes, but `{place}_alpha` is {alpha}."
        raise invalid_setting("parallel_mode", "tensor_parallel", rule)


def _check_learned(opt: Namespace, alphas: dict[str, float | str]) -> None:
    """Check and fill in the options of learned alphas."""
    from onmt_entmax.entmax import LearnedAlpha

    learned = [place for place, alpha in alphas.items() if alpha == LEARNED]
    start, rate = (getattr(opt, f"learned_alpha_{name}", None) for name in ("start", "rate"))
    low, high = LearnedAlpha.LOW, LearnedAlpha.HIGH
    if start is not None and not low < start < high:
        raise invalid_setting("learned_alpha_start", start, f"It must lie between {low} and {high}.")
    if rate is not None and not 0 < rate < float("inf"):
        raise invalid_setting("learned_alpha_rate", rate, "It must be above 0.")
    if not learned:
        if getattr(opt, "train_from", ""):  # the checkpoint says whether any is; what is not used is logged then
            return
        for name, value in (("learned_alpha_start", start), ("learned_alpha_rate", rate)):
            if value is not None:
                raise invalid_setting(name, value, "No alpha is `learned` (`context_attention_alpha: learned` ...).")
        return
    if rate not in (None, 1) and getattr(opt, "optim", "adam") != "adam":
        raise invalid_setting("learned_alpha_rate", rate, f"`optim` is {opt.optim}; it is for `adam`.")
    for name in ("lora_layers", "lora_embedding"):
        if getattr(opt, name, None):
            rule = f"`{learned[0]}_alpha` is learned: LoRA's checkpoints would lose it."
            raise invalid_setting(name, getattr(opt, name), rule)
    opt.learned_alpha_start = 1.5 if start is None else start
    opt.learned_alpha_rate = 1.0 if rate is None else rate


def validate_vocabulary(opt: Namespace) -> None:
    """Check what belongs to ``onmt_build_vocab`` before it counts anything; nothing is checked for ``onmt_train``."""
    if not hasattr(opt, "num_threads"):
        return
    if opt.n_sample != -1 and opt.n_sample < 2:
        raise invalid_setting("n_sample", opt.n_sample, "It must be -1 (all lines), or at least 2.")
    for name in ("src_vocab", "tgt_vocab"):
        path = getattr(opt, name)
        if path and os.path.exists(path) and not opt.overwrite:
            raise invalid_setting(name, path, "The file exists; `overwrite` replaces it.")


def check_gpu(name: str, value: object) -> None:
    """Refuse a GPU where torch sees none (stock fails inside torch, after loading the model)."""
    import torch

    if not torch.cuda.is_available():
        raise invalid_setting(name, value, "torch sees no CUDA device here; leave it out to use the CPU.")


def get_option_tuples(stock):
    def get_option_tuples(self, option_string):
        found = stock(self, option_string)
        return [match for match in found if match[1] not in _ADDED] if len(found) > 1 else found

    return get_option_tuples


def noting_attention(stock):
    """Extend the stock parser's ``ckpt_model_opts``: it notes the kind of attention that decoding has a default for."""

    def ckpt_model_opts(cls, ckpt_opt):
        opt = stock.__func__(cls, ckpt_opt)
        setattr(opt, _TRAINED_ATTENTION, opt.self_attn_type)
        return opt

    return classmethod(ckpt_model_opts)


def validating(ours):
    """Extend a classmethod ``validate_*(cls, opt)`` of the stock parser by our own check."""

    def make(stock):
        def validate(cls, opt, *args, **kwargs):
            check_ranges(opt, _FIRST)
            try:
                stock.__func__(cls, opt, *args, **kwargs)
            except (AssertionError, ValueError) as error:  # how stock refuses options
                if isinstance(error, UserError):
                    raise
                raise UserError(str(error) or "These options do not go together.") from error
            ours(opt)

        return classmethod(one_line_errors(validate))

    return make
