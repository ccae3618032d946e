"""What a run remembers beyond weights and optimizer, and how it goes into checkpoints and comes back."""

from __future__ import annotations

import math
import os
from argparse import Namespace

import onmt
import torch
from onmt.utils import Statistics
from onmt.utils.logging import logger
from torch import nn

from onmt_entmax import engines
from onmt_entmax.engines.cpu.products import Products
from onmt_entmax.errors import UserError
from onmt_entmax.files import count_lines, read_json, write_json
from onmt_entmax.plugin.models import attention_alpha, attention_alpha_text, generator_alpha
from onmt_entmax.plugin.train import position as random_state
from onmt_entmax.plugin.train.losses import DeviceStatistics
from onmt_entmax.plugin.train.measures import EPSILON, StopRule, TokenMeasures, is_better
from onmt_entmax.plugin.train.options import VALID_LOSS
from onmt_entmax.plugin.train.plan import corpus_state
from onmt_entmax.plugin.train.processes import from_all, is_first, on_first, rank, world_size
from onmt_entmax.plugin.train.report import COUNTS
from onmt_entmax.plugin.train.saver import WholeModelSaver
from onmt_entmax.progress import Clock, steps_per_epoch
from onmt_entmax.report.metrics import MetricsLog
from onmt_entmax.signatures import signature
from onmt_entmax.version import version


def _products_of(model, products: Products | None) -> Products | None:
    """What is true of this model: where LSTM layers alone may round, one without them does not."""
    if products is None or not products.by_layers:
        return products
    if any(isinstance(part, (nn.LSTM, nn.LSTMCell)) for part in model.modules()):
        return products
    reason = "`matmul_precision` is bf16: LSTM layers alone round on this processor, and this model has none"
    return products._replace(precision="fp32", reason=reason, by_layers=False)


def pack_statistics(stats: Statistics) -> dict:
    """The sums of ``stats`` as plain data."""
    return {name: getattr(stats, name) for name in COUNTS}


def unpack_statistics(packed: dict | None) -> Statistics:
    """Inverse of :func:`pack_statistics`; fresh statistics for None."""
    stats = DeviceStatistics()
    for name, value in (packed or {}).items():
        setattr(stats, name, value)
    return stats


