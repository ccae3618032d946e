"""Small models driven by tables, and the enumeration of every string that they can produce."""

from __future__ import annotations

import math

import torch

from onmt_entmax.search.paths import select_rows
from onmt_entmax.search.scorer import StepOutput

START, EOS = 0, 1


def random_tables(seed, vocab_size, kind="sparse", states=61, dtype=torch.float64, end=1.0):
    """Next-token distributions ``(states, vocab_size)``.

    Kinds: ``sparse`` (a random number of zeros), ``peaked`` (mostly one token, so that few strings exist), ``dense``
    (no zeros), ``ties`` (sparse, multiples of 1/8, some of them off by 1e-7). BOS is an ordinary token. ``end`` weighs
    EOS.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(states, vocab_size, generator=generator, dtype=torch.float64) ** 2 + 0.01
    if kind != "dense":
        order = torch.rand(states, vocab_size, generator=generator).argsort(1)
        sizes = torch.randint(1, min(4, vocab_size) + 1, (states, 1), generator=generator)
        if kind == "peaked":
            sizes = (sizes - 2).clamp(min=1)
        weights[order >= sizes] = 0
    weights[:, EOS] *= end
    stuck = weights.sum(1) == 0
    weights[stuck, EOS] = 1
    if kind == "ties":
        # largest-remainder rounding is not needed: the support shares eighths evenly, EOS takes what is left over
        support = (weights > 0).double()
        weights = (8 / support.sum(1, keepdim=True)).floor() * support
        weights[torch.arange(states), support.argmax(1)] += 8 - weights.sum(1)
        shift = 1e-7 * torch.randint(-1, 2, weights.shape, generator=generator)
        weights = weights + shift * support
    return (weights / weights.sum(1, keepdim=True)).to(dtype).log()


class TableScorer:
    """A scorer whose next-token distribution depends on the whole prefix, by a hash, and on the sentence.

    ``attention`` of a row is a fixed function of the hash, with zeros; ``log`` keeps the sizes of all steps.
    """

    def __init__(self, tables, batch_size=1, mixed_lengths=True, first_sentence=0, src_len=3):
        self.tables = tables
        self.vocab_size = tables.size(1)
        self.batch_size = batch_size
        self.device = torch.device("cpu")
        self.dtype = str(tables.dtype).replace("torch.", "")
        self.mixed_lengths = mixed_lengths
        self.first = first_sentence
        self.src_len = src_len
        self.rows = []
        self.in_memory = set(range(batch_size))

    def start(self):
        self.in_memory = set(range(self.batch_size))
        sentences = torch.arange(self.first, self.first + self.batch_size)
        return (sentences * 7919 + 13, torch.zeros(self.batch_size, 2, dtype=torch.long))

    def drop_finished(self, sentences):
        assert list(sentences) == sorted(sentences) and set(sentences) <= self.in_memory
        self.in_memory = set(sentences)

    def step(self, tokens, states, sentences, parents=None, best=None):
        assert set(sentences.tolist()) <= self.in_memory
        hashes, lengths = states if parents is None else select_rows(states, parents)
        assert hashes.shape == tokens.shape == sentences.shape and len(lengths) == len(hashes)
        if not self.mixed_lengths:
            assert len(lengths[:, 0].unique()) == 1
        assert (sentences.diff() >= 0).all()
        self.rows.append(len(tokens))
        hashes = (hashes * 31 + tokens * 17 + 5) % 1_000_003
        attention = ((hashes.unsqueeze(1) * torch.arange(1, self.src_len + 1)) % 5).double()
        attention[:, 0] += 1
        attention = attention / attention.sum(1, keepdim=True)
        log_probs, states = self.tables[hashes % len(self.tables)].clone(), (hashes, lengths + 1)
        if best is None:
            return StepOutput(log_probs, states, attention)
        values, types = log_probs.topk(best, -1)
        return StepOutput(values, states, attention, types)


def enumerate_strings(scorer, max_length, prefix=()):
    """Every string of non-zero probability, sentence by sentence, one level of the tree at a time.

    Returns:
        Per sentence two dicts from tokens to log-probability: the strings that end, EOS not included, and the
        prefixes that ``max_length`` tokens (EOS counts, the forced prefix does not) cut.
    """
    outcomes = []
    for sentence in range(scorer.batch_size):
        finished = {}
        states = tuple(part[sentence : sentence + 1] for part in scorer.start())
        live = [((), 0.0)]
        last = torch.tensor([START])
        for step in range(max_length + len(prefix)):
            output = scorer.step(last, states, torch.full_like(last, sentence))
            grown, parents, tokens = [], [], []
            for row, (string, total) in enumerate(live):
                for token, log_prob in enumerate(output.log_probs[row].double().clamp(max=0).tolist()):
                    if log_prob == -math.inf or (step < len(prefix) and token != prefix[step]):
                        continue
                    if token == EOS:
                        finished[string] = total + log_prob
                    else:
                        grown.append(((*string, token), total + log_prob))
                        parents.append(row)
                        tokens.append(token)
            live, last = grown, torch.tensor(tokens, dtype=torch.long)
            if not live:
                break
            states = tuple(part[parents] for part in output.states)
        outcomes.append((finished, dict(live)))
    return outcomes
