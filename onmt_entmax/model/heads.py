"""The mapping of a Transformer's attention scores, one alpha for all heads or one for each.

Letters: B sentences, H heads, Q queries, K keys.
"""

from __future__ import annotations

from torch import Tensor, nn

from onmt_entmax import engines
from onmt_entmax.entmax import LearnedAlpha, entmax

MASKED = -5e17  # OpenNMT-py writes -1e18 where nothing may be attended to; no score comes near it


class HeadMapping(nn.Module):
    r"""alpha-entmax of each head's scores (Correia, Niculae and Martins 2019), in the place of a softmax.

    Masked entries are left out: their probability is zero, and no sum contains them (a few hundred squares of 1e18
    overflow float32). A row that is masked as a whole, which only a source without tokens has, is zero.

    Args:
        heads: H.
        alpha: at least 1, for all heads; ``"learned"``: a parameter for each head, in (1, 2) by construction.

    Raises:
        ValueError: alpha below 1.
    """

    def __init__(self, heads: int, alpha: float | str) -> None:
        super().__init__()
        self.learned_alpha = LearnedAlpha((heads, 1, 1)) if alpha == "learned" else None
        self.alpha = None if alpha == "learned" else float(alpha)
        if self.alpha is not None and not 1 <= self.alpha < float("inf"):
            raise ValueError(f"Invalid setting for `alpha`: {alpha}. It must be at least 1; 1 is softmax.")

    def extra_repr(self) -> str:
        return f"alpha={'learned' if self.alpha is None else self.alpha}"

    def forward(self, scores: Tensor) -> Tensor:
        """Probabilities over the last dimension of scores ``(B, H, Q, K)``, float32 or more; same shape."""
        alpha = self.alpha if self.learned_alpha is None else self.learned_alpha()
        if self.alpha != 1:
            probs = engines.choose(scores.device, scores.dtype).map_heads(scores, alpha)
            if probs is not None:
                return probs
        hidden = scores <= MASKED
        empty = hidden.all(-1, keepdim=True)
        return entmax(scores.masked_fill(hidden & ~empty, -float("inf")), alpha, -1).masked_fill(empty, 0)
