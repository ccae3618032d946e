"""Loading models for our own commands (``force``, ``trace``, ``sparsity``), and turning text into batches for them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onmt.opts
import torch
from onmt.constants import DefaultTokens
from onmt.model_builder import load_test_model
from onmt.utils.parse import ArgumentParser
from torch import Tensor

from onmt_entmax.errors import UserError
from onmt_entmax.files import read_lines, split_tokens
from onmt_entmax.plugin.models import check_vocabularies, generator_alpha
from onmt_entmax.plugin.translate.scorers import build_scorer
from onmt_entmax.search.scorer import Scorer
from onmt_entmax.search.settings import SearchSettings


@dataclass
class Batch:
    """Some non-blank lines of a source, encoded.

    Attributes:
        lines: their numbers, from 0.
        sources: their tokens.
        scorer: the model bound to them.
    """

    lines: list[int]
    sources: list[list[str]]
    scorer: Scorer


class Models:
    """One model, or an ensemble, ready for search.

    Args:
        paths: checkpoints; their vocabularies must agree.
        gpu: index of the GPU, -1 for the CPU.

    Raises:
        UserError: a checkpoint cannot be loaded, is no sequence-to-sequence model, or vocabularies differ.
    """

    def __init__(self, paths: Sequence[str], gpu: int = -1) -> None:
        parser = ArgumentParser()
        onmt.opts.translate_opts(parser)
        opt = parser.parse_args(["-model", *map(str, paths), "-src", "unused", "-gpu", str(gpu)])
        self.device = torch.device("cuda", gpu) if gpu >= 0 else torch.device("cpu")
        self.members, self.vocabs = [], None
        for path in paths:
            vocabs, model, model_opt = load_test_model(opt, gpu, model_path=str(path))
            if model_opt.model_task != "seq2seq" or model_opt.copy_attn:
                raise UserError(
                    f"{path}: only sequence-to-sequence models without copy attention can be searched here."
                )
            check_vocabularies(self.vocabs, vocabs, str(path))
            self.members.append(model)
            self.vocabs = self.vocabs or vocabs
        target = self.vocabs["tgt"]
        self.eos = target.lookup_token(DefaultTokens.EOS)
        self.unk = target.lookup_token(DefaultTokens.UNK)
        self.start = target.lookup_token(self.vocabs["decoder_start_token"])
        self.average_probabilities = any(generator_alpha(model) != 1 for model in self.members)

    def token(self, index: int) -> str:
        """Text of a target token."""
        return self.vocabs["tgt"].ids_to_tokens[index]

    def target_ids(self, tokens: Sequence[str]) -> list[int]:
        """Indices of target tokens; unknown ones become ``<unk>``."""
        return self.vocabs["tgt"](list(tokens)) if tokens else []

    def search_settings(self, beam_size: int, max_length: int, **more) -> SearchSettings:
        """Settings of a beam search that lists the whole beam, with certificates."""
        return SearchSettings(
            start=self.start,
            eos=self.eos,
            beam_size=beam_size,
            n_best=beam_size,
            max_length=max_length,
            certificates=True,
            **more,
        )

    def batches(self, sources: Sequence[Sequence[str]], batch_size: int) -> Iterator[Batch]:
        """Encode the non-empty sources, batch by batch, in order."""
        padding = self.vocabs["src"].lookup_token(DefaultTokens.PAD)
        filled = [line for line, source in enumerate(sources) if source]
        for start in range(0, len(filled), batch_size):
            lines = filled[start : start + batch_size]
            ids = [self.vocabs["src"](list(sources[line])) for line in lines]
            lengths = torch.tensor([len(row) for row in ids], device=self.device)
            src: Tensor = torch.full((len(ids), int(lengths.max()), 1), padding, device=self.device)
            for row, tokens in enumerate(ids):
                src[row, : len(tokens), 0] = torch.tensor(tokens)
            with torch.no_grad():
                scorer = build_scorer(self.members, src, lengths, self.average_probabilities)
            yield Batch(lines, [list(sources[line]) for line in lines], scorer)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say which model, on which device."""
    parser.add_argument("--model", nargs="+", required=True, metavar="FILE", help="checkpoint, or several: an ensemble")
    parser.add_argument("--gpu", type=int, default=-1, help="index of the GPU (default: the CPU)")
    parser.add_argument("--batch_size", type=int, default=64, help="lines at a time (default: %(default)s)")


def add_text_argument(parser: argparse.ArgumentParser, name: str, what: str) -> None:
    """``--NAME FILE`` and ``--NAME_text "TOKENS"``, of which one is to be given."""
    parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"{what}, one line each")
    parser.add_argument(f"--{name}_text", metavar="TOKENS", help=f"{what}, given here: tokens separated by blanks")


def given_lines(args: argparse.Namespace, name: str) -> list[list[str]] | None:
    """The tokens of each line given by :func:`add_text_argument`, or None where neither was given.

    Raises:
        UserError: both were given, or the file is not UTF-8.
    """
    file, text = getattr(args, name), getattr(args, f"{name}_text")
    if file is not None and text is not None:
        raise UserError(
            f"Invalid setting for `{name}_text`: {text}. `--{name}` is given too; leave one of the two out."
        )
    if file is None and text is None:
        return None
    lines = [text] if file is None else read_lines(file)
    return [split_tokens(line) for line in lines]


def required_lines(args: argparse.Namespace, name: str) -> list[list[str]]:
    """Like :func:`given_lines`, but one of the two must be given."""
    lines = given_lines(args, name)
    if lines is None:
        raise UserError(f"Give `--{name} FILE` or `--{name}_text TOKENS`.")
    return lines


def check_counts(sources: Sequence, targets: Sequence) -> None:
    """Refuse sources and targets of different number, naming both."""
    if len(sources) != len(targets):
        raise UserError(f"`--src` has {len(sources)} lines, but `--tgt` has {len(targets)}.")
