"""The recurrent encoder: embeddings, recurrent layers in one or both directions, and a bridge to the decoder.

Letters: B sentences, S source positions, E embedding size, H hidden units, L layers, D directions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from onmt_entmax import engines
from onmt_entmax.entmax.engine import on_host


class Encoder(nn.Module):
    """Encodes sentences of different lengths; padding has no influence.

    Args:
        embeddings: module from tokens ``(B, S, features)`` to ``(B, S, E)``.
        rnn: ``nn.LSTM`` or other layers, batch first, H / D units per direction.
        bridge: also map the last states through a linear layer, from all layers of one direction to as many numbers.
        packs: whether ``rnn`` takes packed sequences; if not, it reads padding.
    """

    def __init__(self, embeddings: nn.Module, rnn: nn.Module, bridge: bool = False, packs: bool = True) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.rnn = rnn
        self.packs = packs
        self.bridge = None
        if bridge:
            size = rnn.hidden_size * rnn.num_layers
            states = 2 if isinstance(rnn, nn.LSTM) else 1
            self.bridge = nn.ModuleList(nn.Linear(size, size) for _ in range(states))

    def forward(self, src: Tensor, src_len: Tensor | None = None):
        """Encode source tokens ``(B, S, features)`` of lengths ``(B,)``.

        Returns:
            Memory ``(B, longest, H)``, zero at padding; the last states, ``(L * D, B, H / D)``, a tuple for LSTM; and
            ``src_len``.
        """
        emb = self.embeddings(src)  # (B, S, E)
        engine = engines.choose(emb.device, engines.computing_dtype(emb))
        found = engine.encode(self.rnn, emb, src_len)
        if found is not None:
            memory, final = found
        elif src_len is None or not self.packs:
            memory, final = self.rnn(emb)
        else:
            memory, final = self._packed(emb, on_host(src_len).view(-1))
        if self.bridge is not None:
            states = final if isinstance(final, tuple) else (final,)
            states = tuple(_cross(linear, state) for linear, state in zip(self.bridge, states))
            final = states if isinstance(final, tuple) else states[0]
        return memory, final, src_len

    def _packed(self, emb: Tensor, lengths: Tensor) -> tuple:
        """Memory and last states of embeddings ``(B, S, E)``, lengths ``(B,)`` on the CPU; no device is waited for.

        PyTorch's own sorting would wait: it asks the device for the order that it has sent there.
        """
        lengths, order = lengths.sort(descending=True, stable=True)
        back = order.argsort().to(emb.device, non_blocking=True)
        emb = emb.index_select(0, order.to(emb.device, non_blocking=True))
        packed, final = self.rnn(pack_padded_sequence(emb, lengths, batch_first=True))
        memory, _ = pad_packed_sequence(packed, batch_first=True)
        return memory.index_select(0, back), _reordered(final, back)


def _reordered(states: Tensor | tuple[Tensor, ...], order: Tensor):
    """Last states ``(L * D, B, H / D)`` with their sentences in another order."""
    if isinstance(states, tuple):
        return tuple(state.index_select(1, order) for state in states)
    return states.index_select(1, order)


def _cross(linear: nn.Linear, state: Tensor) -> Tensor:
    """A linear layer and a ReLU for a last state ``(L * D, B, H / D)``; same shape."""
    sentences = state.transpose(0, 1)  # (B, L * D, H / D)
    crossed = torch.relu(linear(sentences.reshape(-1, linear.in_features)))
    return crossed.view(sentences.shape).transpose(0, 1).contiguous()
