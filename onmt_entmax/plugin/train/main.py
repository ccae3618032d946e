"""``onmt_train`` on one device, read straight down: what is trained, from where, how it is saved, what it reads."""

from __future__ import annotations

import copy
import os
from argparse import Namespace

import torch
from onmt import model_builder, train_single
from onmt.utils.logging import init_logger, logger

from onmt_entmax.engines.cpu.products import Products, products
from onmt_entmax.errors import invalid_setting
from onmt_entmax.plugin.heads import drop_by_engine
from onmt_entmax.plugin.parsing import given_options, one_line_errors
from onmt_entmax.plugin.train import data, plan, resuming
from onmt_entmax.plugin.train.optimiser import Optimizer
from onmt_entmax.plugin.train.options import check_validation_corpus, without_effect
from onmt_entmax.plugin.train.processes import (
    keep_memory,
    rank,
    set_seed,
    share_weights,
    subnormals,
    train_together,
    world_size,
)
from onmt_entmax.plugin.train.saver import WholeModelSaver
from onmt_entmax.plugin.train.state import Run
from onmt_entmax.plugin.train.trainer import SparseTrainer


@one_line_errors
def main(opt: Namespace, device_id: int) -> None:
    """Train, in as many processes as ``world_size`` says; takes the place of ``onmt.train_single.main``."""
    if train_together(opt, main):
        return
    keep_memory()
    # on a GPU the setting of older PyTorch would round there
    wanted = "fp32" if opt.gpu_ranks else opt.matmul_precision
    with subnormals(keep=opt.keep_subnormals), products(wanted, training=True) as found:
        train(copy.copy(opt), device_id, found)


def train(opt: Namespace, device_id: int, found: Products) -> None:
    """Train in this process, on a GPU or the CPU (-1); the options change."""
    if device_id >= 0:
        torch.cuda.set_device(device_id)
    set_seed(opt.seed, device_id >= 0)
    init_logger(opt.log_file)
    given = given_options(opt)
    for sentence in without_effect(opt, given):
        logger.warning(sentence)

    # what is trained, and from where
    checkpoint, vocabs, transforms_cls = train_single._init_train(opt)
    vocabs = resuming.vocabularies(opt, checkpoint, vocabs)
    if checkpoint is None or opt.update_vocab:
        plan.log_cut_vocabularies(opt, vocabs)
    check_validation_corpus(opt)
    resumed = resuming.our_part(opt, checkpoint)
    model_opt = resuming.model_options(opt, checkpoint, vocabs, given)
    run_opt = resuming.run_options(opt, model_opt)
    model = model_builder.build_model(model_opt, opt, vocabs, checkpoint, device_id)
    # runs of older versions go on with the masks that they had
    if not resumed or resumed.get("dropout") == "engine":
        drop_by_engine(model)
    if world_size() > 1 and opt.parallel_mode == "data_parallel":
        share_weights(model)
    _log_sizes(model, vocabs)
    optimizer = Optimizer.from_opt(model, run_opt, checkpoint)
    del checkpoint

    # how it is saved and what it reads
    folder = os.path.dirname(os.path.abspath(opt.save_model))
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise invalid_setting("save_model", opt.save_model, f"Cannot make {folder}: {error.strerror}.") from None
    saver = WholeModelSaver(
        opt.save_model, model, run_opt, vocabs, optimizer, opt.keep_checkpoint, opt.save_format, device_id
    )
    if opt.keep_checkpoint == 0:
        left = f"only {opt.save_model}_best.pt" if opt.keep_best else "the model is lost at the end"
        logger.warning(f"`keep_checkpoint` is 0: no {opt.save_model}_step_N.pt is written, {left}; -1 keeps all.")
    run = Run(run_opt, model, resumed, optimizer.training_step - 1, found)
    shares = world_size() if opt.parallel_mode == "data_parallel" else 1
    position = run.position()
    plan.fit_to_corpora(run_opt, run.lines, shares, given, position)
    trainer = SparseTrainer.from_opt(run_opt, device_id, model, vocabs, optimizer, saver)
    trainer.attach(run)
    plan.log_unknown_tokens(run_opt, transforms_cls, vocabs)
    training_data = data.build_training_data(
        run_opt,
        transforms_cls,
        vocabs,
        stride=shares,
        offset=rank() if shares > 1 else 0,
        device_id=device_id,
        resumed=position,
        log=logger.info,
    )
    validation_data = data.build_validation_data(run_opt, transforms_cls, vocabs)

    saver.model_opt = resuming.saved_options(run_opt, optimizer.options)  # with what was chosen meanwhile
    logger.info(f"Starting training on {f'GPU {device_id}' if device_id >= 0 else 'the CPU'}")
    trainer.train(training_data, opt.train_steps, opt.save_checkpoint_steps, validation_data, opt.valid_steps)
    if trainer.report_manager.tensorboard_writer is not None:
        trainer.report_manager.tensorboard_writer.close()


def _log_sizes(model, vocabs) -> None:
    model.count_parameters(log=logger.info)
    for name, trained in (("Trainable", True), ("Non trainable", False)):
        count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad == trained)
        logger.info(f"{name} parameters: {count}")
    for side in ("src", "tgt"):
        logger.info(f" * {side} vocab size = {len(vocabs[side])}")
    for number, vocab in enumerate(vocabs.get("src_feats", ())):
        logger.info(f" * src_feat {number} vocab size = {len(vocab)}")
