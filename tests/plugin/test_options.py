"""Options as stock's parsers read them, with the plugin registered."""

from __future__ import annotations

import onmt.opts
import pytest
from onmt.utils.parse import ArgumentParser

from onmt_entmax.errors import UserError

TRAIN = ["-data", "{}", "-src_vocab", "v"]


def train_parser() -> ArgumentParser:
    parser = ArgumentParser()
    onmt.opts.train_opts(parser)
    return parser


def model_options(*words: str):
    opt, _ = train_parser().parse_known_args([*TRAIN, *words])
    ArgumentParser.update_model_opts(opt)
    ArgumentParser.validate_model_opts(opt)
    return opt


def test_defaults_are_softmax():
    opt = model_options()
    assert (opt.generator_alpha, opt.global_attention_alpha) == (1.0, 1.0)


@pytest.mark.parametrize(("function", "alpha"), [("entmax15", 1.5), ("sparsemax", 2.0), ("softmax", 1.0)])
def test_functions_resolve(function, alpha):
    opt = model_options("-generator_function", function, "-global_attention_function", function)
    assert (opt.generator_alpha, opt.global_attention_alpha) == (alpha, alpha)


def test_an_alpha_alone_means_entmax():
    opt = model_options("-generator_alpha", "1.33")
    assert (opt.generator_function, opt.generator_alpha, opt.global_attention_alpha) == ("entmax", 1.33, 1.0)
    with pytest.raises(UserError, match="`generator_alpha`: 1.33. `generator_function` is softmax"):
        model_options("-generator_alpha", "1.33", "-generator_function", "softmax")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["-decoder_type", "transformer", "-encoder_type", "transformer"], "decoder_type"),
        (["-global_attention", "none"], "global_attention"),
        (["-save_format", "safetensors"], "save_format"),
    ],
)
def test_what_sparse_attention_cannot_do_is_refused_by_name(words, name):
    with pytest.raises(UserError, match=name):
        model_options("-global_attention_function", "entmax15", *words)


TRANSFORMER = ["-decoder_type", "transformer", "-encoder_type", "transformer"]


@pytest.mark.parametrize(
    ("words", "name"),
    [(["-lm_prior_model", "lm.pt"], "lm_prior_model")],
)
def test_what_sparse_output_cannot_do_is_refused_by_name(words, name):
    with pytest.raises(UserError, match=rf"`{name}`.*`generator_alpha` is 1\.5"):
        model_options("-generator_function", "entmax15", *words)


@pytest.mark.parametrize("words", [[], TRANSFORMER])
def test_copy_attention_is_refused_by_name(words):
    with pytest.raises(UserError, match="`copy_attn`: True. OpenNMT-py 3.5 can neither load nor decode"):
        model_options("-copy_attn", *words)


def test_transformer_takes_a_sparse_output_layer():
    opt = model_options(
        "-decoder_type", "transformer", "-encoder_type", "transformer", "-generator_function", "entmax15"
    )
    assert opt.generator_alpha == 1.5


def test_unknown_key_in_a_training_yaml_names_the_nearest(tmp_path):
    config = tmp_path / "train.yaml"
    config.write_text("data: {}\nsrc_vocab: v\nhiden_size: 3\n", encoding="utf-8")
    with pytest.raises(UserError, match="Unknown option `hiden_size`.*Did you mean `hidden_size`"):
        train_parser().parse_known_args(["-config", str(config)])


def test_keys_of_other_stock_commands_in_a_training_yaml_are_fine(tmp_path):
    config = tmp_path / "all.yaml"
    config.write_text("data: {}\nsrc_vocab: v\nn_sample: 0\nnum_threads: 2\nbeam_size: 3\n", encoding="utf-8")
    opt, _ = train_parser().parse_known_args(["-config", str(config)])
    assert opt.src_vocab == "v"


def test_stock_abbreviations_stay_unambiguous():
    # both abbreviate one stock option; ours (`generator_alpha`, `max_expansions`) start with the same letters
    opt, _ = train_parser().parse_known_args([*TRAIN, "-generator", "sparsemax"])
    assert opt.generator_function == "sparsemax"


def test_an_odd_size_cannot_be_halved():
    with pytest.raises(UserError, match="`hidden_size`: 15. It must be even"):
        model_options("-encoder_type", "brnn", "-hidden_size", "15")
