"""A model that is a table: from a prefix to the probabilities of what follows."""

from __future__ import annotations

import math

import torch

from onmt_entmax.inspect.session import Session
from onmt_entmax.search.scorer import StepOutput

SPECIAL = ["<unk>", "<blank>", "<s>", "</s>"]
START, EOS = 2, 3


class Table:
    """A scorer of one sentence. Prefixes that the table lacks end at once.

    Args:
        tokens: besides the special ones.
        table: from the text of a prefix (tokens separated by blanks) to tokens with probabilities.
        mixed_lengths: see ``Scorer``.
    """

    batch_size, dtype, device = 1, "float64", torch.device("cpu")

    def __init__(self, tokens, table, mixed_lengths=True):
        self.tokens = [*SPECIAL, *tokens]
        self.vocab_size, self.mixed_lengths = len(self.tokens), mixed_lengths
        self.table, self.calls = table, []

    def start(self):
        return (torch.full((1, 9), -1),)

    def drop_finished(self, sentences):
        pass

    def step(self, tokens, states, sentences, parents=None, best=None):
        (rows,) = states if parents is None else (states[0][parents],)
        assert len(rows) == len(tokens) == len(sentences)
        rows = torch.cat([rows[:, 1:], tokens.unsqueeze(1)], 1)
        log_probs = torch.full((len(rows), self.vocab_size), -math.inf, dtype=torch.float64)
        for row, log_prob in zip(rows.tolist(), log_probs):
            prefix = " ".join(self.tokens[token] for token in row if token >= 0 and token != START)
            self.calls.append(prefix)
            for token, prob in self.table.get(prefix, {"</s>": 1.0}).items():
                log_prob[self.tokens.index(token)] = math.log(prob)
        if best is None:
            return StepOutput(log_probs, (rows,))
        values, types = log_probs.topk(min(best, self.vocab_size), -1)
        return StepOutput(values, (rows,), None, types)

    def ids(self, tokens):
        return [self.tokens.index(token) if token in self.tokens else 0 for token in tokens]

    def session(self, wanted=lambda: None):
        return Session(self, START, EOS, wanted)
