"""What a Transformer's heads look at, by forced decoding (Correia, Niculae and Martins 2019, Section 5).

Letters: B sentences, H heads, Q queries, K keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from onmt_entmax.errors import UserError, choices, invalid_setting
from onmt_entmax.plugin.heads import head_layers

OFFSETS = {"previous": -1, "itself": 0, "next": 1}


class HeadSums:
    """Sums over all queries of what a Transformer's heads give to their keys; of another model, nothing."""

    def __init__(self, model) -> None:
        found = head_layers(model) if getattr(model, "encoder", None) is not None else {}
        self.layers = [(place, number, layer) for place, own in found.items() for number, layer in enumerate(own)]
        self.seen: dict[int, Tensor] = {}  # the probabilities (B, H, Q, K) of the present batch, by attention
        self._sums: list[dict[str, Tensor]] = [{} for _ in self.layers]
        self._counts: list[Tensor | int] = [0] * len(self.layers)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See what the attentions compute."""
        hooks, kernels = [], [layer.self_attn_type for _, _, layer in self.layers]
        for index, (_, _, layer) in enumerate(self.layers):
            layer.self_attn_type = "scaled-dot"  # fused kernels keep no probabilities
            # the first of a batch: `full_context_alignment` computes others after it
            hooks.append(layer.softmax.register_forward_hook(partial(self._see, index)))
        try:
            yield
        finally:
            for (_, _, layer), hook, kernel in zip(self.layers, hooks, kernels):
                hook.remove()
                layer.self_attn_type = kernel

    def _see(self, index: int, module, given, probs: Tensor) -> None:
        self.seen.setdefault(index, probs)

    def add(self, src_len: Tensor, tgt_len: Tensor) -> None:
        """Count the batch that went through the model.

        Args:
            src_len, tgt_len: tokens of its sources and (with ``</s>``) targets, ``(B,)``.
        """
        for index, (place, _, _) in enumerate(self.layers):
            queries, keys = lengths_at(place, src_len, tgt_len)
            for name, value in head_sums(self.seen[index].double(), queries, keys, place).items():
                self._sums[index][name] = self._sums[index].get(name, 0) + value
            self._counts[index] = self._counts[index] + queries.sum()
        self.seen.clear()

    def means(self) -> list[tuple[str, int, object, dict[str, list[float]]]]:
        """For each attention its place, its layer from 0, its module and the means of each head; empty without any."""
        return [
            (place, number, layer, {name: (value / count).tolist() for name, value in sums.items()})
            for (place, number, layer), sums, count in zip(self.layers, self._sums, self._counts)
            if sums
        ]

    def summary(self) -> dict[str, dict[str, list]]:
        """For the metrics file: alphas and densities of each layer's heads, divergence of each layer, by place."""
        found: dict[str, dict[str, list]] = {}
        for place, _, layer, means in self.means():
            own = found.setdefault(place, {"alpha": [], "density": [], "jensen_shannon": []})
            own["alpha"].append(_numbers(_alphas(layer)))
            own["density"].append(_numbers(means["density"]))
            own["jensen_shannon"] += _numbers(means["jensen_shannon"][:1])
        return found


def _numbers(values: list[float]) -> list[float | None]:
    return [round(value, 4) if math.isfinite(value) else None for value in values]


def _alphas(layer) -> list[float]:
    """The alpha of each head of an attention."""
    mapping = layer.softmax
    learned = getattr(mapping, "learned_alpha", None)
    if learned is None:
        return [getattr(mapping, "alpha", 1.0)] * layer.head_count
    with torch.no_grad():
        return learned().flatten().tolist()


