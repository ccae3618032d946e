"""One alpha per place; contradictions are errors that name setting, value and remedy."""

from __future__ import annotations

from argparse import Namespace

import pytest

from onmt_entmax.errors import UserError
from onmt_entmax.plugin.alphas import alpha_of, keep_checkpoint_alphas, resolve_alpha, store_alpha


@pytest.mark.parametrize(
    ("function", "alpha", "expected"),
    [
        ("softmax", None, 1.0),
        ("entmax15", None, 1.5),
        ("sparsemax", None, 2.0),
        ("sparsemax", "2", 2.0),
        ("entmax", "1.33", 1.33),
        ("entmax", 1, 1.0),
        ("entmax15", 1.5, 1.5),
    ],
)
def test_names_and_numbers(function, alpha, expected):
    assert resolve_alpha(function, alpha, "generator") == expected


@pytest.mark.parametrize(
    ("function", "alpha", "part"),
    [
        ("entmax", "0.5", "at least 1"),
        ("entmax", "nan", "at least 1"),
        ("entmax", "inf", "at least 1"),
        ("entmax", "big", "at least 1"),
        ("entmax", None, "needs"),
        ("entmax15", "1.7", "`generator_function` is entmax15, whose alpha is 1.5"),
        ("softmax", "1.5", "`generator_function` is softmax"),
        ("softmin", None, "Valid choices: softmax, sparsemax, entmax15, entmax"),
        ("entmax", "learned", "attention's alpha"),
    ],
)
def test_contradictions_name_setting_and_value(function, alpha, part):
    with pytest.raises(UserError, match="Invalid setting for `generator_") as caught:
        resolve_alpha(function, alpha, "generator")
    assert part in str(caught.value)
    assert str(function if alpha is None or function == "softmin" else alpha) in str(caught.value)


def test_learned_alpha_is_for_the_attention_with_entmax():
    assert resolve_alpha("entmax", "learned", "global_attention") == "learned"
    with pytest.raises(UserError, match="needs `entmax`"):
        resolve_alpha("softmax", "learned", "global_attention")


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0, 3.0, "learned"])
def test_stored_alpha_comes_back(alpha):
    opt = Namespace()
    store_alpha(opt, "global_attention", alpha)
    assert alpha_of(opt, "global_attention") == alpha


def options(function: str, alpha=None) -> Namespace:
    return Namespace(
        generator_function=function,
        generator_alpha=alpha,
        global_attention_function="softmax",
        global_attention_alpha=None,
    )


def test_resuming_without_our_options_keeps_the_checkpoint_alpha():
    opt = options("softmax")
    notes = keep_checkpoint_alphas(opt, options("entmax", 1.3))
    assert alpha_of(opt, "generator") == 1.3
    assert notes == ["generator_alpha 1.3 comes from the checkpoint"]


@pytest.mark.parametrize(("alpha", "expected"), [(None, 1.0), ("1.33", 1.33), (1.5, 1.5)])
def test_a_number_alone_means_entmax(alpha, expected):
    assert resolve_alpha(None, alpha, "generator") == expected


def test_a_softmax_that_was_asked_for_is_refused_in_a_resumed_entmax_run():
    opt = options("softmax")
    with pytest.raises(UserError, match=r"`generator_alpha`: 1\.0\. The checkpoint .* was trained with 1\.5"):
        keep_checkpoint_alphas(opt, options("entmax15"), given={"generator_function"})


def test_resuming_with_another_alpha_is_refused():
    with pytest.raises(UserError, match=r"2\.0\. The checkpoint in `train_from` was trained with 1\.5"):
        keep_checkpoint_alphas(options("sparsemax"), options("entmax15"))


def test_options_of_a_stock_checkpoint_mean_softmax():
    assert alpha_of(Namespace(), "generator") == 1.0
