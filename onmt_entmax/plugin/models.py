"""Builds models with our attention, and writes on each output layer the alpha it was trained with."""

from __future__ import annotations

import torch

from onmt_entmax.errors import UserError
from onmt_entmax.plugin.alphas import alpha_of


def generator_alpha(model) -> float:
    """The alpha of a model's output layer.

    Raises:
        UserError: the model was built without the plugin, or its output layer was replaced.
    """
    try:
        return model.generator.alpha
    except AttributeError:
        raise UserError(
            f"The model's output layer ({type(model.generator).__name__}) does not say its alpha: build models with "
            "`onmt.model_builder` after `import onmt_entmax`, or set `model.generator.alpha`."
        ) from None


def attention_alpha(model) -> tuple[float | None, bool]:
    """Alpha of the decoder's attention and whether it is learned; (None, False) without attention of our kind."""
    attention = getattr(model.decoder, "attn", None)
    learned = getattr(attention, "learned_alpha", None)
    if learned is not None:
        with torch.no_grad():
            return float(learned().float().mean()), True
    alpha = getattr(attention, "alpha", None)
    return (None if alpha is None else float(alpha)), False


def attention_alpha_text(model) -> str:
    """The same for signatures: a learned one as its present value, ``none`` without any attention."""
    alpha, learned = attention_alpha(model)
    if alpha is None:
        return "1" if getattr(model.decoder, "attentional", False) else "none"
    return f"learned:{alpha:.3f}" if learned else f"{alpha:g}"


def check_vocabularies(expected: dict | None, found: dict, path: str) -> None:
    """Refuse a member of an ensemble whose source or target vocabulary is not the first member's.

    Raises:
        UserError: naming the checkpoint and the side.
    """
    if expected is None:
        return
    for side, name in (("src", "source"), ("tgt", "target")):
        if expected[side].tokens_to_ids != found[side].tokens_to_ids:
            raise UserError(
                f"{path}: its {name} vocabulary is not that of the first model; an ensemble needs one for all."
            )


def load_ensemble(stock):
    def load_test_model(opt, device_id=0):
        import onmt.model_builder
        from onmt.decoders.ensemble import EnsembleModel

        members, first = [], None
        for path in opt.models:
            loaded = onmt.model_builder.load_test_model(opt, device_id, model_path=path)
            first = first or loaded
            if loaded[2].copy_attn:
                raise UserError(f"{path} has copy attention (`copy_attn`), which cannot be in an ensemble (`models`).")
            check_vocabularies(first[0], loaded[0], path)
            members.append(loaded[1])
        return first[0], EnsembleModel(members, opt.avg_raw_probs), first[2]

    return load_test_model


def build_base_model(stock):
    def build_base_model(model_opt, vocabs):
        model = stock(model_opt, vocabs)
        model.generator.alpha = alpha_of(model_opt, "generator")
        return model

    return build_base_model


def load_state_dict(stock):
    def load_state_dict(self, checkpoint, *args, **kwargs):
        # a parameter that a module holds under two names (weight-normed convolutions) is saved under both, but stock
        # reads the first only and then refuses the second
        for prefix, module in self.named_modules():
            seen = {}
            for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
                if seen.setdefault(id(parameter), name) != name:
                    checkpoint["model"].pop(f"{prefix}.{name}", None)
        return stock(self, checkpoint, *args, **kwargs)

    return load_state_dict


def get_var_maybe_avg(stock):
    def get_var_maybe_avg(namespace, var_name, training, polyak_decay):
        # stock moves a weight-normed convolution's averages in evaluation too: no two decodings would be alike
        if not training:
            return getattr(namespace, f"{var_name}_avg")
        return stock(namespace, var_name, training, polyak_decay)

    return get_var_maybe_avg
