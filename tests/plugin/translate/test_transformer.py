"""Steps of Transformers in search: what prefixes share is held once, and distributions are those of whole passes."""

from __future__ import annotations

import pytest
import torch

from onmt_entmax.plugin.translate import transformer
from onmt_entmax.plugin.translate.scorers import PrefixScorer, TransformerScorer, stepping_scorer
from tests.plugin.test_heads import ALL, KINDS, build

MORE = {
    **KINDS,
    "window": ("-position_encoding", "-sliding_window", "2"),
    "parallel residual": ("-position_encoding", "-parallel_residual"),
    "experts": ("-position_encoding", "-num_experts", "2", "-num_experts_per_tok", "1"),
}
SOURCE, LENGTHS = torch.tensor([[4, 5, 6, 7], [8, 9, 0, 0], [5, 0, 0, 0]]).unsqueeze(-1), torch.tensor([4, 2, 1])


def walk(scorer) -> list[torch.Tensor]:
    """Log-probabilities and attention of steps whose rows branch, are reordered, and leave a sentence out."""
    states, found = scorer.start(), []
    # tokens, sentences, and the row of the step before that each continues (None: all, in order)
    moves = [
        ([2, 2, 2], [0, 1, 2], None),
        ([4, 5, 6, 7], [0, 0, 1, 2], [0, 0, 1, 2]),
        ([5, 4, 9, 8, 8], [0, 0, 0, 2, 2], [1, 1, 0, 3, 3]),
        ([6, 7, 4], [0, 0, 2], [2, 0, 4]),
        ([9, 9], [0, 2], [1, 2]),
    ]
    with torch.no_grad():
        for tokens, sentences, parents in moves:
            given = [torch.tensor(part) if part else None for part in (tokens, sentences, parents)]
            if len(found) == 6:
                scorer.drop_finished([0, 2])
            step = scorer.step(given[0], states, given[1], given[2])
            states = step.states
            found += [step.log_probs, step.attention]
    return found


@pytest.mark.filterwarnings("ignore:torch.utils.checkpoint", "ignore:None of the inputs")
@pytest.mark.parametrize("alphas", [(), ALL])
@pytest.mark.parametrize("kind", MORE)
@pytest.mark.parametrize("most", [1 << 30, 900])  # fewer tokens than the walk has: some are computed again
def test_steps_are_those_of_whole_prefixes(kind, alphas, most, monkeypatch):
    monkeypatch.setattr(transformer, "MOST_BYTES", most)
    model, _ = build(*MORE[kind], *alphas)
    model.eval()
    assert stepping_scorer(model) is TransformerScorer
    with torch.no_grad():
        scorers = [make(model, SOURCE, LENGTHS) for make in (TransformerScorer, PrefixScorer)]
    for _ in range(2):  # starting again forgets the first
        for ours, whole in zip(*map(walk, scorers)):
            torch.testing.assert_close(ours, whole, rtol=1e-4, atol=1e-5)
    again = scorers[0].view.store.first > 0
    assert again == (most == 900), "the limit decides nothing: the test is idle"


def test_the_memory_is_held_once_for_each_sentence():
    model, _ = build("-position_encoding", *ALL)
    with torch.no_grad():
        scorer = TransformerScorer(model.eval(), SOURCE, LENGTHS)
        rows = torch.tensor([0] * 50 + [2])
        states = tuple(state.index_select(0, rows) for state in scorer.start())
        output = scorer.step(torch.full((51,), 2), states, rows)
    assert [part.shape for part in scorer.view.context[0]] == [(3, 2, 4, 4)] * 2
    assert [part.shape for part in output.states] == [(51, 1)] * 2  # all that search copies
    torch.testing.assert_close(output.log_probs[:50], output.log_probs[:1].expand(50, -1))


@pytest.mark.parametrize("words", [("-self_attn_type", "average"), ("-decoder_type", "cnn", "-encoder_type", "cnn")])
def test_other_decoders_are_stepped_as_before(words):
    kinds = {"-decoder_type", "-position_encoding"} & set(words)
    model, _ = build(*(() if kinds else ("-position_encoding",)), *words)
    assert stepping_scorer(model) is None
