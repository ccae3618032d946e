"""What the compiled loops share: PyTorch's threads, the types of their arguments, and arithmetic.

A pool of our own would contend with PyTorch's threads, which wait in a loop for a while after each operation. They
belong to the OpenMP library that PyTorch has loaded; its entry point that runs a function on every thread,
``GOMP_parallel``, is there in GNU's library and in LLVM's on Linux. Where it is not found, one thread does everything.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
import numpy as np
import torch
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

GRAIN = 2048  # units times sentences that a thread should have, to be worth its start

# The compiler may reorder and fuse sums and products; NaN and infinity keep their meaning.
OPTIONS: dict[str, Any] = {"fastmath": {"contract", "reassoc", "nsz", "arcp"}, "error_model": "numpy"}

_ENTRY_POINTS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
_parallel = types.ExternalFunction("GOMP_parallel", types.void(types.intp, types.intp, types.uint32, types.uint32))
_thread = types.ExternalFunction("omp_get_thread_num", types.int32())
_threads = types.ExternalFunction("omp_get_num_threads", types.int32())


@functools.cache
def _found() -> bool:
    """Whether compiled code can call the OpenMP library that PyTorch calls."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        loaded = ctypes.CDLL(str(library))  # finds what its dependencies define, too
        addresses = {name: ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value for name in _ENTRY_POINTS}
    except (OSError, AttributeError):
        return False
    for name, address in addresses.items():
        llvmlite.binding.add_symbol(name, address)
    return True


def threads_for(numbers: int) -> int:
    """How many threads are worth their start for a step of H units and B sentences, ``numbers`` in all."""
    wanted = min(torch.get_num_threads(), numbers // GRAIN)
    return wanted if wanted > 1 and _found() else 1


@intrinsic
def _address(context, arguments):
    """Address of a tuple, which is put on the stack."""

    def generate(context, builder, signature, values):
        place = cgutils.alloca_once_value(builder, values[0])
        return builder.ptrtoint(place, context.get_value_type(types.intp))

    return types.intp(arguments), generate


@intrinsic
def _tuple_at(context, address, kind):
    """What :func:`_address` put there, a tuple of the given type."""
    found = kind.instance_type

    def generate(context, builder, signature, values):
        pointer = builder.inttoptr(values[0], context.get_value_type(found).as_pointer())
        arguments = builder.load(pointer)
        context.nrt.incref(builder, found, arguments)  # the caller of an intrinsic releases what it returns
        return arguments

    return found(types.intp, kind), generate


def digest(folder: Path) -> str:
    """Of a folder's Python files."""
    found = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:12]


SOURCES = digest(Path(__file__).parent)


def cached(function: Any) -> Any:
    """Name a function by all of the code that it may call.

    Numba keeps compiled code by the function's name and the content of its own file: after a change in another file,
    code compiled with the old one would go on being used, in silence.
    """
    if not function.__qualname__.endswith(SOURCES):
        function.__qualname__ += f"_{SOURCES}"
    return function


def jit(function: Callable, signature=None) -> Any:
    """Compile at the first call, or for the signature; cached on disk where a folder can be written to."""
    signatures = [] if signature is None else [signature]
    njit: Any = numba.njit
    function = cached(function)
    try:
        return njit(*signatures, cache=True, nogil=True, **OPTIONS)(function)
    except RuntimeError:  # no folder can be written to
        return njit(*signatures, nogil=True, **OPTIONS)(function)


@jit
def this_thread(address, kind):
    """Which thread this is, of how many, and the arguments at the address, a tuple of type ``kind``: one tuple."""
    return (types.intp(_thread()), types.intp(_threads()), *_tuple_at(address, kind))


def _launch(function, threads, arguments):
    _parallel(function, _address(arguments), threads, 0)


