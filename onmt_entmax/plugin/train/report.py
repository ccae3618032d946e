"""What a run says: log lines and TensorBoard curves that call the loss by its alpha, and how much time is left."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import ExitStack

from onmt.utils import Statistics, report_manager
from onmt.utils.logging import logger
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from onmt_entmax.plugin.train.losses import DeviceStatistics
from onmt_entmax.plugin.train.processes import sum_over_processes, world_size
from onmt_entmax.progress import Clock, duration

LOGGED = {
    "support_output": "support of the output",
    "support_attention": "support of the attention",
    "gold_zero": "gold tokens with probability zero",
    "epsilon_perplexity": "epsilon-perplexity",
    "sparsemax_score": "sparsemax score",
    "jensen_shannon": "Jensen-Shannon divergence",
}


COUNTS = ("loss", "n_batchs", "n_sents", "n_words", "n_correct", "n_src_words")  # the sums of stock's statistics


def gathered(stats: Statistics, device) -> Statistics:
    """``stats`` summed over all processes."""
    if world_size() == 1:
        return stats
    result = Statistics()
    for name, value in zip(COUNTS, sum_over_processes([float(getattr(stats, name)) for name in COUNTS], device)):
        setattr(result, name, value)
    result.start_time = stats.start_time
    return result


class SparseReportManager(report_manager.ReportMgr):
    """Stock's report manager; "ppl" only where the loss is a cross-entropy, i.e. alpha 1 without smoothing."""

    alpha = 1.0  # of the output layer
    smoothed = False  # whether the training loss is one with label smoothing
    first_step = 1  # of this process
    device = "cpu"  # where sums over processes are made
    epoch: Callable[[int], float | None] = staticmethod(lambda step: None)  # passes over the text after so many steps
    clock: Clock | None = None

    @property
    def _has_perplexity(self) -> bool:
        return self.alpha == 1 and not self.smoothed

    def loss_name(self, smoothed: bool) -> str:
        """E.g. ``loss (alpha 1.5)``."""
        return f"loss (alpha {self.alpha:g}{', smoothed' if smoothed else ''})"

    def report_training(self, step, num_steps, learning_rate, patience, report_stats, multigpu=False):
        """See stock; sums over processes also where there is no GPU."""
        if step % self.report_every != 0:
            return report_stats
        stats = gathered(report_stats, self.device) if multigpu else report_stats
        self._report_training(step, num_steps, learning_rate, patience, stats)
        return DeviceStatistics()

    def _report_training(self, step, num_steps, learning_rate, patience, report_stats):
        stats, seconds = report_stats, report_stats.elapsed_time() + 1e-5
        total = f"/{num_steps:5d}" if num_steps > 0 else ""
        epoch = self.epoch(step)
        passed = "" if epoch is None else f" epoch {epoch:.2f};"
        words, batches = max(stats.n_words, 1), max(stats.n_batchs, 1)
        loss = stats.loss / words
        if self._has_perplexity:
            losses = f"ppl: {math.exp(min(loss, 100)):5.1f}; xent: {loss:.2f}"
        else:
            losses = f"{self.loss_name(self.smoothed)}: {loss:.4f}"
        self.log(
            f"Step {step:2d}{total}; acc: {100 * stats.n_correct / words:.1f}; {losses}; lr: {learning_rate:7.5f}; "
            f"sents: {stats.n_sents:7.0f}; bsz: {stats.n_src_words / batches:4.0f}/{stats.n_words / batches:4.0f}/"
            f"{stats.n_sents / batches:2.0f}; {stats.n_src_words / seconds:3.0f}/{stats.n_words / seconds:3.0f} tok/s;"
            f"{passed} {duration(self.clock.elapsed() if self.clock else 0)} so far{self._left(step, num_steps)};"
        )
        self.curves("progress", self._training_curves(stats, learning_rate, patience), step)
        sys.stdout.flush()

    def _left(self, step: int, num_steps: int) -> str:
        if self.clock is None or num_steps <= 0:
            return ""
        left = self.clock.left(step - self.first_step + 1, num_steps - step)
        return "" if left is None else f"; {duration(left)} left"

    def _training_curves(self, stats, learning_rate, patience) -> dict:
        words = max(stats.n_words, 1)
        curves = {
            "loss": stats.loss / words,
            "accuracy": 100 * stats.n_correct / words,
            "tgtper": stats.n_words / (stats.elapsed_time() + 1e-5),
            "lr": learning_rate,
            "patience": patience,
        }
        if self._has_perplexity:
            curves["ppl"] = math.exp(min(stats.loss / words, 100))
        return curves

    def curves(self, prefix: str, values: dict, step: int) -> None:
        """Write what is a number to TensorBoard, if it is on."""
        if self.tensorboard_writer is None:
            return
        for name, value in values.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                self.tensorboard_writer.add_scalar(f"{prefix}/{name}", value, step)

    def report_totals(self, stats: Statistics, learning_rate: float, patience, step: int) -> None:
        """Log the training so far, as stock does at each validation."""
        words, batches = max(stats.n_words, 1), max(stats.n_batchs, 1)
        if self._has_perplexity:
            self.log(f"Train perplexity: {math.exp(min(stats.loss / words, 100)):g}")
        else:
            self.log(f"Train {self.loss_name(self.smoothed)}: {stats.loss / words:g}")
        self.log(f"Train accuracy: {100 * stats.n_correct / words:g}")
        self.log(f"Sentences processed: {stats.n_sents:g}")
        self.log(
            f"Average bsz: {stats.n_src_words / batches:4.0f}/{stats.n_words / batches:4.0f}/"
            f"{stats.n_sents / batches:2.0f}"
        )
        self.curves("train", self._training_curves(stats, learning_rate, patience), step)

    def report_validation(self, entry: dict, patience) -> None:
        """Log one entry of the metrics file."""
        for key, name in (("perplexity", "perplexity"), ("loss", self.loss_name(False)), ("accuracy", "accuracy")):
            if entry[key] is not None:
                self.log(f"Validation {name}: {entry[key]:g}")
        parts = [f"{text} {entry[name]:.4g}" for name, text in LOGGED.items() if entry.get(name) is not None]
        if entry.get("alpha_learned"):
            parts.append(f"learned alpha {entry['alpha_attention']:.4g}")
        if parts:
            self.log(f"Validation {', '.join(parts)}")
        self.log(f"Validation signature: {entry['signature']}")
        values = {key: value for key, value in entry.items() if key not in ("step", "epsilon", "n_words")}
        self.curves("valid", {**values, "lr": entry["learning_rate"], "patience": patience}, entry["step"])


class ProgressBar:
    """A bar on the terminal with the time left; nothing where standard error is no terminal or another process logs."""

    def __init__(self, first_step: int, train_steps: int, shown: bool) -> None:
        self.first_step, self.train_steps, self.shown = first_step, train_steps, shown
        self.bar = None

    def __enter__(self) -> ProgressBar:
        self._stack = ExitStack()
        if self.shown and sys.stderr.isatty():
            total = self.train_steps if self.train_steps > 0 else None
            initial = self.first_step - 1
            self.bar = self._stack.enter_context(tqdm(total=total, initial=initial, unit="step", desc="training"))
            self._stack.enter_context(logging_redirect_tqdm([logger]))
        return self

    def __exit__(self, *error) -> None:
        self._stack.close()

    def update(self) -> None:
        """One more step is done."""
        if self.bar is not None:
            self.bar.update(1)


def build_report_manager(opt, rank: int) -> SparseReportManager:
    """The report manager of a run; ``rank`` 0 or below has the curves for TensorBoard."""
    stock = report_manager.build_report_manager(opt, rank)
    manager = SparseReportManager(stock.report_every, stock.start_time, stock.tensorboard_writer)
    manager.smoothed = opt.label_smoothing > 0
    return manager
