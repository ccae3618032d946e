"""Speed of the mappings and losses against torch and the public ``entmax`` package: ``python benchmarks/mapping.py``.

Rows are flat (most of the vocabulary in the support), broad (a few thousand entries; alpha 1.33 only), middling (a few
hundred) or peaked (at most 30).
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

try:
    from liger_kernel.ops import LigerSparsemaxFunction
except ImportError:
    LigerSparsemaxFunction = None

# Standard deviation of the scores: the same support takes a larger one at a smaller alpha.
REGIMES = {
    1.5: {"flat": 0.01, "middling": 0.25, "peaked": 1.5},
    1.33: {"flat": 0.01, "broad": 0.25, "middling": 0.75, "peaked": 2.3},
}
# At least so many times as fast as F.cross_entropy, and as the public package.
GOALS = {
    1.5: {"flat": (0.7, 3.0), "middling": (1.0, 3.0), "peaked": (1.0, 3.0)},
    1.33: {"flat": (0.25, 14.0), "broad": (0.25, 14.0), "middling": (0.8, 40.0), "peaked": (0.8, 40.0)},
}
PUBLIC_K = (100, 512, 2048, None)  # of the public package's partial sort; the best counts


def losses_of(
    alpha: float, regime: str, n: int, d: int, args: argparse.Namespace, device: torch.device
) -> list[dict[str, object]]:
    """Loss, forward and backward, of ``(n, d)`` scores."""
    scores = (torch.randn(n, d, device=device) * REGIMES[alpha][regime]).requires_grad_()
    target = torch.randint(0, d, (n,), device=device)
    learned = torch.full((n, 1), alpha, device=device, requires_grad=True)

    def backward(loss: Tensor, *inputs: Tensor) -> object:
        return torch.autograd.grad(loss, inputs or (scores,))

    calls = {
        "softmax": lambda: backward(F.cross_entropy(scores, target, reduction="sum")),
        "number": lambda: backward(entmax_loss(scores, target, alpha, "sum")),
    }
    if alpha != 1.5:
        calls["tensor"] = lambda: backward(entmax_loss(scores, target, learned, "sum"), scores, learned)
    times = alternate(calls, device, args.repeats)
    rows = [
        row(
            f"loss {regime} alpha {'tensor of ' if name == 'tensor' else ''}{alpha}",
            "F.cross_entropy",
            GOALS[alpha][regime][0],
            times[name],
            times["softmax"],
        )
        for name in list(calls)[1:]
    ]
    if public is not None:
        rows += against_public(alpha, regime, scores.detach(), target, args, device)
    support = float((entmax(scores.detach()[:64], alpha) > 0).sum(-1).float().mean())
    for line in rows:
        line["support"] = support
        line["what"] += f" (support {support:.0f})"
    return rows


def against_public(
    alpha: float, regime: str, scores: Tensor, target: Tensor, args: argparse.Namespace, device: torch.device
) -> list[dict[str, object]]:
    """The same loss against the public package, on a fifth of the rows: it is slow."""
    scores, target = scores[: len(scores) // 5].clone().requires_grad_(), target[: len(target) // 5]

    def backward(loss: Tensor) -> object:
        return torch.autograd.grad(loss, scores)

    calls = {"ours": lambda: backward(entmax_loss(scores, target, alpha, "sum"))}
    if alpha == 1.5:
        for k in PUBLIC_K:
            calls[f"k={k}"] = lambda k=k: backward(public.entmax15_loss(scores, target, k).sum())
    else:
        calls["bisection"] = lambda: backward(public.entmax_bisect_loss(scores, target, alpha).sum())
    times = alternate(calls, device, max(3, args.repeats // 3))
    best = min((name for name in calls if name != "ours"), key=times.get)
    goal = GOALS[alpha][regime][1]
    return [row(f"loss {regime} alpha {alpha}", f"entmax package, {best}", goal, times["ours"], times[best])]


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


def sparsemax_of(n: int, d: int, args: argparse.Namespace, device: torch.device) -> list[dict[str, object]]:
    """Sparsemax of ``(n, d)`` scores, forward and backward, against Liger's Triton kernels on a GPU."""
    if LigerSparsemaxFunction is None or device.type != "cuda":
        return []
    scores = torch.randn(n, d, device=device).requires_grad_()
    grad = torch.randn(n, d, device=device)
    times = alternate(
        {
            "ours": lambda: torch.autograd.grad(entmax(scores, 2.0), scores, grad),
            "liger": lambda: torch.autograd.grad(LigerSparsemaxFunction.apply(scores, -1), scores, grad),
        },
        device,
        args.repeats,
    )
    return [row(f"sparsemax {n} x {d}", "Liger", 1.0, times["ours"], times["liger"])]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    args = parser.parse_args()
    device = set_up(args)
    n, d = (128, 4000) if args.quick else (1280, 18000)
    rows = []
    for alpha, regimes in REGIMES.items():
        for regime in regimes:
            rows += losses_of(alpha, regime, n, d, args, device)
    rows += sparsemax_of(n, d, args, device)
    for length in (12, 60) if args.quick else (12, 30, 60):
        rows += attention_of(length, args, device)
    report(rows, args, f"mapping|rows:{n}x{d}")


if __name__ == "__main__":
    main()
