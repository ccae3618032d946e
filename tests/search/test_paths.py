"""Rows of states: parts, joins, and the storage of prefixes that wait."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_entmax.search.paths import (
    StatePool,
    distinct_parents,
    join_outputs,
    rows_to_continue,
    select_rows,
)
from onmt_entmax.search.scorer import StepOutput


@given(parents=st.lists(st.integers(0, 4), max_size=8))
def test_distinct_parents_give_every_row_its_own_back(parents):
    distinct, places = distinct_parents(parents)
    assert len(set(distinct)) == len(distinct)
    assert [distinct[place] for place in (places if places is not None else range(len(parents)))] == parents
    assert (places is None) == (len(distinct) == len(parents))


@settings(max_examples=50)
@given(parents=st.lists(st.integers(0, 3), min_size=1, max_size=8).map(sorted), most=st.integers(1, 9))
def test_parts_joined_are_the_whole(parents, most):
    states = (torch.arange(4.0),)
    whole = select_rows(states, torch.tensor(parents))
    parts = []
    for start in range(0, len(parents), most):
        part = slice(start, start + most)
        old, places = rows_to_continue(states, torch.tensor(parents), part)
        rows = select_rows(old, places)
        parts.append(StepOutput(rows[0].unsqueeze(1), rows))
    joined = join_outputs(parts)
    assert torch.equal(joined.states[0], whole[0]) and torch.equal(joined.log_probs[:, 0], whole[0])
    assert joined.attention is None and joined.tokens is None


def test_without_parents_a_part_continues_its_own_rows():
    (rows,), places = rows_to_continue((torch.arange(5),), None, slice(1, 3))
    assert rows.tolist() == [1, 2] and places is None


def test_pool_reuses_slots():
    pool = StatePool()
    states = (torch.arange(4.0).unsqueeze(1), torch.arange(4) * 10)
    slots = pool.add(states, [3, 1])
    for slot in slots:
        pool.hold(slot, 2)
    taken, places = pool.take([slots[1], slots[0], slots[1]])
    assert [part.tolist() for part in taken] == [[[1], [3]], [10, 30]] and places.tolist() == [0, 1, 0]
    pool.hold(slots[0], -1)
    assert len(pool) == 2
    pool.hold(slots[0], -1)
    assert len(pool) == 1
    new = pool.add(states, [0, 2, 3])
    assert pool.take(new)[0][1].tolist() == [0, 20, 30] and pool.take([slots[1]])[0][1].tolist() == [10]
    assert pool.take([slots[0]])[1] is None
