"""From batches in any order to outputs in the order of the input: text, scores, alignments, certificates."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from typing import NamedTuple

import onmt.translate
from onmt.constants import CorpusTask, DefaultTokens
from onmt.transforms import TransformPipe
from onmt.utils.logging import logger
from onmt.utils.misc import report_matrix
from tqdm import tqdm

from onmt_entmax.errors import invalid_setting
from onmt_entmax.files import BLANK_LINE, cannot_write, json_line
from onmt_entmax.plugin.corpora import check_parallel
from onmt_entmax.plugin.translate.batching import in_groups
from onmt_entmax.plugin.translate.written import LateOutput, Predictions, Score, Total, pharaoh
from onmt_entmax.search.result import (
    IMPOSSIBLE_PREFIX,
    Certificate,
    CertificateRates,
    attention_record,
    certificate_record,
    void_record,
)
from onmt_entmax.unknown import UnknownTokens

NAMED = 5  # lines of which something is said


class _Line(NamedTuple):
    """What is to be written for one input line, until its turn comes."""

    number: int  # from 0
    texts: list[str]  # the n-best outputs
    scores: list[float]
    certificate: dict | None = None  # records of the files, where asked for
    attention: dict | None = None
    details: tuple[object, list[str]] | None = None  # for the log: stock's object and the tokens of the source


class Outputs:
    """One run over an iterator of batches; holds nothing that a second thread could see.

    Args:
        translator: the :class:`~onmt_entmax.plugin.translate.translator.SparseTranslator`.
        infer_iter: stock's data iterator, or a list of batches (the server).
        transform: stock's transforms by name, or None.
        attn_debug, align_debug: log the attention, the alignment of the best hypothesis.

    Attributes:
        scores: per input a list of ``n_best``; empty unless the translator keeps results.
        predictions: the same of texts.
    """

    def __init__(self, translator, infer_iter, transform, attn_debug, align_debug) -> None:
        self.translator, self.infer_iter = translator, infer_iter
        self.attn_debug, self.align_debug = attn_debug, align_debug
        self.pipe = TransformPipe.build_from(list(transform.values())) if transform else None
        self.builder = onmt.translate.TranslationBuilder(
            translator.vocabs, translator.n_best, phrase_table=translator.phrase_table
        )
        self.scores: list[list[float]] = []
        self.predictions = Predictions()
        if translator.certificates_file:
            self.predictions.certificates = []
        self.rates = CertificateRates()
        self.predicted, self.gold = Total(), Total()
        self.unknown = UnknownTokens()
        self.words = 0
        self.has_targets = False
        self.odd: dict[str, tuple[int, list[int]]] = {}  # what is odd -> of how many lines, and the first few
        self.next_line = 0
        self.sentence_numbers = itertools.count(1)
        self.n_lines = self._count_input_lines()
        self._check_features()

    def _count_input_lines(self) -> int | None:
        """Number of input lines, of which blank ones must come out again; None for a list of batches."""
        if getattr(self.infer_iter, "task", None) not in (CorpusTask.INFER, CorpusTask.VALID):
            return None
        corpus = next(iter(self.infer_iter.corpora.values()))
        if not isinstance(corpus.src, list):
            return check_parallel(corpus.src, corpus.tgt, "translate")
        if isinstance(corpus.tgt, str):
            raise invalid_setting("tgt", corpus.tgt, "It names a file, but the sources are a list of lines.")
        return len(corpus.src)

    def _check_features(self) -> None:
        """Stock passes over a missing feature in silence."""
        expected, found = len(self.translator.vocabs.get("src_feats", ())), None
        if self.n_lines is not None:
            found = next(iter(self.infer_iter.corpora.values())).n_src_feats
        elif isinstance(self.infer_iter, list) and self.infer_iter:
            found = self.infer_iter[0][0]["src"].size(2) - 1
        if found not in (None, expected):
            raise invalid_setting("n_src_feats", found, f"The model was trained with {expected}.")

    def run(self) -> tuple[list, Predictions]:
        """Translate and write; returns scores and predictions per input where they are kept."""
        started = time.time()
        try:
            self._translate()
            for file in self._files():
                file.sync()
            for file in self._files():
                file.finish()
                file.lines += self.next_line
        except BaseException as error:
            for file in self._files():
                file.discard()
            if isinstance(error, OSError) and error.filename:
                raise cannot_write(error.filename, error) from error
            raise
        self._log_summary(time.time() - started)
        return self.scores, self.predictions

    def _files(self) -> list:
        """Those that are put in their places together; an output that the caller opened is the caller's."""
        output = self.translator.out_file
        return [file for file in (output, *self.translator.record_files) if isinstance(file, LateOutput)]

    def _translate(self) -> None:
        waiting: list[_Line] = []  # of one bucket
        previous_bucket = None
        with tqdm(total=self.n_lines, unit="line", disable=None, leave=False, desc="translating") as progress:
            for group, bucket in in_groups(self.infer_iter, self.translator.joins_batches):
                if previous_bucket is not None and bucket != previous_bucket:
                    self._write_lines(waiting)
                    waiting = []
                previous_bucket = bucket
                for data in self.translator.translate_batches(group, self.attn_debug):
                    waiting += self._lines(data)
                    progress.update(len(data["batch"]["srclen"]))
            self._write_lines(waiting)
            if self.n_lines is not None:
                self._write_unsearched(self.n_lines)

    def _lines(self, data: dict) -> Iterator[_Line]:
        """What is to be written for each sentence of a batch."""
        translator, batch = self.translator, data["batch"]
        logs = translator.verbose or self.attn_debug or self.align_debug
        self.has_targets = self.has_targets or "tgt" in batch
        has_gold = "tgt" in batch and not translator.tgt_file_prefix
        target_lengths = batch["tgtlen"].tolist() if "tgt" in batch else itertools.repeat(0)
        sources = batch.get("src_tokens") or self._source_tokens(batch)
        self._count_unknown(batch, sources)
        for number, translation, result, source, length in zip(
            batch["cid_line_number"], self.builder.from_batch(data), data["results"], sources, target_lengths
        ):
            if translator.replace_unk:
                self._replace_unknown(translation, source)
            texts, scores = self._texts(translation), [float(score) for score in translation.pred_scores]
            if result.certificate.reason == IMPOSSIBLE_PREFIX:
                self._note_odd("have a forced prefix of probability zero: they are scored -inf", number)
                scores = [-math.inf] * len(scores)
            if translator.search == "exact" and not self._proven(result.certificate):
                self._note_odd("are not proven by exact search, which stopped at a limit", number)
            if scores[0] != -math.inf:
                best = result.hypotheses[0]
                self.predicted.add(scores[0], best.log_prob, len(best.tokens) + best.finished)
            self.words += len(translation.pred_sents[0])
            if has_gold:
                gold = float(translation.gold_score)
                self.gold.add(gold, gold, length - 1)  # the start is not predicted
                translation.gold_sent = translation.gold_sent[: length - 2]  # stock's has the padding too
            certificate, attention = self._records(result, number, source)
            yield _Line(number, texts, scores, certificate, attention, (translation, source) if logs else None)

    def _proven(self, certificate: Certificate) -> bool:
        """Whether exact search did what it was asked for, where it can be known."""
        if certificate.reason is not None or certificate.complete:
            return True
        if self.translator.whole_support:
            return False
        return self.translator.decision == "mbr" or certificate.certified_n >= self.translator.n_best

    def _source_tokens(self, batch) -> list[list[str]]:
        """The tokens of each source of a batch that stock made without them, unknown ones as ``<unk>``."""
        vocabulary = self.translator.vocabs["src"].ids_to_tokens
        rows = zip(batch["src"][:, :, 0].tolist(), batch["srclen"].tolist())
        return [[vocabulary[token] for token in row[:length]] for row, length in rows]

    def _count_unknown(self, batch, sources: list[list[str]]) -> None:
        unknown = self.translator.vocabs["src"].lookup_token(DefaultTokens.UNK)
        places = (batch["src"][:, :, 0] == unknown).nonzero().tolist()
        self.unknown.add("source", len(places), sum(map(len, sources)), (sources[row][place] for row, place in places))
        if "tgt" in batch:  # with a start and an end
            number = int((batch["tgt"][:, 1:, 0] == self.translator._tgt_unk_idx).sum())
            self.unknown.add("target", number, int(batch["tgtlen"].sum()) - 2 * len(batch["tgtlen"]))

    def _replace_unknown(self, translation, source: list[str]) -> None:
        """Put the source word attended to most in the place of each ``<unk>``; stock only knows words it has seen."""
        phrases = self.builder.phrase_table_dict
        weights = translation.attns if translation.word_aligns is None else translation.word_aligns
        for words, rows in zip(translation.pred_sents, weights):
            for index, word in enumerate(words):
                if word == DefaultTokens.UNK and rows is not None:
                    given = source[int(rows[index][: len(source)].argmax())]
                    words[index] = phrases.get(given, given)

    def _texts(self, translation) -> list[str]:
        texts = [" ".join(words) for words in translation.pred_sents]
        if self.pipe is not None:
            texts = self.pipe.batch_apply_reverse(texts)
        if not self.translator.report_align:
            return texts
        separator = DefaultTokens.ALIGNMENT_SEPARATOR
        aligned = []
        for text, matrix in zip(texts, translation.word_aligns):
            pairs, weights = pharaoh(matrix)
            parts = [text, pairs, weights] if self.translator.reports_alignment_weights else [text, pairs]
            aligned.append(separator.join(parts))
        return aligned

    def _records(self, result, number: int, source: list[str]) -> tuple[dict | None, dict | None]:
        """A sentence's certificate and attention, where asked for."""
        translator, certificate, attention = self.translator, None, None
        lookup = translator.vocabs["tgt"].ids_to_tokens.__getitem__
        if translator.certificates_file:
            certificate = certificate_record(result, number + 1, lookup)
        if translator.attention_file:
            attention = attention_record(result, number + 1, lookup, source, DefaultTokens.EOS)
        return certificate, attention

    def _write_lines(self, lines: list[_Line]) -> None:
        """Write lines in order, after those before them that nothing was searched for."""
        for line in sorted(lines, key=lambda line: line.number):
            if self.n_lines is not None:
                self._write_unsearched(line.number)
            self._write(line)

    def _write_unsearched(self, until: int) -> None:
        """Blank outputs for the lines before ``until`` of which the iterator made no example."""
        left_out = getattr(self.infer_iter, "left_out", {})
        n_best = self.translator.n_best
        for number in range(self.next_line, until):
            reason = left_out.pop(number, BLANK_LINE)
            if reason != BLANK_LINE:
                self._note_odd(f"have a blank output: {reason}", number)
            certificate = void_record(number + 1, reason)
            attention = {"line": number + 1, "source": [], "hypotheses": []}
            self._write(_Line(number, [""] * n_best, [0.0] * n_best, certificate, attention))

    def _note_odd(self, what: str, number: int) -> None:
        count, first = self.odd.get(what, (0, []))
        self.odd[what] = (count + 1, [*first, number + 1][:NAMED])

    def _write(self, line: _Line) -> None:
        texts, scores = line.texts, line.scores
        lines = [f"{text}\t{score}" for text, score in zip(texts, scores)] if self.translator.with_score else texts
        self.translator.out_file.write("\n".join(lines) + "\n")
        for file, record in zip(self.translator.record_files, (line.certificate, line.attention)):
            if file is not None and record is not None:
                file.write(json_line({**record, "line": file.lines + record["line"]}) + "\n")
        if self.translator.certificates_file:
            self.rates.add(line.certificate)
            scores = [Score(score) for score in scores]
            for score in scores:
                score.certificate = line.certificate
        if self.translator.keeps_results:
            self.scores.append(scores)
            self.predictions.append(texts)
            if self.predictions.certificates is not None:
                self.predictions.certificates.append(line.certificate)
        if line.details is not None:
            self._log_details(*line.details)
        self.next_line = line.number + 1

    def _log_details(self, translation, source: list[str]) -> None:
        translator = self.translator
        if translator.verbose:
            translator._log(translation.log(next(self.sentence_numbers), src_raw=source))
        if self.attn_debug:
            words = [*translation.pred_sents[0], DefaultTokens.EOS]
            if translation.attns[0] is not None:
                translator._log(report_matrix(source, words, translation.attns[0][:, : len(source)].tolist()))
        if self.align_debug and translation.word_aligns is not None and translation.word_aligns[0] is not None:
            words = translation.gold_sent if translator.gold_align else translation.pred_sents[0]
            translator._log(report_matrix(source, words, translation.word_aligns[0].tolist()))

    def _log_summary(self, seconds: float) -> None:
        translator = self.translator
        if translator.certificates_file:
            translator._log(f"Certificates: {self.rates}")
        if translator.report_score:
            translator._log(self.predicted.text("PRED", translator.is_dense))
            if self.gold.lines and self.gold.score == -math.inf:
                translator._log("GOLD SCORE: -inf: at least one given target has probability zero.")
            elif self.gold.lines:
                translator._log(self.gold.text("GOLD", translator.is_dense))
        if translator.report_time:
            translator._log(f"Total translation time (s): {seconds:.1f}")
            if self.next_line:
                translator._log(f"Average translation time (ms): {1000 * seconds / self.next_line:.1f}")
            translator._log(f"Tokens per second: {self.words / max(seconds, 1e-9):.1f}")
        if self.unknown.too_many:
            logger.warning(str(self.unknown))
        elif str(self.unknown) and (translator.report_score or self.unknown.share("source")):
            translator._log(str(self.unknown))
        for what, (count, first) in self.odd.items():
            lines = ", ".join(map(str, sorted(first))) + ", ..." * (count > len(first))
            logger.warning(f"{count} input lines ({lines}) {what}.")
        if translator.tgt_file_prefix and self.next_line and not self.has_targets:
            logger.warning("`tgt_file_prefix` had no effect: no targets (`tgt`) were given.")
