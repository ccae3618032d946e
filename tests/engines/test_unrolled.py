"""The unrolled function against the steps of our own decoder and of OpenNMT-py's, with dropout and every mapping."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from onmt_entmax import engines
from onmt_entmax.engines import unrolled
from onmt_entmax.engines.dropout import Dropout, DropoutMask
from onmt_entmax.engines.unrolled import Unrolled
from onmt_entmax.plugin.modules import InputFeedDecoder
from tests.model.helpers import Inputs, assert_same, build, everything, pair


class Replay(nn.Module):
    """In place of ``nn.Dropout``: multiplies with the factors it was given, one after the other."""

    def __init__(self, factors, p):
        super().__init__()
        self.factors, self.p = list(factors), p

    def forward(self, x):
        return x * self.factors.pop(0)


def by_steps(decoder, inputs):
    """What the reference finds."""
    with engines.using(engines.REFERENCE):
        return everything(decoder, inputs)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("between,output", [(0.4, 0.4), (0.0, 0.5), (0.5, 0.0)])
def test_dropout_where_stock_has_it(monkeypatch, layers, between, output):
    stock, ours = pair(dec_layers=layers)
    inputs = Inputs(layers=layers)
    ours.rnn.dropout.p, ours.dropout.p = between, output
    draw, drawn = unrolled.draw_dropout, []

    def record(*args):
        drawn.append(draw(*args))
        return drawn[-1]

    monkeypatch.setattr(unrolled, "draw_dropout", record)
    found = everything(ours, inputs)
    (mask,) = drawn
    factors = mask.factors(torch.float64)
    scales = [1 / (1 - p) for p in [between] * (layers - 1) + [output]]
    assert mask.scales == pytest.approx(scales, rel=1e-4)  # p is a multiple of 2^-16
    assert factors.shape == (layers, 6 * 5 * 4)
    if output > 0:
        assert (found["outputs"] == 0).any()
    factors = factors.view(layers, 5, 6, 4).permute(1, 0, 3, 2)
    stock.rnn.dropout = Replay([step[layer] for step in factors for layer in range(layers - 1)], between)
    stock.dropout = Replay([step[-1] for step in factors], output)
    assert_same(found, everything(stock, inputs, stock=True))


def test_no_dropout_in_evaluation():
    ours = build(InputFeedDecoder, dropout=[0.5]).eval()
    inputs = Inputs()
    expected = everything(build(InputFeedDecoder), inputs)
    assert torch.equal(everything(ours, inputs)["outputs"], expected["outputs"])


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_dropout_keeps_the_mean(p):
    torch.manual_seed(3)
    factors = DropoutMask.draw((100, 999), p).factors(torch.float32)
    values = factors.unique()
    assert values.numel() == 2 and values[0] == 0
    torch.testing.assert_close(values[1].item(), 1 / (1 - p), rtol=1e-4, atol=0)  # p is a multiple of 2^-16
    share = (factors == 0).double().mean().item()
    assert abs(share - p) < 5 * (p * (1 - p) / 99900) ** 0.5  # five standard deviations
    # the four cut from one 64-bit number are independent: each has the share, and so has each pair the product
    quarters = (factors == 0).double().flatten()[:99900].view(-1, 4)
    for k in range(4):
        assert abs(quarters[:, k].mean().item() - p) < 5 * (p * (1 - p) / 24975) ** 0.5
        both = (quarters[:, k] * quarters[:, k - 1]).mean().item()
        assert abs(both - p * p) < 5 * (p * p * (1 - p * p) / 24975) ** 0.5


def test_everything_dropped():
    assert not DropoutMask.draw((3, 5), 1.0).factors(torch.float32).any()
    assert not Dropout(1.0)(torch.ones(3)).any()


def test_dropout_module():
    dropout, x = Dropout(0.5), torch.ones(4, 50, requires_grad=True)
    dropped = dropout(x)
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    dropped.sum().backward()
    assert torch.equal(x.grad, dropped)  # for ones, the factors
    assert dropout.eval()(x) is x and Dropout(0.0)(x).equal(x)


def test_embeddings_keep_their_dropout():
    decoder = build(InputFeedDecoder)
    decoder.update_dropout(0.25)
    assert isinstance(decoder.embeddings.dropout, Dropout) and decoder.embeddings.dropout.p == 0.25


@pytest.mark.parametrize("alpha", [1.0, 1.33, 1.5, 2.0, 2.5])
@pytest.mark.parametrize("attn_type", ["dot", "general"])
def test_every_mapping_equals_steps(alpha, attn_type):
    changes = {"global_attention": attn_type, "global_attention_alpha": alpha, "coverage_attn": True}
    decoder, inputs = build(InputFeedDecoder, **changes), Inputs()
    with torch.no_grad():
        inputs.memory *= 2
    assert_same(everything(decoder, inputs), by_steps(decoder, inputs))


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_source_of_length_zero_equals_steps(alpha):
    decoder, inputs = build(InputFeedDecoder, global_attention_alpha=alpha), Inputs(lengths=[0, 3, 7, 0])
    assert_same(everything(decoder, inputs), by_steps(decoder, inputs))


def test_gradients_by_finite_differences():
    """All gradients of the function itself, with attention and last states in the loss."""
    decoder = build(InputFeedDecoder, global_attention_alpha=1.5)
    inputs = Inputs(batch=2, tgt_len=3, src_len=4, lengths=[4, 2])
    parameters = [p for name, p in decoder.named_parameters() if not name.startswith("embeddings")]
    emb = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    feed = torch.randn(1, 2, 6, dtype=torch.float64, requires_grad=True)
    del decoder.embeddings
    decoder.embeddings = lambda tgt: emb

    def run(*_):
        inputs.start(decoder)
        decoder.state["input_feed"] = feed
        outputs, attns = decoder(inputs.tgt, inputs.memory, src_len=inputs.src_len)
        return outputs, attns["std"], *decoder.state["hidden"]

    assert torch.autograd.gradcheck(
        run, [inputs.memory, *inputs.final, emb, feed, *parameters], atol=1e-4, fast_mode=True
    )


def test_float32_is_as_close_as_rounding():
    stock, ours = pair()
    inputs = Inputs()
    expected = everything(stock, inputs, stock=True)
    inputs.memory = inputs.memory.detach().float().requires_grad_()
    inputs.final = tuple(h.detach().float().requires_grad_() for h in inputs.final)
    inputs.weights, inputs.attention_weights = inputs.weights.float(), inputs.attention_weights.float()
    for name, value in everything(ours.float(), inputs).items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-4, atol=2e-5, msg=name)


def test_only_the_outputs_or_only_the_attention_used():
    stock, ours = pair()
    for use in (0, 1):
        gradients = []
        for decoder, time_first in ((ours, False), (stock, True)):
            inputs = Inputs()
            inputs.start(decoder)
            decoder.zero_grad()
            outputs, attns = decoder(inputs.tgt, inputs.memory, src_len=inputs.src_len)
            attention = attns["std"].transpose(0, 1) if time_first else attns["std"]
            ((outputs * inputs.weights) if use == 0 else (attention * inputs.attention_weights)).sum().backward()
            gradients.append([inputs.memory.grad, inputs.final[0].grad, *(p.grad for p in decoder.parameters())])
        for found, expected in zip(*gradients):
            torch.testing.assert_close(found, expected)


def test_without_gradients_the_values_are_the_same():
    decoder = build(InputFeedDecoder, global_attention_alpha=1.5)
    inputs = Inputs()
    expected = everything(decoder, inputs)
    with torch.no_grad():
        inputs.start(decoder)
        outputs, attns = decoder(inputs.tgt, inputs.memory, src_len=inputs.src_len)
    assert not outputs.requires_grad
    torch.testing.assert_close(outputs, expected["outputs"])
    torch.testing.assert_close(attns["std"], expected["attention std"])


def test_frozen_embeddings_and_frozen_weights():
    stock, ours = pair()
    for decoder in (stock, ours):
        decoder.embeddings.requires_grad_(False)
        decoder.rnn.layers[0].weight_hh.requires_grad_(False)
    inputs = Inputs()
    found, expected = everything(ours, inputs), everything(stock, inputs, stock=True)
    assert found["gradient of rnn.layers.0.weight_hh"] is None
    assert_same(found, expected)


@pytest.mark.parametrize(
    "changes,reason",
    [
        ({"rnn_type": "GRU"}, "only LSTM"),
        ({"global_attention": "mlp"}, "only dot and general"),
        ({"context_gate": "both"}, "context gate"),
        ({"global_attention_function": "entmax", "global_attention_alpha": "learned"}, "learned"),
    ],
)
def test_falling_back_is_said_once(monkeypatch, changes, reason):
    messages = []
    engines.name("cpu", torch.float64)  # says which engine, the first time
    monkeypatch.setattr(engines.logger, "info", lambda text, *args: messages.append(text % args))
    engines.say_once.cache_clear()
    decoder = build(InputFeedDecoder, **changes)
    inputs = Inputs(gru="rnn_type" in changes)
    for _ in range(2):
        everything(decoder, inputs)
    assert len(messages) == 1
    assert "step by step" in messages[0] and reason in messages[0]


def test_mixed_precision_is_as_close_as_its_rounding():
    """bfloat16 keeps 8 bits, so about 0.004 of each value is lost at each step; gradients arrive in float32."""
    decoder = build(InputFeedDecoder, global_attention_alpha=1.5).float()
    inputs = Inputs()
    inputs.memory = inputs.memory.detach().float().requires_grad_()
    inputs.final = tuple(h.detach().float().requires_grad_() for h in inputs.final)
    inputs.weights, inputs.attention_weights = inputs.weights.float(), inputs.attention_weights.float()
    expected = everything(decoder, inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = everything(decoder, inputs)
    assert found["outputs"].dtype == torch.bfloat16
    for name, value in expected.items():
        if name.startswith("gradient"):
            assert found[name].dtype == torch.float32
            scale = value.abs().max().item()
            torch.testing.assert_close(found[name], value, rtol=0, atol=0.05 * scale, msg=name)
        else:
            torch.testing.assert_close(found[name].float(), value, rtol=0, atol=0.03, msg=name)


def test_gradients_by_few_rows_at_a_time():
    decoder, inputs = build(InputFeedDecoder), Inputs()
    expected = everything(decoder, inputs)
    with engines.using(Unrolled(block_rows=5)):  # of 24
        assert_same(everything(decoder, inputs), expected)


def test_the_default_is_unrolled(monkeypatch):
    def refuse(*args):
        raise AssertionError("ran step by step")

    monkeypatch.setattr(InputFeedDecoder, "step", refuse)
    for changes in ({}, {"coverage_attn": True}, {"dec_layers": 1}, {"global_attention": "dot"}):
        everything(build(InputFeedDecoder, **changes), Inputs(layers=changes.get("dec_layers", 2)))


def test_learned_alpha_gets_a_gradient():
    decoder = build(InputFeedDecoder, global_attention_function="entmax", global_attention_alpha="learned")
    gradient = everything(decoder, Inputs())["gradient of attn.learned_alpha.raw"]
    assert torch.isfinite(gradient).all() and gradient.abs().item() > 0


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("alpha", [1.0, 1.5])
@pytest.mark.parametrize("lengths", [[2, 5, 1, 4], [5, 5, 3, 3], [0, 5, 2, 2]], ids=str)
def test_sentences_leave_when_they_end(layers, alpha, lengths):
    """A padded batch equals its sentences alone: outputs, attention, last states, all gradients; zero at padding."""
    decoder = build(InputFeedDecoder, dec_layers=layers, global_attention_alpha=alpha)
    inputs = Inputs(layers=layers)
    pad = decoder.embeddings.word_padding_idx
    for row, length in enumerate(lengths):
        inputs.tgt[row, length:] = pad
    lengths = [max(length, 1) for length in lengths]  # a row of padding alone takes one step, of which nobody reads
    beyond = torch.arange(5) >= torch.tensor(lengths).unsqueeze(1)

    def backward(tgt, memory, final, src_len, weights, attention_weights):
        decoder.init_state(None, memory, final)
        outputs, attns = decoder(tgt, memory, src_len=src_len)
        loss = (outputs * weights).sum() + (attns["std"] * attention_weights).sum()
        (loss + sum((state * state).sum() for state in decoder.state["hidden"])).backward()
        return outputs, attns["std"], *decoder.state["hidden"]

    def gradients():
        named = {name: parameter.grad.clone() for name, parameter in decoder.named_parameters()}
        named.update({f"leaf {index}": leaf.grad.clone() for index, leaf in enumerate(inputs.leaves)})
        decoder.zero_grad()
        for leaf in inputs.leaves:
            leaf.grad = None
        return named

    outputs, attention, hidden, cell = backward(
        inputs.tgt, inputs.memory, inputs.final, inputs.src_len, inputs.weights, inputs.attention_weights
    )
    found = gradients()
    assert not outputs[beyond].any() and not attention[beyond].any()
    for row, length in enumerate(lengths):
        one = slice(row, row + 1)
        alone = backward(
            inputs.tgt[one, :length],
            inputs.memory[one],
            tuple(state[:, one] for state in inputs.final),
            inputs.src_len[one],
            inputs.weights[one, :length],
            inputs.attention_weights[one, :length],
        )
        torch.testing.assert_close(outputs[one, :length], alone[0])
        torch.testing.assert_close(attention[one, :length], alone[1])
        torch.testing.assert_close(hidden[:, one], alone[2])
        torch.testing.assert_close(cell[:, one], alone[3])
    expected = gradients()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=lambda text, name=name: f"{name}: {text}")