class Run:
    """Best checkpoint, stop rule, metrics file, clock and counts of a run.

    Args:
        opt, model: of the run.
        resumed: our part of the checkpoint (``entmax_training``), or None.
        step: the last step of the checkpoint, 0 for a new run.
        products: how float32 products are computed.
    """

    def __init__(
        self, opt: Namespace, model, resumed: dict | None, step: int, products: Products | None = None
    ) -> None:
        self.opt, self.model, self.step, self.products = opt, model, step, _products_of(model, products)
        self.prefix = opt.save_model
        self.resumed = resumed or {}
        self.stop_rule: StopRule | None = None
        self.keep_best = getattr(opt, "keep_best", False)
        self.best = dict(self.resumed.get("best") or {"step": 0, "accuracy": None})
        self.elapsed_before = float(self.resumed.get("elapsed", 0.0))
        self.clock = Clock(self.elapsed_before)
        self.total_stats = unpack_statistics(self._own("total"))
        self.report_stats = unpack_statistics(self._own("report"))
        for stats, seconds in zip((self.total_stats, self.report_stats), self._own("elapsed") or ()):
            stats.start_time -= seconds
        if self._own("total") is None:  # a new run, or other processes: what was counted is not theirs
            self.counted_from = step
            self.seen = {"words": 0, "elapsed": self.elapsed_before}
        else:
            self.counted_from = self.resumed.get("counted_from", 0)
            self.seen = dict(self.resumed.get("seen") or {"words": 0, "elapsed": 0.0})  # at the last validation
        self.metrics: MetricsLog | None = None
        self.lines = self._count_lines()
        self.data = None  # what the trainer iterates over; knows the position

    def _own(self, key: str):
        """This process's entry of the checkpoint, or None where there were other processes."""
        ranks = self.resumed.get("ranks") or []
        return ranks[rank()].get(key) if len(ranks) == world_size() else None

    def position(self) -> dict | None:
        """Where this process's data and random states were, or None."""
        before = len(self.resumed.get("ranks") or [])
        if before not in (0, world_size()):
            logger.info(
                f"The checkpoint is of {before} process{'es' * (before > 1)}, this run has {world_size()}: the data is "
                "read from the beginning."
            )
        return self._own("position")

    @property
    def validates_anew(self) -> bool:
        """Whether the validations before the checkpoint were of other data."""
        return self.resumed.get("valid") not in (None, corpus_state(self.opt.data.get("valid")))

    def start(self, saver: WholeModelSaver) -> None:
        """Open the metrics file, restore the stop rule and tidy up after a killed run."""
        rule, before = self.stop_rule, self.resumed.get("stop")
        if self.validates_anew:
            logger.warning(
                "The validation data is not what it was at the checkpoint: best validation, patience and the rate that "
                "follows validation loss begin anew."
            )
            self.best, before = {"step": 0, "accuracy": None}, None
        if rule is not None and before and not rule.load_state_dict(before):
            names = ", ".join(rule.criteria)
            logger.info(f"`early_stopping_criteria` {names} were not followed before: patience begins anew.")
        own = not self.opt.train_from or saver.is_own(self.opt.train_from)
        self._compare_best(own)
        # of the run that this one begins with under another name there are no entries here; they would be a third one's
        after = self.step if own else 0
        path = f"{self.prefix}_metrics.jsonl"
        on_first(path, lambda: setattr(self, "metrics", MetricsLog(path, after)))
        if not is_first():
            return
        saver.remove_parts()
        if self.opt.train_from:
            saver.go_on_from(self.resumed.get("kept", []), self.opt.train_from)
            saver.last_path = self.opt.train_from
        self._log_engine()
        per_epoch = self.steps_per_epoch(0)
        if per_epoch is not None:
            logger.info(f"Training text: {sum(self.lines.values())} lines, {per_epoch} steps per epoch")

    def _compare_best(self, own: bool) -> None:
        """Let the best validation be that of ``PREFIX_best.pt``, or look for it anew, which the log says.

        Args:
            own: whether the run goes on under the name that it had.
        """
        noted = self._noted_best() if own else None
        if noted and noted["step"] == self.step and not self.best["step"] and not self.validates_anew:
            # of the validation at the end of a run that was too short for one, after its last checkpoint
            self.best = {"step": self.step, "accuracy": noted["value"]}
        if not (self.keep_best and self.best["step"]):
            return
        if not (own and os.path.exists(f"{self.prefix}_best.pt")):
            missing = "not there"
        elif noted and noted["step"] != self.best["step"]:
            missing = f"of step {noted['step']}, of another course of this run"
        else:
            return
        logger.info(
            f"{self.prefix}_best.pt is {missing}: the best validation of this run is looked for anew, whatever "
            f"came before (accuracy {self.best['accuracy']:g} at step {self.best['step']})."
        )
        self.best = {"step": 0, "accuracy": None}

    def _noted_best(self) -> dict | None:
        """What ``PREFIX_best.json`` says; None without it: older versions wrote none."""
        try:
            found = read_json(f"{self.prefix}_best.json")
        except UserError:
            return None
        return found if {"step", "value"} <= found.keys() else None

    def _engine(self) -> dict[str, str]:
        """What computes, as far as bits depend on it: the engine's name, and how float32 products are computed."""
        parameter = next(self.model.parameters())
        products = "fp32" if self.products is None else self.products.name
        return {"name": engines.name(parameter.device, parameter.dtype), "products": products}

    def _log_engine(self) -> None:
        now = self._engine()  # the first time, the log says which engine and why
        if self.products is not None and next(self.model.parameters()).device.type == "cpu":
            found = self.products
            logger.info(f"Matrix products: {found.library}, {found.precision} ({found.reason})")
        # checkpoints of older versions hold the products alone, or nothing
        before = self.resumed.get("engine") or {"products": self.resumed.get("products") or "fp32"}
        changed = [f"{key} {before[key]}, now {now[key]}" for key in before if before[key] != now[key]]
        if self.resumed and changed:
            logger.warning(
                f"The checkpoint was computed by another engine ({'; '.join(changed)}): the run goes on, but not bit "
                f"for bit as if it had never stopped (see `{engines.VARIABLE}` and `matmul_precision`)."
            )

    def state(self, step: int, saver: WholeModelSaver) -> dict:
        """Our part of a checkpoint; every process calls it."""
        own = {
            "total": pack_statistics(self.total_stats),
            "report": pack_statistics(self.report_stats),
            "elapsed": [self.total_stats.elapsed_time(), self.report_stats.elapsed_time()],
            "position": None,
        }
        if self.data is not None:
            own["position"] = {
                "data": self.data.position(),
                "random": random_state.capture(cuda=next(self.model.parameters()).is_cuda),
            }
        return {
            "version": version(),
            "step": step,
            "ranks": from_all(own),
            "best": dict(self.best),
            "stop": self.stop_rule.state_dict() if self.stop_rule is not None else None,
            "elapsed": self.clock.elapsed(),
            "seen": dict(self.seen),
            "counted_from": self.counted_from,
            "kept": saver.kept(),
            "valid": corpus_state(self.opt.data.get("valid")),
            "engine": self._engine(),
            "dropout": self.resumed.get("dropout") if self.resumed else "engine",  # what draws a Transformer's masks
        }

    def restore_weights(self, model) -> list[torch.Tensor] | None:
        """Put the raw weights back where the checkpoint's are averages; returns those averages, or None."""
        raw = self.resumed.get("raw_weights")
        if raw is not None and self.opt.update_vocab:
            logger.info("`update_vocab`: the run goes on with the averaged weights, for the raw ones know other words.")
            return None
        own = dict(model.named_parameters())
        if raw is None or {n: p.shape for n, p in own.items()} != {n: p.shape for n, p in raw.items()}:
            return None
        stored = self.resumed.get("average") or [parameter.data for parameter in own.values()]
        averages = [
            average.to(parameter.device, torch.float32, copy=True) for average, parameter in zip(stored, own.values())
        ]
        for name, parameter in own.items():
            parameter.data.copy_(raw[name])
        return averages

    def improves(self, accuracy: float | None, step: int) -> bool:
        """Take note of a validation accuracy; returns whether it is the best one so far."""
        if not is_better("accuracy", accuracy, self.best["accuracy"]):
            return False
        self.best = {"step": step, "accuracy": accuracy}
        return True

    def write_best(self, entry: dict) -> None:
        """Write ``PREFIX_best.json``: step and value of ``PREFIX_best.pt``."""
        content = {"step": entry["step"], "measure": "accuracy", "value": entry["accuracy"]}
        content.update({"checkpoint": f"{self.prefix}_best.pt", "signature": entry["signature"]})
        write_json(f"{self.prefix}_best.json", content)

    def _count_lines(self) -> dict[str, int] | None:
        """Lines of each training corpus that is in use; None where one is read in blocks."""
        used = {name: corpus for name, corpus in self.opt.data.items() if name != "valid" and corpus["weight"] > 0}
        if any(corpus.get("path_src") is None for corpus in used.values()):
            return None
        return {name: count_lines(corpus["path_src"]) for name, corpus in used.items()}

    def epoch(self, step: int) -> float | None:
        """Passes over the training text after ``step`` steps; None where its lines are not known."""
        if self.lines is not None and self.opt.batch_type == "sents":  # in each stretch of `accum_steps`
            starts = self.opt.accum_steps
            stretches = zip(starts, [*starts[1:], step])
            return sum(
                (min(end, step) - start) / self.steps_per_epoch(start + 1) for start, end in stretches if start < step
            )
        per_epoch = self.steps_per_epoch(step)
        return step / per_epoch if per_epoch else None

    def steps_per_epoch(self, step: int) -> int | None:
        """Steps in which the run sees as many examples as there are lines; measured where batches count tokens."""
        opt = self.opt
        processes = max(world_size(), 1) if opt.parallel_mode == "data_parallel" else 1
        if self.lines is None:
            return None
        lines = sum(self.lines.values())
        if opt.batch_type == "sents":
            counts = [count for start, count in zip(opt.accum_steps, opt.accum_count) if start < max(step, 1)]
            return steps_per_epoch(lines, opt.batch_size, (counts or opt.accum_count)[-1], processes)
        counted = step - self.counted_from
        if counted <= 0 or not self.total_stats.n_sents:
            return None
        return max(1, round(lines * counted / (self.total_stats.n_sents * processes)))

    def entry(self, step: int, stats: Statistics, words: float, optim) -> dict:
        """One object of the metrics file, from the trainer's ``validate``; ``words`` of all processes so far."""
        run_seconds = self.clock.elapsed() - self.seen["elapsed"]
        alpha = generator_alpha(self.model)
        attention, learned = attention_alpha(self.model)
        measures: TokenMeasures | None = stats.measures
        loss = stats.loss / stats.n_words if stats.n_words else None
        plain = loss if measures is None else (measures.plain_loss / measures.words if measures.words else None)
        entry = {
            "step": step,
            "kind": "valid",
            "loss": loss,
            "alpha_output": alpha,
            "alpha_attention": attention,
            "alpha_learned": learned,
            **({"alpha_start": self.opt.learned_alpha_start} if learned and not self.opt.train_from else {}),
            "accuracy": 100 * stats.n_correct / stats.n_words if stats.n_words else None,
            "perplexity": math.exp(min(plain, 700.0)) if alpha == 1 and plain is not None else None,
            **(measures or TokenMeasures()).report(),
            "epsilon": EPSILON,
            **({"heads": stats.heads} if stats.heads else {}),
            "learning_rate": optim.learning_rate(),
            "words_per_second": (words - self.seen["words"]) / run_seconds if run_seconds > 0 else None,
            "elapsed": self.clock.elapsed(),
            "epoch": self.epoch(step),
            "steps_per_epoch": self.steps_per_epoch(step),
            "n_words": int(stats.n_words),
            "signature": self.signature(step, optim),
        }
        entry.update({name: float(value) for name, value in stats.computed_metrics.items()})
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in entry.items()
        }

    def signature(self, step: int, optim) -> str:
        """How the numbers of a validation were made."""
        opt, followed = self.opt, optim.options  # the rate of a resumed run may follow the checkpoint's
        # a learned one has no number of its own; stock's softmax attention has always been "none" here
        own = attention_alpha(self.model)[0] is not None
        shown = attention_alpha_text(self.model).partition(":")[0] if own else "none"
        parts = {
            "measure": "valid",
            "alpha": f"{generator_alpha(self.model):g}/{shown}",
            "step": step,
            "seed": opt.seed,
            "lr": f"{optim._learning_rate:g}",
            "decay": f"{followed.decay_method}x{followed.learning_rate_decay:g}"
            if followed.decay_method == VALID_LOSS
            else followed.decay_method,
            "smoothing": f"{opt.label_smoothing:g}",
            "average": f"{opt.average_decay:g}",
            "stop": self.stop_rule.signature() if self.stop_rule is not None else "none",
            "dtype": "fp16" if optim._fp16 else "fp32",
            **({"matmul": "bf16"} if self.products is not None and self.products.precision == "bf16" else {}),
            "onmt": onmt.__version__,
        }
        return signature(None, parts)
