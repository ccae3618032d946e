"""Several batches of OpenNMT-py's iterator as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch.nn.utils.rnn import pad_sequence

MOST = 4  # batches; beyond, a step's fixed costs are small already
# How much larger a joined batch may be than its parts together, for the padding: one very long line must stay alone.
PADDING = 1.5


def in_groups(batches: Iterable[tuple[dict, int]], joins: bool) -> Iterator[tuple[list[dict], int]]:
    """Neighbouring batches to be joined.

    Args:
        batches: pairs of a batch and the number of its bucket, as OpenNMT-py's iterator makes them.
        joins: whether to join any at all.

    Yields:
        Batches of one bucket, and its number.
    """
    group: list[dict] = []
    bucket = None
    for batch, number in batches:
        if group and not (joins and number == bucket and len(group) < MOST and _fits(group, batch)):
            yield group, bucket
            group = []
        group.append(batch)
        bucket = number
    if group:
        yield group, bucket


def _fits(group: list[dict], batch: dict) -> bool:
    shapes = [member["src"].shape for member in (*group, batch)]
    joined = sum(shape[0] for shape in shapes) * max(shape[1] for shape in shapes)
    return joined <= PADDING * sum(shape[0] * shape[1] for shape in shapes) and ("tgt" in batch) == ("tgt" in group[0])


def join_batches(batches: list[dict], padding: dict[str, int]) -> dict:
    """What search reads of several batches: lengths, and those sides of which the padding token is given."""
    lengths = [name for name in ("srclen", "tgtlen") if name in batches[0]]
    joined = {name: torch.cat([batch[name] for batch in batches]) for name in lengths}
    for side, token in padding.items():
        if side in batches[0]:
            sentences = [sentence for batch in batches for sentence in batch[side]]
            joined[side] = pad_sequence(sentences, batch_first=True, padding_value=token)
    return joined
