"""Arguments of the functions that run all steps of a decoder, and how their results are compared."""

from __future__ import annotations

import os

import torch

from onmt_entmax.engines.decoder import Plan
from onmt_entmax.engines.dropout import DropoutMask
from onmt_entmax.engines.ragged import Ragged

DEVICE = os.environ.get("KERNELS_ON", "cpu")


def normal(*size, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


class Case:
    """Random arguments of the unrolled functions: many lengths of sources and targets, with a source without tokens."""

    def __init__(
        self, alpha=1.5, layers=2, ragged=True, dropout=True, batch=19, steps=6, width=7, size=21, masked=True
    ):
        self.size, self.layers = size, layers
        lengths = torch.tensor(([6, 6, 5, 5, 5, 4, 3, 3, 2] + [1] * batch)[:batch])
        self.ragged = Ragged.from_lengths(lengths, steps) if ragged else Ragged.full(batch, steps)
        src_len = torch.arange(batch, device=DEVICE) % (width + 1) if masked else None
        draws = torch.rand(layers, size * sum(self.ragged.rows), generator=torch.Generator().manual_seed(9)).to(DEVICE)
        mask = DropoutMask(draws > 0.3, [1 / 0.7, 1.25, 1.5][:layers]) if dropout else None
        self.plan = Plan(alpha, src_len, self.ragged, mask)
        shapes = [(batch, steps, 11), (batch, width, size), (batch, width, size), (size, size)]
        shapes += [(batch, size), (layers, batch, size), (layers, batch, size)]
        for layer in range(layers):
            below = 11 + size if layer == 0 else size
            shapes += [(4 * size, below), (4 * size, size), (4 * size,), (4 * size,)]
        scale = [1, 1, 1, 0.3, 1, 1, 1] + [0.3] * 4 * layers
        self.arguments = [factor * normal(*shape, seed=k) for k, (factor, shape) in enumerate(zip(scale, shapes))]

    def run(self, function, dtype, losses=range(4)):
        """The results and the gradients of all arguments."""
        arguments = [argument.to(dtype).clone().requires_grad_() for argument in self.arguments]
        results = function(self.plan, *arguments)
        loss = sum((results[k] * normal(*results[k].shape, seed=50 + k).to(dtype)).sum() for k in losses)
        loss.backward()
        return [*results, *(a.grad if a.grad is not None else torch.zeros_like(a) for a in arguments)]


def assert_equal(found, expected):
    for ours, theirs in zip(found, expected):
        scale = max(1.0, theirs.abs().max().item())
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=2e-5 * scale)
