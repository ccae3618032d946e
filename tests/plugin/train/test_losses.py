"""Statistics whose sums are on a device: whoever reads them, and whenever, finds what stock's would say."""

from __future__ import annotations

import copy
import pickle

import torch
from hypothesis import given
from hypothesis import strategies as st
from onmt.utils import Statistics

from onmt_entmax.plugin.train.losses import DeviceStatistics
from onmt_entmax.plugin.train.state import pack_statistics, unpack_statistics

BATCH = st.tuples(st.floats(0, 1e6), st.integers(0, 999), st.integers(0, 999))  # loss, words, correct words
ACTIONS = st.lists(st.one_of(BATCH, st.sampled_from(["read", "write", "keep", "gather", "copy"])), max_size=12)


def of_batch(loss, words, correct):
    sums = torch.tensor([loss, words, correct], dtype=torch.float64)
    return Statistics(loss, 1, 4, words, correct), DeviceStatistics(sums, 1, 4)


@given(ACTIONS)
def test_they_say_what_stocks_say(actions):
    theirs, ours = Statistics(), DeviceStatistics()
    for action in actions:
        if action == "read":
            assert (ours.loss, ours.n_words, ours.n_correct) == (theirs.loss, theirs.n_words, theirs.n_correct)
        elif action == "write":
            ours.n_correct = theirs.n_correct = 7
        elif action == "keep":  # in a checkpoint
            ours = unpack_statistics(pack_statistics(ours))
        elif action == "gather":  # several processes by stock's `all_gather_stats`
            ours.update(pickle.loads(pickle.dumps(ours)), update_n_src_words=True)
            theirs.update(copy.copy(theirs), update_n_src_words=True)
        elif action == "copy":
            ours = copy.deepcopy(ours)
        else:
            for stats, batch in zip((theirs, ours), of_batch(*action)):
                stats.n_src_words += 3
                stats.update(batch)
    assert pack_statistics(ours) == pack_statistics(theirs)  # to the last bit
    assert type(ours.n_words) is type(ours.n_correct) is int


def test_they_add_to_stocks_own():
    theirs, ours = of_batch(2.5, 4, 3)
    theirs.update(ours)
    assert (theirs.loss, theirs.n_words, theirs.n_correct, theirs.n_batchs, theirs.n_sents) == (5.0, 8, 6, 2, 8)
    ours.update(Statistics(1.0, 1, 4, 2, 1))
    assert (ours.loss, ours.n_words, ours.n_correct, ours.accuracy()) == (3.5, 6, 4, 100 * (4 / 6))
