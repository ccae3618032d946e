"""Sparse heads in OpenNMT-py's Transformers: with every kind of position, padding, cache and mask it has."""

from __future__ import annotations

import onmt.model_builder
import pytest
import torch
from torch import nn

from onmt_entmax.engines.dropout import Dropout
from onmt_entmax.errors import UserError
from onmt_entmax.model.heads import HeadMapping
from onmt_entmax.plugin.heads import drop_by_engine, head_alphas, head_layers, learned_alphas
from onmt_entmax.plugin.models import attention_alpha, attention_alpha_text
from onmt_entmax.plugin.standins import build_vocab_from_tokens
from tests.plugin.test_options import model_options

VOCABULARY = build_vocab_from_tokens(list("abcdef"), special_tokens=["<unk>", "<blank>", "<s>", "</s>"])
SIZES = (
    *("-encoder_type", "transformer", "-decoder_type", "transformer", "-heads", "2", "-layers", "2"),
    *("-hidden_size", "8", "-word_vec_size", "8", "-transformer_ff", "16", "-dropout", "0", "-attention_dropout", "0"),
)
ALL = ("-self_attention_alpha", "2", "-context_attention_alpha", "2")
KINDS = {
    "positions": ("-position_encoding",),
    "relative": ("-max_relative_positions", "3"),
    "buckets": ("-max_relative_positions", "8", "-relative_positions_buckets", "4"),
    "rotary": ("-max_relative_positions", "-1"),
    "alibi": ("-max_relative_positions", "-2"),
    "multi-query": ("-position_encoding", "-multiquery"),
    "checkpointing": ("-position_encoding", "-use_ckpting", "mha", "ffn"),
}


def build(*words: str, start: float = 1.0, seed: int = 0):
    """A model as ``onmt_train`` begins it, and its options; parameters between plus and minus ``start``."""
    # zero queries would hide differences; other decoders have none
    query = () if {"-query_init", "-decoder_type"} & set(words) else ("-query_init", "1")
    opt = model_options(*SIZES, *query, *words, "-param_init", str(start))
    torch.manual_seed(seed)
    return onmt.model_builder.build_model(opt, opt, {"src": VOCABULARY, "tgt": VOCABULARY}, None, -1), opt


def batch(seed: int = 1):
    """Sources of 6 and 3 tokens, targets of 5."""
    src, tgt = (torch.randint(4, 10, (2, n, 1), generator=torch.Generator().manual_seed(seed)) for n in (6, 5))
    src[1, 3:] = VOCABULARY["<blank>"]
    return src, torch.tensor([6, 3]), tgt


@pytest.fixture
def seen(monkeypatch):
    """All probabilities that heads gave."""
    found, forward = [], HeadMapping.forward

    def note(self, scores):
        found.append((forward(self, scores), scores))
        return found[-1][0]

    monkeypatch.setattr(HeadMapping, "forward", note)
    return found


@pytest.mark.filterwarnings("ignore:torch.utils.checkpoint", "ignore:None of the inputs")  # as OpenNMT-py has it
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_transformer(kind, seen):
    words = KINDS[kind]
    learned = ("-self_attention_alpha", "learned", "-context_attention_alpha", "learned")
    model, _ = build(*words, *learned, "-learned_alpha_start", "1.9")
    src, src_len, tgt = batch()
    out, _ = model(src, tgt, src_len)
    assert len(seen) == 6 and any((probs == 0).logical_and(scores > -1e17).any() for probs, scores in seen)
    for probs, scores in seen:  # masked entries, and no others by themselves, are zero
        assert not probs[scores < -1e17].any()
        torch.testing.assert_close(probs.sum(-1), torch.ones(probs.shape[:-1]))
    out.square().sum().backward()
    gradients = torch.cat([module.raw.grad.flatten() for module in learned_alphas(model)])
    assert gradients.numel() == 12 and gradients.isfinite().all() and (gradients != 0).sum() > 6
    model.eval()
    with torch.no_grad():
        whole, _ = model(src, tgt, src_len)
        # masked equals truncated
        alone, _ = model(src[1:, :3], tgt[1:], src_len[1:])
        torch.testing.assert_close(whole[1:], alone, rtol=1e-4, atol=1e-5)
        # cached decoding equals all steps at once
        memory, final, lengths = model.encoder(src, src_len)
        model.decoder.init_state(src, memory, final)
        steps = [model.decoder(tgt[:, t : t + 1], memory, src_len=lengths, step=t)[0] for t in range(4)]
        torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-4, atol=1e-5)


