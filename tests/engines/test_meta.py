"""Whole steps on the meta device, where reading a value raises: nobody waits for a device; and how many operations.

The meta device takes the paths that a GPU takes, without its speed: counts of operations are not times. The batch's
lengths are known on the host, as training data and search say them.
"""

from __future__ import annotations

import collections

import pytest
import torch
from onmt.decoders.decoder import InputFeedRNNDecoder
from onmt.models import NMTModel
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from onmt_entmax import engines
from onmt_entmax.engines.gpu import Gpu, decoder
from onmt_entmax.engines.ragged import source_padding
from onmt_entmax.entmax import linear_entmax_loss, log_entmax_topk, solvers
from onmt_entmax.entmax.cpu import Cpu
from onmt_entmax.entmax.engine import using, with_host_copy
from onmt_entmax.plugin.modules import Encoder, InputFeedDecoder
from onmt_entmax.plugin.train.optimiser import Adam
from tests.model.helpers import EMBEDDING, HIDDEN, VOCAB, Embeddings, options

B, S, T = 4, 7, 5
ALPHAS = [1.0, 1.33, 1.5, 2.0, 2.5]
BOUNDS = {1.0: 55, 1.33: 1033, 1.5: 90, 2.0: 76, 2.5: 3507}  # operations of a decoder step, forward and backward
BY_KERNELS = 14  # the same where Triton kernels take over what lies between products


def empty(*size, dtype=torch.float32):
    return torch.empty(*size, dtype=dtype, device="meta")


def lengths(known=(7, 3, 2, 1)):
    found = empty(B, dtype=torch.int64)
    return found if known is None else with_host_copy(found, list(known))


def whole_model(**changes):
    opt = options(enc_hid_size=HIDDEN, enc_layers=2, bridge=True, dropout=[0.3], **changes)
    sides = [Embeddings(EMBEDDING, VOCAB, 1, dropout=0.3) for _ in range(2)]
    model = NMTModel(Encoder.from_opt(opt, sides[0]), InputFeedDecoder.from_opt(opt, sides[1]))
    model.generator = nn.Linear(HIDDEN, VOCAB)
    return model.to("meta")


def training_step(alpha, known=(7, 3, 2, 1), **changes):
    model = whole_model(global_attention_alpha=alpha, **changes)
    optimiser = Adam(model.parameters())
    src, tgt = (empty(B, size, 1, dtype=torch.int64) for size in (S, T))
    outputs, _ = model(src, tgt, lengths(known))
    hidden, gold = outputs.reshape(-1, HIDDEN), tgt[:, 1:, 0].reshape(-1)
    alpha = 1.5 if alpha == "learned" else alpha
    weight, bias = model.generator.weight, model.generator.bias
    found = linear_entmax_loss(hidden, weight, bias, gold, alpha, "sum", 1, label_smoothing=0.1)
    found.loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5)
    optimiser.step()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_reading_raises_here():
    with pytest.raises(RuntimeError, match="meta"):
        empty(2).sum().item()
    with pytest.raises(NotImplementedError, match="meta"):
        empty(2).nonzero()


@pytest.mark.parametrize("changes", [{}, {"global_attention": "mlp"}, {"rnn_type": "GRU"}], ids=str)
@pytest.mark.parametrize("alpha", [*ALPHAS, "learned"])
def test_a_training_step_reads_nothing(alpha, changes):
    training_step(alpha, **changes)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_nor_where_newton_might_ask(monkeypatch, alpha):
    """On a GPU Newton's iteration asks whether it is done; attention and small vocabularies of these alphas do not."""
    monkeypatch.setattr(solvers, "can_read", lambda x: True)
    training_step(alpha)


def test_newton_asks_for_other_alphas(monkeypatch):
    monkeypatch.setattr(solvers, "can_read", lambda x: True)
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        training_step(1.33)


def test_lengths_known_to_the_device_only():
    with pytest.raises(NotImplementedError, match="meta"):  # the encoder packs by them
        training_step(1.5, known=None)
    hide, not_empty = source_padding(lengths(None), S, torch.float32)  # attention does not ask
    assert hide.shape == (B, S) and not_empty.shape == (B, 1)
    assert source_padding(lengths([7, 7, 7, 7]), S, torch.float32) == (None, None)


