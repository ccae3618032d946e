"""The recurrent decoders against OpenNMT-py's: outputs, attention, state and gradients."""

from __future__ import annotations

import pytest
import torch
from onmt.decoders.decoder import InputFeedRNNDecoder

from onmt_entmax.errors import UserError
from onmt_entmax.plugin.modules import InputFeedDecoder, StandardDecoder
from tests.model.helpers import Inputs, assert_same, build, everything, pair

pytestmark = pytest.mark.usefixtures("each_engine")

CONFIGURATIONS = [
    {},
    {"dec_layers": 1},
    {"dec_layers": 3},
    {"global_attention": "dot"},
    {"global_attention": "mlp"},
    {"rnn_type": "GRU"},
    {"rnn_type": "GRU", "dec_layers": 1, "global_attention": "mlp"},
    {"context_gate": "both"},
    {"context_gate": "source"},
    {"coverage_attn": True},
    {"coverage_attn": True, "global_attention": "mlp"},
    {"global_attention": "none"},
    {"brnn": False},
]


def ident(changes):
    return ",".join(f"{key}={value}" for key, value in changes.items()) or "default"


def inputs_for(changes, **more):
    return Inputs(layers=changes.get("dec_layers", 2), gru=changes.get("rnn_type") == "GRU", **more)


@pytest.mark.parametrize("changes", CONFIGURATIONS, ids=ident)
def test_input_feeding_equals_stock(changes):
    stock, ours = pair(**changes)
    inputs = inputs_for(changes)
    if not changes.get("brnn", True):
        inputs.final = tuple(torch.cat([h, h], 2)[:2].detach().requires_grad_() for h in inputs.final)
    assert_same(everything(ours, inputs), everything(stock, inputs, stock=True))


@pytest.mark.parametrize(
    "changes", [{}, {"rnn_type": "GRU"}, {"global_attention": "mlp"}, {"global_attention": "none"}], ids=ident
)
def test_standard_decoder_equals_stock(changes):
    stock, ours = pair(standard=True, **changes)
    inputs = inputs_for(changes)
    assert_same(everything(ours, inputs), everything(stock, inputs))


def test_standard_decoder_refuses_what_needs_input_feeding():
    with pytest.raises(UserError, match="Invalid setting for `coverage_attn`: True.*input_feed"):
        build(StandardDecoder, coverage_attn=True)


@pytest.mark.parametrize("gate", ["source", "target", "both"])
def test_standard_decoder_with_context_gate(gate):
    """OpenNMT-py crashes here; the gate must see the embedding, the recurrent output and the attentional output."""
    decoder = build(StandardDecoder, context_gate=gate)
    inputs = Inputs()
    inputs.start(decoder)
    outputs, _ = decoder(inputs.tgt, inputs.memory, src_len=inputs.src_len)
    inputs.start(decoder)
    emb = decoder.embeddings(inputs.tgt)
    rnn_out, _ = decoder.rnn(emb, decoder.state["hidden"])
    attended, _ = decoder.attn(rnn_out, inputs.memory, inputs.src_len)
    for step in range(inputs.tgt.size(1)):
        expected = decoder.context_gate(emb[:, step], rnn_out[:, step], attended[:, step])
        torch.testing.assert_close(outputs[:, step], expected)


@pytest.mark.parametrize("changes", CONFIGURATIONS, ids=ident)
def test_checkpoints_go_both_ways(changes):
    stock, ours = build(InputFeedRNNDecoder, **changes), build(InputFeedDecoder, **changes)
    assert list(ours.state_dict()) == list(stock.state_dict())
    stock.load_state_dict(ours.state_dict())


def test_same_seed_gives_the_initial_parameters_of_stock():
    stock, ours = build(InputFeedRNNDecoder), build(InputFeedDecoder)
    after_stock = (build(InputFeedRNNDecoder), torch.rand(3))[1]
    after_ours = (build(InputFeedDecoder), torch.rand(3))[1]
    for name, value in stock.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name
    assert torch.equal(after_ours, after_stock)


@pytest.mark.parametrize("changes", [{}, {"coverage_attn": True}, {"rnn_type": "GRU"}], ids=ident)
def test_state_is_carried_over(changes):
    """Two halves, one after the other, equal one run; with the gradient cut between, as in truncated BPTT."""
    stock, ours = pair(**changes)
    inputs = inputs_for(changes)
    whole = everything(ours, inputs)
    for decoder in (stock, ours):
        inputs.start(decoder)
        first, _ = decoder(inputs.tgt[:, :2], inputs.memory, src_len=inputs.src_len)
        decoder.detach_state()
        second, attns = decoder(inputs.tgt[:, 2:], inputs.memory, src_len=inputs.src_len)
        torch.testing.assert_close(torch.cat([first, second], 1), whole["outputs"])
        decoder.zero_grad()
        inputs.memory.grad = None
        (second * inputs.weights[:, 2:]).sum().backward()
        if decoder is stock:
            expected = {n: p.grad for n, p in decoder.named_parameters()}, inputs.memory.grad
        elif changes.get("coverage_attn"):
            torch.testing.assert_close(attns["coverage"], whole["attention coverage"][:, 2:])
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[0][name], msg=name)
    torch.testing.assert_close(inputs.memory.grad, expected[1])


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.33])
@pytest.mark.parametrize("attn_type", ["general", "mlp"])
def test_attention_is_zero_beyond_the_source_and_outside_the_support(alpha, attn_type):
    decoder = build(InputFeedDecoder, global_attention_alpha=alpha, global_attention=attn_type)
    inputs = Inputs()
    with torch.no_grad():
        inputs.memory *= 4  # large differences of scores, so that supports are small
        if attn_type == "mlp":
            decoder.attn.v.weight *= 20
    probs = everything(decoder, inputs)["attention std"]
    beyond = torch.arange(7) >= inputs.src_len[:, None]
    assert not probs.transpose(1, 2)[beyond].any()
    assert (probs.transpose(1, 2)[~beyond] == 0).any()
    torch.testing.assert_close(probs.sum(-1), torch.ones(4, 5, dtype=torch.float64))


