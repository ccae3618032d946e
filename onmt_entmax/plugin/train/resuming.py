"""What a run takes from the checkpoint in ``train_from``, what it says of itself, and which options it does not use."""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Collection

import onmt.opts
from onmt import train_single
from onmt.inputters.inputter import build_vocab, dict_to_vocabs
from onmt.transforms import get_specials, get_transforms_cls
from onmt.utils.logging import logger
from onmt.utils.parse import ArgumentParser

from onmt_entmax.errors import invalid_setting
from onmt_entmax.plugin.alphas import keep_checkpoint_alphas
from onmt_entmax.plugin.options import FOR_NEW_MODELS, OF_TRAINING
from onmt_entmax.plugin.parsing import GIVEN
from onmt_entmax.plugin.train.optimiser import FOLLOWED
from onmt_entmax.plugin.train.saver import KEY

_FREEZING = ("freeze_encoder", "freeze_decoder", "freeze_word_vecs_enc", "freeze_word_vecs_dec")
_DROPOUT = ("dropout", "attention_dropout", "dropout_steps")
# options that mean others
_SHORT = {
    "layers": ("enc_layers", "dec_layers"),
    "hidden_size": ("enc_hid_size", "dec_hid_size"),
    "word_vec_size": ("src_word_vec_size", "tgt_word_vec_size"),
}
# differ between a run and the same run resumed
_PLACES = {
    *("train_from", "save_model", "train_steps", "config", "save_config", "log_file", "reset_optim"),
    *("tensorboard_log_dir_dated", "master_port", "data", "bucket_size", "num_workers"),
}
_MISSING = object()


def our_part(opt: Namespace, checkpoint: dict | None) -> dict | None:
    """What the checkpoint says of a run that goes on; None for a new one, which may begin with its weights."""
    if checkpoint is None or opt.reset_optim == "all":
        return None
    if checkpoint.get("optim") is None:
        logger.info(f"{opt.train_from} holds no state of training: a new run begins with its weights.")
        return None
    part = checkpoint.get(KEY)
    if part is None:
        logger.info(f"{opt.train_from} holds no position in the data: it is read from the beginning.")
    return part


def _model_names() -> set[str]:
    return set(vars(ArgumentParser.defaults(onmt.opts.model_opts))) - OF_TRAINING


def model_options(opt: Namespace, checkpoint: dict | None, vocabs, given: Collection[str]) -> Namespace:
    """The options to build the model with: the checkpoint's, where there is one.

    Args:
        opt: the run's options; what only the checkpoint can say is written into them.
        checkpoint: what ``train_from`` names, or None.
        vocabs: the vocabularies in use.
        given: names of the options that the user gave.
    """
    if checkpoint is None:
        return opt
    trained = checkpoint["opt"]
    for note in keep_checkpoint_alphas(opt, trained, given):
        logger.info(note)
    if opt.reset_optim != "all":  # a run that goes on
        for name in _FREEZING:
            before = getattr(trained, name, False)
            if opt.reset_optim == "states" and getattr(opt, name) != before:
                logger.info(f"`{name}` is {getattr(opt, name)}, and was {before} in the checkpoint's run.")
            elif name not in given:
                setattr(opt, name, before)
        if not set(_DROPOUT) & set(given):
            for name in _DROPOUT:
                setattr(opt, name, getattr(trained, name, getattr(opt, name)))
    model_opt = train_single._get_model_opts(opt, checkpoint=checkpoint)
    if model_opt is opt:  # `override_opts` says of all options that they change, also of how weights begin
        for line in _unused_starts(opt, trained, given):
            logger.warning(line)
        return opt
    for name in _FREEZING:
        setattr(model_opt, name, getattr(opt, name))
    for line in (*unused_options(opt, model_opt, given), *_unused_vocabulary(opt, vocabs)):
        logger.warning(line)
    _log_changes(opt, trained)
    return model_opt


