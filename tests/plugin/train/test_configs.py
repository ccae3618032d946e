"""The configurations: every key is known, every value is that of the paper named in the file."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from onmt_entmax.cli import main

ROOT = Path(__file__).resolve().parents[3] / "configs"
NAMES = [f"inflection/{name}" for name in ("medium", "high")] + [
    f"translation/{pair}" for pair in ("de-en", "en-de", "ja-en", "en-ja", "ro-en", "en-ro")
]
TRANSFORMERS = {  # layers, size, heads, size of the feed-forward layers, warm-up
    "inflection/transformer": (4, 256, 4, 1024, 4000),
    "translation/transformer": (6, 512, 8, 2048, 8000),
    "translation/small/multi30k-de-en-transformer": (3, 256, 4, 1024, 500),
}


def read(name, folder, *extra):
    """Options as onmt_train reads them from the configuration with the data's YAML behind it."""
    import onmt.bin.train as command
    from onmt.utils.parse import ArgumentParser

    data = f"data: {{a: {{path_src: {folder}/a.src, path_tgt: {folder}/a.tgt}}}}\n"
    data += f"src_vocab: {folder}/vocab.src\ntgt_vocab: {folder}/vocab.tgt\n"
    path = folder / "train.yaml"
    path.write_text((ROOT / f"{name}.yaml").read_text(encoding="utf-8") + data, encoding="utf-8")
    arguments = ["-config", str(path), "-save_model", str(folder / "m"), "-generator_function", "entmax15", *extra]
    opt, unknown = command._get_parser().parse_known_args(arguments)
    assert unknown == []
    ArgumentParser.validate_train_opts(opt)
    ArgumentParser.update_model_opts(opt)
    ArgumentParser.validate_model_opts(opt)
    return opt


@pytest.mark.parametrize("name", NAMES)
def test_is_the_papers_set_up(folder, name):
    opt = read(name, folder)
    size = 300 if name.startswith("inflection") else 500
    assert (opt.enc_layers, opt.dec_layers, opt.enc_hid_size, opt.dec_hid_size) == (2, 2, size, size)
    assert (opt.src_word_vec_size, opt.tgt_word_vec_size) == (size, size)
    assert (opt.encoder_type, opt.decoder_type, opt.input_feed, opt.global_attention) == ("brnn", "rnn", 1, "general")
    assert (opt.optim, opt.learning_rate, opt.decay_method, opt.learning_rate_decay) == (
        "adam",
        0.001,
        "valid_loss",
        0.5,
    )
    assert (opt.dropout, opt.batch_type, opt.batch_size, opt.keep_best) == ([0.3], "sents", 64, True)
    # the alphas are given on the command line alone
    text = (ROOT / f"{name}.yaml").read_text(encoding="utf-8")
    assert not any(line.startswith(("generator_", "global_attention_")) for line in text.split("\n"))
    if name.startswith("inflection"):
        assert (opt.train_steps, opt.early_stopping, opt.early_stopping_criteria) == (0, 10, ["accuracy"])
    else:
        assert opt.train_steps == (120000 if "ro" in name else 100000)
        assert opt.valid_steps == (5000 if "de" in name else 10000)


def test_no_configuration_is_left_out():
    assert sorted(f"{path.parent.name}/{path.stem}" for path in ROOT.glob("*/*.yaml")) == sorted(
        [*NAMES, *[name for name in TRANSFORMERS if name.count("/") == 1]]
    )


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_take_sparse_heads(folder, name):
    opt = read(name, folder, "-self_attention_alpha", "1.5", "-context_attention_alpha", "learned")
    layers, size, heads, inner, warmup = TRANSFORMERS[name]
    assert (opt.encoder_type, opt.decoder_type, opt.position_encoding) == ("transformer", "transformer", True)
    assert (opt.enc_layers, opt.dec_layers, opt.heads, opt.transformer_ff) == (layers, layers, heads, inner)
    assert {opt.enc_hid_size, opt.dec_hid_size, opt.src_word_vec_size, opt.tgt_word_vec_size} == {size}
    assert (opt.decay_method, opt.warmup_steps, opt.keep_best) == ("noam", warmup, True)
    assert (opt.encoder_self_attention_alpha, opt.decoder_self_attention_alpha) == (1.5, 1.5)
    assert (opt.context_attention_alpha, opt.learned_alpha_start) == ("learned", 1.5)
    text = (ROOT / f"{name}.yaml").read_text(encoding="utf-8")
    assert not any("alpha" in line or "_function" in line for line in text.split("\n") if not line.startswith("#"))


@pytest.mark.parametrize("path", sorted(ROOT.glob("translation/small/*.yaml")), ids=lambda path: path.stem)
def test_the_command_at_the_head_is_accepted(path, tmp_path, monkeypatch, capsys):
    """Its settings go together: what is missing is the corpus alone."""
    monkeypatch.chdir(tmp_path)
    head = path.read_text(encoding="utf-8").split("\n\n")[0].replace("\n# ", " ").replace("\\", " ")
    words = shlex.split(re.search(r"onmt_entmax (prepare .*?)   *(?:bash|onmt_train|cat) ", head)[1])
    Path(words[words.index("--data") + 1]).mkdir()
    assert main(words) == 2
    said = capsys.readouterr().err
    assert re.search("lacks the file|no file|no such file", said), said
