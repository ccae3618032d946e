"""Training data whose position goes into checkpoints: a resumed run reads on where it stopped.

OpenNMT-py reads a bucket of examples, sorts it, cuts it into batches and shuffles those. A position is what was known
before the current bucket was read (place in each corpus, states of the random number generators) and how many of its
batches were used: one bucket is made again, and not the whole run so far.
"""

from __future__ import annotations

import atexit
import copy
import random
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice, repeat

import numpy as np
import torch
from onmt.constants import CorpusTask
from onmt.inputters.dynamic_iterator import DynamicDatasetIter, build_dynamic_dataset_iter
from onmt.inputters.text_corpus import ParallelCorpus, build_corpora_iters, get_corpora
from onmt.transforms import make_transforms
from onmt.utils.misc import RandomShuffler
from torch.utils.data import DataLoader, get_worker_info

import onmt_entmax
from onmt_entmax.entmax.engine import on_host, with_host_copy
from onmt_entmax.errors import UserError
from onmt_entmax.files import byte_lines
from onmt_entmax.plugin.train import position as random_state
from onmt_entmax.plugin.train.plan import FILES, corpora_state, corpus_weights
from onmt_entmax.plugin.train.position import Mixture


class _SkippingShuffler(RandomShuffler):
    """Shuffles as stock does; the first time it leaves out what was used before, then sets the generators."""

    skip = 0
    reached: dict | None = None

    def __call__(self, data):
        rest = super().__call__(data)[self.skip :]
        self.skip = 0
        if self.reached is not None:
            random_state.restore(self.reached)
            self.reached = None
        return rest


class _FromLine(str):
    """A path whose first lines are passed over unread."""

    lines = 0


class _Corpus:
    """Stock's iterator over a corpus, which can start further down without making examples of what it passes over."""

    def __init__(self, iterator) -> None:
        self.iterator = iterator

    def __iter__(self):
        return iter(self.iterator)

    def starting_at(self, count: int) -> Iterator:
        """Iterate without the first ``count`` examples."""
        corpus = self.iterator.corpus
        if not isinstance(corpus, ParallelCorpus) or not isinstance(corpus.src, str):
            return islice(iter(self), count, None)
        # stock takes the lines i with (i // stride) % stride == offset: stride of them in stride ** 2
        stride = self.iterator.stride
        further = copy.copy(self.iterator)
        further.corpus = copy.copy(corpus)
        for side in ("src", "tgt", "align"):
            path = getattr(corpus, side)
            if path is not None:
                path = _FromLine(path)
                path.lines = count // stride * stride**2
                setattr(further.corpus, side, path)
        return islice(iter(further), count % stride, None)


