"""Options as stock's parsers read them, with the plugin registered."""

from __future__ import annotations

import os

import onmt.opts
import pytest
from onmt.utils.parse import ArgumentParser

from onmt_entmax.errors import UserError
from onmt_entmax.plugin.options import is_unset

TRAIN = ["-data", "{}", "-src_vocab", "v"]


def train_parser() -> ArgumentParser:
    parser = ArgumentParser()
    onmt.opts.train_opts(parser)
    return parser


def translate_options(*words: str):
    parser = ArgumentParser()
    onmt.opts.translate_opts(parser)
    opt = parser.parse_args(["-model", "m.pt", "-src", "s", *words])
    ArgumentParser.validate_translate_opts(opt)
    return opt


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
    [(["-copy_attn", *TRANSFORMER], "copy_attn"), (["-lm_prior_model", "lm.pt"], "lm_prior_model")],
)
def test_what_sparse_output_cannot_do_is_refused_by_name(words, name):
    with pytest.raises(UserError, match=rf"`{name}`.*`generator_alpha` is 1\.5"):
        model_options("-generator_function", "entmax15", *words)


def test_copy_attention_of_recurrent_models_is_refused_by_name():
    with pytest.raises(UserError, match="`copy_attn`: True. OpenNMT-py 3.5 cannot load"):
        model_options("-copy_attn")


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
    assert translate_options("-cert", "c.jsonl").certificates == "c.jsonl"


def test_certificates_unset_the_penalties_that_would_void_them():
    opt = translate_options("-certificates", "c.jsonl")
    assert (opt.length_penalty, opt.max_length_ratio) == ("none", 0.0)
    opt = translate_options("-certificates", "c.jsonl", "-length_penalty", "avg", "-max_length_ratio", "1.25")
    assert (opt.length_penalty, opt.max_length_ratio) == ("avg", 1.25)
    opt = translate_options()
    assert (opt.length_penalty, opt.max_length_ratio) == ("avg", 1.25)
    assert is_unset(opt.length_penalty) and is_unset(opt.max_length_ratio)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["-n_best", "5", "-beam_size", "3"], ("`n_best`: 5", "`beam_size`, which is 3")),
        (["-beam_size", "0"], ("`beam_size`: 0",)),
        (["-search", "exact", "-length_penalty", "avg"], ("`length_penalty`: avg", "`search: exact`")),
        (["-search", "exact", "-random_sampling_topk", "3"], ("`random_sampling_topk`: 3",)),
        (["-max_expansions", "0"], ("`max_expansions`: 0",)),
    ],
)
def test_decoding_contradictions(words, parts):
    with pytest.raises(UserError) as caught:
        translate_options(*words)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-output", "{}/none/o"], "`output`: .*/none/o. The folder .*/none does not exist"),
        (["-certificates", "{}/none/c"], "`certificates`: .*/none/c. The folder"),
        (["-output", "{}"], "`output`: .*It is a folder"),
        (["-certificates", "{}/c", "-attention", "{}/./c"], "`attention`: .*`certificates` names the same file"),
        (["-src", "{}/s", "-output", "{}/s"], "`output`: .*/s. `src` names the same file"),
        (["-gold_align", "-tgt", "t"], "-report_align should be enabled with -gold_align"),
    ],
)
def test_files_are_checked_before_decoding(tmp_path, words, message):
    with pytest.raises(UserError, match=message):
        translate_options(*(word.replace("{}", str(tmp_path)) for word in words))


def test_devices_may_be_named_twice():
    opt = translate_options("-output", "/dev/null", "-certificates", "/dev/null", "-attention", "-")
    assert opt.output == opt.certificates == "/dev/null"


@pytest.mark.parametrize("name", ["src", "tgt"])
def test_a_pipe_cannot_be_read_twice(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=f"`{name}`: .*pipe. It is read twice"):
        translate_options(f"-{name}", str(tmp_path / "pipe"))


def test_a_gpu_that_is_not_there_is_refused_by_name(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match="`gpu`: 0. torch sees no CUDA device"):
        translate_options("-gpu", "0")


def test_an_odd_size_cannot_be_halved():
    with pytest.raises(UserError, match="`hidden_size`: 15. It must be even"):
        model_options("-encoder_type", "brnn", "-hidden_size", "15")
