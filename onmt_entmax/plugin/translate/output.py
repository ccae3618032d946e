"""From batches in any order to outputs in the order of the input: text, scores, alignments, certificates."""

from __future__ import annotations

import itertools
import threading
import time

import onmt.translate
from onmt.constants import CorpusTask, DefaultTokens
from onmt.transforms import TransformPipe
from onmt.utils.alignment import build_align_pharaoh
from onmt.utils.misc import report_matrix
from tqdm import tqdm

from onmt_entmax.errors import invalid_setting
from onmt_entmax.files import WholeFile, json_line
from onmt_entmax.plugin.corpora import check_parallel
from onmt_entmax.plugin.translate.batching import in_groups
from onmt_entmax.search.result import CertificateRates, attention_record, blank_line_result, certificate_record
from onmt_entmax.unknown import UnknownTokens

# of the run that this thread finished last: the server's own code passes on lists of text only
LATEST = threading.local()


class Predictions(list):
    """Predictions per input, with the certificates (parsed JSON objects) beside them, or None."""

    certificates: list[dict] | None = None


class _JsonLines:
    """A file of JSON lines that appears under its name when it is whole; does nothing without a path.

    The path ``-`` stands for no file: the records are only kept, for the Python API and the server.
    """

    def __init__(self, path: str, keep: bool = False) -> None:
        self.path, self.keep, self.records = path, keep, []
        self.file: WholeFile | None = None  # made late: a model that cannot be loaded leaves an earlier file alone

    def write(self, record: dict) -> None:
        if self.path != "-":
            self.file = self.file or WholeFile(self.path)
            self.file.write((json_line(record) + "\n").encode("utf-8"))
        if self.keep:
            self.records.append(record)

    def finish(self) -> bool:
        """Put the file in its place; returns whether records were asked for."""
        if self.path in ("", "-"):
            return self.path == "-"
        self.file = self.file or WholeFile(self.path)  # no input lines: an empty file
        self.file.finish()
        return True

    def discard(self) -> None:
        """Remove what was written, after a failure."""
        if self.file is not None:
            self.file.discard()


