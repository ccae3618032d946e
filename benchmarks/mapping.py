"""Speed of the mappings and losses against torch and the public ``entmax`` package: ``python benchmarks/mapping.py``.

Rows are flat (most of the vocabulary in the support), middling (a few hundred entries) or peaked (at most 30).
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from timing import add_options, alternate, report, row, set_up
from torch import Tensor

from onmt_entmax.entmax import entmax, entmax_loss

try:
    import entmax as public
except ImportError:
    public = None

REGIMES = {"flat": 0.01, "middling": 0.25, "peaked": 1.5}  # standard deviation of the scores
PUBLIC_K = (100, 512, 2048, None)  # of the public package's partial sort; the best counts


def losses_of(regime: str, n: int, d: int, args: argparse.Namespace, device: torch.device) -> list[dict[str, object]]:
    """Loss, forward and backward, of ``(n, d)`` scores."""
    scores = (torch.randn(n, d, device=device) * REGIMES[regime]).requires_grad_()
    target = torch.randint(0, d, (n,), device=device)
    alpha = torch.full((n, 1), 1.33, device=device, requires_grad=True)

    def backward(loss: Tensor, *inputs: Tensor) -> object:
        return torch.autograd.grad(loss, inputs or (scores,))

    calls = {
        "softmax": lambda: backward(F.cross_entropy(scores, target, reduction="sum")),
        "1.5": lambda: backward(entmax_loss(scores, target, 1.5, "sum")),
        "1.33": lambda: backward(entmax_loss(scores, target, 1.33, "sum")),
        "tensor": lambda: backward(entmax_loss(scores, target, alpha, "sum"), scores, alpha),
    }
    times = alternate(calls, device, args.repeats)
    support = {a: float((entmax(scores.detach()[:64], a) > 0).sum(-1).float().mean()) for a in (1.5, 1.33)}
    flat = regime == "flat"
    rows = [
        row(f"loss {regime} alpha 1.5", "F.cross_entropy", 0.7 if flat else 1.0, times["1.5"], times["softmax"]),
        row(f"loss {regime} alpha 1.33", "F.cross_entropy", 0.25 if flat else 0.8, times["1.33"], times["softmax"]),
        row(
            f"loss {regime} alpha tensor of 1.33",
            "F.cross_entropy",
            0.25 if flat else 0.8,
            times["tensor"],
            times["softmax"],
        ),
    ]
    if public is not None:
        rows += against_public(regime, scores.detach(), target, args, device)
    for line in rows:
        line["support"] = support[1.5 if "1.5" in str(line["what"]) else 1.33]
    return rows


def against_public(
    regime: str, scores: Tensor, target: Tensor, args: argparse.Namespace, device: torch.device
) -> list[dict[str, object]]:
    """The same losses against the public package, on a fifth of the rows: it is slow."""
    scores, target = scores[: len(scores) // 5].clone().requires_grad_(), target[: len(target) // 5]

    def backward(loss: Tensor) -> object:
        return torch.autograd.grad(loss, scores)

    calls = {
        "1.5": lambda: backward(entmax_loss(scores, target, 1.5, "sum")),
        "1.33": lambda: backward(entmax_loss(scores, target, 1.33, "sum")),
        "bisection": lambda: backward(public.entmax_bisect_loss(scores, target, 1.33).sum()),
    }
    for k in PUBLIC_K:
        calls[f"k={k}"] = lambda k=k: backward(public.entmax15_loss(scores, target, k).sum())
    times = alternate(calls, device, max(3, args.repeats // 3))
    best = min((name for name in calls if name.startswith("k=")), key=times.get)
    goal = 14.0 if regime == "flat" else 40.0
    return [
        row(f"loss {regime} alpha 1.5", f"entmax package, {best}", 3.0, times["1.5"], times[best]),
        row(f"loss {regime} alpha 1.33", "entmax package, bisection", goal, times["1.33"], times["bisection"]),
    ]


def attention_of(d: int, args: argparse.Namespace, device: torch.device) -> list[dict[str, object]]:
    """Attention-sized rows, ``(64, d)`` with padding masked, forward and backward."""
    lengths = torch.randint(d // 2, d + 1, (64,))
    scores = torch.randn(64, d).masked_fill(torch.arange(d) >= lengths.unsqueeze(1), float("-inf"))
    scores = scores.to(device).requires_grad_()
    grad = torch.randn(64, d, device=device)
    calls = {"softmax": lambda: torch.autograd.grad(torch.softmax(scores, -1), scores, grad)}
    for alpha in (1.5, 2.0, 1.33):
        calls[str(alpha)] = lambda alpha=alpha: torch.autograd.grad(entmax(scores, alpha), scores, grad)
    times = alternate(calls, device, args.repeats, 20 if args.quick else 200)
    return [
        row(f"attention 64 x {d} alpha {a}", "torch.softmax", 0.5, times[str(a)], times["softmax"])
        for a in (1.5, 2.0, 1.33)
    ]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    args = parser.parse_args()
    device = set_up(args)
    n, d = (128, 4000) if args.quick else (1280, 18000)
    rows = []
    for regime in REGIMES:
        rows += losses_of(regime, n, d, args, device)
    for length in (12, 60) if args.quick else (12, 30, 60):
        rows += attention_of(length, args, device)
    report(rows, args, f"mapping|rows:{n}x{d}")


if __name__ == "__main__":
    main()