@pytest.mark.parametrize("changes", [{}, {"global_attention": "mlp"}, {"rnn_type": "GRU"}], ids=str)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_decoding_step_reads_nothing(alpha, changes):
    model = whole_model(global_attention_alpha=alpha, **changes).eval()
    with torch.no_grad():
        memory, final, src_len = model.encoder(empty(B, S, 1, dtype=torch.int64), lengths())
        steps = model.decoder.search(memory, src_len)
        states = model.decoder.start_states(final)
        rows = [0, 0, 1, 3, 3, 3]  # the second and fourth sentence have more live prefixes than others, the third none
        sentences = with_host_copy(empty(6, dtype=torch.int64), rows)
        parents = empty(6, dtype=torch.int64)
        hidden, states, probs = steps.step(empty(6, dtype=torch.int64), states, sentences, parents)
        logs, places = log_entmax_topk(model.generator(hidden), alpha, 5)
    assert hidden.shape == (6, HIDDEN) and probs.shape == (6, S) and states[0].shape == (6, 3, HIDDEN)
    assert logs.shape == places.shape == (6, 5)


class Operations(TorchDispatchMode):
    """Counts operations that compute: views and allocations start nothing on a device."""

    def __init__(self):
        super().__init__()
        self.count = collections.Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation.overloadpacket.__name__
        if not (operation.is_view or name in ("detach", "_unsafe_view") or name.startswith(("empty", "new_empty"))):
            self.count[name] += 1
        return operation(*args, **(kwargs or {}))


class FusedCell(torch.autograd.Function):
    """As many operations as PyTorch's cell on a GPU has besides products: one, and back one and a sum."""

    @staticmethod
    def forward(ctx, gates, more, cell):
        torch.add(gates, more)
        ctx.save_for_backward(gates, cell)
        return cell.new_empty(cell.shape), cell.new_empty(cell.shape)

    @staticmethod
    def backward(ctx, d_hidden, d_cell):
        gates, cell = ctx.saved_tensors
        torch.mul(gates, gates)
        gates.sum(0)
        return gates.new_empty(gates.shape), gates.new_empty(gates.shape), cell.new_empty(cell.shape)


def fused_forward(self, x, state):
    gates, more = nn.functional.linear(x, self.weight_ih), nn.functional.linear(state[0], self.weight_hh)
    return FusedCell.apply(gates, more, state[1])


class OneEach(Cpu):
    """Stands for the Triton kernels, which need a device: one launch for a mapping and one for its gradient."""

    def serves(self, x):
        return True

    def entmax(self, scores, alpha):
        return scores.neg()

    def gradients(self, probs, grad, alpha):
        return grad.neg(), None


def of_a_step(cls, layers=2, **changes):
    """Operations of one decoder step, forward and backward: what a sixth step adds."""
    counts = []
    for steps in (5, 6):
        decoder = cls.from_opt(options(dec_layers=layers, dropout=[0.3], **changes), Embeddings(EMBEDDING, VOCAB, 1))
        decoder.to("meta")
        memory = empty(B, S, HIDDEN).requires_grad_()
        decoder.init_state(None, memory, tuple(empty(2 * layers, B, HIDDEN // 2).requires_grad_() for _ in range(2)))
        with Operations() as operations:
            outputs, _ = decoder(empty(B, steps, 1, dtype=torch.int64), memory, src_len=lengths())
            outputs.sum().backward()
        counts.append(sum(operations.count.values()))
    return counts[1] - counts[0]


def test_counts_of_a_decoder_step(monkeypatch):
    """The table of results/speed.md; upper bounds for ours, lower bounds for OpenNMT-py's."""
    found = {alpha: of_a_step(InputFeedDecoder, global_attention_alpha=alpha) for alpha in ALPHAS}
    stock = of_a_step(InputFeedRNNDecoder)
    monkeypatch.setattr(nn.LSTMCell, "forward", fused_forward)
    fused = of_a_step(InputFeedRNNDecoder)
    assert stock >= 120 and fused >= 70
    assert {alpha: count for alpha, count in found.items() if count > BOUNDS[alpha]} == {}
    with using(OneEach()):
        by_kernels = {alpha: of_a_step(InputFeedDecoder, global_attention_alpha=alpha) for alpha in ALPHAS}
    assert set(by_kernels.values()) == {BOUNDS[1.0]}
    monkeypatch.setattr(decoder, "launch", lambda *arguments, **constants: empty(1).neg())
    with engines.using(Gpu()):
        by_kernels = {alpha: of_a_step(InputFeedDecoder, global_attention_alpha=alpha) for alpha in (1.0, 1.33, 2.0)}
        one_layer = of_a_step(InputFeedDecoder, layers=1)
    assert set(by_kernels.values()) == {BY_KERNELS} and fused >= 2 * BY_KERNELS
    assert one_layer == BY_KERNELS - 4  # of each layer a product and a kernel, each way