def lengths_at(place: str, src_len: Tensor, tgt_len: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of queries and keys at a place, ``(B,)`` each."""
    return src_len if place.startswith("encoder") else tgt_len, tgt_len if place.startswith("decoder") else src_len


def head_places(model) -> dict[str, list[list[float]]]:
    """The attentions of a Transformer, each with the alphas of its layers' heads."""
    return {place: [_alphas(layer) for layer in layers] for place, layers in head_layers(model).items() if layers}


def head_attention(models, scorer, target: list[int], place: str, layer: int, head: int) -> Tensor:
    """What one head looks at, ``(Q, K)``, while the model is forced to a target.

    Args:
        models: ``plugin.models.Models`` of one Transformer.
        scorer: bound to the one input.
        target: tokens without BOS and EOS.
        place: one of ``alphas.HEADS``.
        layer, head: from 1.
    """
    sums = HeadSums(models.members[0])
    with torch.no_grad(), sums.watching():
        if place.startswith("encoder"):  # it has done its work already: once more, for this head
            scorer.model.encoder(scorer.src, scorer.src_len)
        else:
            _force(models, scorer, [[models.start, *target]])
    return sums.seen[_index(sums, place, layer, head)][0, head - 1]


def _force(models, scorer, rows: list[list[int]]) -> Tensor:
    """Force the decoder to targets (BOS first), and return their lengths ``(B,)``."""
    tgt_len = torch.tensor([len(row) for row in rows], device=models.device)
    rows = [[*row, *[models.eos] * (int(tgt_len.max()) - len(row))] for row in rows]
    scorer.decoder.init_state(scorer.src, scorer.memory, scorer.final_states)
    scorer.decoder(torch.tensor(rows, device=models.device).unsqueeze(-1), scorer.memory, src_len=scorer.src_len)
    return tgt_len


def _forced(models, text, batch_size: int, progress: bool) -> Iterator[tuple[HeadSums, list[int], Tensor, Tensor]]:
    """Force the targets, batch by batch: the sums (to which nothing is added here), places of lines, both lengths.

    Raises:
        UserError: several models, or one without heads; or every line is blank.
    """
    if len(models.members) != 1:
        raise UserError("Heads are those of one model: give one checkpoint.")
    sums, empty = HeadSums(models.members[0]), True
    if not sums.layers:
        raise UserError("The model has no heads: it is no Transformer.")
    with torch.no_grad(), sums.watching():
        for lines, scorer in text.batches(batch_size, progress):
            tgt_len = _force(models, scorer, [[models.start, *text.target_ids[line]] for line in lines])
            empty = False
            yield sums, lines, scorer.src_len, tgt_len
            sums.seen.clear()
    if empty:
        raise UserError("There is nothing to measure: every source line is blank.")


def measure_heads(models, text, batch_size: int, progress: bool) -> list[dict[str, object]]:
    """One record for each head, see ``docs/formats.md``.

    Args:
        models: ``plugin.models.Models`` of one Transformer.
        text: ``plugin.models.Text`` with targets.
        batch_size: lines at a time.
        progress: show a bar.

    Raises:
        UserError: several models, or one without heads; or every line is blank.
    """
    for sums, _, src_len, tgt_len in _forced(models, text, batch_size, progress):
        sums.add(src_len, tgt_len)
    return [
        _record(place, number, head, layer, {name: values[head] for name, values in means.items()})
        for place, number, layer, means in sums.means()
        for head in range(layer.head_count)
    ]


def head_weights(models, text, place: str, layer: int | None, head: int, batch_size: int) -> list[dict[str, object]]:
    """What one head gives to its keys, one record for each line, see ``docs/formats.md``.

    Args:
        models, text, batch_size: as in :func:`measure_heads`.
        place: one of ``alphas.HEADS``.
        layer: from 1; None: the last.
        head: from 1.

    Raises:
        UserError: as :func:`measure_heads`; no such place, layer or head.
    """
    records: list[dict[str, object]] = [
        {"line": line, "source": [], "hypotheses": [], "attention": place, "head": head}
        for line in range(1, len(text.sources) + 1)
    ]
    for sums, lines, src_len, tgt_len in _forced(models, text, batch_size, False):
        index = _index(sums, place, layer, head)
        queries, keys = (part.tolist() for part in lengths_at(place, src_len, tgt_len))
        probs = sums.seen[index][:, head - 1].tolist()
        for line, rows, count, width in zip(lines, probs, queries, keys):
            source, target = text.sources[line], text.targets[line]
            before = [models.token(models.start), *target]
            across = before if place.startswith("decoder") else source
            # attention to the source is said of the token that comes of it, as everywhere else
            down = [*target, models.token(models.eos)] if place.startswith("context") else across
            weights = [row[:width] for row in rows[:count]]
            records[line].update(source=across, hypotheses=[{"tokens": down, "attention": weights}])
        layer = sums.layers[index][1] + 1
    return [{**record, "layer": layer} for record in records]


def _index(sums: HeadSums, place: str, layer: int | None, head: int) -> int:
    own = [index for index, (name, _, _) in enumerate(sums.layers) if name == place]
    if not own:
        raise invalid_setting("attention", place, choices(dict.fromkeys(name for name, _, _ in sums.layers)))
    layer = len(own) if layer is None else layer
    if not 1 <= layer <= len(own):
        raise invalid_setting("layer", layer, f"The model has layers 1 to {len(own)} there.")
    heads = sums.layers[own[0]][2].head_count
    if not 1 <= head <= heads:
        raise invalid_setting("head", head, f"The model has heads 1 to {heads}.")
    return own[layer - 1]


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
    names = (*OFFSETS, "first", "last")
    strongest = max((name for name in names if name in means), key=lambda name: means[name])
    return {
        "attention": place,
        "layer": number + 1,
        "head": head + 1,
        "alpha": _alphas(layer)[head],
        "learned": getattr(layer.softmax, "learned_alpha", None) is not None,
        **{name: means[name] for name in ("support", "density", "jensen_shannon")},
        **{name: means.get(name) for name in names},
        "looks_at": strongest if means[strongest] > 0.9 else None,
    }
