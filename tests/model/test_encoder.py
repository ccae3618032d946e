"""The encoder against OpenNMT-py's: memory, last states and gradients, on ragged batches in any order."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from onmt.encoders.rnn_encoder import RNNEncoder

from onmt_entmax import engines
from onmt_entmax.engines.cpu import Cpu
from onmt_entmax.engines.ragged import Ragged
from onmt_entmax.plugin.modules import Encoder
from tests.model.helpers import VOCAB, embeddings

pytestmark = pytest.mark.usefixtures("each_engine")


def build(cls, **changes):
    options = {"rnn_type": "LSTM", "brnn": True, "enc_layers": 2, "enc_hid_size": 6, "dropout": [0.0], "bridge": False}
    options.update(changes)
    torch.manual_seed(0)
    return cls.from_opt(Namespace(**options), embeddings())


def run(encoder, src, src_len, use=("memory", "final")):
    """Values, and gradients of a weighted sum of the parts named in ``use``."""
    torch.manual_seed(4)
    encoder.zero_grad()
    memory, final, lengths = encoder(src, src_len)
    assert lengths is src_len
    final = final if isinstance(final, tuple) else (final,)
    loss = (memory * torch.randn(memory.shape, dtype=memory.dtype)).sum() if "memory" in use else 0
    for state in final:
        weights = torch.randn(state.shape, dtype=state.dtype)
        loss = loss + ((state * weights).sum() if "final" in use else 0)
    loss.backward()
    return {"memory": memory, **dict(enumerate(final)), **{n: p.grad for n, p in encoder.named_parameters()}}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if value is None:
            assert found[name] is None, name
            continue
        assert found[name].shape == value.shape
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=2e-6, msg=str(name))


def tokens(lengths, width=None):
    width = width or max(lengths)
    src = torch.randint(2, VOCAB, (len(lengths), width, 1), generator=torch.Generator().manual_seed(1))
    beyond = torch.arange(width) >= torch.tensor(lengths)[:, None]
    return src.masked_fill(beyond.unsqueeze(-1), 1), torch.tensor(lengths)


CONFIGURATIONS = [{}, {"brnn": False}, {"enc_layers": 1}, {"enc_layers": 3}, {"bridge": True}]


@pytest.mark.parametrize("changes", CONFIGURATIONS, ids=str)
@pytest.mark.parametrize("lengths", [[5, 5, 5], [7, 4, 4, 1], [2, 6, 1, 6, 3], [1], [1, 1]], ids=str)
def test_equals_stock(monkeypatch, each_engine, changes, lengths):
    stock, ours = build(RNNEncoder, **changes), build(Encoder, **changes)
    assert list(ours.state_dict()) == list(stock.state_dict())
    src, src_len = tokens(lengths)
    expected = run(stock, src, src_len)

    def refuse(*args):
        raise AssertionError("ran PyTorch's layers")

    if each_engine == "auto":
        monkeypatch.setattr(torch.nn.LSTM, "forward", refuse)
    assert_same(run(ours, src, src_len), expected)


@pytest.mark.parametrize("use", ["memory", "final"])
def test_only_part_of_the_result_used(use):
    src, src_len = tokens([3, 5, 2])
    assert_same(run(build(Encoder), src, src_len, (use,)), run(build(RNNEncoder), src, src_len, (use,)))


def test_columns_beyond_the_longest_are_cut():
    src, src_len = tokens([3, 4], width=6)
    found = run(build(Encoder), src, src_len)
    assert found["memory"].shape[1] == 4
    assert_same(found, run(build(RNNEncoder), src, src_len))


def test_padding_has_no_influence():
    src, src_len = tokens([5, 2, 3])
    expected = run(build(Encoder), src, src_len)
    src[1, 2:], src[2, 3:] = 7, 8
    found = run(build(Encoder), src, src_len)
    for name in ("memory", 0, 1):
        assert torch.equal(found[name], expected[name])
    assert not found["memory"][1, 2:].any()


def test_dropout_between_layers_only():
    encoder = build(Encoder, dropout=[0.5])
    src, src_len = tokens([4, 3])
    drawn = []

    class Recording(Cpu):
        def dropout(self, x, p):
            assert p == 0.5
            drawn.append(super().dropout(torch.ones_like(x), p))
            return x * drawn[-1]

    with engines.using(Recording()):
        found = run(encoder, src, src_len)
    (factors,) = drawn
    assert factors.shape == (7, 6)  # of the tokens alone
    factors = Ragged.from_lengths(src_len, 4).unpack(factors)
    # by hand: layer one, the factors, layer two
    one, two = build(RNNEncoder, enc_layers=1), build(RNNEncoder)
    first, _, _ = one(src, src_len)
    second = torch.nn.LSTM(6, 3, bidirectional=True, batch_first=True)
    second.load_state_dict({name.replace("l1", "l0"): w for name, w in two.rnn.state_dict().items() if "l1" in name})
    packed = torch.nn.utils.rnn.pack_padded_sequence(first * factors, src_len, batch_first=True)
    expected = torch.nn.utils.rnn.pad_packed_sequence(second(packed)[0], batch_first=True)[0]
    torch.testing.assert_close(found["memory"], expected)
    assert encoder.eval()(src, src_len)[0].equal(build(Encoder)(src, src_len)[0])
    assert len(drawn) == 1


@pytest.mark.parametrize("changes", [{"rnn_type": "GRU"}, {"rnn_type": "GRU", "brnn": False}], ids=str)
def test_other_layers_run_stock(changes):
    src, src_len = tokens([3, 5])
    assert_same(run(build(Encoder, **changes), src, src_len), run(build(RNNEncoder, **changes), src, src_len))


def test_other_precisions_run_stock():
    src, src_len = tokens([3, 5])
    assert_same(run(build(Encoder).double(), src, src_len), run(build(RNNEncoder).double(), src, src_len))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.isfinite(build(Encoder)(src, src_len)[0]).all()