def unused_options(opt: Namespace, model_opt: Namespace, given: Collection[str]) -> list[str]:
    """A line for each option given that a run with ``train_from`` does not use, for the checkpoint says otherwise."""
    lines = []
    for name in sorted((_model_names() - set(_FREEZING) - set(FOR_NEW_MODELS)) & set(given)):
        if name.endswith(("_function", "_alpha")):  # refused where it differs
            continue
        for meant in _SHORT.get(name, (name,)):
            wanted, has = getattr(opt, meant, _MISSING), getattr(model_opt, meant, _MISSING)
            if wanted != has and has is not _MISSING:
                lines.append(
                    f"`{name}: {getattr(opt, name)}` is not used: the checkpoint's model has `{meant}` {has} "
                    "(`override_opts` builds the model with the options given)."
                )
                break
    if len(opt.dropout) == 1:  # several are set one after the other, at the steps of `dropout_steps`
        for name in _DROPOUT[:2]:
            if name in given and getattr(opt, name) != getattr(model_opt, name):
                lines.append(
                    f"`{name}: {getattr(opt, name)}` is not used: the checkpoint's model has "
                    f"{getattr(model_opt, name)} (`override_opts` builds the model with the options given)."
                )
    return lines + _unused_starts(opt, model_opt, given)


def _unused_starts(opt: Namespace, trained: Namespace, given: Collection[str]) -> list[str]:
    """A line for each option given that says how weights begin, where they come from a checkpoint."""
    # with `update_vocab` new words begin as the run's options say, or as the model's do
    names = set(FOR_NEW_MODELS) & _model_names() if opt.update_vocab else set(FOR_NEW_MODELS)
    return [
        f"`{name}: {getattr(opt, name)}` is not used: the weights come from {opt.train_from}."
        for name in sorted(names & set(given))
        if getattr(opt, name) != getattr(trained, name, None)
    ]


def vocabularies(opt: Namespace, checkpoint: dict | None, found: dict) -> dict:
    """The checkpoint's, unless there is none or ``update_vocab`` is on; stock takes the files' for other transforms.

    Args:
        found: what stock has found.

    Raises:
        UserError: the transforms need a token that the checkpoint's do not know.
    """
    if checkpoint is None or opt.update_vocab:
        return found
    kept = dict_to_vocabs(checkpoint["vocab"])
    if all(kept[side].ids_to_tokens == found[side].ids_to_tokens for side in ("src", "tgt")):
        return found
    specials = get_specials(opt, get_transforms_cls(opt._all_transform))
    for side in ("src", "tgt"):
        for token in sorted(specials[side]):
            if token not in kept[side].tokens_to_ids:
                rule = f"They need {token!r}, which the vocabulary of {opt.train_from} lacks: add `update_vocab: true`."
                raise invalid_setting("transforms", ", ".join(sorted(opt._all_transform)), rule)
    return kept


def _unused_vocabulary(opt: Namespace, vocabs) -> list[str]:
    """A line for each side whose vocabulary file is not what is in use, which is the checkpoint's."""
    if opt.update_vocab:
        return []
    files = build_vocab(copy.copy(opt), get_specials(opt, get_transforms_cls(opt._all_transform)))
    return [
        f"`{side}_vocab: {getattr(opt, f'{side}_vocab')}` is not used: the vocabulary in {opt.train_from} is another "
        "one (`update_vocab` takes the file's)."
        for side in ("src", "tgt")
        if files[side].ids_to_tokens != vocabs[side].ids_to_tokens
    ]


def _log_changes(opt: Namespace, trained: Namespace) -> None:
    """One line for the options of training that are not those of the checkpoint's run."""
    changes = []
    for name in sorted(set(vars(opt)) - _model_names() - _PLACES - set(FOLLOWED) - set(_DROPOUT) - set(_FREEZING)):
        if not name.startswith("_") and getattr(trained, name, _MISSING) not in (_MISSING, getattr(opt, name)):
            changes.append(f"{name} {getattr(trained, name)} -> {getattr(opt, name)}")
    if changes:
        logger.info(f"Options that differ from those of the checkpoint's run: {', '.join(changes)}")


def run_options(opt: Namespace, model_opt: Namespace) -> Namespace:
    """What this run says of itself: the options of training are its own, those of the model the model's."""
    own = {name: value for name, value in vars(opt).items() if name != GIVEN}
    if model_opt is opt:
        return Namespace(**own)
    of_model = _model_names() | {"quant_layers", "quant_type", "w_bit", "group_size"}
    if len(opt.dropout) == 1:
        of_model |= set(_DROPOUT)
    return Namespace(**{**vars(model_opt), **{name: value for name, value in own.items() if name not in of_model}})


def saved_options(run_opt: Namespace, followed: Namespace) -> Namespace:
    """What goes into checkpoints: :func:`run_options` with what the optimizer follows."""
    saved = copy.copy(run_opt)
    for name in FOLLOWED:
        if hasattr(followed, name):
            setattr(saved, name, getattr(followed, name))
    return saved
