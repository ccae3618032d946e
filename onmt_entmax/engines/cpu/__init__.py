"""The engine for float32 on a CPU: matrix products by PyTorch, what lies between them compiled by numba.

On a step's few thousand numbers PyTorch's operations spend most of their time in being called; a compiled loop passes
over memory once where they take a dozen passes. ``decoder`` and ``encoder`` hold the autograd functions, ``cells``,
``attention`` and ``heads`` the loops, ``blocks`` where numbers lie, ``loops`` how loops share PyTorch's threads;
``products`` is about who multiplies matrices.

Letters: B sentences, S source positions, T target steps, N tokens of a ragged batch, n sentences in a step, H hidden
units, L layers, D directions, E embedding size.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from onmt_entmax.engines.unrolled import Unrolled


@dataclass(frozen=True)
class Cpu(Unrolled):
    """See this module, and :class:`~onmt_entmax.engines.unrolled.Unrolled`."""

    name = "cpu"

    def function(self, plan, keys):
        """The compiled function, which knows alpha up to 2."""
        if plan.alpha > 2:
            return super().function(plan, keys)
        from onmt_entmax.engines.cpu.decoder import UnrollCompiled  # compiles: at the first need

        return UnrollCompiled

    def map_heads(self, scores, alpha):
        """A compiled loop over rows, forwards and back; None for an alpha above 2."""
        if not isinstance(alpha, Tensor) and alpha > 2:
            return None
        from onmt_entmax.engines.cpu.heads import MapHeads

        return MapHeads.apply(scores, alpha, self.threads)

    def encode(self, rnn, emb, src_len):
        """LSTM layers, where there will be a backward pass: without one PyTorch has a fast kernel of its own."""
        from onmt_entmax.engines.cpu.encoder import encode

        return encode(self, rnn, emb, src_len)
