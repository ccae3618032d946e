"""The trainer: stock's steps, in a loop in which all processes follow one validation and every state can be saved.

Batches come from the data as they were read, on the CPU, where they are counted; then they go to the device. Between
two reports the host reads nothing of the device.
"""

from __future__ import annotations

import copy
import math
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import nullcontext

import onmt.trainer
import torch
from onmt.scorers import build_scorers, get_scorers_cls
from onmt.utils import Statistics
from onmt.utils.logging import logger
from onmt.utils.scoring_utils import ScoringPreparator

from onmt_entmax.entmax.engine import on_host
from onmt_entmax.errors import invalid_setting
from onmt_entmax.files import read_lines, split_tokens
from onmt_entmax.plugin.head_measures import HeadSums
from onmt_entmax.plugin.models import generator_alpha
from onmt_entmax.plugin.train.data import on_device
from onmt_entmax.plugin.train.losses import DeviceStatistics, EntmaxLossCompute
from onmt_entmax.plugin.train.measures import StopRule, TokenMeasures, check_measured, criterion_names
from onmt_entmax.plugin.train.processes import from_first, is_first, on_first, rank, sum_over_processes, world_size
from onmt_entmax.plugin.train.report import ProgressBar, build_report_manager, gathered
from onmt_entmax.plugin.train.saver import weights_in_place
from onmt_entmax.plugin.train.state import Run
from onmt_entmax.progress import duration

StockTrainer = onmt.trainer.Trainer


