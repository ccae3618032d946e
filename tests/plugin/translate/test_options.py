"""Options of decoding, as stock's parser reads them: defaults, contradictions, and those that would do nothing."""

from __future__ import annotations

import logging
import os

import onmt.opts
import pytest
from onmt.utils.parse import ArgumentParser

from onmt_entmax.errors import UserError
from onmt_entmax.plugin.parsing import is_unset
from onmt_entmax.plugin.translate.options import without_effect


def translate_options(*words: str):
    parser = ArgumentParser()
    onmt.opts.translate_opts(parser)
    opt = parser.parse_args(["-model", "m.pt", "-src", "s", *words])
    ArgumentParser.validate_translate_opts(opt)
    return opt


def test_certificates_unset_the_penalties_that_would_void_them():
    opt = translate_options("-certificates", "c.jsonl")
    assert (opt.length_penalty, opt.max_length_ratio) == ("none", 0.0)
    opt = translate_options("-certificates", "c.jsonl", "-length_penalty", "avg", "-max_length_ratio", "1.25")
    assert (opt.length_penalty, opt.max_length_ratio) == ("avg", 1.25)
    opt = translate_options()
    assert (opt.length_penalty, opt.max_length_ratio) == ("avg", 1.25)
    assert is_unset(opt.length_penalty) and is_unset(opt.max_length_ratio)


def test_minimum_risk_unsets_the_penalties_too():
    opt = translate_options("-decision", "mbr")
    assert (opt.length_penalty, opt.max_length_ratio) == ("none", 0.0)


def test_our_options_may_be_abbreviated_too():
    assert translate_options("-cert", "c.jsonl").certificates == "c.jsonl"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["-n_best", "5", "-beam_size", "3"], ("`n_best`: 5", "`beam_size`, which is 3")),
        (["-beam_size", "0"], ("`beam_size`: 0",)),
        (["-batch_size", "0"], ("`batch_size`: 0",)),
        (["-ratio", "-1"], ("`ratio`: -1.0",)),
        (["-max_length_ratio", "-1"], ("`max_length_ratio`: -1.0", "at least 0")),
        (["-alpha", "nan", "-length_penalty", "wu"], ("`alpha`: nan", "finite")),
        (["-beta", "inf"], ("`beta`: inf", "finite")),
        (["-search", "exact", "-length_penalty", "avg"], ("`length_penalty`: avg", "`search` exact")),
        (["-search", "exact", "-random_sampling_topk", "3"], ("`random_sampling_topk`: 3",)),
        (["-search", "exact", "-ratio", "1"], ("`ratio`: 1.0. `search` exact needs 0",)),
        (["-random_sampling_topk", "3", "-random_sampling_temp", "-1"], ("`random_sampling_temp`: -1.0", "at least 0")),
        (["-max_expansions", "0"], ("`max_expansions`: 0",)),
        (["-decision", "mbr", "-length_penalty", "avg"], ("`length_penalty`: avg", "`decision` mbr needs none")),
        (["-decision", "mbr", "-coverage_penalty", "wu"], ("`coverage_penalty`: wu", "`decision` mbr")),
        (["-decision", "mbr", "-ratio", "1"], ("`ratio`: 1.0", "`decision` mbr")),
        (["-decision", "mbr", "-beam_size", "1"], ("`beam_size`: 1", "at least 2")),
        (["-decision", "mbr", "-random_sampling_topk", "1"], ("`random_sampling_topk`: 1", "all the same")),
        (
            ["-decision", "mbr", "-random_sampling_topk", "-1", "-random_sampling_temp", "0"],
            ("`random_sampling_temp`: 0.0", "all the same"),
        ),
        (["-min_length", "9", "-max_length", "8"], ("`min_length`: 9", "at most `max_length`, 8")),
        (["-max_length", "0"], ("`max_length`: 0",)),
        (["-random_sampling_topp", "1.5"], ("`random_sampling_topp`: 1.5", "[0, 1]")),
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


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("models", ["-model", "{}/in"]),
        ("phrase_table", ["-replace_unk", "-phrase_table", "{}/in"]),
        ("src_subword_model", ["-transforms", "bpe", "-src_subword_model", "{}/in", "-tgt_subword_model", "{}/in"]),
    ],
)
def test_no_output_is_an_input(tmp_path, setting, words):
    (tmp_path / "in").write_text("a b", encoding="utf-8")
    os.link(tmp_path / "in", tmp_path / "same")
    words = [word.replace("{}", str(tmp_path)) for word in words]
    for output in ("in", "same"):
        with pytest.raises(UserError, match=f"`output`: .*{output}. It is the input of `{setting}`"):
            translate_options(*words, "-output", str(tmp_path / output))


def test_devices_may_be_named_twice():
    opt = translate_options("-output", "/dev/null", "-certificates", "/dev/null", "-attention", "/dev/null")
    assert opt.output == opt.certificates == "/dev/null"


