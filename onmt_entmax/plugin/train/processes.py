"""The processes that train: seeds, memory and small numbers of one, and how several of them work together."""

from __future__ import annotations

import copy
import ctypes
import gc
import os
import random
import re
import signal
import socket
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import parent_process
from multiprocessing.connection import wait

import numpy as np
import torch
from onmt.utils.logging import logger

from onmt_entmax.errors import UserError
from onmt_entmax.files import cannot_write
from onmt_entmax.plugin.parsing import given_options


def set_seed(seed: int, cuda: bool) -> None:
    """Seed Python's, numpy's and torch's generators; a negative seed is none. Stock takes 0 for none, too."""
    if seed < 0:
        return
    torch.manual_seed(seed)  # of GPUs too
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if cuda:
        torch.cuda.manual_seed(seed)
        torch.backends.cudnn.deterministic = True


def keep_memory() -> bool:
    """Let the C library keep what is freed; False where it is not GNU's, which alone has the setting.

    Otherwise it gives the activations of each step back to the system, and to have them again, page by page and filled
    with zeros, takes a tenth of a step.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    trim_threshold, mmap_threshold = -1, -3
    most = 2**31 - 1
    # half a heap is the most that some versions take
    kept = any(set_option(mmap_threshold, size) for size in (most, 32 << 20))
    return bool(kept and set_option(trim_threshold, most))


def subnormals_are_zero() -> bool:
    """Whether this thread takes float32 numbers below 2^-126 for zero."""
    return float(torch.tensor(torch.finfo(torch.float32).tiny) * 0.5) == 0


@contextmanager
def subnormals(keep: bool) -> Iterator[None]:
    """Unless ``keep``, take subnormal numbers for zero in this thread and in those that PyTorch starts meanwhile.

    Where a model is sure of a token its loss has a gradient of exactly zero. Going back through the steps, gradients
    then fade until they are subnormal, and a processor may take a hundred times as long for such a number.
    """
    before = subnormals_are_zero()
    if not keep:
        for dtype in (np.float32, np.float64):
            np.finfo(dtype)  # NumPy looks once, and warns where it finds no subnormal numbers
        torch.set_flush_denormal(True)  # False where the processor can't: then nothing changes
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def world_size() -> int:
    """Number of processes that train together."""
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def rank() -> int:
    """Number of this process among them."""
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def is_first() -> bool:
    """Whether this process is the one that validates and writes."""
    return rank() == 0


def from_first(value):
    """The first process's ``value``, in every process."""
    if world_size() == 1:
        return value
    box = [value]
    torch.distributed.broadcast_object_list(box, src=0)
    return box[0]


def from_all(value) -> list:
    """Every process's ``value``, in every process."""
    values = [value]
    if world_size() > 1:
        values = [None] * world_size()
        torch.distributed.all_gather_object(values, value)
    return values


def sum_over_processes(values: list[float], device) -> list[float]:
    """Sums of ``values`` over all processes that train together."""
    if world_size() == 1:
        return values
    total = torch.tensor(values, dtype=torch.float64, device=device)
    torch.distributed.all_reduce(total)
    return total.tolist()


def on_first(path: str, write: Callable[[], None], last_path: str | None = None) -> None:
    """Let the first process write while the others wait; a failure ends all of them, with one line of the first.

    The line names the path, and the newest whole checkpoint (``last_path``).

    Raises:
        UserError: in the first process, with the disk's own reason.
        SystemExit: in the others.
    """
    failure = None
    if is_first():
        try:
            write()
        except OSError as error:
            failure = str(cannot_write(path, error, last_path))
    failure = from_first(failure)
    if failure is not None:
        if is_first():
            raise UserError(failure)
        raise SystemExit(2)