class Outputs:
    """One run over an iterator of batches; holds nothing that a second thread could see.

    Args:
        translator: the :class:`~onmt_entmax.plugin.translate.translator.SparseTranslator`.
        infer_iter: stock's data iterator, or a list of batches (the server).
        transform: stock's transforms by name, or None.
        attn_debug: log the attention of the best hypothesis.
        align_debug: log the alignment of the best hypothesis.
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
        self.rates = CertificateRates()
        self.unknown = UnknownTokens()
        self.certificates = _JsonLines(translator.certificates_file, keep=True)
        self.attention = _JsonLines(translator.attention_file)
        self.totals = {"score": 0.0, "words": 0, "gold_score": 0.0, "scored": 0}
        self.has_gold = False
        self.next_line = 0
        self.sentence_numbers = itertools.count(1)
        self.n_lines = self._count_input_lines()

    def _count_input_lines(self) -> int | None:
        """Number of input lines where blank ones must come out again; None for a list of batches or for validation."""
        if getattr(self.infer_iter, "task", None) != CorpusTask.INFER:
            return None
        corpus = next(iter(self.infer_iter.corpora.values()))
        if isinstance(corpus.src, list):
            return len(corpus.src)
        return check_parallel(corpus.src, corpus.tgt, "translate")

    def run(self) -> tuple[list, Predictions]:
        """Translate, write, and return scores and predictions per input."""
        try:
            return self._run()
        except BaseException:
            self.certificates.discard()
            self.attention.discard()
            raise

    def _run(self) -> tuple[list, Predictions]:
        started = time.time()
        pending: list[tuple[int, object, object, list[str]]] = []
        previous_bucket = None
        progress = tqdm(total=self.n_lines, unit="line", disable=None, leave=False, desc="translating")
        with progress:
            for group, bucket in in_groups(self.infer_iter, self.translator.joins_batches):
                if previous_bucket is not None and bucket != previous_bucket:
                    self._emit_all(pending)
                    pending = []
                previous_bucket = bucket
                for data in self.translator.translate_batches(group, self.attn_debug):
                    batch = data["batch"]
                    self.has_gold = "tgt" in batch and not self.translator.tgt_file_prefix
                    results = data.get("results") or [None] * len(batch["srclen"])
                    lines = batch["cid_line_number"]
                    sources = batch.get("src_tokens") or self._source_tokens(batch)
                    self._count_unknown(batch)
                    pending += zip(lines, self.builder.from_batch(data), results, sources)
                    progress.update(len(lines))
            self._emit_all(pending)
            if self.n_lines is not None:
                self._emit_blanks(self.n_lines)
        self.translator.out_file.flush()
        self.attention.finish()
        if self.certificates.finish():
            self.predictions.certificates = LATEST.certificates = self.certificates.records
            self.translator._log(f"Certificates: {self.rates}")
        if self.n_lines is not None and str(self.unknown):
            warns = self.unknown.too_many and self.translator.logger
            (self.translator.logger.warning if warns else self.translator._log)(str(self.unknown))
        self._log_summary(time.time() - started)
        return self.scores, self.predictions

    def _source_tokens(self, batch) -> list[list[str]]:
        """The tokens of each source of a batch that stock made without them, unknown ones as ``<unk>``."""
        vocabulary = self.translator.vocabs["src"].ids_to_tokens
        rows = zip(batch["src"][:, :, 0].tolist(), batch["srclen"].tolist())
        return [[vocabulary[token] for token in row[:length]] for row, length in rows]

    def _count_unknown(self, batch) -> None:
        for name, side, extra in (("source", "src", 0), ("target", "tgt", 2)):  # a target has its start and end
            if side in batch:
                tokens = batch[f"{side}len"]
                unknown = self.translator.vocabs[side].lookup_token(DefaultTokens.UNK)
                total = int(tokens.sum()) - extra * len(tokens)
                self.unknown.add(name, int((batch[side][:, extra // 2 :, 0] == unknown).sum()), total)

    def _emit_all(self, pending) -> None:
        for line, translation, result, source in sorted(pending, key=lambda item: item[0]):
            if self.n_lines is not None:
                self._emit_blanks(line)
            self._emit(translation, result, source)
            self.next_line = line + 1

    def _emit_blanks(self, until: int) -> None:
        """Blank outputs for the inputs before line ``until`` of which the iterator made no example."""
        n_best = self.translator.n_best
        for _ in range(self.next_line, until):
            self.scores.append([0.0] * n_best)
            self.predictions.append([""] * n_best)
            self._write([""] * n_best, [0.0] * n_best)
            self._write_records(blank_line_result(), [])
        self.next_line = max(self.next_line, until)

    def _emit(self, translation, result, source: list[str]) -> None:
        translator = self.translator
        if translator.replace_unk:
            self._replace_unknown(translation, source)
        scores = [float(score) for score in translation.pred_scores[: translator.n_best]]
        texts = [" ".join(words) for words in translation.pred_sents[: translator.n_best]]
        if translator.report_align:
            pairs = [build_align_pharaoh(align)[0] for align in translation.word_aligns[: translator.n_best]]
            texts = [text + DefaultTokens.ALIGNMENT_SEPARATOR + " ".join(pair) for text, pair in zip(texts, pairs)]
        if self.pipe is not None:
            texts = self.pipe.batch_apply_reverse(texts)
        self.scores.append(scores)
        self.predictions.append(texts)
        self._write(texts, scores)
        self._write_records(result, source)
        if scores[0] != float("-inf"):
            self.totals["score"] += scores[0]
            self.totals["scored"] += 1
        self.totals["words"] += len(translation.pred_sents[0])
        if self.has_gold:
            self.totals["gold_score"] += float(translation.gold_score)
        self._log_details(translation, source)

    def _replace_unknown(self, translation, source: list[str]) -> None:
        """Put the source word attended to most in the place of each ``<unk>``; stock only knows words it has seen."""
        phrases = self.builder.phrase_table_dict
        weights = translation.attns if translation.word_aligns is None else translation.word_aligns
        for words, rows in zip(translation.pred_sents, weights):
            for index, word in enumerate(words):
                if word == DefaultTokens.UNK and rows is not None:
                    given = source[int(rows[index][: len(source)].argmax())]
                    words[index] = phrases.get(given, given)

    def _write(self, texts: list[str], scores: list[float]) -> None:
        lines = [f"{text}\t{score}" for text, score in zip(texts, scores)] if self.translator.with_score else texts
        self.translator.out_file.write("\n".join(lines) + "\n")

    def _log_details(self, translation, source: list[str]) -> None:
        translator = self.translator
        if not (translator.verbose or self.attn_debug or self.align_debug):
            return
        if translator.verbose:
            translator._log(translation.log(next(self.sentence_numbers), src_raw=source))
        if self.attn_debug:
            words = [*translation.pred_sents[0], DefaultTokens.EOS]
            translator._log(report_matrix(source, words, translation.attns[0][:, : len(source)].tolist()))
        if self.align_debug and translation.word_aligns is not None and translation.word_aligns[0] is not None:
            words = translation.gold_sent if translator.gold_align else translation.pred_sents[0]
            translator._log(report_matrix(source, words, translation.word_aligns[0].tolist()))

    def _write_records(self, result, source: list[str]) -> None:
        """The line's certificate and attention, where asked for."""
        if not (self.certificates.path or self.attention.path):
            return
        if result is None:
            name = "certificates" if self.certificates.path else "attention"
            raise invalid_setting(
                name, getattr(self, name).path, "Copy attention decodes with OpenNMT-py's own search."
            )
        line = len(self.predictions)
        vocabulary = self.translator.vocabs["tgt"].ids_to_tokens
        if self.certificates.path:
            record = certificate_record(result, line, vocabulary.__getitem__)
            self.certificates.write(record)
            self.rates.add(record)
        if self.attention.path:
            record = attention_record(result, line, vocabulary.__getitem__, source, DefaultTokens.EOS)
            self.attention.write(record)

    def _log_summary(self, seconds: float) -> None:
        translator, totals = self.translator, self.totals
        if translator.report_score:
            translator._log(translator._report_score("PRED", totals["score"], totals["scored"]))
            if self.has_gold:
                if totals["gold_score"] == float("-inf"):
                    translator._log("GOLD SCORE: -inf: at least one given target has probability zero.")
                else:
                    translator._log(translator._report_score("GOLD", totals["gold_score"], totals["scored"]))
        if translator.report_time:
            translator._log(f"Total translation time (s): {seconds:.1f}")
            if self.predictions:
                translator._log(f"Average translation time (ms): {1000 * seconds / len(self.predictions):.1f}")
            translator._log(f"Tokens per second: {totals['words'] / max(seconds, 1e-9):.1f}")
