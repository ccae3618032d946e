"""Convolutional models mended: values of OpenNMT-py's without padding, and no influence of padding."""

from __future__ import annotations

import torch
from onmt.decoders import CNNDecoder
from onmt.encoders import CNNEncoder

from onmt_entmax.plugin.modules import MaskedCNNDecoder, MaskedCNNEncoder
from tests.model.helpers import EMBEDDING, VOCAB, embeddings

HIDDEN = 6


def built(*classes):
    """Encoder and decoder in evaluation mode, the same parameters for the same sizes."""
    encoder_class, decoder_class = classes
    torch.manual_seed(0)
    encoder = encoder_class(2, HIDDEN, 3, 0.0, embeddings())
    decoder = decoder_class(2, HIDDEN, "general", False, 3, 0.0, embeddings(), "general")
    for module in (encoder, decoder):
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
    return encoder.double().train(), decoder.double().train()


def run(models, src, src_len, tgt):
    """Memory, outputs, attention and all gradients; weight-normed layers compute alike in training mode."""
    encoder, decoder = models
    for module in models:
        module.zero_grad()
    memory, final, _ = encoder(src, src_len)
    decoder.init_state(src, memory, final)
    outputs, attns = decoder(tgt, memory, src_len=src_len)
    (outputs.sin().sum() + memory.sin().sum()).backward()
    gradients = [p.grad.clone() for module in models for p in module.parameters() if p.grad is not None]
    return [memory, outputs, attns["std"], *gradients]


def test_without_padding_values_are_those_of_opennmt_py():
    src = torch.randint(2, VOCAB, (3, 5, 1), generator=torch.Generator().manual_seed(1))
    tgt = torch.randint(2, VOCAB, (3, 4, 1), generator=torch.Generator().manual_seed(2))
    src_len = torch.tensor([5, 5, 5])
    assert EMBEDDING != HIDDEN  # so that the linear layer in front is a real one
    ours = run(built(MaskedCNNEncoder, MaskedCNNDecoder), src, src_len, tgt)
    stock = run(built(CNNEncoder, CNNDecoder), src, src_len, tgt)
    assert len(ours) == len(stock)
    for found, expected in zip(ours, stock):
        torch.testing.assert_close(found, expected)


def test_padding_has_no_influence():
    models = built(MaskedCNNEncoder, MaskedCNNDecoder)
    src = torch.randint(2, VOCAB, (3, 5, 1), generator=torch.Generator().manual_seed(1))
    tgt = torch.randint(2, VOCAB, (3, 4, 1), generator=torch.Generator().manual_seed(2))
    lengths = [1, 5, 3]
    memory, outputs, attention, *_ = run(models, src, torch.tensor(lengths), tgt)
    for row, length in enumerate(lengths):
        one = slice(row, row + 1)
        alone = run(models, src[one, :length], torch.tensor([length]), tgt[one])
        torch.testing.assert_close(memory[one, :, :length], alone[0])
        torch.testing.assert_close(outputs[one], alone[1])
        torch.testing.assert_close(attention[one, :, :length], alone[2])
        assert not attention[row, :, length:].any()
