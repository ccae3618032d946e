"""Which code solves: the reference, for any device and dtype, or an engine, faster on one kind of device.

The environment variable ``ONMT_ENTMAX_ENGINE`` names it: ``auto`` (the default: the engine made for the tensors, else
the reference), ``reference`` (which also does without blocks of logits and shortcuts), or an engine, ``cpu`` or
``gpu`` (Triton kernels), where tensors that it cannot serve are an error. Results are the same up to rounding. Inside
torch.compile the reference is traced, whatever the variable says: the compiler makes it fast.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from typing import Any, Optional, Protocol, Union

import torch
from torch import Tensor

VARIABLE = "ONMT_ENTMAX_ENGINE"
SETTINGS = ("auto", "reference", "cpu", "gpu")
OLDEST_TRITON = (3, 0)
KINDS = {1.0: 4, 1.5: 1, 2.0: 2}  # which part of a Triton kernel is an alpha's; others have 0


class Engine(Protocol):
    """What an engine offers. Each method returns None where the reference is as fast, which then takes over."""

    name: str

    def serves(self, x: Tensor) -> bool:
        """Whether tensors like this one are of the engine's kind."""

    def entmax(self, scores: Tensor, alpha: Union[float, Tensor]) -> Optional[Tensor]:
        """Probabilities over the last dimension; a tensor alpha has shape ``(..., 1)``."""

    def gradients(
        self, probs: Tensor, grad: Tensor, alpha: Union[float, Tensor]
    ) -> Optional[tuple[Tensor, Optional[Tensor]]]:
        """Gradients of scores and alpha (None for a number) from that of probabilities, over the last dimension."""

    def losses(
        self, scores: Tensor, target: Tensor, alpha: Union[float, Tensor], ignore_index: int, smoothing: float
    ) -> Optional[Tensor]:
        """Losses ``(n,)`` of scores ``(n, d)``, differentiable."""

    def logits_solver(self, rows: int, hidden: Tensor, weight: Tensor, alpha: float) -> object:
        """What :mod:`~onmt_entmax.entmax.linear_loss` solves a block of logits with: see ``solve_at_once`` there."""


@cache
def engines() -> dict[str, Engine]:
    """The engines that need no more than PyTorch, by name."""
    from onmt_entmax.entmax.cpu import Cpu  # here, as engines build on the reference, which asks for them

    return {"cpu": Cpu()}


@cache
def gpu() -> Engine:
    """The engine for GPUs, where :func:`why_not_gpu` has nothing against it: it imports Triton."""
    from onmt_entmax.entmax.triton import Gpu

    return Gpu()


@cache
def why_no_triton() -> Optional[str]:
    """Why Triton's kernels cannot be had, or None."""
    try:
        import triton
    except ImportError:
        return "triton is not installed (pip install triton)"
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if version < OLDEST_TRITON:
        return f"triton {triton.__version__} is too old (it takes 3.0 or newer)"
    return None


def why_not_gpu(device: str, dtype: torch.dtype) -> Optional[str]:
    """Why the engine for GPUs cannot serve tensors of this kind of device and dtype, or None."""
    interpreted = device == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if device != "cuda" and not interpreted:
        return "it serves GPUs only"
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return "it serves float32, bfloat16 and float16 only"
    return why_no_triton()


def refusal(engine: str, device: str, dtype: torch.dtype, reason: str) -> str:
    """The error where the environment names an engine that cannot serve."""
    return f"Invalid setting for `{VARIABLE}`: {engine}. It cannot compute {place(device, dtype)}: {reason}."


def place(device: str, dtype: torch.dtype) -> str:
    """A device and a dtype in words: ``float32 on a CPU``."""
    return f"{str(dtype)[6:]} on {'a CPU' if device == 'cpu' else device}"


@cache
def say_once(message: str) -> None:
    """Write a line into the log, the first time."""
    logging.getLogger("onmt.entmax").info(message)  # its lines go where OpenNMT-py's go


_override: ContextVar[Union[str, Engine, None]] = ContextVar("engine", default=None)


@contextmanager
def using(engine: Union[str, Engine]) -> Iterator[None]:
    """Take this engine inside the block, whatever the environment says: a name, or an engine with its own settings."""
    token = _override.set(engine)
    try:
        yield
    finally:
        _override.reset(token)


def asked_engine() -> Union[str, Engine]:
    """What the environment (or :func:`using`) asks for.

    Raises:
        ValueError: a name that does not exist.
    """
    asked = _override.get()
    if asked is None:
        asked = os.environ.get(VARIABLE) or "auto"
    if isinstance(asked, str) and asked not in SETTINGS:
        raise ValueError(f"Invalid setting for `{VARIABLE}`: {asked}. Valid choices: {', '.join(SETTINGS)}.")
    return asked


def engine_for(x: Tensor) -> Optional[Engine]:
    """The engine for tensors like ``x``; None is the reference. The one place that chooses.

    Raises:
        ValueError: a name that does not exist, or an engine that cannot serve ``x``.
    """
    if is_compiling():
        return None
    asked = asked_engine()
    device = x.device.type
    if asked == "auto":
        if device == "cpu":
            return engines()["cpu"]
        reason = why_not_gpu(device, x.dtype)
        if reason is not None and device == "cuda":
            say_once(f"The reference computes entmax for {place(device, x.dtype)}: {reason}.")
        return gpu() if reason is None else None
    if asked == "reference":
        return None
    if asked == "gpu":
        reason = why_not_gpu(device, x.dtype)
        if reason is not None:
            raise ValueError(refusal("gpu", device, x.dtype, reason))
        return gpu()
    engine = engines()[asked] if isinstance(asked, str) else asked
    if not engine.serves(x):
        raise ValueError(refusal(engine.name, device, x.dtype, "it serves CPUs only"))
    return engine


def is_reference() -> bool:
    """Whether the reference is asked for, without any shortcut."""
    return not is_compiling() and asked_engine() == "reference"


def is_compiling() -> bool:
    """Whether torch.compile is tracing, when control flow may not depend on values."""
    flag = getattr(torch.compiler, "is_compiling", None)
    return bool(flag()) if flag is not None else False


def free_to_read(x: Tensor) -> bool:
    """Whether reading a value of ``x`` costs nothing: on the CPU, outside torch.compile."""
    return x.device.type == "cpu" and not is_compiling()


def can_read(x: Tensor) -> bool:
    """Whether a value of ``x`` can be read, although that may synchronise with the device.

    Not in torch.compile, nor on the meta device, nor while a CUDA graph is captured.
    """
    if is_compiling() or x.is_meta:
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def autocast_dtype(device: str) -> Optional[torch.dtype]:
    """The dtype that autocast asks for on this kind of device, None where it is off."""
    if device == "meta":  # which autocast does not know
        return None
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cuda":
        return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
    return torch.get_autocast_cpu_dtype() if device == "cpu" and torch.is_autocast_cpu_enabled() else None


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """A context in which autocast is off on this kind of device."""
    return nullcontext() if device == "meta" else torch.autocast(device, enabled=False)


def with_host_copy(x: Tensor, values: Union[Tensor, list[int]]) -> Tensor:
    """Say what the values of ``x`` are, known on the CPU: who needs them need not wait for the device."""
    if x.device.type != "cpu":
        x.host_copy = torch.as_tensor(values)
    return x


def on_host(x: Tensor, wait: bool = True) -> Optional[Tensor]:
    """The values of ``x`` on the CPU; where nobody said them, asked of the device, or None without ``wait``."""
    if x.device.type == "cpu":
        return x
    host = getattr(x, "host_copy", None)
    return x.cpu() if host is None and wait else host
