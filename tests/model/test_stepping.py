"""Decoding steps over ragged rows equal the forward pass over given tokens."""

from __future__ import annotations

import pytest
import torch

from onmt_entmax import engines
from onmt_entmax.engines.unrolled import Unrolled
from onmt_entmax.plugin.modules import InputFeedDecoder
from tests.model.helpers import VOCAB, Inputs, build

pytestmark = pytest.mark.usefixtures("each_engine")

CONFIGURATIONS = [
    {},
    {"global_attention_alpha": 1.5},
    {"global_attention_alpha": 2.0, "global_attention": "dot", "dec_layers": 1},
    {"global_attention": "mlp", "global_attention_alpha": 1.33},
    {"rnn_type": "GRU", "global_attention_alpha": 1.5},
    {"context_gate": "both"},
    {"coverage_attn": True},
    {"global_attention_function": "entmax", "global_attention_alpha": "learned"},
]


def ident(changes):
    return ",".join(f"{key}={value}" for key, value in changes.items()) or "default"


def decoder_and_inputs(changes, **more):
    decoder = build(InputFeedDecoder, **changes).eval()
    return decoder, Inputs(layers=changes.get("dec_layers", 2), gru=changes.get("rnn_type") == "GRU", **more)


def final(inputs):
    return inputs.final if len(inputs.final) > 1 else inputs.final[0]


def teacher_forced(decoder, inputs, tokens, sentences):
    """Outputs and attention of ``forward`` for rows of tokens ``(R, T)``, with a memory copied for each row."""
    decoder.init_state(None, None, final(inputs))
    decoder.map_state(lambda state, dim: state.index_select(dim, sentences))
    with torch.no_grad():
        outputs, attns = decoder(tokens.unsqueeze(-1), inputs.memory[sentences], src_len=inputs.src_len[sentences])
    return outputs, attns["std"]


@pytest.mark.parametrize("changes", CONFIGURATIONS, ids=ident)
@pytest.mark.parametrize(
    "rows", [[0, 1, 2, 3], [0, 0, 0, 1, 2, 2, 3, 3, 3, 3], [1, 1, 3], [0, 0, 1, 1, 2, 2, 3, 3], [2]], ids=str
)
def test_steps_equal_forward(changes, rows):
    decoder, inputs = decoder_and_inputs(changes)
    assert decoder.supports_search
    sentences = torch.tensor(rows)
    tokens = torch.randint(2, VOCAB, (len(rows), 4), generator=torch.Generator().manual_seed(5))
    expected, expected_attention = teacher_forced(decoder, inputs, tokens, sentences)
    view = decoder.search(inputs.memory, inputs.src_len)
    states = tuple(state[sentences] for state in decoder.start_states(final(inputs)))
    decoder.state = None  # steps must not need it
    for t in range(4):
        before = [state.clone() for state in states]
        outputs, new_states, attention = view.step(tokens[:, t], states, sentences)
        assert all(torch.equal(old, state) for old, state in zip(before, states))  # a branch may go on from them
        states = new_states
        torch.testing.assert_close(outputs, expected[:, t])
        torch.testing.assert_close(attention, expected_attention[:, t])
    beyond = torch.arange(7) >= inputs.src_len[sentences][:, None]
    assert not attention[beyond].any()


