"""Positions in the data: every cut of a stream of batches goes on exactly, however many processes read."""

from __future__ import annotations

import copy
import random
import shutil
import subprocess
import sys
from argparse import Namespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onmt.inputters.text_corpus import ParallelCorpus, ParallelCorpusIterator
from onmt.transforms import TransformPipe, get_transforms_cls
from onmt.utils.misc import set_random_seed

from onmt_entmax.entmax.engine import on_host
from onmt_entmax.errors import UserError
from onmt_entmax.plugin.train import position as random_state
from onmt_entmax.plugin.train.data import TrainingData, _Corpus, build_training_data, on_device
from onmt_entmax.plugin.train.position import Mixture
from tests.plugin.train.helpers import config


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 7), st.integers(0, 3)), min_size=1, max_size=3).filter(
        lambda sizes: any(weight for _, weight in sizes)
    ),
    st.integers(0, 30),
)
def test_mixture_goes_on_where_it_was(sizes, cut):
    corpora = {f"c{i}": [f"{i}.{j}" for j in range(size)] for i, (size, _) in enumerate(sizes)}
    weights = {f"c{i}": weight for i, (_, weight) in enumerate(sizes)}
    stream = iter(Mixture(corpora, weights))
    expected = [next(stream) for _ in range(cut + 20)]
    first = Mixture(corpora, weights)
    stream = iter(first)
    found = [next(stream) for _ in range(cut)]
    second = Mixture(corpora, weights)
    second.load_state_dict(first.state_dict())
    stream = iter(second)
    found += [next(stream) for _ in range(20)]
    assert found == expected


def test_mixture_known_order():
    # two of a, one of b, and so on; a starts again after a3, b after b2
    mixture = Mixture({"a": ["a1", "a2", "a3"], "b": ["b1", "b2"]}, {"a": 2, "b": 1})
    stream = iter(mixture)
    assert [next(stream) for _ in range(9)] == ["a1", "a2", "b1", "a3", "a1", "b2", "a2", "a3", "b1"]
    assert mixture.passes == {"a": 2, "b": 2}


def test_mixture_refuses_empty_corpora():
    with pytest.raises(UserError, match="Corpus a has no line"):
        next(iter(Mixture({"a": []}, {"a": 1})))
    with pytest.raises(UserError, match="weight"):
        Mixture({"a": [1]}, {"a": 0})


@pytest.mark.parametrize(("stride", "offset"), [(1, 0), (2, 0), (2, 1), (3, 2)])
def test_starting_further_down_skips_examples_only(folder, stride, offset):
    corpus = ParallelCorpus("a", str(folder / "a.src"), str(folder / "a.tgt"))
    stock = ParallelCorpusIterator(corpus, TransformPipe.build_from([]), stride=stride, offset=offset)
    everything = [example["src"] for example, _, _ in stock]
    for count in (0, 1, 2, 3, 7, len(everything)):
        assert [example["src"] for example, _, _ in _Corpus(stock).starting_at(count)] == everything[count:]


def test_random_states_come_back():
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    random.gauss(0, 1), np.random.standard_normal()  # both keep a second value for the next call
    state = random_state.capture()
    expected = random.gauss(0, 1), np.random.standard_normal(), torch.rand(3).tolist()
    random.seed(9), np.random.seed(9), torch.manual_seed(9)
    random_state.restore(state)
    assert (random.gauss(0, 1), np.random.standard_normal(), torch.rand(3).tolist()) == expected


def options(folder, **changes) -> Namespace:
    import onmt.bin.train as command
    from onmt.utils.parse import ArgumentParser

    argv = ["-config", str(config(folder, **changes)), "-save_model", str(folder / "m")]
    opt, _ = command._get_parser().parse_known_args(argv)
    ArgumentParser.validate_train_opts(opt)
    ArgumentParser.update_model_opts(opt)
    ArgumentParser.validate_model_opts(opt)
    ArgumentParser.validate_prepare_opts(opt)
    return opt


class Alternating:
    """Stands for torch's loader of several worker processes: their batches in turn, each with generators of its own."""

    def __init__(self, dataset):
        self.datasets = [copy.deepcopy(dataset) for _ in range(dataset.num_workers)]

    def __iter__(self):
        outside = random_state.capture()
        streams, states = [], []
        for worker, dataset in enumerate(self.datasets):
            dataset._init_datasets(worker)
            streams.append(iter(dataset))
            states.append(random_state.capture())
        random_state.restore(outside)
        while True:
            for worker, stream in enumerate(streams):
                outside = random_state.capture()
                random_state.restore(states[worker])
                item = next(stream)
                states[worker] = random_state.capture()
                random_state.restore(outside)
                yield item