class PositionedDataset(DynamicDatasetIter):
    """Stock's data set for training, with the same batches in the same order, that knows its position.

    Attributes:
        positions: worker -> where it starts; a worker that is missing starts at the beginning.
        first_worker: the worker whose batch comes next.
        worker_seed: what the workers' generators start from.
        reached: states of the generators of a run in one process when its checkpoint was written.
    """

    positions: dict
    first_worker = 0
    worker_seed = 0
    reached: dict | None = None

    def _init_datasets(self, worker_id: int) -> None:
        onmt_entmax.register()  # a worker process may have imported OpenNMT-py without us
        if get_worker_info() is not None:
            atexit.register(_wait_for_sender)
        workers = max(self.num_workers, 1)
        self.worker = (worker_id + self.first_worker) % workers
        iterables = build_corpora_iters(
            self.corpora,
            self.transforms,
            self.corpora_info,
            skip_empty_level=self.skip_empty_level,
            stride=self.stride * workers,
            offset=self.offset * workers + self.worker,
        )
        weights = {name: int(self.corpora_info[name]["weight"]) for name in iterables}
        iterables = {name: _Corpus(iterator) for name, iterator in iterables.items()}
        self.mixer = Mixture(iterables, weights)
        self.init_iterators = True
        if self.num_workers > 0:
            random.seed(self.worker_seed + self.worker)
            np.random.seed((self.worker_seed + self.worker) % 2**32)
            torch.manual_seed(self.worker_seed + self.worker)

    def _bucketing(self) -> Iterator[tuple[list, int]]:
        size = self.bucket_size_init if self.bucket_size_init > 0 else self.bucket_size
        used = 0
        usable: set = set()
        position = self.positions.pop(self.worker, None)
        if position is not None:
            self.mixer.load_state_dict(position["mixture"])
            self.bucket_idx, size, used = position["bucket"], position["size"], position["used"]
            self.random_shuffler._random_state = random_state.unpack_python(position["shuffler"])
            self.random_shuffler.skip, self.random_shuffler.reached = used, self.reached
            random_state.restore(position["random"])
        # a corpus is read once more than here when all of its lines have come; twice where this is in the middle
        whole = {name: count + (1 if position is None else 2) for name, count in self.mixer.passes.items()}
        while True:
            self.bucket_start = {
                "mixture": self.mixer.state_dict(),
                "bucket": self.bucket_idx,
                "size": size,
                "shuffler": random_state.pack_python(self.random_shuffler.random_state),
                "random": random_state.capture(),
            }
            self.used, used = used, 0
            examples = self._tuple_to_json_with_tokIDs(list(islice(self.mixer, size)))
            usable.update(example["cid"] for example in examples)
            for name, count in self.mixer.passes.items():
                if count >= whole[name] and name not in usable:
                    raise self._no_line(name)
            yield examples, self.bucket_idx
            self.bucket_idx += 1
            size = size + self.bucket_size_increment if size < self.bucket_size else self.bucket_size

    def _no_line(self, name: str) -> UserError:
        """The error for a corpus of which no line is left to train on."""
        filters = ", ".join(self.corpora_info[name].get("transforms") or ())
        readers = self.stride * max(self.num_workers, 1)
        share = f" in the share of one of {readers} readers (`num_workers`)" if readers > 1 else ""
        return UserError(
            f"Corpus {name} has no line to train on{share}: each is blank on one side"
            + (f", or left out by `transforms` ({filters})." if filters else ".")
        )

    def __iter__(self):
        """Stock's batches; from a worker process each with the worker's number and news of its position.

        A user's mistake comes from a worker as a string: PyTorch would wrap the exception in a traceback.
        """
        told = None
        if self.num_workers == 0:
            for batch, bucket in super().__iter__():
                self.used += 1
                yield batch, bucket
            return
        try:
            for batch, bucket in super().__iter__():
                self.used += 1
                news = self.bucket_start if told is not self.bucket_start else None
                told = self.bucket_start
                yield batch, bucket, self.worker, self.used, news
        except UserError as error:
            yield str(error)


def _wait_for_sender(seconds: float = 1.0) -> None:
    """Give the thread that sends an ending worker's batches time to end.

    PyTorch does not wait for it; one that is in C++ code while Python goes down aborts the process, which the process
    that trains takes for a failure.
    """
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(seconds)


class TrainingData:
    """What the trainer iterates over, batches on the CPU, with :meth:`position` for checkpoints.

    Args:
        dataset: the data set; with workers, the one that ``loader`` sends to them.
        loader: None without workers.
        settings: what the order of the batches depends on besides the corpora's text.
        reached: states of the generators to be set before the first batch is handed out, or None.
    """

    def __init__(self, dataset: PositionedDataset, loader, settings: dict, reached: dict | None) -> None:
        self.dataset, self.loader, self.settings = dataset, loader, settings
        self.reached = reached
        self.workers = dict(dataset.positions)
        self.next_worker = dataset.first_worker
        self.initial = {
            "shuffler": random_state.pack_python(dataset.random_shuffler.random_state),
            "seed": dataset.worker_seed,
        }

    def __iter__(self):
        if self.loader is None:
            yield from self.dataset
            return
        for item in self.loader:
            if isinstance(item, str):
                raise UserError(item)
            batch, bucket, worker, used, news = item
            position = self.workers.setdefault(worker, {})
            position.update(news or {})
            position["used"] = used
            self.next_worker = (worker + 1) % self.dataset.num_workers
            if self.reached is not None:
                random_state.restore(self.reached)
                self.reached = None
            yield batch, bucket

    def position(self) -> dict:
        """Plain data: what comes after the batches handed out so far."""
        workers = self.workers
        if self.loader is None:
            workers = {0: {**self.dataset.bucket_start, "used": self.dataset.used}}
        return {
            "settings": dict(self.settings),
            "initial": self.initial,
            "next_worker": self.next_worker,
            "workers": {worker: dict(position) for worker, position in workers.items()},
        }