class SparseTrainer(StockTrainer):
    """Stock's trainer with the validation schedule, best checkpoint, measures and exact resuming."""

    run: Run

    @classmethod
    def from_opt(cls, opt: Namespace, device_id: int, model, vocabs, optimizer, saver) -> SparseTrainer:
        """Build the trainer with its losses, scores, stop rule and report."""
        losses = [EntmaxLossCompute.from_opts(opt, model, vocabs["tgt"], train=train) for train in (True, False)]
        scoring = ScoringPreparator(vocabs=vocabs, opt=copy.copy(opt))  # it changes the options
        transforms = opt.data.get("valid", {}).get("transforms")
        if transforms:
            scoring.warm_up(transforms)
        rule = None
        if opt.early_stopping > 0:
            rule = StopRule(opt.early_stopping, criterion_names(opt.early_stopping_criteria, opt.valid_metrics or ()))
            check_measured(rule.criteria, generator_alpha(model), losses[1].fused)
        if opt.truncated_decoder and (opt.decoder_type not in ("rnn", "cnn") or opt.model_task == "lm"):
            rule = "It is for recurrent decoders with an encoder: no other is handed what stands before a piece."
            raise invalid_setting("truncated_decoder", opt.truncated_decoder, rule)
        together = world_size() > 1
        return cls(
            model,
            *losses,
            scoring,
            build_scorers(opt, get_scorers_cls(opt.valid_metrics)),
            optimizer,
            trunc_size=opt.truncated_decoder,
            norm_method=opt.normalization,
            accum_count=opt.accum_count,
            accum_steps=opt.accum_steps,
            n_gpu=world_size() if together or device_id >= 0 else 0,
            gpu_rank=rank() if together or device_id >= 0 else -1,
            parallel_mode=opt.parallel_mode,
            report_manager=build_report_manager(opt, rank()),
            with_align=opt.lambda_align > 0,
            model_saver=saver,
            average_decay=opt.average_decay,
            average_every=opt.average_every,
            model_dtype=opt.model_dtype,
            earlystopper=rule,
            dropout=opt.dropout,
            attention_dropout=opt.attention_dropout,
            dropout_steps=opt.dropout_steps,
            zero_out_prompt_loss=opt.zero_out_prompt_loss,
        )

    def attach(self, run: Run) -> None:
        """Follow ``run``; in a resumed one take over raw weights, averages and the dropout of its step."""
        self.run = run
        run.stop_rule = self.earlystopper
        run.start(self.model_saver)
        if run.validates_anew and self.optim.schedule is not None:
            self.optim.schedule.previous = None
        averages = run.restore_weights(self.model)
        if averages is not None and self.average_decay > 0:
            self.moving_average = averages
        self.model_saver.training_state = lambda step: run.state(step, self.model_saver)
        manager = self.report_manager
        manager.alpha, manager.clock, manager.first_step = generator_alpha(self.model), run.clock, run.step + 1
        manager.device, manager.epoch = self._device(), run.epoch

    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def _data_parallel(self) -> bool:
        return self.n_gpu > 1 and self.parallel_mode == "data_parallel"

    def train(self, train_iter, train_steps, save_checkpoint_steps=5000, valid_iter=None, valid_steps=10000):
        """Train until ``train_steps`` (0: no limit) or the stop rule says so; statistics of the whole run, as stock."""
        run = self.run
        step = run.step
        if self._is_over(step, train_steps):
            return run.total_stats
        self._announce(train_steps, valid_iter, valid_steps)
        run.data = train_iter if hasattr(train_iter, "position") else None
        if step > 0:
            self._set_dropout(step)
        self._start_report_manager(start_time=run.total_stats.start_time)
        torch.cuda.empty_cache()
        with ProgressBar(step + 1, train_steps, shown=is_first()) as progress:
            for batches, normalization in self._accum_batches(train_iter):
                step = self.optim.training_step
                self._step(step, train_steps, batches, normalization)
                progress.update()
                run.clock.pause()
                stopped = valid_steps > 0 and step % valid_steps == 0 and self._after_epoch(step, valid_iter)
                last = stopped or (train_steps > 0 and step >= train_steps)
                regular = save_checkpoint_steps != 0 and step % save_checkpoint_steps == 0
                if regular or last:
                    self.model_saver.save(step, moving_average=self.moving_average)
                run.clock.go_on()
                if last:
                    break
        if step > 0:
            self.model_saver.save(step, moving_average=self.moving_average)
            self._validate_at_the_end(step, valid_iter, valid_steps)
        return run.total_stats

    def _validate_at_the_end(self, step: int, valid_iter, valid_steps: int) -> None:
        """Validate a run that was too short for any validation: it still gets its metrics and its best checkpoint.

        The checkpoint is written by then: a run that goes on from it does so as if there had been no end here.
        """
        if valid_iter is None or not 0 < step < valid_steps:
            return
        logger.info(f"No validation was due in {step} steps (`valid_steps` is {valid_steps}): one at the end.")
        self._record(self._validated(step, valid_iter, self._words()), step)

    def _words(self) -> float:
        """Target words so far, of all processes that share the text; with tensor parallelism each reads all of it."""
        own = float(self.run.total_stats.n_words)
        return sum_over_processes([own], self._device())[0] if self._data_parallel else own

    def _is_over(self, step: int, train_steps: int) -> bool:
        if 0 < train_steps <= step:
            logger.info(f"Nothing left to train: the checkpoint is at step {step}, `train_steps` is {train_steps}.")
            return True
        if self.earlystopper is not None and self.earlystopper.has_stopped():
            rule = self.earlystopper
            logger.info(f"Nothing left to train: the run stopped early; its best step was {rule.best_step}.")
            return True
        return False

    def _announce(self, train_steps: int, valid_iter, valid_steps: int) -> None:
        if valid_iter is None:
            logger.info("Start training loop without validation...")
        else:
            logger.info(f"Start training loop and validate every {valid_steps} steps...")
        logger.info(f"Scoring with: {self.scoring_preparator.transforms}")
        if train_steps <= 0 and self.earlystopper is None:
            logger.warning("`train_steps` and `early_stopping` are 0: nothing but you will end this run.")

    def _set_dropout(self, step: int) -> None:
        """The dropout that a run which never stopped has after ``step``; stock sets it at the steps of change only."""
        passed = [i for i, start in enumerate(self.dropout_steps) if start < step]
        if len(self.dropout) > 1 and passed:
            self.model.update_dropout(self.dropout[passed[-1]], self.attention_dropout[passed[-1]])

    def _step(self, step: int, train_steps: int, batches, normalization) -> None:
        run = self.run
        self._maybe_update_dropout(step)
        if self._data_parallel:
            total = torch.full((), float(normalization), device=self._device())
            torch.distributed.all_reduce(total)
            normalization = total
        self._gradient_accumulation(batches, normalization, run.total_stats, run.report_stats)
        if self.average_decay > 0 and (step - 1) % self.average_every == 0:
            self._update_average(step)
        run.report_stats = self._maybe_report_training(step, train_steps, self.optim.learning_rate(), run.report_stats)

    def _gradient_accumulation(self, true_batches, normalization, total_stats, report_stats) -> None:
        """A step on batches, see stock; ``normalization`` is a number, or ``()`` on the device."""
        self.optim.zero_grad()
        for batch in true_batches:
            src_words = int(on_host(batch["srclen"]).sum())
            batch = on_device(batch, self._device())
            found = list(self._pieces(batch, normalization))
            for stats in (total_stats, report_stats):
                stats.n_src_words += src_words
                for piece in found:
                    stats.update(piece)
        if self._data_parallel:
            gradients = [p.grad.data for p in self.model.parameters() if p.requires_grad and p.grad is not None]
            # the normalization is that of all processes together: stock divides by their number once more
            onmt.utils.distributed.all_reduce_and_rescale_tensors(gradients, 1.0)
        self.optim.step()

    def _pieces(self, batch, normalization) -> Iterator[Statistics]:
        """The backward pass of each piece of the targets (all of them, unless they are truncated).

        Their gradients add up to those of a step; stock keeps the last piece's alone, and leaves out what stands
        between two pieces.
        """
        length = batch["tgt"].size(1)
        size = self.trunc_size or length
        for start in range(0, length - 1, size):
            try:
                stats = self._piece(batch, start, size, normalization)
            except torch.cuda.OutOfMemoryError:
                if self.n_gpu > 1:  # the others would wait for this one's gradients
                    raise
                logger.warning(f"Step {self.optim.training_step}: out of memory on the GPU; a batch is left out.")
                torch.cuda.empty_cache()
                return
            yield stats
            if self.model.decoder.state != {}:
                self.model.decoder.detach_state()

    def _piece(self, batch, start: int, size: int, normalization) -> Statistics:
        with self._autocast():
            target = batch["tgt"][:, start : start + size + 1]  # the decoder reads all but the last
            output, attns = self.model(
                *(batch["src"], target, batch["srclen"]), bptt=start > 0, with_align=self.with_align
            )
            if self.zero_out_prompt_loss:
                batch = self.train_loss.ignore_prompt(batch)
            loss, stats = self.train_loss(batch, output, attns, trunc_start=start, trunc_size=size + 1)
        self.optim.backward(loss / normalization)
        return stats

    def _autocast(self):
        return torch.autocast("cuda", dtype=torch.float16) if self.optim.amp else nullcontext()

    def _update_average(self, step: int) -> None:
        """See stock; the first average is a copy, not the parameters themselves."""
        super()._update_average(step)
        if self.moving_average:
            own = {parameter.data_ptr() for parameter in self.model.parameters()}
            self.moving_average = [a.clone() if a.data_ptr() in own else a for a in self.moving_average]

    def _after_epoch(self, step: int, valid_iter) -> bool:
        """Validate, let schedule, stop rule and best checkpoint follow, report; returns whether to stop."""
        run = self.run
        tolerance = None if self.earlystopper is None else self.earlystopper.current_tolerance
        totals = gathered(run.total_stats, self._device()) if self._data_parallel else run.total_stats
        if is_first():
            self.report_manager.report_totals(totals, self.optim.learning_rate(), tolerance, step)
        words = self._words()
        if valid_iter is None:
            return False
        entry = self._validated(step, valid_iter, words)
        run.seen = {"words": words, "elapsed": run.clock.elapsed()}
        loss = math.nan if entry["loss"] is None else entry["loss"]
        if math.isnan(loss):
            logger.warning(f"The validation loss at step {step} is not a number.")
        schedule = self.optim.schedule
        if schedule is not None and schedule.update(loss):
            logger.info(f"Validation loss rose: the learning rate is now {self.optim.learning_rate():g}.")
        if self.earlystopper is not None:
            self._follow_stop_rule(entry, step)
        self._record(entry, step)
        return self.earlystopper is not None and self.earlystopper.has_stopped()

    def _validated(self, step: int, valid_iter, words: float) -> dict:
        """The entry of the metrics file for a validation, in every process."""
        entry = None
        if is_first() or self.parallel_mode == "tensor_parallel":
            entry = self.run.entry(step, self.validate(valid_iter, self.moving_average), words, self.optim)
        return from_first(entry)

    def _record(self, entry: dict, step: int) -> None:
        """Report a validation, keep the best checkpoint, write the metrics file."""
        run = self.run
        if is_first():
            left = None if self.earlystopper is None else self.earlystopper.current_tolerance
            self.report_manager.report_validation(entry, left)
        if run.improves(entry["accuracy"], step) and run.keep_best:
            self.model_saver.save_best(step, moving_average=self.moving_average)
            on_first(f"{run.prefix}_best.json", lambda: run.write_best(entry))
        on_first(f"{run.prefix}_metrics.jsonl", lambda: run.metrics.append(entry))

    def _follow_stop_rule(self, entry: dict, step: int) -> None:
        rule = self.earlystopper
        names = ", ".join(rule.criteria)
        if rule.update(entry, step):
            logger.info(f"Progress in {names}.")
        elif rule.has_stopped():
            logger.info(f"{rule.waited} validations without progress in {names}: stop. Best step: {rule.best_step}.")
        else:
            logger.info(f"No progress in {names} since step {rule.best_step}: {rule.waited} of {rule.patience}.")

    def validate(self, valid_iter, moving_average=None) -> Statistics:
        """Run the validation data through the model (with averaged weights where there are any).

        Returns:
            Statistics; ``measures`` holds ``TokenMeasures``, or None where stock computes the loss; ``heads`` what
            those of a Transformer do; ``computed_metrics`` what ``valid_metrics`` asks for.
        """
        started = time.monotonic()
        stats, sums = DeviceStatistics(), []
        heads = HeadSums(None if self.parallel_mode == "tensor_parallel" else self.model)  # it splits them
        self.model.eval()
        with weights_in_place(self.model, moving_average), torch.no_grad(), heads.watching():
            for batch, _ in valid_iter:
                batch = on_device(batch, self._device())
                with self._autocast():
                    output, attns = self.model(batch["src"], batch["tgt"], batch["srclen"], with_align=self.with_align)
                    if self.zero_out_prompt_loss:
                        batch = self.valid_loss.ignore_prompt(batch)
                    batch_stats, batch_sums = self.valid_loss.measure(batch, output, attns)
                heads.add(batch["srclen"], batch["tgtlen"] - 1)
                stats.update(batch_stats)
                sums.append(batch_sums)
            stats.measures = None
            if self.valid_loss.fused:
                stats.measures = TokenMeasures.of(sum(sums)) if sums else TokenMeasures()
            stats.heads = heads.summary()
            stats.computed_metrics = self._scores() if self.valid_scorers else {}
        self.model.train()
        seconds = time.monotonic() - started
        logger.info(f"Validation took {duration(seconds)}")
        if self.n_gpu > 1 and seconds > self.run.opt.timeout / 2:
            logger.warning(f"The other processes wait `timeout` seconds ({self.run.opt.timeout}) at most: raise it.")
        return stats

    def _scores(self) -> dict[str, float]:
        """Translate the validation data and score it with what ``valid_metrics`` names, line by line.

        Stock leaves out blank lines, each side its own, and what a transform leaves out: the rest no longer belongs
        together. Here such a source has an empty translation, and a blank reference is left out with its translation.
        """
        predictions, _ = self.scoring_preparator.translate(
            model=self.model,
            gpu_rank=self.gpu_rank if self._device().type == "cuda" else -1,
            step=self.optim.training_step,
        )
        lines = zip(predictions, read_lines(self.run.opt.data["valid"]["path_tgt"]))
        pairs = [(prediction, reference) for prediction, reference in lines if split_tokens(reference)]
        predictions, references = ([pair[side] for pair in pairs] for side in (0, 1))
        scores = {}
        for name, scorer in self.valid_scorers.items():
            scorer["value"] = self._eval_handler(scorer=scorer["scorer"], preds=predictions, texts_ref=references)
            scores[name] = scorer["value"]
            logger.info(f"Validation {name}: {scorer['value']}")
        return scores