def test_a_sliding_window_is_respected(seen):
    model, _ = build("-position_encoding", "-sliding_window", "1", *ALL)
    src, src_len, tgt = batch()
    model(src, tgt, src_len)
    own = [probs for probs, _ in seen if probs.shape[-2:] == (4, 4)]
    assert len(own) == 2
    for probs in own:  # its own word and the one before
        assert not probs.tril(-2).any() and not probs.triu(1).any()


def test_supervised_alignment_is_finite():
    model, _ = build("-position_encoding", *ALL, "-alignment_layer", "-1", "-alignment_heads", "1")
    src, src_len, tgt = batch()
    _, attns = model(src, tgt, src_len, with_align=True)
    align = attns["align"]  # (B, T, S), with zeros, whose logarithm stock bounds
    assert align.shape == (2, 4, 6) and (align[0] == 0).any()
    loss = -align.clamp(min=1e-18).log().sum()
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_alpha_one_is_stocks_softmax():
    model, _ = build("-position_encoding")
    assert not any(isinstance(module, HeadMapping) for module in model.modules())
    src, src_len, tgt = batch()
    expected, _ = model(src, tgt, src_len)
    for layers in head_layers(model).values():
        for layer in layers:
            layer.softmax = HeadMapping(2, 1.0)
    assert torch.equal(model(src, tgt, src_len)[0], expected)


def test_dropout_goes_by_the_engine_and_can_be_changed():
    model, _ = build("-position_encoding", "-dropout", "0.5", "-attention_dropout", "0.5")
    drop_by_engine(model)
    found = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    # two embeddings; of 2 encoder layers 4 each, of 2 decoder layers 5: attentions, residual, two of the feed-forward
    assert len(found) == 2 + 2 * 4 + 2 * 5 and {type(module) for module in found} == {Dropout}
    src, src_len, tgt = batch()
    assert not torch.equal(model(src, tgt, src_len)[0], model(src, tgt, src_len)[0])
    model.update_dropout(0.0, 0.0)
    assert torch.equal(model(src, tgt, src_len)[0], model(src, tgt, src_len)[0])


def test_places_can_differ_and_short_paths_are_off_on_the_modules():
    words = ("-self_attention_alpha", "2", "-encoder_self_attention_function", "softmax", "-self_attn_type")
    model, opt = build("-position_encoding", *words, "scaled-dot-flash", "-context_attention_alpha", "1.25")
    assert head_alphas(model) == {
        "encoder_self_attention": (1.0, False),
        "decoder_self_attention": (2.0, False),
        "context_attention": (1.25, False),
    }
    assert attention_alpha(model) == (1.25, False)
    assert attention_alpha_text(model) == "enc1-dec2-ctx1.25"
    layers = head_layers(model)
    for layer in (*layers["decoder_self_attention"], *layers["context_attention"]):
        assert layer.self_attn_type == "scaled-dot" and not layer.flash2
    # a checkpoint's options say the same when they are read again
    again = onmt.model_builder.build_base_model(opt, {"src": VOCABULARY, "tgt": VOCABULARY})
    assert head_alphas(again) == head_alphas(model)


@pytest.mark.parametrize("init", [("-param_init_glorot",), ()])
def test_learned_alphas_begin_where_they_are_told(init):
    words = ("-context_attention_alpha", "learned", "-learned_alpha_start", "1.25", *init)
    model, _ = build("-position_encoding", *words, start=0 if init else 1)
    assert len(learned_alphas(model)) == 2
    for module in learned_alphas(model):
        torch.testing.assert_close(module(), torch.full((2, 1, 1), 1.25))


@pytest.mark.parametrize(("given", "sparse", "softmax"), [(None, 0, 1), (1.0, 1, 1), (0.5, 0.5, 0.5)])
def test_sparse_heads_begin_with_equal_scores(given, sparse, softmax, caplog):
    """Only the attention to the source is sparse here; keys and values stay as `param_init` draws them."""
    opt = model_options(*SIZES, "-position_encoding", "-context_attention_alpha", "1.5", "-param_init", "1")
    assert opt.query_init is None
    opt.query_init = given
    torch.manual_seed(0)
    caplog.set_level("INFO", "onmt")
    model = onmt.model_builder.build_model(opt, opt, {"src": VOCABULARY, "tgt": VOCABULARY}, None, -1)
    assert ("Sparse heads begin with equal scores" in caplog.text) == (given is None)
    caplog.clear()
    plain, _ = build("-position_encoding")
    assert "equal scores" not in caplog.text
    for place, layers in head_layers(model).items():
        factor = sparse if place == "context_attention" else softmax
        for layer, other in zip(layers, head_layers(plain)[place]):
            assert other.linear_query.weight.abs().min() > 0
            torch.testing.assert_close(layer.linear_query.weight, factor * other.linear_query.weight, rtol=0, atol=0)
            torch.testing.assert_close(layer.linear_keys.weight, other.linear_keys.weight, rtol=0, atol=0)