def on_device(batch: dict, device: torch.device) -> dict:
    """A batch on a device; the host waits for no copy, and still knows the lengths."""
    if device.type == "cpu":
        return batch
    moved = {name: _sent(value, device) if torch.is_tensor(value) else value for name, value in batch.items()}
    with_host_copy(moved["srclen"], on_host(batch["srclen"]))  # the encoder packs by them
    return moved


def _sent(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    # from memory that is not pinned a long copy waits for everything before it
    pinned = x.pin_memory() if device.type == "cuda" and not x.is_cuda and x.layout == torch.strided else x
    return pinned.to(device, non_blocking=True)


def order_settings(opt: Namespace, stride: int, offset: int) -> dict:
    """What the order of the batches depends on, to be compared when a run resumes."""
    corpora = corpus_weights(opt)
    names = ("num_workers", "batch_size", "batch_type", "batch_size_multiple", "model_dtype")
    buckets = ("bucket_size", "bucket_size_init", "bucket_size_increment")
    return {
        "corpora and weights": corpora,
        FILES: corpora_state(opt),
        "number of processes": stride,
        "rank": offset,
        **{name: getattr(opt, name) for name in (*names, *buckets)},
    }


def build_training_data(opt, transforms_cls, vocabs, stride, offset, device_id, resumed: dict | None, log):
    """Stock's ``build_dynamic_dataset_iter`` for training, going on from ``resumed`` where that is possible.

    Args:
        resumed: this process's ``{"data": position, "random": states}`` from a checkpoint, or None.
        log: takes a line for the user.
    """
    workers = opt.num_workers
    dataset = PositionedDataset.from_opt(
        get_corpora(opt, CorpusTask.TRAIN),
        make_transforms(opt, transforms_cls, vocabs),
        vocabs,
        opt,
        CorpusTask.TRAIN,
        copy=False,
        stride=stride,
        offset=offset,
        device=torch.device("cpu"),
    )
    dataset.num_workers = workers
    dataset.positions = {}
    dataset.random_shuffler = _SkippingShuffler()
    dataset.worker_seed = int(torch.empty((), dtype=torch.int64).random_(2**62).item())
    settings = order_settings(opt, stride, offset)
    reached = None
    if resumed is not None:
        position = resumed["data"]
        before = position["settings"]  # a checkpoint of an older version knows less
        changed = [name for name, value in settings.items() if name in before and before[name] != value]
        if changed:
            log(f"The training data starts from the beginning: {', '.join(changed)} changed since the checkpoint.")
        else:
            dataset.positions = {worker: dict(place) for worker, place in position["workers"].items()}
            dataset.first_worker = position["next_worker"]
            dataset.worker_seed = position["initial"]["seed"]
            dataset.random_shuffler._random_state = random_state.unpack_python(position["initial"]["shuffler"])
            reached = resumed["random"]
    loader = None
    if workers == 0:
        dataset.reached = reached
        dataset._init_datasets(0)
    else:
        loader = DataLoader(
            dataset,
            batch_size=None,
            pin_memory=device_id >= 0,
            multiprocessing_context="spawn",
            num_workers=workers,
            worker_init_fn=dataset._init_datasets,
            prefetch_factor=opt.prefetch_factor,
        )
    return TrainingData(dataset, loader, settings, reached)


def build_validation_data(opt: Namespace, transforms_cls, vocabs):
    """Stock's validation data on the CPU, or None; without workers, as starting them takes longer than reading."""
    alone = copy.copy(opt)
    alone.num_workers = 0
    return build_dynamic_dataset_iter(alone, transforms_cls, vocabs, task=CorpusTask.VALID)


@contextmanager
def open_corpus(filename, mode="rb"):
    """Lines of a file, or None without end; closed also where reading stops in the middle, unlike in stock."""
    if filename is None:
        yield repeat(None)
        return
    with closing(byte_lines(filename)) as lines:
        yield islice(lines, getattr(filename, "lines", 0), None)
