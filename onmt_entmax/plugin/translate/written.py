"""What a run of decoding hands on and writes: scores with certificates, files, sums for the log, alignments as text."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import BinaryIO

from onmt.utils.logging import logger as onmt_logger
from torch import Tensor

from onmt_entmax.errors import invalid_setting
from onmt_entmax.files import WholeFile, cannot_write
from onmt_entmax.plugin.translate.options import without_effect


class Score(float):
    """The score of a hypothesis, with the certificate of its input.

    The server's own code passes on lists of text and of numbers. It adds up the scores of an input's segments and
    divides by their number, so that the certificate arrives where an input is one segment, and else is gone.
    """

    certificate: dict

    def __radd__(self, other):
        return self if other == 0 else float(self) + other

    def __truediv__(self, other):
        return self if other == 1 else float(self) / other


class Predictions(list):
    """Predictions per input, with the certificates (parsed JSON objects) beside them, or None."""

    certificates: list[dict] | None = None


class LateOutput:
    """A file of outputs, certificates or attention: a :class:`~onmt_entmax.files.WholeFile`, begun at the first write.

    A model that cannot be loaded, or a run that is killed, leaves earlier predictions alone. Where a program lets one
    translator run several times, later runs append to the file.

    Attributes:
        lines: input lines that earlier runs wrote about.

    Raises:
        UserError: the disk's error, in one line.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.file: WholeFile | BinaryIO | None = None
        self.finished = False  # an earlier run
        self.lines = 0

    def write(self, text: str) -> int:
        """Append text."""
        with self._one_line():
            if self.file is None:
                self.file = open(self.path, "ab") if self.finished else WholeFile(self.path)  # noqa: SIM115
            return self.file.write(text.encode("utf-8"))

    def flush(self) -> None:
        """Stock asks for it after each batch; the file appears at the end."""

    def sync(self) -> None:
        """Have on the disk what was written, so that no more can go wrong with it."""
        self.write("")
        with self._one_line():
            (self.file.flush if self.finished else self.file.sync)()

    def finish(self) -> None:
        """Put the file in its place, even where nothing was written."""
        self.write("")
        with self._one_line():
            (self.file.close if self.finished else self.file.finish)()
        self.file, self.finished = None, True

    def discard(self) -> None:
        """Remove what a first run wrote, after a failure."""
        if self.file is not None:
            (self.file.close if self.finished else self.file.discard)()
            self.file = None

    def close(self) -> None:
        """Finish what stock's own code wrote; nothing happens a second time."""
        if self.file is not None:
            self.finish()

    @contextlib.contextmanager
    def _one_line(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise cannot_write(self.path, error) from error


def build_translator(stock):
    def build_translator(opt, device_id=0, report_score=True, logger=None, out_file=None):
        for sentence in without_effect(opt):
            onmt_logger.warning(sentence)
        late = LateOutput(opt.output) if out_file is None else out_file
        translator = stock(opt, device_id, report_score, logger, late)
        refusal = getattr(translator, "not_ours", "Language models are decoded by OpenNMT-py's own search.")
        for name, neutral in (("certificates", ""), ("attention", ""), ("search", "beam"), ("decision", "map")):
            if refusal and getattr(opt, name, neutral) != neutral:
                raise invalid_setting(name, getattr(opt, name), refusal)
        if not hasattr(translator, "not_ours"):
            onmt_logger.warning("Language models: OpenNMT-py's own search leaves out blank input lines.")
        return translator

    return build_translator


def infer_list(stock):
    def infer_list(self, src):
        if len(src) > 0:
            return stock(self, src)
        predictions = Predictions()  # stock would read the file that `src` names
        predictions.certificates = [] if getattr(self.opt, "certificates", "") else None
        return [], predictions

    return infer_list


class Total:
    """Sums over lines, for one line of the log each."""

    def __init__(self) -> None:
        self.score = self.log_prob = 0.0
        self.lines = self.tokens = 0

    def add(self, score: float, log_prob: float, tokens: int) -> None:
        self.score += score
        self.log_prob += log_prob
        self.tokens += tokens
        self.lines += 1

    def text(self, name: str, has_perplexity: bool) -> str:
        """E.g. ``PRED SCORE: -0.2500, PRED PPL: 1.28, NB SENTENCES: 4``; a perplexity is per token, ends included."""
        if self.lines == 0:
            return f"{name} No translations"
        parts = [f"{name} SCORE: {self.score / self.lines:.4f}"]
        if has_perplexity and self.tokens and math.isfinite(self.log_prob):
            parts.append(f"{name} PPL: {math.exp(min(-self.log_prob / self.tokens, 700.0)):.2f}")
        return ", ".join([*parts, f"NB SENTENCES: {self.lines}"])


def pharaoh(matrix: Tensor | None) -> tuple[str, str]:
    """An alignment as text: pairs ``source-target`` in order of source, and ``target-weight`` in order of target.

    Args:
        matrix: weights ``(tgt_len, src_len)``; None where there are no target tokens.
    """
    if matrix is None:
        return "", ""
    shares = matrix / matrix.sum(-1, keepdim=True).clamp(min=1e-30)
    weights, sources = shares.max(-1)
    pairs = sorted((source, target) for target, source in enumerate(sources.tolist()))
    return (
        " ".join(f"{source}-{target}" for source, target in pairs),
        " ".join(f"{target}-{weight:.5f}" for target, weight in enumerate(weights.tolist())),
    )


def terminate(stock):
    def terminate(self):
        stock(self)
        translator = getattr(self, "translator", None)
        if translator is not None and translator.out_file is not None:
            translator.out_file.close()  # stock leaves that to the garbage collector

    return terminate
