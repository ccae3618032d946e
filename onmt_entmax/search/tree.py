"""A record of every prefix a search sees, for a picture such as the paper's Fig. 1."""

from __future__ import annotations

import math

from torch import Tensor

from onmt_entmax.search.certificates import TreeNode

# Continuations recorded per prefix: a dense distribution has thousands, and no picture shows them.
TREE_WIDTH = 64


class TreeRecorder:
    """Records the trees of a batch, one step at a time."""

    def __init__(self, batch_size: int, start: int) -> None:
        self.trees = [[TreeNode(None, start, 0.0, "live")] for _ in range(batch_size)]
        self._rows = [0] * batch_size  # node of each row fed in the coming step
        self._children: dict[tuple[int, int], int] = {}
        self._sentences: list[int] = []

    def expand(self, sentences: list[int], scores: Tensor, tokens: Tensor) -> None:
        """Add the continuations of every row, as dropped until :meth:`mark` says otherwise.

        Args:
            sentences: of each row.
            scores: log-probabilities of the continued prefixes, ``(rows, k)``.
            tokens: their last tokens, ``(rows, k)``.
        """
        self._children = {}
        self._sentences = sentences
        for row, (row_scores, row_tokens) in enumerate(zip(scores.tolist(), tokens.tolist())):
            tree = self.trees[sentences[row]]
            for score, token in zip(row_scores, row_tokens):
                if score > -math.inf:
                    self._children[row, token] = len(tree)
                    tree.append(TreeNode(self._rows[row], token, score, "dropped"))

    def mark(self, row: int, token: int, status: str) -> None:
        """Set what became of the continuation of a row by a token."""
        self.trees[self._sentences[row]][self._children[row, token]].status = status

    def advance(self, parents: list[int], tokens: list[int]) -> None:
        """Name the rows of the next step by the row and token they come from."""
        self._rows = [self._children[pair] for pair in zip(parents, tokens)]
        for row, parent in zip(self._rows, parents):
            self.trees[self._sentences[parent]][row].status = "live"