def share_weights(model: torch.nn.Module) -> None:
    """Give every process the first one's weights: without a `seed` each has drawn its own."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            torch.distributed.broadcast(tensor, 0)


# `onmt_train` starts processes of its own, one for each GPU and none on a CPU, and ends with status 0 whatever becomes
# of them. So it is told that there is one, and that one starts the others here.
_PROCESSES = "_processes"


def take_over(opt: Namespace) -> None:
    """Keep `onmt_train` from starting processes: :func:`train_together` will."""
    if opt.world_size > 1:
        setattr(opt, _PROCESSES, opt.world_size)
        opt.world_size = 1


def train_together(opt: Namespace, train: Callable[[Namespace, int], None]) -> bool:
    """Start the processes that ``world_size`` asks for and wait for them; False where it asks for one.

    Args:
        opt: options of ``onmt_train``.
        train: called in each process as ``train(opt, device)``, -1 for a CPU.

    Raises:
        SystemExit: a process failed; with its status, 2 for a user's mistake that it has printed, else 1.
    """
    count = getattr(opt, _PROCESSES, 1)
    if count == 1:
        return False
    opt = copy.copy(opt)
    delattr(opt, _PROCESSES)
    opt.world_size = count
    ranks = list(opt.gpu_ranks) or list(range(count))
    if len(ranks) == count and "master_port" not in given_options(opt):
        with socket.socket() as free:  # so that two runs on one machine do not meet
            free.bind(("", 0))
            opt.master_port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    processes = []
    for device, number in enumerate(ranks):
        arguments = (train, opt, device if opt.gpu_ranks else -1, number)
        processes.append(context.Process(target=_train_as, args=arguments, name=f"rank {number}"))
    for process in processes:
        process.start()
        logger.info(f"Process {process.pid} is {process.name} of {count}")
    try:
        status = _wait_for(processes)
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
            process.join()
    if status != 0:
        raise SystemExit(status)
    return True


_LEFT_ALONE = 75  # status of a process whose only fault is that another one has gone


def _wait_for(processes: list, patience: float = 5.0) -> int:
    """Wait until all have ended, or some seconds longer than the first one that failed; the status that says most."""
    running = list(processes)
    failed: list = []
    while running:
        ended = wait([process.sentinel for process in running], patience if failed else None)
        if not ended:
            break
        for process in [process for process in running if process.sentinel in ended]:
            process.join()
            running.remove(process)
            if process.exitcode != 0:
                failed.append(process)
    killed = [process for process in failed if process.exitcode < 0]
    statuses = {process.exitcode for process in failed}
    for process in killed:
        name = signal.Signals(-process.exitcode).name
        _say(f"{process.name} of {len(processes)} processes was ended by {name}; so the others end, too.")
    if statuses == {_LEFT_ALONE}:
        _say("the processes lost each other; see above.")
    return next((status for status in (2, 130) if status in statuses), 1 if failed else 0)


def _say(line: str) -> None:
    print(f"onmt_train: {line}", file=sys.stderr, flush=True)


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(_LEFT_ALONE)


def _train_as(train: Callable[[Namespace, int], None], opt: Namespace, device: int, number: int) -> None:
    """A process's life, which ends with that of the one that started it, however that ends."""
    threading.Thread(target=_end_with, args=(parent_process().sentinel,), daemon=True).start()
    if device >= 0:
        torch.cuda.set_device(device)
    torch.distributed.init_process_group(
        backend=opt.gpu_backend if device >= 0 else "gloo",
        init_method=f"tcp://{opt.master_ip}:{opt.master_port}",
        world_size=opt.world_size,
        rank=number,
        timeout=timedelta(seconds=opt.timeout),
    )
    logger.disabled = number > 0
    try:
        train(opt, device)
        torch.distributed.barrier()  # who leaves first would break the connections that the others still use
    except RuntimeError as error:
        if not re.search(r"gloo|nccl|connection", str(error), re.IGNORECASE):
            raise
        _say(f"rank {number} lost the other processes ({str(error).splitlines()[0][:200]})")
        raise SystemExit(_LEFT_ALONE) from None
    finally:
        # Threads of the group that outlive Python's end abort the process: nothing may hold it any more, neither a
        # model in a cycle of references nor the frames of an exception.
        gc.collect()
        torch.distributed.destroy_process_group()
