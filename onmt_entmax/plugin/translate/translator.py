"""The translator of stock ``onmt_translate``, the server and the Python API: our search on any of their models."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from onmt.constants import DefaultTokens
from onmt.translate.translator import Translator as StockTranslator
from onmt.utils.logging import logger
from torch import Tensor

from onmt_entmax.errors import invalid_setting
from onmt_entmax.plugin.models import float32_products, generator_alpha
from onmt_entmax.plugin.parsing import running_command
from onmt_entmax.plugin.translate.batching import join_batches
from onmt_entmax.plugin.translate.output import Outputs
from onmt_entmax.plugin.translate.scorers import ModelScorer, build_scorer, combine, stepping_scorer
from onmt_entmax.plugin.translate.written import LateOutput
from onmt_entmax.search.beam import beam_search
from onmt_entmax.search.exact import MAX_EXPANSIONS, exact_search
from onmt_entmax.search.mbr import decide
from onmt_entmax.search.result import Hypothesis, SearchResult
from onmt_entmax.search.settings import SearchSettings

_LENGTH_PENALTIES = {"length_none": "none", "length_wu": "wu", "length_average": "avg"}
_COVERAGE_PENALTIES = {"coverage_none": "none", "coverage_wu": "wu", "coverage_summary": "summary"}

SMALL = 1 << 22  # probabilities of a step whose memory is nothing to worry about


class SparseTranslator(StockTranslator):
    """Stock's translator with our search in place of its own.

    One translator may be used by several threads as far as stock's may.
    """

    search = "beam"
    max_expansions = MAX_EXPANSIONS
    whole_support = False
    decision, mbr_utility = "map", "chrf"
    certificates_file = ""
    attention_file = ""
    record_files: Sequence[LateOutput | None] = (None, None)  # of these two, where they are to be written
    average_probabilities = False
    matmul_precision = "auto"
    keeps_results = True  # beside writing them: the caller looks at them
    reports_alignment_weights = False  # the server's code reads them behind the alignment

    @classmethod
    def from_opt(cls, model, vocabs, opt, model_opt, **kwargs):
        """See stock; also reads the options that the plugin added."""
        translator = super().from_opt(model, vocabs, opt, model_opt, **kwargs)
        translator.search = getattr(opt, "search", "beam")
        translator.max_expansions = getattr(opt, "max_expansions", cls.max_expansions)
        translator.whole_support = getattr(opt, "whole_support", False)
        translator.decision = getattr(opt, "decision", cls.decision)
        translator.mbr_utility = getattr(opt, "mbr_utility", cls.mbr_utility)
        translator.certificates_file = getattr(opt, "certificates", "") or ""
        translator.attention_file = getattr(opt, "attention", "") or ""
        named = (translator.certificates_file, translator.attention_file)
        translator.record_files = [LateOutput(path) if path not in ("", "-") else None for path in named]
        translator.matmul_precision = getattr(opt, "matmul_precision", cls.matmul_precision)
        # the command looks at neither scores nor predictions, and there may be ten million lines of them
        translator.keeps_results = running_command() != "onmt_translate"
        translator.average_probabilities = getattr(opt, "avg_raw_probs", False) or not translator.is_dense
        if len(translator.members) > 1 and not translator.is_dense and not getattr(opt, "avg_raw_probs", False):
            translator._log("Ensemble with an alpha above 1: the members' probabilities are averaged.")
        unknown = [token for token in opt.ignore_when_blocking if token not in vocabs["tgt"].tokens_to_ids]
        if unknown:
            translator._exclusion_idxs.discard(translator._tgt_unk_idx)
            logger.warning(f"`ignore_when_blocking`: not in the target vocabulary: {', '.join(unknown)}.")
        return translator

    @property
    def members(self) -> list:
        """The models of the ensemble, or the one model."""
        return list(getattr(self.model, "models", [self.model]))

    @property
    def _joins_lines(self) -> bool:
        """Whether the model is a document-level one, trained with transform ``docify``."""
        return self._tgt_sep_idx != self._tgt_unk_idx

    @property
    def not_ours(self) -> str:
        """Why stock decodes in our place, or an empty string."""
        return "Document-level models are decoded by OpenNMT-py's own loop." if self._joins_lines else ""

    @property
    def is_dense(self) -> bool:
        """Whether every output layer is a softmax: no token has probability zero, and perplexities have a meaning."""
        return all(generator_alpha(member) == 1 for member in self.members)

    @property
    def joins_batches(self) -> bool:
        """Whether several batches may be searched as one: the search then takes fewer and fuller steps."""
        return not self._samples and all(stepping_scorer(member) for member in self.members)

    @property
    def _samples(self) -> bool:
        return self.sample_from_topk != 0 or self.sample_from_topp != 0

    def _translate(self, infer_iter, transform=None, attn_debug=False, align_debug=False, phrase_table=""):
        """Translate everything in ``infer_iter``; as many outputs as inputs, in order, blank lines included.

        Returns:
            scores and predictions, each a list per input of lists of ``n_best``; ``predictions.certificates`` holds
            one dictionary per input where certificates were asked for.
        """
        if self._joins_lines:  # it translates segments again: stock's own loop
            return super()._translate(infer_iter, transform, attn_debug, align_debug, phrase_table)
        if "docify" in (transform or ()):
            raise invalid_setting("transforms", "docify", "The model was not trained with it: it joins lines.")
        with float32_products(self._use_cuda, self.matmul_precision, self._log):
            return Outputs(self, infer_iter, transform, attn_debug, align_debug).run()

    def translate_batches(self, batches: list, attn_debug: bool) -> list[dict]:
        """Search several batches as one. No more rows go through the model at once than the beam of the largest would
        fill, unless their distributions are small.

        Returns what :meth:`translate_batch` returns for each.
        """
        if len(batches) == 1:
            return [self.translate_batch(batches[0], attn_debug)]
        sizes = [len(batch["srclen"]) for batch in batches]
        padding = {"src": self.vocabs["src"].lookup_token(DefaultTokens.PAD), "tgt": self._tgt_pad_idx}
        with torch.no_grad():
            gold = [self._gold_scores(batch) for batch in batches]
            rows = max(max(sizes) * self.beam_size, SMALL // len(self.vocabs["tgt"]))
            joined = self._search(join_batches(batches, padding), attn_debug, rows)
        ends = list(itertools.accumulate(sizes))
        parts = [joined[end - size : end] for size, end in zip(sizes, ends)]
        return [self._report(*arguments) for arguments in zip(batches, parts, gold)]

    def translate_batch(self, batch, attn_debug, scoring=False):
        """Search one batch of sentences.

        Args:
            batch: as stock's data iterator makes it; ``batch["src"]`` is ``(batch, src_len, features)``.
            attn_debug: whether attention is wanted.
            scoring: only score the given targets.

        Returns:
            stock's dictionary of results, each list filled up to ``n_best`` with empty hypotheses of score minus
            infinity; ``results`` holds our own :class:`~onmt_entmax.search.result.SearchResult` per sentence.
        """
        with torch.no_grad():
            gold = self._gold_scores(batch)
            results = [] if scoring else self._search(batch, attn_debug)
        return self._report(batch, results, gold)

    def _search(self, batch, attn_debug: bool, max_rows: int | None = None) -> list[SearchResult]:
        results = self._searched(batch, attn_debug, max_rows)
        if self.decision == "map":
            return results
        lookup, n_best = self.vocabs["tgt"].ids_to_tokens.__getitem__, None if self.whole_support else self.n_best
        return [decide(result, lookup, self.mbr_utility, n_best) for result in results]

    def _searched(self, batch, attn_debug: bool, max_rows: int | None) -> list[SearchResult]:
        settings = self.search_settings(batch, attn_debug, max_rows)
        sampling = self._samples
        scorer = build_scorer(
            self.members,
            batch["src"],
            batch["srclen"],
            self.average_probabilities,
            any_order=self.search == "exact" and not sampling,
        )
        if sampling:
            from onmt_entmax.search.sampling import sample

            return sample(
                scorer,
                settings,
                top_k=self.sample_from_topk,
                top_p=self.sample_from_topp,
                temperature=self.random_sampling_temp,
            )
        if self.search == "exact":
            return exact_search(scorer, settings, self.max_expansions, self.whole_support)
        return beam_search(scorer, settings)

    def search_settings(self, batch, attn_debug: bool, max_rows: int | None = None) -> SearchSettings:
        """The settings of the search for one batch; the length limit is each sentence's own."""
        source_lengths = batch["srclen"].tolist()
        if self.max_length_ratio > 0:
            max_length = [int(min(self.max_length, length * self.max_length_ratio + 5)) for length in source_lengths]
        else:
            max_length = [self.max_length] * len(source_lengths)
        penalties = self.global_scorer
        return SearchSettings(
            start=self._tgt_start_with,
            eos=self._tgt_eos_idx,
            beam_size=self.beam_size,
            n_best=self.beam_size if self.decision == "mbr" else self.n_best,
            return_all=self.decision == "mbr",
            max_length=max_length,
            min_length=self.min_length,
            banned=(self._tgt_unk_idx,) if self.ban_unk_token else (),
            block_ngram_repeat=self.block_ngram_repeat,
            exclusion_tokens=frozenset(self._exclusion_idxs),
            forced_prefixes=self._forced_prefixes(batch),
            length_penalty=_LENGTH_PENALTIES[penalties.length_penalty.__name__],
            length_penalty_weight=penalties.alpha,
            coverage_penalty=_COVERAGE_PENALTIES[penalties.cov_penalty.__name__],
            coverage_penalty_weight=penalties.beta,
            stepwise_penalty=bool(self.stepwise_penalty),
            ratio=max(self.ratio, 0.0),
            source_lengths=source_lengths,
            certificates=bool(self.certificates_file),
            max_rows=max_rows,
            return_attention=bool(attn_debug or self.replace_unk or self.report_align or self.attention_file),
        )

    def _forced_prefixes(self, batch) -> list[list[int]] | None:
        if not self.tgt_file_prefix or "tgt" not in batch:
            return None
        # start and end are not forced; what is padding only the length can say
        rows = zip(batch["tgt"][:, :, 0].tolist(), batch["tgtlen"].tolist())
        prefixes = [row[1 : length - 1] for row, length in rows]
        for prefix in prefixes:
            if self._tgt_eos_idx in prefix:
                text = " ".join(self.vocabs["tgt"].ids_to_tokens[token] for token in prefix)
                raise invalid_setting("tgt_file_prefix", text, f"A prefix must not contain `{DefaultTokens.EOS}`.")
        return prefixes

    def _report(self, batch, results: list[SearchResult], gold: Tensor | None) -> dict:
        device, size = batch["src"].device, len(batch["srclen"])
        report = {
            "predictions": [],
            "scores": [],
            "attention": [],
            "alignment": [[] for _ in range(size)],
            "batch": batch,
            "gold_score": [0] * size if gold is None else gold,
            "gold_log_probs": None,
            "results": results,
        }
        missing = Hypothesis([], float("-inf"), float("-inf"), True)
        for result in results:
            hypotheses = (result.hypotheses + [missing] * self.n_best)[: self.n_best]
            tokens = [h.tokens + [self._tgt_eos_idx] * (h.finished or not h.tokens) for h in hypotheses]
            report["predictions"].append([torch.tensor(row, dtype=torch.long, device=device) for row in tokens])
            report["scores"].append([h.score for h in hypotheses])
            report["attention"].append([h.attention for h in hypotheses])
        if self.report_align:
            aligned = self._align_forward(batch, report["predictions"], report["attention"])
            # a given target has one alignment, which goes beside each of the n-best
            report["alignment"] = [rows * self.n_best if len(rows) < self.n_best else rows for rows in aligned]
        return report

    def _align_forward(self, batch, predictions, attention=None):
        """Alignment matrices ``(tokens, src_len)`` per sentence and hypothesis.

        Transformers have a supervised head for it (stock); recurrent decoders are aligned by their attention. With
        ``gold_align`` the given target is aligned instead: one matrix per sentence.
        """
        layers = getattr(self.model.decoder, "transformer_layers", None)
        if layers is not None:
            wanted = self.model.decoder.alignment_layer
            if not -len(layers) <= wanted < len(layers):  # the default -3 does not exist in small models
                raise invalid_setting(
                    "report_align",
                    True,
                    f"The model was trained with `alignment_layer` {wanted}, but its decoder has {len(layers)} layers.",
                )
            return super()._align_forward(batch, predictions)
        if self.gold_align and "tgt" in batch:
            predictions, attention = self._gold_attention(batch)
        lengths = batch["srclen"].tolist()
        aligned = []
        for length, hypotheses, matrices in zip(lengths, predictions, attention):
            counts = [int((tokens != self._tgt_eos_idx).sum()) for tokens in hypotheses]
            if any(count and matrix is None for count, matrix in zip(counts, matrices)):
                raise invalid_setting("report_align", True, "A model without attention cannot align.")
            rows = zip(counts, matrices)
            aligned.append([matrix[:count, :length] if count else None for count, matrix in rows])
        return aligned

    def _gold_attention(self, batch) -> tuple[list, list]:
        """Per sentence the one gold target's tokens and its attention ``(tgt_len, src_len)``, ensembles averaged."""
        per_model = [attention.get("std") for _, _, attention in self._decode_targets(batch, return_attn=True)]
        if any(attention is None for attention in per_model):
            raise invalid_setting("gold_align", True, "A model without attention cannot align.")
        mean = torch.stack(per_model).mean(0)
        lengths = (batch["tgtlen"] - 1).tolist()
        return (
            [[row[:length]] for row, length in zip(batch["tgt"][:, 1:, 0], lengths)],
            [[matrix[:length]] for matrix, length in zip(mean, lengths)],
        )

    def _gold_scores(self, batch) -> Tensor | None:
        """Log-probability ``(batch,)`` of the given targets, minus infinity where impossible; None without targets."""
        if "tgt" not in batch or self.tgt_file_prefix:
            return None
        stacked = torch.stack([scorer.log_probs(hidden) for scorer, hidden, _ in self._decode_targets(batch)])
        log_probs = stacked[0] if len(stacked) == 1 else combine(stacked, self.average_probabilities)
        gold = batch["tgt"][:, 1:]  # (batch, steps, 1)
        picked = log_probs.gather(2, gold).squeeze(-1).double()
        positions = torch.arange(gold.size(1), device=gold.device)
        # by length: the padding token inside a target is a token like others
        return picked.masked_fill(positions >= (batch["tgtlen"] - 1).unsqueeze(1), 0.0).sum(1)

    def _decode_targets(self, batch, return_attn: bool = False) -> Iterator[tuple[ModelScorer, Tensor, dict]]:
        """Each member's scorer, decoder outputs ``(batch, steps, hidden)`` and attention for the given targets."""
        for model in self.members:
            scorer = build_scorer([model], batch["src"], batch["srclen"], False)
            model.decoder.init_state(batch["src"], scorer.memory, scorer.final_states)
            steps = batch["tgt"][:, :-1]  # (batch, steps, 1)
            yield (scorer, *model.decoder(steps, scorer.memory, src_len=scorer.src_len, return_attn=return_attn))
