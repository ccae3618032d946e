"""A Transformer's attentions in a model of OpenNMT-py: where they are, and which mapping each has."""

from __future__ import annotations

import torch
from torch import nn

from onmt_entmax.engines.dropout import Dropout
from onmt_entmax.entmax import LearnedAlpha
from onmt_entmax.entmax.engine import on_host
from onmt_entmax.model.heads import HeadMapping


def learned_alphas(model) -> list[LearnedAlpha]:
    """The learned alphas of a model."""
    return [module for module in model.modules() if isinstance(module, LearnedAlpha)]


def head_layers(model) -> dict[str, list]:
    """A Transformer's attentions by place (one of ``alphas.HEADS``), lowest layer first; none: an empty list."""
    encoder = getattr(getattr(model, "encoder", None), "transformer", ())
    decoder = getattr(model.decoder, "transformer_layers", ())
    of_place = {
        "encoder_self_attention": [layer.self_attn for layer in encoder],
        "decoder_self_attention": [layer.self_attn for layer in decoder],
        "context_attention": [layer.context_attn for layer in decoder if hasattr(layer, "context_attn")],
    }
    # average self-attention has nothing to map
    return {place: [layer for layer in layers if hasattr(layer, "softmax")] for place, layers in of_place.items()}


def map_heads(model, alphas: dict[str, float | str]) -> None:
    """Give a Transformer's attentions their mappings; softmax stays as OpenNMT-py computes it."""
    for place, layers in head_layers(model).items():
        for layer in layers:
            if alphas[place] != 1:
                layer.softmax = HeadMapping(layer.head_count, alphas[place])
                # on the modules: loading a model overwrites the option, and these kernels know softmax only
                layer.self_attn_type, layer.flash2 = "scaled-dot", False


def begin_queries(model, factor: float | None) -> None:
    """Shrink the query projections of a new Transformer.

    Scores that differ by two leave 1.5-entmax a single weight, behind which there is no gradient, where softmax still
    weighs all. So sparse heads begin with equal scores, as Yang et al. (2022, Tensor Programs V, appendix D.2) let all
    attention begin: their query weights are zero.

    Args:
        factor: of the query weights of all heads; None: 0 in sparse heads, 1 in softmax's.
    """
    for layers in head_layers(model).values():
        for layer in layers:
            scale = (0.0 if isinstance(layer.softmax, HeadMapping) else 1.0) if factor is None else factor
            with torch.no_grad():
                for parameter in layer.linear_query.parameters():
                    parameter.mul_(scale)


def drop_by_engine(model) -> None:
    """Let the engine draw a Transformer's dropout masks: on a CPU OpenNMT-py's take a tenth of a training step."""
    for module in list(model.modules()) if any(head_layers(model).values()) else ():
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p))


def alpha_of_modules(modules: list) -> tuple[float | None, bool]:
    """Alpha of attentions that share one, and whether it is learned (then the mean); None where they have none."""
    learned = [module.learned_alpha for module in modules if getattr(module, "learned_alpha", None) is not None]
    if learned:
        with torch.no_grad():
            return float(torch.cat([alpha().float().flatten() for alpha in learned]).mean()), True
    alpha = getattr(modules[0], "alpha", None)
    return (None if alpha is None else float(alpha)), False


def head_alphas(model) -> dict[str, tuple[float, bool]]:
    """For each place of a Transformer's heads alpha (the mean) and whether it is learned; empty if all are softmax."""
    found = {}
    for place, layers in head_layers(model).items():
        if layers:
            alpha, learned = alpha_of_modules([layer.softmax for layer in layers])
            found[place] = (1.0 if alpha is None else alpha, learned)
    return found if any(alpha != 1 for alpha, _ in found.values()) else {}


def alibi(stock):
    def forward(self, scores):
        # stock keeps what it computed last, and takes its first rows for whatever rows come next: decoding step by
        # step after whole sentences (training, validation) weighs distances from the sentence's beginning
        queries, keys = scores.shape[-2:]
        return scores + self.get_bias(queries, keys, scores.device) * self.slopes

    return forward


def sequence_mask(stock):
    def mask(lengths, max_len=None):
        # what is as long as the longest is asked of the host, where the batch was built, and not of the device
        return stock(lengths, max_len or int(on_host(lengths).max()))

    return mask
