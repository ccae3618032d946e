"""Training on a CPU: memory is kept, subnormal numbers count as zero, Adam updates all parameters in one kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_ONE_KERNEL = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 4)  # on a CPU


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


class Adam(torch.optim.Adam):
    """PyTorch's Adam; on a CPU, since PyTorch 2.4, with its kernel for all parameters at once.

    The choice is made at each step and not kept in the state, so that checkpoints fit every PyTorch.
    """

    def step(self, closure=None):
        """See ``torch.optim.Adam``."""
        fused = _ONE_KERNEL and all(
            parameter.device.type == "cpu" and parameter.is_floating_point() and not parameter.grad.is_sparse
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        )
        before = [group["fused"] for group in self.param_groups]
        for group in self.param_groups:
            group["fused"] = fused or group["fused"]
        try:
            return super().step(closure)
        finally:
            for group, value in zip(self.param_groups, before):
                group["fused"] = value


def build_torch_optimizer(stock):
    def build_torch_optimizer(model, opt):
        optimizer = stock(model, opt)
        if type(optimizer) is not torch.optim.Adam:
            return optimizer
        (group,) = optimizer.param_groups
        return Adam(**{name: group[name] for name in ("params", "lr", "betas", "eps")})

    return build_torch_optimizer