@pytest.mark.parametrize("name", ["src", "tgt"])
def test_a_pipe_cannot_be_read_twice(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=f"`{name}`: .*pipe. It is read twice"):
        translate_options(f"-{name}", str(tmp_path / "pipe"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-dump_beam", "b"], "`dump_beam`: b. OpenNMT-py 3.5 writes nothing there"),
        (["-precision", "int8"], "`precision`: int8. OpenNMT-py 3.5 decodes in float32"),
        (["-data_type", "audio"], "`data_type`: audio. Valid choices: text"),
        (["-attention", "-"], "`attention`: -. A file is needed"),
        (["-transforms", "clean"], "`transforms`: clean. It has settings for training"),
        (["-transforms", "bpe"], "`src_subword_model`: None. `transforms` has bpe"),
        (["-log_file", "none/l"], "`log_file`: none/l. The folder none does not exist"),
        (["-src_subword_model", "none", "-transforms", "onmt_tokenize"], "`src_subword_model`: none. There is no such"),
        (["-phrase_table", "none"], "`phrase_table`: none. There is no such file"),
    ],
)
def test_what_would_do_nothing_is_refused(words, message):
    with pytest.raises(UserError, match=message):
        translate_options(*words)


@pytest.mark.parametrize("words", [["-gpu", "0"], ["-gpu_ranks", "0"], ["-world_size", "2"]])
def test_gpus_that_are_not_there_are_refused_by_name(monkeypatch, words):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match=f"`{words[0][1:]}`: .*torch sees no CUDA device"):
        translate_options(*words)


@pytest.mark.parametrize(
    ("words", "sentences"),
    [
        ([], []),
        (["-max_expansions", "9"], ["`max_expansions` 9 has no effect: `search` is beam."]),
        (["-max_expansions", "9", "-search", "exact"], []),
        (["-mbr_utility", "edit"], ["`mbr_utility` edit has no effect: `decision` is map."]),
        (["-mbr_utility", "edit", "-decision", "mbr"], []),
        (["-beta", "0.2"], ["`beta` 0.2 has no effect: `coverage_penalty` is none."]),
        (["-coverage_penalty", "wu"], ["`coverage_penalty` wu has no effect: `beta` is 0."]),
        (["-coverage_penalty", "wu", "-beta", "0.2", "-stepwise_penalty"], []),
        (["-stepwise_penalty"], ["`stepwise_penalty` True has no effect: there is no coverage penalty."]),
        (["-alpha", "0.6", "-length_penalty", "none"], ["`alpha` 0.6 has no effect: `length_penalty` is none."]),
        (["-alpha", "0.6", "-search", "exact"], ["`alpha` 0.6 has no effect: `length_penalty` is none."]),
        (["-alpha", "0.6"], []),  # stock's default penalty is avg
        (["-random_sampling_temp", "2"], ["`random_sampling_temp` 2.0 has no effect: nothing is sampled."]),
        (["-random_sampling_temp", "2", "-random_sampling_topk", "-1"], []),
        (
            ["-random_sampling_topk", "1", "-random_sampling_topp", "0.5", "-ratio", "1"],
            [
                "`ratio` 1.0 has no effect: outputs are sampled.",
                "`random_sampling_topp` 0.5 has no effect: `random_sampling_topk` 1 takes the most probable token.",
            ],
        ),
        (["-ignore_when_blocking", "."], ["`ignore_when_blocking` ['.'] has no effect: `block_ngram_repeat` is 0."]),
        (["-align_debug"], ["`align_debug` True has no effect: `report_align` is not set."]),
        (["-avg_raw_probs"], ["`avg_raw_probs` True has no effect: there is one model."]),
        (["-avg_raw_probs", "-model", "m.pt", "n.pt"], []),
        (["-src_feats_defaults", "X"], ["`src_feats_defaults` X has no effect: `n_src_feats` is 0."]),
        (["-quant_layers", "l"], ["`quant_layers` ['l'] has no effect: `quant_type` is not set."]),
        (["-src_prefix", "a"], ["`src_prefix` a has no effect: `transforms` has no prefix."]),
        (["-src_prefix", "a", "-transforms", "prefix"], []),
        (["-src_seq_length", "9"], ["`src_seq_length` 9 has no effect: `transforms` has no filtertoolong."]),
    ],
)
def test_options_without_effect_are_named(words, sentences):
    assert without_effect(translate_options(*words)) == sentences


def test_they_are_named_in_the_log(corpus, entmax_model, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("onmt"), "propagate", True)
    corpus.translate(entmax_model, ["a b"], "-max_expansions", "9")
    assert "`max_expansions` 9 has no effect" in caplog.text
    corpus.translate(entmax_model, ["a b"], "-block_ngram_repeat", "2", "-ignore_when_blocking", "a", "Q")
    assert "`ignore_when_blocking`: not in the target vocabulary: Q." in caplog.text
