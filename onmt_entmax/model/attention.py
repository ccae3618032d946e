"""Global attention (dot, general, mlp) with any mapping from scores to probabilities.

Same parameters, same names and same initial values as OpenNMT-py's ``GlobalAttention``, so that checkpoints go both
ways; alpha = 1 (softmax) computes what OpenNMT-py computes. Every alpha above 1 gives exact zeros.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from onmt_entmax.engines.ragged import shortest_source
from onmt_entmax.entmax import entmax

ATTENTION_TYPES = ("dot", "general", "mlp")


class SourceMask(NamedTuple):
    """What may be attended to.

    Attributes:
        padding: True where a position may not be attended to, ``(batch, src_len)``; None if every position may.
            A source without tokens has no True here, so that no row of scores is masked as a whole.
        not_empty: 1 for a source with tokens, else 0, ``(batch, 1)``; None if every source has tokens. Neither is None
            where only the device knows the lengths.
    """

    padding: Tensor | None
    not_empty: Tensor | None

    @classmethod
    def from_lengths(cls, src_len: Tensor | None, max_len: int) -> SourceMask:
        """Build the mask for sources of lengths ``src_len`` ``(batch,)`` padded to ``max_len``."""
        if src_len is None:
            return cls(None, None)
        shortest = shortest_source(src_len, max_len)
        if shortest >= max_len:
            return cls(None, None)
        padding = torch.arange(max_len, device=src_len.device) >= src_len.unsqueeze(1)
        if shortest > 0:
            return cls(padding, None)
        not_empty = (src_len > 0).unsqueeze(1)
        return cls(padding & not_empty, not_empty)

    def hide(self, scores: Tensor) -> Tensor:
        """Scores ``(batch, tgt_len, src_len)``, minus infinity at padding."""
        return scores if self.padding is None else scores.masked_fill(self.padding.unsqueeze(1), -float("inf"))

    def clear(self, probs: Tensor) -> Tensor:
        """Zero the attention ``(batch, tgt_len, src_len)`` of sources without tokens."""
        return probs if self.not_empty is None else probs * self.not_empty.unsqueeze(1).to(probs.dtype)


class GlobalAttention(nn.Module):
    r"""Attend to a memory with one query per target step (Luong et al. 2015; Bahdanau et al. 2015 for mlp).

    Scores are :math:`h^\top q` (dot), :math:`h^\top W q` (general) or :math:`v^\top \tanh(W q + U h)` (mlp); the
    mapping ``entmax(scores, alpha)`` turns them into probabilities p; the output is
    :math:`\tanh(W_o [\sum_j p_j h_j; q])` (mlp: without the tanh).

    Args:
        dim: size of queries and memory.
        coverage: also hold the parameters that add the coverage to the memory.
        attn_type: ``dot``, ``general`` or ``mlp``.
        alpha: at least 1; 1 is softmax, 1.5 is 1.5-entmax, 2 is sparsemax; ``"learned"`` makes it a parameter.

    Raises:
        ValueError: unknown ``attn_type``, or alpha below 1.
    """

    def __init__(self, dim: int, coverage: bool = False, attn_type: str = "dot", alpha: float | str = 1.0) -> None:
        super().__init__()
        if attn_type not in ATTENTION_TYPES:
            raise ValueError(
                f"Invalid setting for `global_attention`: {attn_type}. Valid choices: {', '.join(ATTENTION_TYPES)}."
            )
        self.dim = dim
        self.attn_type = attn_type
        if attn_type == "general":
            self.linear_in = nn.Linear(dim, dim, bias=False)
        elif attn_type == "mlp":
            self.linear_context = nn.Linear(dim, dim, bias=False)
            self.linear_query = nn.Linear(dim, dim, bias=True)
            self.v = nn.Linear(dim, 1, bias=False)
        self.linear_out = nn.Linear(dim * 2, dim, bias=attn_type == "mlp")
        if coverage:
            self.linear_cover = nn.Linear(1, dim, bias=False)
        self._set_alpha(alpha)

    def _set_alpha(self, alpha: float | str) -> None:
        self.learned_alpha = None
        if alpha == "learned":
            from onmt_entmax.entmax import LearnedAlpha

            self.learned_alpha = LearnedAlpha()
            self.alpha = None
            return
        try:
            self.alpha = float(alpha)
        except ValueError:
            self.alpha = 0.0
        if not 1.0 <= self.alpha < float("inf"):
            raise ValueError(
                f"Invalid setting for `global_attention_alpha`: {alpha}. "
                "It must be at least 1 (1 is softmax, 2 is sparsemax), or `learned`."
            )

    def extra_repr(self) -> str:
        return f"attn_type={self.attn_type}, alpha={'learned' if self.alpha is None else self.alpha}"

    def map_scores(self, scores: Tensor) -> Tensor:
        """Turn scores into probabilities over the last dimension; same shape."""
        if self.learned_alpha is not None:
            return entmax(scores, self.learned_alpha(), dim=-1)
        if self.alpha == 1.0:
            return torch.softmax(scores, dim=-1)
        return entmax(scores, self.alpha, dim=-1)

    def keys(self, memory: Tensor) -> Tensor:
        """What of the memory ``(batch, src_len, dim)`` queries are compared with, the same for all steps."""
        return self.linear_context(memory) if self.attn_type == "mlp" else memory

    def score(self, query: Tensor, keys: Tensor) -> Tensor:
        """Scores ``(batch, tgt_len, src_len)`` of queries ``(batch, tgt_len, dim)`` and the keys of :meth:`keys`."""
        if self.attn_type == "mlp":
            query = self.linear_query(query).unsqueeze(2)
            hidden = torch.tanh(query + keys.unsqueeze(1))  # (batch, tgt_len, src_len, dim)
            return self.v(hidden).squeeze(-1)
        query = self.linear_in(query) if self.attn_type == "general" else query
        return torch.bmm(query, keys.transpose(1, 2))

    def attend(self, query: Tensor, memory: Tensor, keys: Tensor, mask: SourceMask) -> tuple[Tensor, Tensor]:
        """Like :meth:`forward`, for three-dimensional queries, with keys and mask prepared."""
        probs = mask.clear(self.map_scores(mask.hide(self.score(query, keys))))  # (batch, tgt_len, src_len)
        context = torch.bmm(probs.to(memory.dtype), memory)  # (batch, tgt_len, dim)
        output = self.linear_out(torch.cat([context, query], 2))
        return (output if self.attn_type == "mlp" else torch.tanh(output)), probs

    def forward(
        self, query: Tensor, memory: Tensor, src_len: Tensor | None = None, coverage: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attend from each query to the memory.

        Args:
            query: ``(batch, tgt_len, dim)``, or ``(batch, dim)`` for one step.
            memory: encoder output, ``(batch, src_len, dim)``; not changed.
            src_len: lengths ``(batch,)``; positions beyond get probability zero. A source of length 0 gets zero
                attention everywhere, and so a zero context. None: every position counts.
            coverage: attention so far, ``(batch, src_len)``; None leaves it out.

        Returns:
            The attentional output, shape of ``query``, and the probabilities ``(batch, tgt_len, src_len)`` or
            ``(batch, src_len)``.
        """
        one_step = query.dim() == 2
        if one_step:
            query = query.unsqueeze(1)
        if coverage is not None:
            memory = torch.tanh(memory + self.linear_cover(coverage.unsqueeze(-1)))
        mask = SourceMask.from_lengths(src_len, memory.size(1))
        output, probs = self.attend(query, memory, self.keys(memory), mask)
        return (output.squeeze(1), probs.squeeze(1)) if one_step else (output, probs)