class Shared:
    """A compiled function that threads share the work of.

    Args:
        kernel: the function; its first arguments are the part of the work it is to do, counted from 0, of how many.
        task: calls it with what :func:`this_thread` gives for an address. It can't be made here: the cache on disk
            is for functions that have lines of their own in a file.
        kind: of the arguments behind the first two, a tuple type.
    """

    def __init__(self, kernel: Callable, task: Callable[[int], None], kind: types.BaseTuple) -> None:
        self._kernel, self._task, self._kind = kernel, cached(task), kind

    @functools.cached_property
    def _on_threads(self) -> Callable:
        if not _found():
            raise RuntimeError("PyTorch's OpenMP library was not found, so that compiled code runs on one thread only")
        # For this signature only: arrays of another layout must be refused, as the task would read them wrongly.
        launch = jit(_launch, types.void(types.intp, types.uint32, self._kind))
        task = functools.partial(numba.cfunc, types.void(types.intp), **OPTIONS)
        try:
            task = task(cache=True)(self._task)
        except RuntimeError:
            task = task()(self._task)
        return functools.partial(launch, task.address)

    def __call__(self, threads: int, *arguments) -> None:
        """Do the work on so many threads."""
        if threads == 1:
            self._kernel(0, 1, *arguments)
        else:
            self._on_threads(threads, arguments)


NONE = {dims: np.zeros((0,) * dims, np.float32) for dims in (2, 3)}  # an array that is not given
NO_MASK = np.zeros((0, 0), np.uint8), 1.0  # dropout that is not there

INT, FLOAT, INDEX = types.int64, types.float64, types.int64[::1]
ONE_D, TWO_D, THREE_D = types.float32[::1], types.float32[:, ::1], types.float32[:, :, ::1]
MASK = types.uint8[:, ::1]

ZERO, ONE, _2, _HALF = (np.float32(number) for number in (0, 1, 2, 0.5))
_LOG2_E = np.float32(1 / math.log(2))
# log 2 in two parts, the first of so few bits that its multiples are exact
_LOG2_HIGH = np.float32(0.693359375)
_LOG2_LOW = np.float32(math.log(2) - 0.693359375)
_LOWEST, _HIGHEST = np.float32(-87), np.float32(88)  # exponents whose powers are normal numbers
_BIAS, _MANTISSA = np.float32(127), np.float32(2**23)  # of float32's bits


def _coefficients() -> tuple[np.float32, ...]:
    """A polynomial q of degree 4 with exp(r) = 1 + r + r² q(r) up to rounding, for |r| at most log(2) / 2."""
    r = np.cos(np.linspace(0, np.pi, 2001)) * math.log(2) / 2
    far = np.abs(r) > 1e-3
    series = 1 / 2 + r / 6 + r * r / 24
    q = np.where(far, (np.expm1(r) - r) / np.where(far, r * r, 1), series)
    return tuple(np.float32(c) for c in np.polynomial.polynomial.polyfit(r, q, 4))


_Q0, _Q1, _Q2, _Q3, _Q4 = _coefficients()


inlined = numba.njit(inline="always", **OPTIONS)


@inlined
def bounds(count, share, shares):
    return count * share // shares, count * (share + 1) // shares


@inlined
def exp(x):
    """e to the power of x, relative error below 2e-7; x is kept between -87 and 88."""
    x = _LOWEST if x < _LOWEST else x  # written so that NaN stays
    x = _HIGHEST if x > _HIGHEST else x
    whole = np.floor(x * _LOG2_E + _HALF)
    r = x - whole * _LOG2_HIGH - whole * _LOG2_LOW
    power = ONE + r + r * r * (_Q0 + r * (_Q1 + r * (_Q2 + r * (_Q3 + r * _Q4))))
    return power * np.int32((whole + _BIAS) * _MANTISSA).view(np.float32)


@inlined
def sigmoid(x):
    return ONE / (ONE + exp(-x))


@inlined
def tanh(x):
    return _2 / (ONE + exp(-_2 * x)) - ONE


@inlined
def transpose_to_rows(columns, start, n, rows, skip):
    """Transpose n sentences from ``start`` of ``(H, B)`` into ``(B, skip + H)``, in squares that fit the L1 cache."""
    size = columns.shape[0]
    for top in range(0, size, 16):
        bottom = min(top + 16, size)
        for left in range(start, start + n, 16):
            for j in range(left, min(left + 16, start + n)):
                row = rows[j]
                for r in range(top, bottom):
                    row[skip + r] = columns[r, j]


@inlined
def transpose_to_columns(rows, n, columns, at):
    """Transpose n sentences of ``(B, H)`` into the columns from ``at`` of ``(H, N)``."""
    size = columns.shape[0]
    for top in range(0, size, 16):
        bottom = min(top + 16, size)
        for left in range(0, n, 16):
            right = min(left + 16, n)
            for r in range(top, bottom):
                column = columns[r]
                for j in range(left, right):
                    column[at + j] = rows[j, r]
