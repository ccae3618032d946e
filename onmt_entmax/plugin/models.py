"""Builds models with our attention, and writes on each output layer the alpha it was trained with."""

from __future__ import annotations

from onmt_entmax.plugin.alphas import alpha_of
from onmt_entmax.plugin.hooks import replace


def generator_alpha(model) -> float:
    """The alpha of a model's output layer; 1 (softmax) for a model that was built without the plugin."""
    return getattr(model.generator, "alpha", 1.0)


def _build_base_model(stock):
    def build_base_model(model_opt, vocabs):
        model = stock(model_opt, vocabs)
        model.generator.alpha = alpha_of(model_opt, "generator")
        return model

    return build_base_model


def install() -> None:
    """Replace the recurrent decoders and extend the model builder."""
    import onmt.decoders
    import onmt.model_builder

    from onmt_entmax.model.decoder import InputFeedDecoder, StandardDecoder

    replace(onmt.model_builder, "build_base_model", _build_base_model)
    for name, decoder in (("rnn", StandardDecoder), ("ifrnn", InputFeedDecoder)):
        if name not in onmt.decoders.str2dec:
            raise AttributeError(f"onmt.decoders.str2dec has no {name}")
        onmt.decoders.str2dec[name] = decoder
