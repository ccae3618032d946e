"""The trainer's loss: output layer and Fenchel-Young loss in one, for every alpha; its sums stay on the device."""

from __future__ import annotations

import copy

import onmt.utils.loss
import torch
from onmt.utils import Statistics

from onmt_entmax.entmax import linear_entmax_loss
from onmt_entmax.errors import UserError
from onmt_entmax.plugin.models import generator_alpha
from onmt_entmax.plugin.train.measures import measure_tokens

StockLossCompute = onmt.utils.loss.LossCompute


def _summed(index: int) -> property:
    def read(self):
        return self._read()[index]

    def write(self, value):
        self._values = [*self._read()]
        self._values[index], self._sums = value, None

    return property(read, write)


class DeviceStatistics(Statistics):
    """Stock's statistics, but the device is asked for its sums when somebody reads one of them: all in one transfer.

    Args:
        sums: loss, words and correct words, ``(3,)`` float64; None: zeros.
        n_batchs, n_sents: see stock.
    """

    def __init__(self, sums: torch.Tensor | None = None, n_batchs: int = 0, n_sents: int = 0) -> None:
        # the sums with everything that was added, or None where the host alone knows them; and what they are, or None
        # where the device alone knows it
        self._sums: torch.Tensor | None = None
        self._values: list[float] | None = [0, 0, 0]
        super().__init__(n_batchs=n_batchs, n_sents=n_sents, computed_metrics={})
        if sums is not None:
            self._sums, self._values = sums, None

    loss, n_words, n_correct = _summed(0), _summed(1), _summed(2)

    def _read(self) -> list[float]:
        if self._values is None:
            loss, *counts = self._sums.tolist()
            self._values = [loss, *map(int, counts)]
        return self._values

    def update(self, stat: Statistics, update_n_src_words: bool = False) -> None:
        """See stock."""
        if not isinstance(stat, DeviceStatistics) or stat._sums is None:
            super().update(stat, update_n_src_words)
            return
        own = self._sums
        if own is None:
            own = torch.tensor(self._values, dtype=torch.float64).to(stat._sums.device, non_blocking=True)
        self._sums, self._values = own + stat._sums, None
        self.n_batchs += stat.n_batchs
        self.n_sents += stat.n_sents
        self.computed_metrics = stat.computed_metrics
        if update_n_src_words:
            self.n_src_words += stat.n_src_words

    def __getstate__(self) -> dict:
        return {**vars(self), "_values": self._read(), "_sums": None}


