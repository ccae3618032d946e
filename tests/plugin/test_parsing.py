"""A mistake in options is one line: setting, value, valid choices, the nearest valid name."""

from __future__ import annotations

import subprocess
import sys

import onmt.opts
import pytest
from onmt.utils.parse import ArgumentParser

from onmt_entmax.errors import UserError
from onmt_entmax.plugin.parsing import given_options

TRAIN = ["-data", "{}", "-src_vocab", "v"]


def parse_train(*words):
    parser = ArgumentParser()
    onmt.opts.train_opts(parser)
    return parser.parse_known_args([*TRAIN, *map(str, words)])[0]


def parse_translate(*words):
    parser = ArgumentParser()
    onmt.opts.translate_opts(parser)
    return parser.parse_args([*map(str, words)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["-decay_method", "valid_los"],
            "Invalid setting for `decay_method`: valid_los. Valid choices: noam, noamwd, rsqrt, none, valid_loss. "
            "Did you mean `valid_loss`?",
        ),
        (["-batch_size", "many"], "Invalid setting for `batch_size`: many. It must be a whole number."),
        (["-learning_rate", "x"], "Invalid setting for `learning_rate`: x. It must be a number."),
        (["-seed"], "Invalid setting for `seed`: expected one argument."),
        (["-sead", "1"], "Unknown option `sead` in the configuration or on the command line. Did you mean `seed`?"),
        # argparse would take it for `-h` with a value
        (["-hiden_size", "1"], "Unknown option `hiden_size`. Did you mean `hidden_size`?"),
        (["-batch_size", "3", "stray"], "What does 'stray' belong to? No option takes it."),
    ],
)
def test_training_mistakes(words, message):
    with pytest.raises(UserError) as caught:
        parse_train(*words)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-model", "m", "-src", "s", "-serch", "exact"], "Unknown option `serch` .* Did you mean `search`"),
        (["-model", "m", "-src", "s", "-search", "exat"], "`search`: exat. Valid choices: beam, exact. Did you mean"),
        (["-beam_size", "3"], "Missing: `model`, `src`."),
    ],
)
def test_decoding_mistakes(words, message):
    with pytest.raises(UserError, match=message):
        parse_translate(*words)


def test_configurations_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError) as caught:
        parse_train("-config", tmp_path / "none.yaml")
    assert str(caught.value) == (
        f"Invalid setting for `config`: {tmp_path}/none.yaml. It cannot be read: No such file or directory."
    )
    broken = tmp_path / "broken.yaml"
    broken.write_text("seed: [1\nbatch_size: 3\n", encoding="utf-8")
    with pytest.raises(UserError, match="line 2, column 11") as caught:
        parse_train("-config", broken)
    assert str(broken) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("seed: 1\nbatch_size: 3\nseed: 2\n", "line 3: the key `seed` is there already, in line 1."),
        ("data:\n  a: {path_src: x}\n  a: {path_src: y}\n", "line 3: the key `a` is there already, in line 2."),
        ("data: [{a: 1, a: 2}]\n", "line 1: the key `a` is there already, in line 1."),
    ],
)
def test_a_key_stands_once(tmp_path, text, rest):
    config = tmp_path / "twice.yaml"
    config.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        parse_train("-config", config)
    assert str(caught.value) == f"{config}, {rest}"


def test_keys_may_repeat_in_different_places(tmp_path):
    config = tmp_path / "once.yaml"
    config.write_text("seed: 4\nfirst: &x {k: 1}\nsecond: *x\nthird: {k: {k: 2}}\n", encoding="utf-8")
    with pytest.raises(UserError, match="Unknown option `first`"):  # read, and only then refused
        parse_train("-config", config)


def test_what_was_given(tmp_path):
    config = tmp_path / "train.yaml"
    config.write_text("seed: 3\noverride_opts: true\n", encoding="utf-8")
    opt = parse_train("-config", config, "-layers", 2)
    assert given_options(opt) >= {"seed", "layers", "override_opts", "data", "src_vocab"}
    assert "batch_size" not in given_options(opt)
    assert given_options(parse_translate("-model", "m", "-src", "s")) == frozenset()


def test_one_dash_is_as_good_as_two():
    # stock has `--override_opts` and `-override-opts`: it passes over `-override_opts`
    assert parse_train("-override_opts").override_opts is True


def test_stock_commands_print_one_line(tmp_path):
    command = [sys.executable, "-m", "onmt.bin.translate", "-model", "m", "-src", "s", "-serch", "exact"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip().split("\n")[-1].startswith("onmt_translate: Unknown option `serch`")
    assert "usage" not in done.stderr
