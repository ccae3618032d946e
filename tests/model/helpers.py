"""Small decoders of OpenNMT-py and ours, with the same parameters, in float64."""

from __future__ import annotations

from argparse import Namespace

import torch
from onmt.decoders.decoder import InputFeedRNNDecoder, StdRNNDecoder
from onmt.modules import Embeddings

from onmt_entmax.plugin.modules import InputFeedDecoder, StandardDecoder

HIDDEN, EMBEDDING, VOCAB = 6, 5, 11


def options(**changes) -> Namespace:
    """Model options as OpenNMT-py's parser gives them, the few that decoders read."""
    values = {
        "rnn_type": "LSTM",
        "brnn": True,
        "dec_layers": 2,
        "dec_hid_size": HIDDEN,
        "global_attention": "general",
        "global_attention_function": "softmax",
        "global_attention_alpha": None,
        "coverage_attn": False,
        "context_gate": None,
        "copy_attn": False,
        "dropout": [0.0],
        "reuse_copy_attn": False,
        "copy_attn_type": "general",
    }
    values.update(changes)
    if values["global_attention_alpha"] is not None and "global_attention_function" not in changes:
        values["global_attention_function"] = "entmax"
    return Namespace(**values)


def embeddings(dropout: float = 0.0) -> Embeddings:
    built = Embeddings(EMBEDDING, VOCAB, 1, dropout=dropout)
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter)  # OpenNMT-py leaves it uninitialised
    return built


def build(cls, seed: int = 0, **changes):
    torch.manual_seed(seed)
    decoder = cls.from_opt(options(**changes), embeddings())
    return decoder.double()


def pair(standard: bool = False, **changes):
    """The stock decoder and ours with the same parameters."""
    stock_changes = {key: value for key, value in changes.items() if key != "global_attention_alpha"}
    stock = build(StdRNNDecoder if standard else InputFeedRNNDecoder, **stock_changes)
    ours = build(StandardDecoder if standard else InputFeedDecoder, seed=1, **changes)
    missing = ours.load_state_dict(stock.state_dict())
    assert not missing.missing_keys and not missing.unexpected_keys
    return stock, ours


class Inputs:
    """A batch: target tokens, memory, lengths and the encoder's final state; the same for one seed."""

    def __init__(self, batch=4, tgt_len=5, src_len=7, layers=2, gru=False, seed=2, lengths=None):
        generator = torch.Generator().manual_seed(seed)

        def normal(*size):
            return torch.randn(*size, generator=generator, dtype=torch.float64)

        self.tgt = torch.randint(2, VOCAB, (batch, tgt_len, 1), generator=generator)
        self.memory = normal(batch, src_len, HIDDEN).requires_grad_()
        self.src_len = torch.tensor(lengths if lengths is not None else [7, 3, 1, 6][:batch])
        states = 1 if gru else 2
        self.final = tuple(normal(2 * layers, batch, HIDDEN // 2).requires_grad_() for _ in range(states))
        self.weights = normal(batch, tgt_len, HIDDEN)  # makes a scalar of the outputs
        self.attention_weights = normal(batch, tgt_len, src_len)

    @property
    def leaves(self):
        return [self.memory, *self.final]

    def start(self, decoder):
        decoder.init_state(None, self.memory, self.final if len(self.final) > 1 else self.final[0])


def everything(decoder, inputs: Inputs, with_attention: bool = True, stock: bool = False, time_first=None):
    """Run forward and backward; returns outputs, attention, state and all gradients by name."""
    decoder.zero_grad()
    for leaf in inputs.leaves:
        leaf.grad = None
    inputs.start(decoder)
    outputs, attns = decoder(inputs.tgt, inputs.memory, src_len=inputs.src_len)
    time_first = stock if time_first is None else time_first
    attns = {name: value.transpose(0, 1) if time_first else value for name, value in attns.items()}
    loss = (outputs * inputs.weights).sum()
    if with_attention:
        for value in attns.values():
            loss = loss + (value * inputs.attention_weights).sum()
    loss = loss + sum((h * h).sum() for h in decoder.state["hidden"])
    loss.backward()
    found = {"outputs": outputs.detach(), **{f"attention {k}": v.detach() for k, v in attns.items()}}
    found.update({f"hidden {i}": h.detach() for i, h in enumerate(decoder.state["hidden"])})
    found["input_feed"] = decoder.state["input_feed"].detach()
    found.update({f"gradient of input {i}": leaf.grad for i, leaf in enumerate(inputs.leaves)})
    found.update({f"gradient of {name}": parameter.grad for name, parameter in decoder.named_parameters()})
    return found


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if value is None:
            assert found[name] is None or not found[name].any(), name
        else:
            torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")
