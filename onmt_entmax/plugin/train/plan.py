"""How the training text is read: how many workers, how large a bucket; and how much of it the vocabularies know."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Collection
from itertools import islice

from onmt.constants import CorpusTask, DefaultTokens
from onmt.inputters import dynamic_iterator
from onmt.inputters.inputter import _read_vocab_file
from onmt.inputters.text_corpus import build_corpora_iters, get_corpora
from onmt.transforms import make_transforms
from onmt.utils.logging import logger

from onmt_entmax.errors import UserError
from onmt_entmax.files import split_tokens
from onmt_entmax.plugin.corpora import log_blank_pairs
from onmt_entmax.plugin.train import position as random_state
from onmt_entmax.unknown import UnknownTokens

FILES = "the corpora's files or transforms"  # what may have changed since a checkpoint
STOCK_BUCKET = 262144  # OpenNMT-py's `bucket_size`, the largest that is chosen here


def corpus_weights(opt: Namespace) -> dict[str, int]:
    """Lines that are taken from each training corpus in turn."""
    return {name: int(info["weight"]) for name, info in opt.data.items() if name != "valid"}


def corpus_state(corpus: dict | None) -> dict | None:
    """By what a corpus is known again: the sizes of its files, and its transforms."""
    if corpus is None:
        return None
    paths = [corpus[side] for side in ("path_src", "path_tgt") if corpus.get(side)]
    return {"bytes": [os.path.getsize(path) for path in paths], "transforms": list(corpus.get("transforms") or [])}


def corpora_state(opt: Namespace) -> dict[str, dict | None]:
    """The :func:`corpus_state` of each training corpus."""
    return {name: corpus_state(opt.data[name]) for name in corpus_weights(opt)}


def fit_to_corpora(
    opt: Namespace, lines: dict[str, int] | None, processes: int, given: Collection[str], resumed: dict | None
) -> None:
    """Choose ``bucket_size`` where it is unset, and no more workers than there are lines for; say what was done.

    A reader takes a share of each corpus, blocks of as many lines as there are readers. A bucket that is larger than a
    pass over the share holds lines several times, and of equal sources in one batch OpenNMT-py keeps one.

    Args:
        opt, given: options, which change, and the names of those that the user gave.
        lines: of each corpus in use, or None where they are not known.
        processes: that share the text.
        resumed: this process's position in a checkpoint, or None: what was chosen then, for the same text, is chosen
            again.

    Raises:
        UserError: a corpus has too few lines even for one reader in each process.
    """
    if not lines:
        return
    small = min(lines, key=lines.__getitem__)
    if lines[small] == 0:
        raise UserError(f"Corpus {small} is empty: {opt.data[small]['path_src']} has no line.")
    if (processes - 1) * processes >= lines[small]:
        raise UserError(f"Corpus {small} has {lines[small]} lines, too few for {processes} processes (`world_size`).")
    wanted = opt.num_workers
    while opt.num_workers > 1 and _readers(opt, processes) * (_readers(opt, processes) - 1) >= lines[small]:
        opt.num_workers -= 1
    if opt.num_workers != wanted:
        logger.info(
            f"`num_workers` is {opt.num_workers}, not {wanted}: corpus {small} has only {lines[small]} lines to share."
        )
    weights = corpus_weights(opt)
    turn = sum(weights.values())
    most = max(1, min(count * turn // weights[name] for name, count in lines.items()) // _readers(opt, processes))
    before = {} if resumed is None else resumed["data"]["settings"]
    if "bucket_size" not in given:
        same = FILES not in before or before[FILES] == corpora_state(opt)  # older versions did not note it
        opt.bucket_size = (same and before.get("bucket_size")) or min(most, STOCK_BUCKET)
        logger.info(f"`bucket_size` is {opt.bucket_size}, chosen for {sum(lines.values())} lines.")
    elif opt.bucket_size > most:
        logger.warning(
            f"`bucket_size` {opt.bucket_size} is larger than the {most} lines that a reader has (there are as many "
            f"readers as `num_workers` times processes, here {_readers(opt, processes)}): a bucket holds lines several "
            f"times, and of equal sources in one batch OpenNMT-py keeps one. Use {most}, or leave it out."
        )


def _readers(opt: Namespace, processes: int) -> int:
    return max(opt.num_workers, 1) * processes


def log_cut_vocabularies(opt: Namespace, vocabs) -> None:
    """Log how many tokens of a vocabulary file a new vocabulary has no room for."""
    for side in ("src",) if opt.share_vocab else ("src", "tgt"):
        most, path = getattr(opt, f"{side}_vocab_size"), getattr(opt, f"{side}_vocab")
        if len(vocabs[side]) < most:
            continue
        tokens = set(_read_vocab_file(path, getattr(opt, f"{side}_words_min_frequency")))
        if lost := len(tokens.difference(vocabs[side].ids_to_tokens)):
            logger.warning(f"`{side}_vocab_size` is {most}: {lost} of the {len(tokens)} tokens of {path} are left out.")


def log_unknown_tokens(opt: Namespace, transforms_cls, vocabs, most: int = 1000) -> None:
    """Log blank lines, and the share of unknown tokens in the first lines, after transforms, of what a run reads."""
    states = random_state.capture()
    log_blank_pairs(opt.data, opt.skip_empty_level)
    for name, weight in corpus_weights(opt).items():
        if weight == 0:
            logger.warning(f"Corpus {name} is not used: its `weight` is 0.")
    for task in (CorpusTask.TRAIN, CorpusTask.VALID):
        corpora = get_corpora(opt, task)
        if corpora is None:
            continue
        counts = UnknownTokens()
        transforms = make_transforms(opt, transforms_cls, vocabs)
        for lines in build_corpora_iters(corpora, transforms, opt.data, skip_empty_level="silent").values():
            for example in dynamic_iterator.process(task, list(islice(iter(lines), most))):
                for side, name in (("src", "source"), ("tgt", "target")):
                    if example[side] is not None:
                        ids = vocabs[side](split_tokens(example[side][side]))
                        counts.add(name, ids.count(vocabs[side][DefaultTokens.UNK]), len(ids))
        if str(counts):
            text = "training" if task == CorpusTask.TRAIN else "validation"
            log = logger.warning if counts.too_many else logger.info
            log(f"First {most} lines of each {text} corpus. {counts}")
    random_state.restore(states)
