"""Compiled functions on several threads: those that PyTorch's operations run on.

A pool of our own would contend with PyTorch's threads, which wait in a loop for a while after each operation. They
belong to the OpenMP library that PyTorch has loaded; its entry point that runs a function on every thread,
``GOMP_parallel``, is there in GNU's library and in LLVM's on Linux. Where it is not found, one thread does everything.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import llvmlite.binding
import numba
import torch
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

GRAIN = 2048  # units times sentences that a thread should have, to be worth its start

# The compiler may reorder and fuse sums and products; NaN and infinity keep their meaning.
OPTIONS = {"fastmath": {"contract", "reassoc", "nsz", "arcp"}, "error_model": "numpy"}

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
    """How many threads should share a step of H units and B sentences, ``numbers`` in all."""
    wanted = min(torch.get_num_threads(), numbers // GRAIN)
    return wanted if wanted > 1 and _found() else 1


@intrinsic
def _address(context, arguments):
    """Of a tuple, which is put on the stack."""

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
        context.nrt.incref(builder, found, arguments)  # what an intrinsic returns is given up by who called it
        return arguments

    return found(types.intp, kind), generate


def jit(function: Callable, signature=None) -> Callable:
    """Compile at the first call, or for the signature; kept on disk where there is a place to keep it."""
    signatures = [] if signature is None else [signature]
    try:
        return numba.njit(*signatures, cache=True, nogil=True, **OPTIONS)(function)
    except RuntimeError:  # no folder can be written to
        return numba.njit(*signatures, nogil=True, **OPTIONS)(function)


@jit
def this_thread(address, kind):
    """Which thread this is, of how many, and the arguments at the address, a tuple of type ``kind``."""
    return types.intp(_thread()), types.intp(_threads()), _tuple_at(address, kind)


def _launch(function, threads, arguments):
    _parallel(function, _address(arguments), threads, 0)


class Shared:
    """A compiled function that threads share the work of.

    Args:
        kernel: the function; its first arguments are the part of the work it is to do, counted from 0, of how many.
        task: calls it with what :func:`this_thread` gives for an address. It can't be made here: what is compiled is
            kept on disk only if it has lines of its own in a file.
        kind: of the arguments behind the first two, a tuple type.
    """

    def __init__(self, kernel: Callable, task: Callable[[int], None], kind: types.BaseTuple) -> None:
        self._kernel, self._task, self._kind = kernel, task, kind

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
