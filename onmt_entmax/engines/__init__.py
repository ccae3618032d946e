"""Engines compute what ``model`` computes, in less time; without them results are the same up to rounding.

This is the registry, and the only place that chooses. A model asks :func:`choose` for the engine of its device and
dtype; each method of an engine returns None where it leaves the work to the reference in ``model``.

| engine | where | what |
|---|---|---|
| ``reference`` | everywhere | nothing: ``model`` computes everything, step by step |
| ``unrolled`` | any device and dtype | all decoder steps in one autograd function; search steps share the memory |
| ``cpu`` | float32 on a CPU, with numba | the same with compiled loops, and encoder layers |
| ``gpu`` | float32 and half precision on a GPU, with triton | as ``unrolled``, by Triton kernels between products |

The environment variable ``ONMT_ENTMAX_ENGINE`` says which: ``auto`` (unset means this) takes ``cpu`` or ``gpu`` where
they can serve, else ``unrolled``; ``reference``, ``cpu`` and ``gpu`` are taken at their word, and are an error where
they cannot serve. What computes mappings and losses is chosen in ``entmax.engine``, by the same names.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.nn import functional as F

from onmt_entmax.entmax.engine import (  # noqa: F401
    SETTINGS,
    VARIABLE,
    autocast_dtype,
    place,
    refusal,
    say_once,
    why_not_gpu,
)
from onmt_entmax.errors import UserError, choices, invalid_setting

logger = logging.getLogger("onmt.entmax")  # its lines go where OpenNMT-py's go


class Engine:
    """The reference, and what other engines inherit for what they do not compute themselves."""

    name = "reference"

    def decode(self, decoder, tgt, emb, memory, src_len, state) -> tuple | None:
        """All steps of an input-feeding decoder, differentiably.

        Args:
            decoder: ``model.decoder.InputFeedDecoder``, for its layers and dropout.
            tgt: target tokens, ``(B, T, features)``; behind a target, outputs and attention may be zero.
            emb: their embeddings, ``(B, T, E)``.
            memory: ``(B, S, H)``.
            src_len: ``(B,)``, or None: every source has S positions.
            state: fed-back output ``(B, H)``, hidden ``(L, B, H)``, cell ``(L, B, H)``; not changed.

        Returns:
            Outputs ``(B, T, H)``, attention ``(B, T, S)`` and the last hidden and cell ``(L, B, H)``.
        """
        return None

    def encode(self, rnn, emb, src_len) -> tuple | None:
        """All layers of a recurrent encoder, differentiably.

        Args:
            rnn: ``nn.LSTM`` or other layers, batch first.
            emb: source embeddings, ``(B, S, E)``.
            src_len: ``(B,)``, or None.

        Returns:
            Memory ``(B, longest, D * H)``, zero at padding, and the last states, as ``rnn`` returns them.
        """
        return None

    def map_heads(self, scores: Tensor, alpha: float | Tensor) -> Tensor | None:
        """alpha-entmax of a Transformer's attention scores, differentiably.

        Args:
            scores: ``(B, heads, Q, K)``; at most ``model.heads.MASKED``: the entry counts for nothing.
            alpha: a number above 1, or one for each head, ``(heads, 1, 1)``.

        Returns:
            Probabilities, same shape; a row that is masked as a whole is zero.
        """
        return None

    def search(self, decoder, memory, src_len):
        """Steps for many live prefixes of few sentences; takes and has what ``model.stepping.SearchSteps`` does."""
        return None

    def dropout(self, x: Tensor, p: float) -> Tensor:
        """Zero a share ``p`` of ``x`` and scale the rest; same shape."""
        return F.dropout(x, p)


REFERENCE = Engine()
_given: ContextVar[Engine | None] = ContextVar("onmt_entmax_engine", default=None)


def setting() -> str:
    """The value of ``ONMT_ENTMAX_ENGINE``.

    Raises:
        UserError: it is none of :data:`SETTINGS`.
    """
    wanted = os.environ.get(VARIABLE) or "auto"
    if wanted not in SETTINGS:
        raise invalid_setting(VARIABLE, wanted, choices(SETTINGS))
    return wanted


def choose(device: torch.device, dtype: torch.dtype) -> Engine:
    """The engine for a device and a dtype; the log says which and why, once for each.

    Raises:
        UserError: ``ONMT_ENTMAX_ENGINE`` names an engine that cannot serve there, or none.
    """
    return _given.get() or _choice(setting(), device.type, dtype)[0]


def describe(device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> str:
    """Name of the engine for a device and a dtype, and why; raises as :func:`choose` does."""
    engine, reason = _choice(setting(), torch.device(device).type, dtype)
    return f"{engine.name} ({reason})"


def name(device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> str:
    """Name of the engine for a device and a dtype; raises as :func:`choose` does."""
    return choose(torch.device(device), dtype).name


@functools.cache
def _choice(wanted: str, device: str, dtype: torch.dtype) -> tuple[Engine, str]:
    where = place(device, dtype)
    if wanted == "reference":
        engine, reason = REFERENCE, f"`{VARIABLE}` is reference"
    else:
        best = wanted if wanted != "auto" else "gpu" if device == "cuda" else "cpu"
        missing = (why_not_gpu if best == "gpu" else _why_not_cpu)(device, dtype)
        if wanted != "auto" and missing:
            raise UserError(refusal(wanted, device, dtype, missing))
        if missing:
            from onmt_entmax.engines.unrolled import Unrolled

            engine, reason = Unrolled(), f"{where}; `{best}` cannot serve there: {missing}"
        elif best == "gpu":
            from onmt_entmax.engines.gpu import Gpu

            engine, reason = Gpu(), f"{where}, kernels by Triton"
        else:
            from onmt_entmax.engines.cpu import Cpu

            engine, reason = Cpu(), f"{where}, loops compiled by numba"
    logger.info("Engine: %s (%s).", engine.name, reason)
    return engine, reason


def _why_not_cpu(device: str, dtype: torch.dtype) -> str | None:
    if device != "cpu":
        return "it serves CPUs only"
    if dtype != torch.float32:
        return "it serves float32 only"
    try:
        import numba  # noqa: F401
    except ImportError:
        return "numba is not installed (pip install numba)"
    return None


@contextmanager
def using(engine: Engine) -> Iterator[None]:
    """Take this engine, with its parameters, whatever device and dtype: for tests and measurements."""
    token = _given.set(engine)
    try:
        yield
    finally:
        _given.reset(token)


def computing_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which layers compute with ``x``: that of autocast where it is on, else its own."""
    return autocast_dtype(x.device.type) or x.dtype
