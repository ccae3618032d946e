"""Who multiplies float32 matrices on a CPU: MKL, PyTorch's choice, or oneDNN where that is as accurate and faster.

MKL takes a slow path on new AMD processors. PyTorch asks oneDNN instead where float32 products are allowed to round
their operands to bfloat16; whether they do is up to oneDNN: with AVX-512 and without AMX it computes in float32 all the
same. There the recurrent layers of this engine round the operands themselves, if training is asked to (``bf16``) and
the processor multiplies bfloat16: in half of the time and less. Nothing here takes the time, so that two runs on one
machine compute alike.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from onmt_entmax import engines
from onmt_entmax.engines.decoder import EXACT, Arithmetic
from onmt_entmax.errors import choices, invalid_setting

CHOICES = ("auto", "fp32", "bf16")  # of the option `matmul_precision`
# Largest error of a product, as a share of the product of absolute values: float32 has some 5e-7, bfloat16 1e-4.
TOLERANCE = 2.0**-18
# The first family of AMD's that computes 512 bits at once (Zen 5). MKL computes 256 on all of them, which is all that
# the one before it can: there training with two threads gained nothing.
FULL_WIDTH = 26
MULTIPLIES_BF16 = {"avx512_bf16", "amx_bf16"}  # what Linux calls the instructions, one of which it takes
SHAPES = ((1, 300, 40), (64, 600, 600), (1200, 900, 64), (257, 129, 33))  # rows, inner, columns


class Products(NamedTuple):
    """How float32 products are computed.

    Attributes:
        library: ``oneDNN``, or ``PyTorch`` for what it does by itself.
        precision: ``fp32`` or ``bf16``, as found by computing some.
        reason: why, for the log.
        by_layers: whether it is the recurrent layers that round, and nothing else does.
    """

    library: str
    precision: str
    reason: str
    by_layers: bool = False

    @property
    def name(self) -> str:
        """Both in a word, for a run's state and for signatures."""
        return self.precision if self.library == "PyTorch" else f"{self.precision}-{self.library}"


def _mm(left: Tensor, right: Tensor, *, out: Tensor | None = None) -> Tensor:
    found = torch.mm(left.bfloat16(), right.bfloat16())
    return found.float() if out is None else out.copy_(found)


def _addmm(base: Tensor, left: Tensor, right: Tensor, *, out: Tensor | None = None) -> Tensor:
    return torch.add(base, torch.mm(left.bfloat16(), right.bfloat16()), out=out)


ROUNDED = Arithmetic(Tensor.bfloat16, _mm, _addmm)


def arithmetic() -> Arithmetic:
    """How recurrent layers multiply now."""
    return ROUNDED if _users and _users[-1][0].by_layers else EXACT


@contextmanager
def products(wanted: str = "auto", training: bool = False) -> Iterator[Products]:
    """Compute float32 products on CPUs as ``wanted`` says, and as before afterwards; may be nested, also by threads.

    Args:
        wanted: ``auto`` (oneDNN where it is as accurate as float32 and known to be faster; inside another use, as that
            one), ``fp32`` (PyTorch's own), ``bf16`` (oneDNN also where it rounds its operands).
        training: whether recurrent layers may round, too, which search steps do not.

    Yields:
        What is in use.

    Raises:
        UserError: another word, or ``bf16`` where ``ONMT_ENTMAX_ENGINE`` is ``reference``.
    """
    with _lock:
        found = _users[-1][0] if _users and wanted == "auto" else choose(wanted, training)
        user = (found, _precision())
        _users.append(user)
        _set(_ROUNDING if found.library == "oneDNN" else _users[0][1])
    try:
        yield found
    finally:
        with _lock:
            before = _users[0][1]
            _users.remove(user)
            _set(_ROUNDING if _users and _users[-1][0].library == "oneDNN" else before)


_lock = threading.Lock()
_users: list[tuple[Products, str]] = []  # those that are not done yet, and what was set when each began


def choose(wanted: str, training: bool = False) -> Products:
    """What :func:`products` uses; raises as it does."""
    return _choice(wanted, engines.setting(), training)


