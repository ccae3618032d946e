"""Search steps of OpenNMT-py's Transformer decoder for many live prefixes of few sentences.

What a sentence's prefixes share is held once: the keys and values of the source, which the rows of a sentence read side
by side, and those of every token that prefixes have in common. The layers' modules are OpenNMT-py's, so that every kind
of position and head is computed by its code.

Letters: B sentences, R live rows, W rows of the sentence that has most, S source positions, T tokens of a prefix, H
hidden units, K heads of keys and values, D units of a head.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from onmt.decoders.transformer import TransformerDecoder
from onmt.modules import MultiHeadedAttention
from onmt.utils.misc import sequence_mask
from torch import Tensor

from onmt_entmax.engines.stepping import row_places, side_by_side

MOST_BYTES = 1 << 30  # of keys and values of prefixes; beyond, the oldest are computed again where they are needed


def steps_transformer(decoder) -> bool:
    """Whether :class:`TransformerSteps` can step a decoder."""
    if type(decoder) is not TransformerDecoder or decoder._copy:
        return False
    # not average attention, nor kernels that write into the cache
    own = [layer.self_attn for layer in decoder.transformer_layers]
    return all(isinstance(attention, MultiHeadedAttention) and not attention.flash2 for attention in own)


class _Store:
    """Keys and values of tokens in every layer, numbered as they come; the oldest make room where there is no more."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.layers: list[Tensor] = []  # (places, 2, K, D) each
        self.first = self.filled = self.places = 0  # the first number that is still there, the next one, places

    def reserve(self, rows: int, steps: int, like: Callable[[int], list[Tensor]]) -> Tensor:
        """Numbers ``(rows,)`` for one more token of each row; room for them and ``steps`` earlier ones of each.

        Args:
            rows, steps: R and T.
            like: new layers with so many places.
        """
        if not self.layers:
            self.most = self.most_bytes // sum(layer.nbytes for layer in like(1))
        wanted = max(min(self.filled + rows, self.most), rows * (steps + 1))
        if wanted > self.places:
            places = max(wanted, min(2 * self.places, self.most))
            layers = like(places)
            if self.filled <= self.places:
                for old, new in zip(self.layers, layers):
                    new[: self.filled] = old[: self.filled]
            else:
                self.first = self.filled
            self.layers, self.places = layers, places
        self.first = max(self.first, self.filled + rows - self.places)
        return torch.arange(self.filled, self.filled + rows)


