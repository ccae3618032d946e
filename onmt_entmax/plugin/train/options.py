"""Options of training that the plugin adds or widens, and what is refused by name before a run starts."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Collection

from onmt_entmax.errors import UserError, choices, invalid_setting
from onmt_entmax.plugin.options import Ranges, action, add, add_matmul_precision, check_gpu, check_ranges, refuse
from onmt_entmax.plugin.train.measures import criterion_names
from onmt_entmax.plugin.train.processes import take_over

VALID_LOSS = "valid_loss"

_RANGES: Ranges = (
    (
        "learning_rate learning_rate_decay batch_size report_every",
        lambda value: 0 < value < math.inf,
        "It must be above 0, and finite.",
    ),
    (
        "dropout attention_dropout lora_dropout adam_beta1 adam_beta2",
        lambda value: 0 <= value < 1,
        "It must be at least 0 and below 1.",
    ),
    ("label_smoothing average_decay", lambda value: 0 <= value <= 1, "It must lie in [0, 1]."),
    (
        "accum_count bucket_size prefetch_factor valid_batch_size batch_size_multiple average_every decay_steps "
        "lora_rank src_vocab_size tgt_vocab_size vocab_size_multiple",
        lambda value: value >= 1,
        "It must be at least 1.",
    ),
    (
        "num_workers max_grad_norm accum_steps dropout_steps save_checkpoint_steps start_decay_steps truncated_decoder "
        "warmup_steps lambda_align lambda_coverage adagrad_accumulator_init src_words_min_frequency "
        "tgt_words_min_frequency bucket_size_increment param_init",
        lambda value: 0 <= value < math.inf,
        "It must be at least 0.",
    ),
    ("keep_checkpoint", lambda value: value >= -1, "It must be at least 0; -1 keeps all."),
)


def add_training_options(parser) -> None:
    method = action(parser, "decay_method")
    method.choices = [*method.choices, VALID_LOSS]
    method.help = (
        f"How the learning rate changes; {VALID_LOSS}: times -learning_rate_decay whenever "
        "validation loss is higher than at the previous validation, and at no other time."
    )
    action(parser, "early_stopping").help = "Stop after this many validations in a row without progress (0: never)."
    action(parser, "early_stopping_criteria").help = (
        "Measures that all have to be better than at the last progress: loss, accuracy, another measure of tokens in "
        "the metrics file, or one of -valid_metrics. Default: loss and accuracy."
    )
    group = parser.add_argument_group("Training (onmt_entmax)")
    what = "Also keep the checkpoint with the best validation accuracy, as SAVE_MODEL_best.pt."
    add(group, "keep_best", what, action="store_true")
    what = "Compute with numbers below 1.2e-38 too, instead of taking them for zero, which is faster on a CPU."
    add(group, "keep_subnormals", what, action="store_true")
    add_matmul_precision(group)


def _following(opt: Namespace) -> list[str]:
    """The settings in use that follow validations."""
    wanted = {
        f"decay_method: {VALID_LOSS}": opt.decay_method == VALID_LOSS,
        "keep_best": opt.keep_best,
        "early_stopping": opt.early_stopping > 0,
    }
    return [name for name, used in wanted.items() if used]


def check_validation_corpus(opt: Namespace) -> None:
    """Refuse what follows validations where there are none; ``opt.data`` has been read."""
    if "valid" not in opt.data:
        for name in _following(opt):
            raise UserError(f"`{name}` follows the validations, but `data` has no corpus `valid`.")


def without_effect(opt: Namespace, given: Collection[str]) -> list[str]:
    """A sentence for each option of training that the user gave and that changes nothing, because of another one."""
    by_validations, warms_up = opt.decay_method == VALID_LOSS, opt.decay_method in ("noam", "noamwd", "rsqrt")
    method = f"`decay_method` is {opt.decay_method}"
    conditions = (  # option, whether it has an effect, why not
        ("early_stopping_criteria", opt.early_stopping > 0, "`early_stopping` is 0"),
        ("start_decay_steps", not by_validations, method),
        ("decay_steps", not by_validations, method),
        ("warmup_steps", warms_up, method),
        ("average_every", opt.average_decay > 0, "`average_decay` is 0"),
        ("matmul_precision", not opt.gpu_ranks or opt.matmul_precision == "auto", "the model is on a GPU"),
    )
    found = [(name, why) for name, works, why in conditions if name in given and not works]
    return [f"`{name}: {getattr(opt, name)}` has no effect: {why}." for name, why in found]


def _ascend(steps: list[int]) -> bool:
    return steps[0] == 0 and all(first < second for first, second in zip(steps, steps[1:]))


def validate_training(opt: Namespace) -> None:
    """Check what belongs to training."""
    from onmt.scorers import AVAILABLE_SCORERS

    for name in opt.valid_metrics or ():
        if name not in AVAILABLE_SCORERS:
            raise invalid_setting("valid_metrics", name, choices(sorted(AVAILABLE_SCORERS)))
    criterion_names(opt.early_stopping_criteria, opt.valid_metrics or ())
    decays = opt.decay_method == VALID_LOSS
    follow = [f"`{name}` follows the validations; give at least 1." for name in _following(opt)]
    split = opt.parallel_mode == "tensor_parallel" and opt.world_size > 1
    on_cpu = "On a CPU (no `gpu_ranks`) training is in fp32; leave it out."
    endless = "OpenNMT-py 3.5 reads without end; give `train_steps` (see `onmt_entmax steps`)."
    of_sparse = "`optim` is sparseadam: PyTorch has no norm of sparse gradients; give 0."
    unquantised = "`quant_layers` names no layers."
    divides = opt.decay_method.startswith("noam") and opt.warmup_steps < 1
    stretches = "The first must be 0, and each above the one before."
    rules = (
        *((not _ascend(getattr(opt, name)), name, stretches) for name in ("accum_steps", "dropout_steps")),
        (opt.early_stopping < 0, "early_stopping", "It must be at least 1, or 0 for no early stopping."),
        (decays and not 0 < opt.learning_rate_decay <= 1, "learning_rate_decay", "It must be above 0 and at most 1."),
        *((opt.valid_steps < 1, "valid_steps", rule) for rule in follow),
        (opt.keep_best and split, "parallel_mode", "`keep_best` needs `data_parallel`."),
        (opt.keep_best and opt.save_format == "safetensors", "save_format", "`keep_best` needs `pytorch`."),
        (opt.lambda_coverage and not opt.coverage_attn, "lambda_coverage", "It needs `coverage_attn`."),
        (opt.model_dtype == "fp16" and not opt.gpu_ranks, "model_dtype", on_cpu),
        (opt.single_pass, "single_pass", endless),
        (divides, "warmup_steps", f"`decay_method: {opt.decay_method}` divides by it."),
        (opt.optim == "sparseadam" and opt.max_grad_norm, "max_grad_norm", of_sparse),
        (opt.quant_type and not opt.quant_layers and not opt.train_from, "quant_type", unquantised),
        (opt.quant_layers and not opt.quant_type and not opt.train_from, "quant_layers", "`quant_type` is not set."),
        (opt.train_steps < 0, "train_steps", "It must be above 0, or 0 for no end."),
    )
    refuse(opt, rules)
    if opt.gpu_ranks:
        check_gpu("gpu_ranks", opt.gpu_ranks)
    take_over(opt)
    check_ranges(opt, _RANGES)