@functools.cache
def _choice(wanted: str, engine: str, training: bool) -> Products:
    if wanted not in CHOICES:
        raise invalid_setting("matmul_precision", wanted, choices(CHOICES))
    if engine == "reference":
        if wanted == "bf16":
            raise invalid_setting(
                "matmul_precision", wanted, f"`{engines.VARIABLE}` is reference, which multiplies as PyTorch does."
            )
        return Products("PyTorch", "fp32", f"`{engines.VARIABLE}` is reference")
    if wanted == "fp32":
        return Products("PyTorch", "fp32", "`matmul_precision` is fp32")
    if not torch.backends.mkldnn.is_available():
        return Products("PyTorch", "fp32", "this PyTorch is built without oneDNN")
    processor = _processor()
    fits = processor.vendor == "AuthenticAMD" and processor.family >= FULL_WIDTH and "avx512f" in processor.flags
    if wanted == "auto" and not fits:
        return Products("PyTorch", "fp32", "oneDNN is known to be faster on AMD processors of family 26 and newer only")
    before = _precision()
    _set(_ROUNDING)
    try:
        error = largest_error()
    finally:
        _set(before)
    if error <= TOLERANCE:
        exact = f"its float32 products are exact to {error:.1e} here"
        if wanted != "bf16":
            return Products("oneDNN", "fp32", exact)
        missing = _why_layers_do_not_round(processor, training)
        if missing:
            return Products("oneDNN", "fp32", f"`matmul_precision` is bf16, but {exact}, and {missing}")
        return Products("oneDNN", "bf16", "`matmul_precision` is bf16: LSTM layers round their operands", True)
    if wanted == "bf16":
        return Products("oneDNN", "bf16", f"`matmul_precision` is bf16: products are exact to {error:.1e}")
    return Products("PyTorch", "fp32", f"oneDNN would round to bfloat16 here (error {error:.1e})")


def largest_error() -> float:
    """Largest error of some products as they are computed now, as a share of the products of absolute values."""
    generator = torch.Generator().manual_seed(1)
    largest = 0.0
    for rows, inner, columns in SHAPES:
        left, right = (torch.randn(*size, generator=generator) for size in ((rows, inner), (inner, columns)))
        exact = left.double() @ right.double()
        scale = left.double().abs() @ right.double().abs()
        # as the steps of training multiply: plain, with the second one transposed, and added to something
        for found in (left @ right, left @ right.t().contiguous().t(), torch.addmm(torch.zeros(()), left, right)):
            largest = max(largest, float(((found - exact).abs() / scale).max()))
    return largest


def _why_layers_do_not_round(processor: _Processor, training: bool) -> str | None:
    """Why this engine's layers do not round their operands, or None."""
    if not training:
        return "what searches and scores does not round"
    if not processor.flags & MULTIPLIES_BF16:
        return "the processor has no instructions for bfloat16"
    return None if engines.name("cpu", torch.float32) == "cpu" else "no layers are compiled (numba is missing)"


class _Processor(NamedTuple):
    vendor: str
    family: int
    flags: frozenset[str]


def _processor() -> _Processor:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0].split("\n")
    except OSError:
        return _Processor("", 0, frozenset())
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    family = fields.get("cpu family", "")
    return _Processor(
        fields.get("vendor_id", ""), int(family) if family.isdigit() else 0, frozenset(fields.get("flags", "").split())
    )


def _precision() -> str:
    return torch.get_float32_matmul_precision() if _MATMUL is None else _MATMUL.fp32_precision


def _set(precision: str) -> None:
    if _MATMUL is None:
        torch.set_float32_matmul_precision(precision)
    else:
        _MATMUL.fp32_precision = precision


_MATMUL = getattr(torch.backends.mkldnn, "matmul", None)  # None before PyTorch 2.9: one setting for CPUs and GPUs
_ROUNDING = "medium" if _MATMUL is None else "bf16"  # lets products round to bfloat16, so that PyTorch asks oneDNN