def build(opt, resumed=None, log=lambda line: None, pretend=True) -> TrainingData:
    from onmt.inputters import build_vocab
    from onmt.transforms import get_specials

    transforms_cls = get_transforms_cls(opt._all_transform)
    vocabs = build_vocab(opt, get_specials(opt, transforms_cls))
    set_random_seed(7, False)
    data = build_training_data(opt, transforms_cls, vocabs, 1, 0, -1, resumed, log)
    if data.loader is not None and pretend:
        data.loader = Alternating(data.dataset)
    return data


def take(stream, count: int) -> list:
    """Batches, each with a draw from every generator, as dropout would make between two batches."""
    batches = []
    for _ in range(count):
        batch, bucket = next(stream)
        draws = (random.random(), float(np.random.rand()), torch.rand(2).tolist())
        batches.append((batch["src"].tolist(), batch["tgt"].tolist(), bucket, draws))
    return batches


def resumed_from(data: TrainingData) -> dict:
    return {"data": data.position(), "random": random_state.capture()}


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on a machine with fewer cores; none is started
@pytest.mark.parametrize("workers", [0, 1, 3])
@settings(max_examples=6, deadline=None)
@given(cut=st.integers(1, 25), size=st.sampled_from([5, 16, 40]))
def test_every_cut_goes_on_exactly(tmp_path_factory, workers, cut, size):
    from tests.plugin.train.helpers import write_data

    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    opt = options(folder, num_workers=workers, bucket_size=size, bucket_size_init=4, bucket_size_increment=3)
    expected = take(iter(build(opt)), cut + 12)
    first = build(opt)
    stream = iter(first)
    found = take(stream, cut)
    second = build(opt, resumed_from(first))
    found += take(iter(second), 12)
    assert found == expected


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_moved_as_a_whole(folder, workers):
    read, _ = next(iter(build(options(folder, num_workers=workers))))
    assert on_device(read, torch.device("cpu")) is read
    batch = on_device(read, torch.device("meta"))  # the one device beside the CPU that every machine has
    assert {batch[name].device.type for name in ("src", "tgt", "srclen")} == {"meta"}
    assert isinstance(batch["cid"], list)
    known = on_host(batch["srclen"], wait=False)  # so that nobody has to ask the device
    assert known.device.type == "cpu" and int(known.max()) == batch["src"].size(1)
    again = on_device(batch, torch.device("meta"))  # what is there already stays, and what is known
    assert on_host(again["srclen"], wait=False) is known


def test_real_worker_process(folder):
    opt = options(folder, num_workers=1, bucket_size=7)
    first = build(opt, pretend=False)
    stream = iter(first)
    take(stream, 3)
    resumed = resumed_from(first)
    expected = take(stream, 4)
    del stream
    assert take(iter(build(opt, resumed, pretend=False)), 4) == expected


def test_ending_worker_waits_for_the_thread_that_sends(tmp_path):
    # the queue is left as PyTorch's workers leave theirs, with something that takes a while to pickle
    script = """
import atexit, multiprocessing, sys, time
from onmt_entmax.plugin.train.data import _wait_for_sender

class Slow:
    def __reduce__(self):
        time.sleep(0.2)
        open(sys.argv[1], "w").close()
        return int, ()

atexit.register(_wait_for_sender, 20.0)
queue = multiprocessing.Queue()
queue.put(Slow())
queue.cancel_join_thread()
queue.close()
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "sent")], check=True)
    assert (tmp_path / "sent").exists()


def test_changed_data_starts_from_the_beginning_and_says_so(folder):
    opt = options(folder)
    first = build(opt)
    take(iter(first), 3)
    resumed = resumed_from(first)
    opt.batch_size, lines = 5, []
    again = build(opt, resumed, lines.append)
    assert lines == ["The training data starts from the beginning: batch_size changed since the checkpoint."]
    assert take(iter(again), 3) == take(iter(build(opt)), 3)


def test_text_that_has_changed_starts_from_the_beginning(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "text")
    opt = options(tmp_path / "text")
    first = build(opt)
    take(iter(first), 3)
    resumed, lines = resumed_from(first), []
    path = tmp_path / "text/a.src"
    path.write_text(path.read_text(encoding="utf-8").replace(" ", "  ", 1), encoding="utf-8")
    build(opt, resumed, lines.append)
    assert lines == [
        "The training data starts from the beginning: the corpora's files or transforms changed since the checkpoint."
    ]
    del resumed["data"]["settings"]["the corpora's files or transforms"]
    build(opt, resumed, lines.append)  # a checkpoint of an older version
    assert len(lines) == 1