class TransformerSteps:
    """See ``model.stepping.SearchSteps``, whose place it takes; rows of one step have prefixes of one length.

    The state of a row: its tokens, and their numbers in the store, ``(R, T)`` each.
    """

    def __init__(self, decoder, memory: Tensor, src_len: Tensor, most_bytes: int | None = None) -> None:
        self.decoder = decoder
        self.hide = sequence_mask(src_len, memory.size(1)).view(-1, 1, 1, memory.size(1))  # (B, 1, 1, S)
        self.context = []  # keys and values of each layer, (B, K, S, D)
        for layer in decoder.transformer_layers:
            given = (part(memory) for part in (layer.context_attn.linear_keys, layer.context_attn.linear_values))
            self.context.append(tuple(_by_head(part, layer.context_attn).contiguous() for part in given))
        self.store = _Store(most_bytes or MOST_BYTES)
        decoder._init_cache(memory)  # moves what rotary positions need to the device

    def start_states(self) -> tuple[Tensor, Tensor]:
        """No token yet, one row for each sentence."""
        nothing = torch.empty(self.hide.size(0), 0, dtype=torch.long, device=self.hide.device)
        return nothing, nothing

    def select(self, sentences: Tensor) -> TransformerSteps:
        """The steps of the given sentences ``(n,)`` only, in that order; the store stays one for both."""
        chosen = object.__new__(TransformerSteps)
        chosen.decoder, chosen.store = self.decoder, self.store
        chosen.hide = self.hide.index_select(0, sentences)
        chosen.context = [tuple(part.index_select(0, sentences) for part in pair) for pair in self.context]
        return chosen

    @torch.no_grad()
    def step(self, tokens: Tensor, states: tuple, sentences: Tensor, parents: Tensor | None = None) -> tuple:
        """See ``model.stepping.SearchSteps.step``."""
        if parents is not None:
            states = tuple(state.index_select(0, parents) for state in states)
        written, numbers = states
        rows, steps = written.shape
        placed = row_places(sentences, self.hide.size(0))
        self.store.reserve(rows, steps, self._layers)
        if self.store.first > 0 and steps and int(numbers.min()) < self.store.first:
            numbers = numbers[:, :0]
            for place in range(steps):
                _, numbers, _ = self._advance(written[:, place], numbers, placed)
        hidden, numbers, attention = self._advance(tokens, numbers, placed)
        return hidden, (torch.cat([written, tokens.unsqueeze(1)], 1), numbers), attention

    def _layers(self, places: int) -> list[Tensor]:
        return [keys.new_empty(places, 2, keys.size(1), keys.size(3)) for keys, _ in self.context]

    def _advance(self, tokens: Tensor, numbers: Tensor, placed: tuple) -> tuple[Tensor, Tensor, Tensor | None]:
        """One token for each row.

        Args:
            tokens: ``(R,)``.
            numbers: of the tokens before, ``(R, T)``.
            placed: see ``row_places``.

        Returns:
            Outputs ``(R, H)``, the numbers ``(R, T + 1)``, and what the last layer's first head attends to ``(R, S)``.
        """
        rows, steps = numbers.shape
        store, device = self.store, tokens.device
        new = store.reserve(rows, steps, self._layers)
        store.filled += rows
        new_places = (new % store.places).to(device)
        x = self.decoder.embeddings(tokens.view(-1, 1, 1), step=steps)  # (R, 1, H)
        attention = None
        for number, layer in enumerate(self.decoder.transformer_layers):
            held = store.layers[number]
            # as in training: itself and so many before
            before = numbers if layer.sliding_window == 0 else numbers[:, max(0, steps - layer.sliding_window) :]
            past = held.index_select(0, (before % store.places).flatten()).view(rows, -1, *held.shape[1:])
            normed = layer.layer_norm_1(x)
            own, _, cache = _attend(layer.self_attn, normed, past.permute(2, 0, 3, 1, 4), steps)
            held.index_copy_(0, new_places, torch.stack([part[:, :, -1] for part in cache], 1))
            if not layer.parallel_residual:
                x = own + x
            query = normed if layer.parallel_residual else layer.layer_norm_2(x)
            found, attention = self._attend_to_source(layer.context_attn, query, self.context[number], placed)
            if layer.parallel_residual:
                x = layer.feed_forward(normed) - normed + x + own + found
            else:
                x = layer.feed_forward(found + x)
        x = self.decoder.layer_norm(x).squeeze(1)
        return x, torch.cat([numbers, new.to(device).unsqueeze(1)], 1), attention

    def _attend_to_source(self, attention, query: Tensor, context: tuple, placed: tuple) -> tuple:
        """What rows ``(R, 1, H)`` find in their sources, and the first head's weights ``(R, S)``."""
        width, places = placed
        batch = self.hide.size(0)
        queries = side_by_side(query.squeeze(1), places, batch, width)  # (B, W, H)
        found, weights, _ = _attend(attention, queries, context, 0, mask=self.hide)
        found, weights = found.reshape(batch * width, 1, -1), weights[:, 0].reshape(batch * width, -1)
        return (found, weights) if places is None else (found.index_select(0, places), weights.index_select(0, places))


def _by_head(x: Tensor, attention) -> Tensor:
    """``(B, S, K * D)`` as ``(B, K, S, D)``."""
    return x.view(*x.shape[:2], -1, attention.dim_per_head).transpose(1, 2)


def _attend(attention, query: Tensor, past, step: int, mask: Tensor | None = None) -> tuple:
    """OpenNMT-py's attention with keys and values ``(B, K, S, D)`` as its cache: output, weights, the cache then."""
    keys, values = past
    attention.layer_cache = (True, {"keys": keys, "values": values})
    # with weights, as fused kernels drop some even in evaluation
    output, weights = attention(query, query, query, mask=mask, step=step, return_attn=True)
    cache = attention.layer_cache[1]
    attention.layer_cache = (False, {"keys": torch.tensor([]), "values": torch.tensor([])})
    return output, weights, (cache["keys"], cache["values"])
