"""Settings of a search: what is refused, and in which words."""

from __future__ import annotations

import pytest

from onmt_entmax.errors import UserError
from onmt_entmax.search.beam import beam_search
from onmt_entmax.search.settings import SearchSettings
from tests.search.models import EOS, START, TableScorer, random_tables


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam_size": 0, "n_best": 1}, "Invalid setting for `beam_size`: 0. It must be at least 1."),
        ({"n_best": 0}, "Invalid setting for `n_best`: 0. It must be at least 1."),
        ({"beam_size": 3, "n_best": 5}, "Invalid setting for `n_best`: 5. It must be at most `beam_size`, which is 3."),
        ({"max_length": [4, 0]}, "Invalid setting for `max_length`: 0. It must be at least 1 (EOS counts)."),
        ({"min_length": -1}, "Invalid setting for `min_length`: -1. It must be at least 0."),
        ({"length_penalty": "x"}, "Invalid setting for `length_penalty`: x. Valid choices: none, wu, avg."),
        ({"coverage_penalty": "x"}, "Invalid setting for `coverage_penalty`: x. Valid choices: none, wu, summary."),
        ({"banned": [EOS]}, "Invalid setting for `banned`: 1. EOS cannot be banned: nothing would finish."),
        (
            {"forced_prefixes": [[2, EOS]]},
            "Invalid setting for `forced_prefixes`: [2, 1]. A prefix must not contain EOS.",
        ),
    ],
)
def test_wrong_settings(changes, message):
    with pytest.raises(UserError) as error:
        SearchSettings(START, EOS, **changes)
    assert str(error.value) == message


def test_per_sentence_settings_must_match_the_batch():
    with pytest.raises(ValueError, match="`max_length` has 2 entries for 3 sentences"):
        beam_search(TableScorer(random_tables(0, 4), 3), SearchSettings(START, EOS, max_length=[3, 3]))