def test_alpha_comes_from_the_function_where_it_is_not_set():
    assert build(InputFeedDecoder, global_attention_function="sparsemax").attn.alpha == 2.0
    assert build(InputFeedDecoder, global_attention_function="entmax15").attn.alpha == 1.5
    assert build(InputFeedDecoder).attn.alpha == 1.0


@pytest.mark.parametrize("attn_type", ["general", "dot", "mlp"])
@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_source_of_length_zero_among_others(attn_type, alpha):
    decoder = build(InputFeedDecoder, global_attention=attn_type, global_attention_alpha=alpha)
    inputs = Inputs(lengths=[7, 0, 2, 5])
    found = everything(decoder, inputs)
    assert all(torch.isfinite(value).all() for value in found.values() if value is not None)
    assert not found["attention std"][1].any()
    assert not found["gradient of input 0"][1].any()
    alone = Inputs(lengths=[7, 1, 2, 5])  # the other sentences are not affected
    torch.testing.assert_close(found["outputs"][2:], everything(decoder, alone)["outputs"][2:])


def test_the_previous_output_feeds_the_next_step():
    """Changing what a step put out changes the next step, all else being equal."""
    decoder = build(InputFeedDecoder)
    inputs = Inputs()
    inputs.start(decoder)
    decoder(inputs.tgt[:, :1], inputs.memory, src_len=inputs.src_len)
    second, _ = decoder(inputs.tgt[:, 1:2], inputs.memory, src_len=inputs.src_len)
    inputs.start(decoder)
    decoder(inputs.tgt[:, :1], inputs.memory, src_len=inputs.src_len)
    decoder.state["input_feed"] = decoder.state["input_feed"] + 1
    changed, _ = decoder(inputs.tgt[:, 1:2], inputs.memory, src_len=inputs.src_len)
    assert (second - changed).abs().min() > 1e-6


def test_state_follows_the_beam():
    """``map_state`` repeats and selects rows, as OpenNMT-py's beam search asks for."""
    decoder = build(InputFeedDecoder, coverage_attn=True)
    inputs = Inputs()
    inputs.start(decoder)
    decoder(inputs.tgt[:, :2], inputs.memory, src_len=inputs.src_len)
    expected, _ = decoder(inputs.tgt[:, 2:3], inputs.memory, src_len=inputs.src_len)
    inputs.start(decoder)
    decoder(inputs.tgt[:, :2], inputs.memory, src_len=inputs.src_len)
    rows = torch.tensor([2, 2, 0])
    decoder.map_state(lambda state, dim: state.index_select(dim, rows))
    found, _ = decoder(inputs.tgt[rows, 2:3], inputs.memory[rows], src_len=inputs.src_len[rows])
    torch.testing.assert_close(found, expected[rows])


class Adapted(torch.nn.Linear):
    """A layer whose output is not the product with its weight alone, as adapters and quantised layers are."""

    def forward(self, x):
        return super().forward(x) + 0.5 * x[..., : self.out_features]


@pytest.mark.parametrize("name", ["linear_in", "linear_out"])
def test_replaced_layers_are_called(name):
    stock, ours = pair()
    for decoder in (stock, ours):
        old = getattr(decoder.attn, name)
        new = Adapted(old.in_features, old.out_features, bias=False).double()
        new.load_state_dict(old.state_dict())
        setattr(decoder.attn, name, new)
    inputs = Inputs()
    assert_same(everything(ours, inputs), everything(stock, inputs, stock=True))
    # and so are they in a search
    start = ours.start_states(tuple(state.detach() for state in inputs.final))
    found, _, _ = ours.search(inputs.memory, inputs.src_len).step(inputs.tgt[:, 0, 0], start, torch.arange(4))
    inputs.start(ours)
    expected, _ = ours(inputs.tgt[:, :1], inputs.memory, src_len=inputs.src_len)
    torch.testing.assert_close(found, expected[:, 0].detach())


@pytest.mark.parametrize("changes", [{}, {"global_attention": "mlp"}, {"rnn_type": "GRU"}], ids=ident)
def test_half_precision_is_as_close_as_its_rounding(changes):
    """bfloat16 keeps 8 bits, so about 0.004 of each value is lost at each step."""
    decoder, inputs = build(InputFeedDecoder, global_attention_alpha=1.5, **changes), inputs_for(changes)
    expected = everything(decoder, inputs)["outputs"]
    inputs.memory = inputs.memory.detach().bfloat16().requires_grad_()
    inputs.final = tuple(state.detach().bfloat16().requires_grad_() for state in inputs.final)
    inputs.weights, inputs.attention_weights = inputs.weights.bfloat16(), inputs.attention_weights.bfloat16()
    found = everything(decoder.bfloat16(), inputs)
    assert found["outputs"].dtype == torch.bfloat16 and found["gradient of input 0"].isfinite().all()
    torch.testing.assert_close(found["outputs"].double(), expected, rtol=0, atol=0.06)
