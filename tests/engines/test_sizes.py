"""Engines against the reference at small sizes, above all 1, where a transpose is a view of somebody else's tensor."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from onmt_entmax import engines
from onmt_entmax.engines.cpu import Cpu
from onmt_entmax.engines.unrolled import Unrolled
from onmt_entmax.model.attention import GlobalAttention
from onmt_entmax.model.decoder import DecoderState, InputFeedDecoder, StackedCells
from onmt_entmax.model.encoder import Encoder

TYPES = 7
ENGINES = [(Cpu(), torch.float32), (Unrolled(), torch.float32), (Unrolled(), torch.float64)]
small = st.integers(1, 3)


class Tokens(nn.Embedding):
    """Embeddings as OpenNMT-py's modules are called: tokens ``(B, T, 1)``."""

    word_padding_idx = 1

    @property
    def word_lut(self):
        return self

    def forward(self, tokens):
        return super().forward(tokens.squeeze(-1))


def weights_of(shape):
    """Different numbers for every entry, so that no gradients cancel."""
    return torch.arange(1, shape.numel() + 1, dtype=torch.float64).mul(0.7).sin().view(shape)


def run(engine, dtype, module, inputs, compute):
    """Results and gradients of inputs and parameters; the inputs must come back as they were."""
    module = copy.deepcopy(module).to(dtype)
    inputs = [value.detach().to(dtype).requires_grad_() for value in inputs]
    before = [value.detach().clone() for value in inputs]
    with engines.using(engine):
        results = compute(module, *inputs)
    versions = [value._version for value in inputs]
    sum((result * weights_of(result.shape).to(dtype)).sum() for result in results).backward()
    assert all(torch.equal(value, old) for value, old in zip(inputs, before)) and not any(versions)
    gradients = [leaf.grad for leaf in (*inputs, *module.parameters())]
    return [found.detach().double() for found in (*results, *gradients) if found is not None]


def assert_close(found, expected, dtype):
    tolerance = 1e-9 if dtype == torch.float64 else 3e-5
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected):
        scale = max(1.0, theirs.abs().max().item())
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * scale)


def decoder_case(batch, steps, width, size, layers, alpha, seed):
    torch.manual_seed(seed)
    cells = StackedCells(nn.LSTMCell, layers, 2 + size, size, 0.0)
    decoder = InputFeedDecoder(Tokens(TYPES, 2), cells, GlobalAttention(size, attn_type="general", alpha=alpha))
    tgt_len, src_len = (torch.randint(1, most + 1, (batch,)) for most in (steps, width))
    tgt = torch.randint(2, TYPES, (batch, steps, 1)).masked_fill(
        (torch.arange(steps) >= tgt_len[:, None])[..., None], 1
    )
    shapes = [(batch, width, size), (batch, size), (layers, batch, size), (layers, batch, size)]

    def compute(module, memory, feed, hidden, cell):
        outputs, attns, _ = module.run(tgt, memory, src_len, DecoderState(feed, (hidden, cell)))
        inside = torch.arange(steps) < ((tgt[:, :, 0] != 1) * torch.arange(1, steps + 1)).amax(1, keepdim=True)
        outputs, probs = (part * inside.unsqueeze(-1) for part in (outputs, attns["std"]))
        return outputs, probs

    return decoder, [torch.randn(shape) for shape in shapes], compute


@given(small, small, small, small, st.integers(1, 2), st.sampled_from([1.0, 1.5, 2.0]), st.integers(0, 99))
@settings(max_examples=60)
@pytest.mark.parametrize("engine, dtype", ENGINES, ids=["cpu", "unrolled", "unrolled64"])
def test_decoder(engine, dtype, batch, steps, width, size, layers, alpha, seed):
    decoder, inputs, compute = decoder_case(batch, steps, width, size, layers, alpha, seed)
    expected = run(engines.REFERENCE, torch.float64, decoder, inputs, compute)
    assert_close(run(engine, dtype, decoder, inputs, compute), expected, dtype)


@pytest.mark.parametrize("engine, dtype", ENGINES, ids=["cpu", "unrolled", "unrolled64"])
@pytest.mark.parametrize("steps, size", [(1, 1), (1, 3), (4, 1), (4, 3)])
def test_one_sentence_leaves_the_state_it_began_with(engine, dtype, steps, size):
    """The kind of state that a bridge or the mean encoder gives: needed again by their own backward pass."""
    decoder, inputs, compute = decoder_case(1, steps, 1, size, 2, 1.5, 0)

    def through_a_bridge(module, memory, feed, hidden, cell):
        return compute(module, memory, feed * feed, hidden.tanh(), torch.relu(cell).square())

    expected = run(engines.REFERENCE, torch.float64, decoder, inputs, through_a_bridge)
    assert_close(run(engine, dtype, decoder, inputs, through_a_bridge), expected, dtype)


@given(st.lists(small, min_size=1, max_size=3), small, st.integers(1, 2), st.booleans(), st.booleans())
@settings(max_examples=60)
def test_encoder(lengths, size, layers, bidirectional, bridge):
    torch.manual_seed(len(lengths))
    rnn = nn.LSTM(2, size, layers, batch_first=True, bidirectional=bidirectional)
    encoder, src_len = Encoder(Tokens(TYPES, 2), rnn, bridge), torch.tensor(lengths)
    src = torch.randint(2, TYPES, (len(lengths), max(lengths), 1))

    def compute(module):
        memory, final, _ = module(src, src_len)
        return memory, *final

    expected = run(engines.REFERENCE, torch.float64, encoder, [], compute)
    assert_close(run(Cpu(), torch.float32, encoder, [], compute), expected, torch.float32)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=4), small, small, st.integers(1, 2), st.integers(0, 99))
@settings(max_examples=60)
def test_search_steps(rows, width, size, layers, seed):
    """R rows of B sentences, some of which have none."""
    torch.manual_seed(seed)
    sentences = torch.tensor(sorted(rows))
    cells = StackedCells(nn.LSTMCell, layers, 2 + size, size, 0.0)
    attention = GlobalAttention(size, attn_type="general", alpha=1.5)
    decoder = InputFeedDecoder(Tokens(TYPES, 2), cells, attention).double().eval()
    memory, src_len = torch.randn(3, width, size).double(), torch.randint(0, width + 1, (3,))
    states = (torch.randn(len(rows), 1 + layers, size).double(), torch.randn(len(rows), layers, size).double())
    before = [state.clone() for state in states]
    tokens = torch.randint(2, TYPES, (len(rows),))
    results = []
    for engine in (engines.REFERENCE, Unrolled(), Unrolled(types_per_sentence=0)):
        with engines.using(engine):
            outputs, new, attention = decoder.search(memory, src_len).step(tokens, states, sentences)
        results.append([outputs, *new, attention])
        assert all(torch.equal(state, old) for state, old in zip(states, before))
    for found in results[1:]:
        assert_close(found, results[0], torch.float64)
