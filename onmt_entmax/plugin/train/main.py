"""Hooks into training: each piece of a run gets its part of the checkpoint it resumes from."""

from __future__ import annotations

import functools
from contextvars import ContextVar

import torch

from onmt_entmax.engines.cpu.products import Products, products
from onmt_entmax.plugin.train.optimiser import keep_memory, subnormals


class _Pieces:
    """What the functions that ``train_single.main`` calls one after the other need to know of each other."""

    def __init__(self) -> None:
        self.resumed: dict | None = None
        self.run = None
        self.products: Products | None = None


_PIECES: ContextVar[_Pieces] = ContextVar("onmt_entmax_training")


def main(stock):
    @functools.wraps(stock)
    def main(opt, device_id):
        keep_memory()
        pieces = _Pieces()
        token = _PIECES.set(pieces)
        try:
            # on a GPU the setting of older PyTorch would round there
            with (
                subnormals(keep=opt.keep_subnormals),
                products("fp32" if opt.gpu_ranks else opt.matmul_precision) as found,
            ):
                pieces.products = found
                return stock(opt, device_id)
        finally:
            _PIECES.reset(token)

    return main


def init_train(stock):
    def init_train(opt):
        from onmt_entmax.plugin.train.options import check_validation_corpus

        checkpoint, vocabs, transforms_cls = stock(opt)
        check_validation_corpus(opt)
        pieces = _PIECES.get(None)
        # with `reset_optim: all` a new run begins with the checkpoint's weights
        if pieces is not None and checkpoint is not None and opt.reset_optim != "all":
            from onmt_entmax.plugin.train.saver import KEY

            pieces.resumed = checkpoint.get(KEY)
            if pieces.resumed is None:
                from onmt.utils.logging import logger

                logger.info(f"{opt.train_from} holds no position in the data: it is read from the beginning.")
        return checkpoint, vocabs, transforms_cls

    return init_train


def build_trainer(stock):
    def build_trainer(opt, device_id, model, vocabs, optim, model_saver=None):
        from onmt_entmax.plugin.train.state import Run

        trainer = stock(opt, device_id, model, vocabs, optim, model_saver=model_saver)
        pieces = _PIECES.get(None)
        if pieces is not None:
            pieces.run = Run(opt, model, pieces.resumed, optim.training_step - 1, pieces.products)
            trainer.attach(pieces.run)
        return trainer

    return build_trainer


def build_dynamic_dataset_iter(stock):
    def build_dynamic_dataset_iter(opt, transforms_cls, vocabs, *args, **kwargs):
        from onmt.constants import CorpusTask
        from onmt.inputters.dynamic_iterator import OnDeviceDatasetIter
        from onmt.utils.logging import logger

        from onmt_entmax.plugin.train.data import build_training_data, without_workers

        pieces = _PIECES.get(None)
        if pieces is None or args or kwargs.get("task") == CorpusTask.INFER:
            return stock(opt, transforms_cls, vocabs, *args, **kwargs)
        if kwargs.get("task") == CorpusTask.VALID:
            device_id = kwargs.pop("device_id", -1)
            data = stock(without_workers(opt), transforms_cls, vocabs, **kwargs)
            return data if data is None or device_id < 0 else OnDeviceDatasetIter(data, torch.device(device_id))
        return build_training_data(
            opt,
            transforms_cls,
            vocabs,
            copy=kwargs.get("copy", False),
            stride=kwargs.get("stride", 1),
            offset=kwargs.get("offset", 0),
            device_id=kwargs.get("device_id", -1),
            resumed=pieces.run.position(),
            log=logger.info,
        )

    return build_dynamic_dataset_iter


def scorers_from_opts(stock):
    def scorers_from_opts(opt):
        from onmt_entmax.plugin.train.stop import criterion_names

        return criterion_names(opt.early_stopping_criteria, opt.valid_metrics or ())

    return scorers_from_opts


def early_stopping(stock):
    def early_stopping(tolerance, scorers):
        from onmt_entmax.plugin.train.stop import StopRule

        return StopRule(tolerance, scorers)

    return early_stopping
