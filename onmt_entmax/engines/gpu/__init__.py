"""The engine for GPUs, where a small operation costs its launch: what lies between a step's products by Triton kernels.

``decoder`` holds the autograd function, ``kernels`` what it launches; mappings and losses are those of
``entmax/triton.py``. Tested in Triton's interpreter on a CPU; nothing here has run on a GPU so far.
"""

from __future__ import annotations

from dataclasses import dataclass

from onmt_entmax.engines import say_once
from onmt_entmax.engines.gpu.decoder import LONGEST, UnrollKernels
from onmt_entmax.engines.unrolled import Unrolled


@dataclass(frozen=True)
class Gpu(Unrolled):
    """See this module, and :class:`~onmt_entmax.engines.unrolled.Unrolled`."""

    name = "gpu"

    def function(self, plan, keys):
        """The steps by kernels, for alphas up to 2 and sources that fit; all sentences have all steps on a GPU."""
        reason = None
        if plan.alpha > 2:
            reason = f"an attention alpha above 2 ({plan.alpha:g})"
        elif keys.size(1) > LONGEST:
            reason = f"sources of more than {LONGEST} tokens"
        elif plan.ragged.index is not None or keys.size(1) == 0:
            return super().function(plan, keys)
        if reason is None:
            return UnrollKernels
        say_once(f"Decoder steps are PyTorch's operations, not Triton kernels, for {reason}.")
        return super().function(plan, keys)
