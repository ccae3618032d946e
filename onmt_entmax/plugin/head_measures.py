"""What a Transformer's heads look at, by forced decoding (Correia, Niculae and Martins 2019, Section 5).

Letters: B sentences, H heads, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from onmt_entmax.errors import UserError
from onmt_entmax.plugin.heads import head_layers

OFFSETS = {"previous": -1, "itself": 0, "next": 1}


@contextmanager
def _watching(layers: list) -> Iterator[dict[int, Tensor]]:
    """Keep the probabilities ``(B, H, Q, K)`` that each attention computes last, by its number."""
    seen: dict[int, Tensor] = {}
    hooks, kernels = [], [layer.self_attn_type for layer in layers]
    for number, layer in enumerate(layers):
        layer.self_attn_type = "scaled-dot"  # fused kernels keep no probabilities
        hooks.append(layer.softmax.register_forward_hook(lambda _, given, out, n=number: seen.update({n: out})))
    try:
        yield seen
    finally:
        for layer, hook, kernel in zip(layers, hooks, kernels):
            hook.remove()
            layer.self_attn_type = kernel


def head_places(model) -> dict[str, tuple[int, int]]:
    """The attentions of a Transformer, each with its numbers of layers and of heads."""
    found = head_layers(model).items()
    return {place: (len(layers), layers[0].head_count) for place, layers in found if layers}


def head_attention(models, scorer, target: list[int], place: str, layer: int, head: int) -> Tensor:
    """What one head looks at, ``(Q, K)``, while the model is forced to a target.

    Args:
        models: ``plugin.models.Models`` of one Transformer.
        scorer: bound to the one input.
        target: tokens without BOS and EOS.
        place: one of ``alphas.HEADS``.
        layer, head: from 1.
    """
    watched = [head_layers(models.members[0])[place][layer - 1]]
    with torch.no_grad(), _watching(watched) as seen:
        if place.startswith("encoder"):  # it has done its work already: once more, for this head
            scorer.model.encoder(scorer.src, scorer.src_len)
        else:
            _force(models, scorer, [[models.start, *target]])
    return seen[0][0, head - 1]


def _force(models, scorer, rows: list[list[int]]) -> Tensor:
    """Force the decoder to targets (BOS first), and return their lengths ``(B,)``."""
    tgt_len = torch.tensor([len(row) for row in rows], device=models.device)
    rows = [[*row, *[models.eos] * (int(tgt_len.max()) - len(row))] for row in rows]
    scorer.decoder.init_state(scorer.src, scorer.memory, scorer.final_states)
    scorer.decoder(torch.tensor(rows, device=models.device).unsqueeze(-1), scorer.memory, src_len=scorer.src_len)
    return tgt_len


def measure_heads(models, text, batch_size: int, progress: bool) -> list[dict[str, object]]:
    """One record for each head, see ``docs/formats.md``.

    Args:
        models: ``plugin.models.Models`` of one Transformer.
        text: ``plugin.models.Text`` with targets.
        batch_size: lines at a time.
        progress: show a bar.

    Raises:
        UserError: several models, or none with heads; or every line is blank.
    """
    if len(models.members) != 1:
        raise UserError("Heads are those of one model: give one checkpoint.")
    model = models.members[0]
    places = [(place, number) for place, layers in head_layers(model).items() for number in range(len(layers))]
    layers = [head_layers(model)[place][number] for place, number in places]
    if not layers:
        raise UserError("The model has no heads: it is no Transformer.")
    sums: list[dict[str, Tensor]] = [{} for _ in layers]
    counts = [0] * len(layers)
    with torch.no_grad(), _watching(layers) as seen:
        for lines, scorer in text.batches(batch_size, progress):
            tgt_len = _force(models, scorer, [[models.start, *text.target_ids[line]] for line in lines])
            for number, (place, _) in enumerate(places):
                queries = scorer.src_len if place.startswith("encoder") else tgt_len
                keys = tgt_len if place.startswith("decoder") else scorer.src_len
                found = head_sums(seen[number].double(), queries, keys, place)
                for name, value in found.items():
                    sums[number][name] = sums[number].get(name, 0) + value
                counts[number] += int(queries.sum())
    if not any(counts):
        raise UserError("There is nothing to measure: every source line is blank.")
    return [
        _record(place, number, head, layer, {name: float(value[head]) / count for name, value in measures.items()})
        for (place, number), layer, measures, count in zip(places, layers, sums, counts)
        for head in range(layer.head_count)
    ]


def head_sums(probs: Tensor, queries: Tensor, keys: Tensor, place: str) -> dict[str, Tensor]:
    """Sums ``(H,)`` over all queries of a batch.

    Args:
        probs: ``(B, H, Q, K)``.
        queries, keys: how many of a sentence count, ``(B,)``.
        place: one of ``alphas.HEADS``.
    """
    batch, heads, rows, _ = probs.shape
    inside = torch.arange(rows, device=probs.device) < queries.unsqueeze(1)  # (B, Q)
    visible = keys.view(-1, 1).expand(batch, rows)
    if place.startswith("decoder"):
        visible = torch.arange(1, rows + 1, device=probs.device).expand(batch, rows)
    sizes = (probs > 0).sum(-1).double()  # (B, H, Q)
    mean = probs.mean(1)
    divergence = torch.special.entr(mean).sum(-1) - torch.special.entr(probs).sum(-1).mean(1)  # (B, Q)
    found = {
        "support": sizes,
        "density": sizes / visible.unsqueeze(1),
        "jensen_shannon": divergence.unsqueeze(1).expand(batch, heads, rows),
        "first": probs[..., 0],
    }
    if not place.startswith("decoder"):
        last = (keys - 1).view(-1, 1, 1, 1).expand(batch, heads, rows, 1)
        found["last"] = probs.gather(-1, last).squeeze(-1)
    if place != "context_attention":
        for name, offset in OFFSETS.items():
            if offset < 1 or place.startswith("encoder"):
                diagonal = probs.diagonal(offset, -2, -1)  # (B, H, up to Q)
                before = max(0, -offset)
                found[name] = torch.nn.functional.pad(diagonal, (before, rows - before - diagonal.size(-1)))
    return {name: (value * inside.unsqueeze(1)).sum((0, 2)) for name, value in found.items()}


def _record(place: str, number: int, head: int, layer, means: dict[str, float]) -> dict[str, object]:
    mapping = layer.softmax
    learned = getattr(mapping, "learned_alpha", None)
    with torch.no_grad():
        alpha = getattr(mapping, "alpha", 1.0) if learned is None else float(learned().flatten()[head])
    names = (*OFFSETS, "first", "last")
    strongest = max((name for name in names if name in means), key=lambda name: means[name])
    return {
        "attention": place,
        "layer": number + 1,
        "head": head + 1,
        "alpha": alpha,
        "learned": learned is not None,
        **{name: means[name] for name in ("support", "density", "jensen_shannon")},
        **{name: means.get(name) for name in names},
        "looks_at": strongest if means[strongest] > 0.9 else None,
    }
