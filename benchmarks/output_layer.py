"""Time and memory of the output layer against linear + cross-entropy: ``python benchmarks/output_layer.py``.

1,280 tokens, 500 hidden units, 18,000 words, forward and backward, as in the paper's translation models.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from timing import add_options, alternate, report, row, set_up
from torch import Tensor

from onmt_entmax.entmax import linear_entmax_loss

REGIMES = {"flat": 0.01, "middling": 0.25, "peaked": 1.5}  # standard deviation of the logits


def peak_bytes(call, device: torch.device, fresh: tuple[Tensor, ...]) -> int:
    """Most memory allocated at once during a call, less that of gradients like ``fresh``.

    On the CPU it is replayed from the profiler's record of allocations.
    """
    gradients = sum(tensor.numel() * tensor.element_size() for tensor in fresh)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before - gradients
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    held = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most - gradients


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    args = parser.parse_args()
    device = set_up(args)
    n, d, vocab = (256, 64, 4000) if args.quick else (1280, 500, 18000)
    rows = []
    for regime, spread in REGIMES.items():
        hidden = (torch.randn(n, d, device=device) * spread).requires_grad_()
        weight = (torch.randn(vocab, d, device=device) / d**0.5).requires_grad_()
        bias = torch.zeros(vocab, device=device, requires_grad=True)
        target = torch.randint(0, vocab, (n,), device=device)
        inputs = (hidden, weight, bias)

        def softmax(inputs=inputs, target=target) -> object:
            loss = F.cross_entropy(F.linear(*inputs), target, reduction="sum")
            return torch.autograd.grad(loss, inputs)

        def fused(alpha: float, inputs=inputs, target=target) -> object:
            return torch.autograd.grad(linear_entmax_loss(*inputs, target, alpha, "sum").loss, inputs)

        calls = {"softmax": softmax}
        calls.update({str(a): lambda a=a, f=fused: f(a) for a in (1.5, 1.33, 2.0, 1.0)})
        times = alternate(calls, device, args.repeats)
        memory = {name: peak_bytes(call, device, inputs) for name, call in calls.items()}
        for alpha in (1.5, 1.33, 2.0, 1.0):
            with torch.no_grad():
                support = linear_entmax_loss(*inputs, target, alpha).support_size.float().mean().item()
            goal = 0.0 if alpha == 1 or regime == "middling" else {"flat": 0.8, "peaked": 1.8}[regime]
            line = row(
                f"layer {regime} alpha {alpha}",
                "linear + F.cross_entropy",
                goal,
                times[str(alpha)],
                times["softmax"],
                support=support,
                memory_share=memory[str(alpha)] / memory["softmax"],
            )
            line["what"] += f" (memory {line['memory_share']:.2f}, support {support:.0f})"
            rows.append(line)
    report(rows, args, f"output_layer|{n}x{d}x{vocab}")


if __name__ == "__main__":
    main()