class EntmaxLossCompute(StockLossCompute):
    """Computes the loss of the model's own alpha (Eq. 11; alpha 1 is cross-entropy) without keeping logits.

    A language-model prior is left to stock; with alpha above 1 it is refused when options are read.
    """

    alpha = 1.0
    label_smoothing = 0.0
    fused = False

    @classmethod
    def from_opts(cls, opt, model, vocab, train=True):
        """See stock. Validation uses the unsmoothed loss."""
        stock_opt = copy.copy(opt)
        stock_opt.generator_function = "softmax"  # stock's sparsemax criterion is wrong; ours takes its place
        compute = super().from_opts(stock_opt, model, vocab, train=train)
        compute.alpha = generator_alpha(model)
        compute.label_smoothing = opt.label_smoothing if train else 0.0
        compute.fused = not opt.lm_prior_model
        if hasattr(compute.criterion, "label_smoothing"):
            compute.criterion.label_smoothing = compute.label_smoothing
        return compute

    def forward(self, batch, output, attns, trunc_start=0, trunc_size=None):
        """See stock: the summed loss and its statistics, from outputs ``(batch, tgt_len, hidden)``."""
        if not self.fused:
            return super().forward(batch, output, attns, trunc_start, trunc_size)
        loss, stats, *_ = self._fused_forward(batch, output, attns, trunc_start, trunc_size)
        return loss, stats

    def measure(self, batch, output, attns):
        """Statistics of a whole batch and its sums of ``TokenMeasures``, None where stock computes the loss."""
        if not self.fused:
            return super().forward(batch, output, attns)[1], None
        _, stats, result, target = self._fused_forward(batch, output, attns, statistics=True)
        attention = attns.get("std") if attns else None
        if attention is not None:
            attention = attention.reshape(-1, attention.size(-1))  # (batch * tgt_len, src_len)
            attention = attention if attention.size(0) == target.size(0) else None
        sums = measure_tokens(
            kept=target.ne(self.padding_idx),
            support_size=result.support_size,
            gold_prob=result.gold_prob,
            sum_of_squares=result.sum_of_squares,
            vocab_size=self.generator.weight.size(0),
            correct=result.n_correct,
            plain_loss=result.plain_loss,
            attention=attention,
        )
        return stats, sums

    def _fused_forward(self, batch, output, attns, trunc_start=0, trunc_size=None, statistics=False):
        """Loss, statistics, what the output layer gave, and the targets ``(batch * tgt_len,)``."""
        if trunc_size is None:
            trunc_size = batch["tgt"].size(1) - trunc_start
        start, end = trunc_start + self.tgt_shift_index, trunc_start + trunc_size
        target = batch["tgt"][:, start:end, 0]  # (batch, tgt_len)
        output = output[:, : target.size(1), :]  # of a truncated target these are the truncated outputs already
        target = target.reshape(-1)
        hidden = output.reshape(-1, output.size(-1))  # (batch * tgt_len, hidden)
        result = self.output_loss(hidden, target, statistics)
        loss = result.loss
        if self.lambda_align != 0.0:
            loss = loss + self._alignment_loss(batch, attns, start, end)
        if self.lambda_coverage != 0.0:
            loss = loss + self.lambda_coverage * self._coverage_loss(attns, target)
        n_words = target.ne(self.padding_idx).sum()
        sums = torch.stack([loss.detach().double(), n_words.double(), result.n_correct.double()])
        sentences = len(batch["srclen"]) if trunc_start == 0 else 0
        stats = DeviceStatistics(sums, n_batchs=1 if sentences else 0, n_sents=sentences)
        return loss, stats, result, target

    def output_loss(self, hidden: torch.Tensor, target: torch.Tensor, statistics: bool = False):
        """Loss and counts of the output layer for rows of hidden states ``(rows, hidden)`` and targets ``(rows,)``."""
        generator = self.generator
        if type(generator) is not torch.nn.Linear:  # a subclass (LoRA, quantised) has weights of its own
            raise UserError(f"An output layer of type {type(generator).__name__} cannot be trained by onmt_entmax.")
        return linear_entmax_loss(
            hidden,
            generator.weight,
            generator.bias,
            target,
            alpha=self.alpha,
            reduction="sum",
            ignore_index=self.padding_idx,
            label_smoothing=self.label_smoothing,
            statistics=statistics,
        )

    def _alignment_loss(self, batch, attns, start, end):
        """Supervised attention of a Transformer head (stock's ``lambda_align``)."""
        size = [batch["tgt"].size(0), batch["tgt"].size(1), batch["src"].size(1)]
        reference = onmt.utils.make_batch_align_matrix(batch["align"], size, normalize=True)[:, start:end, :]
        heads = attns["align"].float()
        return self._compute_alignement_loss(align_head=heads, ref_align=reference.to(heads.dtype))

    def _coverage_loss(self, attns, target):
        """Coverage loss of See, Liu, Manning (2017), Eq. 13: sum of min(attention, coverage so far)."""
        attention, coverage = attns["std"], attns["coverage"]  # (batch, tgt_len, src_len); coverage includes its step
        loss = torch.min(attention, coverage - attention).sum(-1).reshape(-1)  # (batch * tgt_len)
        return loss.masked_fill(target.eq(self.padding_idx), 0.0).sum()