@pytest.mark.parametrize("init", [("-param_init_glorot",), ()])
def test_embeddings_begin_with_the_deviation_that_was_asked_for(init):
    """A vocabulary of 10 (4 special tokens) times 8: 72 numbers beside the padding's zeros, whose deviation is within a
    quarter of 0.5 (three standard errors); all other parameters are those that the same seed gives without the option.
    """
    start = 0 if init else 1
    (drawn, _), (plain, _) = (build(*words, *init, start=start) for words in (("-embedding_init", "0.5"), ()))
    for side in ("encoder", "decoder"):
        weight = getattr(drawn, side).embeddings.word_lut.weight
        rows = [row for row in range(10) if row != VOCABULARY["<blank>"]]
        assert abs(weight[rows].std().item() - 0.5) < 0.125 and weight[VOCABULARY["<blank>"]].abs().max() == 0
    others = {name: value for name, value in plain.state_dict().items() if "emb_luts" not in name}
    for name, value in others.items():
        torch.testing.assert_close(drawn.state_dict()[name], value, rtol=0, atol=0)


def test_vectors_from_a_file_are_kept_and_said_so(tmp_path, caplog):
    model, _ = build("-embedding_init", "0.5")
    vectors = torch.arange(80, dtype=torch.float32).view(10, 8)
    torch.save(vectors, tmp_path / "vectors.pt")
    with caplog.at_level("INFO", "onmt"):
        model.encoder.embeddings.load_pretrained_vectors(str(tmp_path / "vectors.pt"))
    torch.testing.assert_close(model.encoder.embeddings.word_lut.weight.data, vectors, rtol=0, atol=0)
    assert f"`embedding_init: 0.5` is not used for the vectors read from {tmp_path / 'vectors.pt'}" in caplog.text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-query_init", "-1"), "`query_init`: -1.0. It must be a factor of at least 0"),
        (("-query_init", "0", "-encoder_type", "brnn", "-decoder_type", "rnn"), "Neither `encoder_type` nor"),
        (("-embedding_init", "-1"), "`embedding_init`: -1.0. It must be a standard deviation of at least 0"),
        (("-embedding_init", "nan"), "`embedding_init`: nan"),
        (("-self_attention_alpha", "0.9"), "`self_attention_alpha`: 0.9. It must be a number of at least 1"),
        (("-context_attention_alpha", "0.9"), "`context_attention_alpha`: 0.9. It must be a number of at least 1"),
        (
            ("-context_attention_alpha", "2", "-context_attention_function", "entmax15"),
            "`context_attention_alpha`: 2. `context_attention_function` is entmax15",
        ),
        (("-generator_alpha", "learned"), "Only an attention's alpha can be learned"),
        (("-self_attention_alpha", "1.5", "-decoder_type", "rnn", "-encoder_type", "brnn"), "Neither `encoder_type`"),
        (("-context_attention_alpha", "1.5", "-decoder_type", "rnn"), "`decoder_type` is rnn"),
        (("-encoder_self_attention_alpha", "1.5", "-encoder_type", "brnn"), "`encoder_type` is brnn"),
        (("-global_attention_alpha", "1.5"), "`global_attention_alpha`: 1.5. `decoder_type` is transformer"),
        (("-decoder_type", "rnn"), "`decoder_type`: rnn. A recurrent decoder begins with the encoder's last state"),
        ((*ALL, "-self_attn_type", "average"), "`self_attn_type`: average"),
        ((*ALL, "-copy_attn"), "`copy_attn`: True"),
        ((*ALL, "-save_format", "safetensors"), "`save_format`: safetensors"),
        ((*ALL, "-parallel_mode", "tensor_parallel", "-world_size", "2"), "`parallel_mode`: tensor_parallel"),
        (("-context_attention_alpha", "learned", "-lora_layers", "linear_keys"), "`lora_layers`"),
        (("-learned_alpha_start", "1.2"), "No alpha is `learned`"),
        (("-learned_alpha_rate", "2"), "No alpha is `learned`"),
        (("-context_attention_alpha", "learned", "-learned_alpha_start", "2"), "`learned_alpha_start`: 2.0"),
        (("-context_attention_alpha", "learned", "-learned_alpha_rate", "0"), "`learned_alpha_rate`: 0.0"),
        (
            ("-context_attention_alpha", "learned", "-learned_alpha_rate", "2", "-optim", "sgd"),
            "`learned_alpha_rate`: 2.0. `optim` is sgd",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(words, message):
    with pytest.raises(UserError, match="Invalid setting for") as caught:
        model_options(*SIZES[:4], *words)
    assert message in str(caught.value) and "\n" not in str(caught.value)