def test_rows_come_and_go():
    """Rows branch, are reordered and dropped between steps; each must remember its own prefix."""
    decoder, inputs = decoder_and_inputs({"global_attention_alpha": 1.5})
    view = decoder.search(inputs.memory, inputs.src_len)
    prefixes = torch.tensor([[2], [3], [4], [5]])
    sentences = torch.arange(4)
    states = decoder.start_states(final(inputs))
    _, states, _ = view.step(prefixes[:, -1], states, sentences)
    # sentence 0 goes on three ways, 1 ends, 2 goes on twice, 3 once
    parents = torch.tensor([0, 0, 0, 2, 2, 3])
    new = torch.tensor([6, 7, 8, 9, 10, 6])
    prefixes, sentences = torch.cat([prefixes[parents], new[:, None]], 1), sentences[parents]
    outputs, states, _ = view.step(new, tuple(s[parents] for s in states), sentences)
    # then 0 keeps two (in another order), 2 ends, 3 branches; the memory of the ended sentences is let go
    parents = torch.tensor([2, 0, 5, 5])
    new = torch.tensor([3, 4, 5, 6])
    prefixes, sentences = torch.cat([prefixes[parents], new[:, None]], 1), sentences[parents]
    fewer = view.select(torch.tensor([0, 3]))
    outputs, _, _ = fewer.step(new, tuple(s[parents] for s in states), torch.tensor([0, 0, 1, 1]))
    expected, _ = teacher_forced(decoder, inputs, prefixes, sentences)
    torch.testing.assert_close(outputs, expected[:, -1])


@pytest.mark.parametrize("changes", CONFIGURATIONS, ids=ident)
@pytest.mark.parametrize("rows", [5, 48])
@pytest.mark.parametrize("types_per_sentence", [0, 100])
def test_rows_that_share_states_and_tokens(each_engine, changes, rows, types_per_sentence):
    """Siblings with one state equal rows with a copy each; 48 rows have each of the few tokens several times.

    With 100 types per sentence the embeddings' part is computed for all types in advance, with 0 in each step.
    """
    decoder, inputs = decoder_and_inputs(changes)
    generator = torch.Generator().manual_seed(rows)
    engine = engines.REFERENCE if each_engine == "reference" else Unrolled(types_per_sentence=types_per_sentence)
    with engines.using(engine):
        view = decoder.search(inputs.memory, inputs.src_len)
    _, states, _ = view.step(torch.tensor([2, 3, 4, 5]), decoder.start_states(final(inputs)), torch.arange(4))
    parents = torch.randint(4, (rows,), generator=generator).sort()[0]
    tokens = torch.randint(2, VOCAB, (rows,), generator=generator)
    shared = view.step(tokens, states, parents, parents)
    prefixes = torch.stack([torch.tensor([2, 3, 4, 5])[parents], tokens], 1)
    expected, expected_attention = teacher_forced(decoder, inputs, prefixes, parents)
    torch.testing.assert_close(shared[0], expected[:, 1])
    torch.testing.assert_close(shared[2], expected_attention[:, 1])
    copied = view.step(tokens, tuple(state[parents] for state in states), parents)
    for one, other in zip(shared[1], copied[1]):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_source_of_length_zero(alpha):
    decoder, inputs = decoder_and_inputs({"global_attention_alpha": alpha}, lengths=[7, 0, 2, 5])
    sentences = torch.tensor([0, 1, 1, 3])
    view = decoder.search(inputs.memory, inputs.src_len)
    states = tuple(state[sentences] for state in decoder.start_states(final(inputs)))
    outputs, _, attention = view.step(torch.tensor([2, 3, 4, 5]), states, sentences)
    assert torch.isfinite(outputs).all()
    assert not attention[1:3].any()
    torch.testing.assert_close(attention[[0, 3]].sum(1), torch.ones(2, dtype=torch.float64))


def test_one_direction_only():
    decoder = build(InputFeedDecoder, brnn=False).eval()
    inputs = Inputs()
    inputs.final = tuple(torch.cat([h, h], 2)[:2].detach() for h in inputs.final)
    sentences = torch.arange(4)
    tokens = torch.tensor([[2], [3], [4], [5]])
    expected, _ = teacher_forced(decoder, inputs, tokens, sentences)
    states = decoder.start_states(inputs.final)
    outputs, _, _ = decoder.search(inputs.memory, inputs.src_len).step(tokens[:, 0], states, sentences)
    torch.testing.assert_close(outputs, expected[:, 0])


def test_without_attention_there_are_no_search_steps():
    assert not build(InputFeedDecoder, global_attention="none").supports_search
