"""The states of all random number generators as plain data, so that checkpoints stay safe to load."""

from __future__ import annotations

import random

import numpy as np
import torch


def pack_python(state: tuple) -> dict:
    """State of :mod:`random` (``random.getstate()``) as a tensor and plain data."""
    version, words, gauss = state
    return {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss}


def unpack_python(packed: dict) -> tuple:
    """Inverse of :func:`pack_python`."""
    return packed["version"], tuple(packed["words"].tolist()), packed["gauss"]


def capture(cuda: bool = False) -> dict:
    """States of Python's, numpy's and torch's generators; with ``cuda`` also that of the current device."""
    name, words, position, has_gauss, gauss = np.random.get_state()
    return {
        "python": pack_python(random.getstate()),
        "numpy": {
            "name": str(name),
            "words": torch.from_numpy(words.astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "gauss": float(gauss),
        },
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if cuda else None,
    }


def restore(state: dict) -> None:
    """Set the generators to what :func:`capture` returned; a state of a device is left out where there is none."""
    random.setstate(unpack_python(state["python"]))
    packed = state["numpy"]
    words = packed["words"].numpy().astype(np.uint32)
    np.random.set_state((packed["name"], words, packed["position"], packed["has_gauss"], packed["gauss"]))
    torch.set_rng_state(state["torch"].cpu().to(torch.uint8))
    if state.get("cuda") is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu().to(torch.uint8))
