"""Stock's ``onmt_translate`` and Python API with our search: every option that used to break, on tiny models."""

from __future__ import annotations

import json
import math
import re

import pytest
import torch
from onmt.inference_engine import InferenceEnginePY
from onmt.opts import translate_opts
from onmt.utils.parse import ArgumentParser

import onmt_entmax
from onmt_entmax.errors import UserError
from onmt_entmax.files import read_records
from onmt_entmax.plugin.translate.scorers import build_scorer, combine
from onmt_entmax.search.mbr import utilities

LINES = ["a b c", "d e", "h g f e", "a a b", "c"]


def certificates(corpus, model, lines, *extra):
    path = corpus.folder / "certificates.jsonl"
    output = corpus.translate(model, lines, "-certificates", str(path), *extra)
    return output, [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def engine(model, *extra) -> InferenceEnginePY:
    parser = ArgumentParser()
    translate_opts(parser)
    opt = parser.parse_args(["-model", str(model), "-src", "unused", "-output", "/dev/null", *extra])
    ArgumentParser.validate_translate_opts(opt)
    ArgumentParser._get_all_transform_translate(opt)
    ArgumentParser.validate_translate_opts_dynamic(opt)
    return InferenceEnginePY(opt)


def test_it_learned_to_reverse(corpus, entmax_model):
    output = corpus.translate(entmax_model, corpus.sources)
    right = sum(line == gold for line, gold in zip(output, corpus.targets))
    assert right >= 30  # of 60 words: its distributions are peaked


@pytest.mark.parametrize("batch_size", ["1", "2", "30"])
def test_blank_lines_stay_in_place(corpus, entmax_model, batch_size):
    lines = ["", "a b c", "  ", "", "d e", ""]
    output = corpus.translate(entmax_model, lines, "-batch_size", batch_size)
    alone = corpus.translate(entmax_model, ["a b c", "d e"])
    assert output == ["", alone[0], "", "", alone[1], ""]


def test_only_blank_lines_and_no_lines(corpus, entmax_model):
    assert corpus.translate(entmax_model, ["", ""]) == ["", ""]
    assert corpus.translate(entmax_model, []) == []


def test_n_best_lines_per_input(corpus, entmax_model):
    output = corpus.translate(entmax_model, ["a b c", "", "d e"], "-n_best", "3", "-beam_size", "4")
    assert len(output) == 9
    assert output[3:6] == ["", "", ""]
    assert output[0] == corpus.translate(entmax_model, ["a b c"])[0]


def test_with_score_and_gold(corpus, entmax_model, caplog):
    output = corpus.translate(entmax_model, LINES, "-with_score", "-length_penalty", "none")
    assert len(output) == len(LINES)
    for line in output:
        assert float(line.split("\t")[1]) <= 0
    target = corpus.folder / "gold.tgt"
    target.write_text("c b a\ne d\ne f g h\nb a a\nc\n", encoding="utf-8")
    caplog.clear()
    corpus.translate(entmax_model, LINES, "-tgt", str(target))
    assert "GOLD SCORE: " in caplog.text


def gold_score(corpus, model, lines, targets, caplog) -> float:
    """The mean log-probability of the given targets, from the log."""
    path = corpus.folder / "gold.tgt"
    path.write_text("".join(f"{line}\n" for line in targets), encoding="utf-8")
    caplog.clear()
    corpus.translate(model, lines, "-tgt", str(path))
    return float(re.search(r"GOLD SCORE: (-?\d+\.\d+|-inf)", caplog.text)[1])


@pytest.mark.parametrize(("target", "tokens"), [("", []), ("   ", []), ("c   b a", ["c", "b", "a"])])
def test_a_blank_is_no_token_of_a_given_target(corpus, softmax_model, target, tokens, caplog):
    forced = onmt_entmax.load(softmax_model).force([LINES[0]], [tokens])[0]
    # the log has four decimals
    assert gold_score(corpus, softmax_model, LINES[:1], [target], caplog) == pytest.approx(forced.log_prob, abs=1e-4)


def test_a_given_padding_token_counts_as_any_other(corpus, softmax_model, caplog):
    lines, targets = LINES[:2], ["<blank> b <blank>", "c"]  # the second is padded
    forced = onmt_entmax.load(softmax_model).force(lines, targets)
    expected = sum(one.log_prob for one in forced) / 2
    assert gold_score(corpus, softmax_model, lines, targets, caplog) == pytest.approx(expected, abs=1e-4)


def test_unknown_words_replace_unknown_tokens_as_they_were_given(corpus, softmax_model, caplog):
    prefixes = corpus.folder / "prefixes"
    prefixes.write_text("ZZ\n", encoding="utf-8")
    output = corpus.translate(softmax_model, ["NEVER"], "-tgt", str(prefixes), "-tgt_file_prefix", "-replace_unk")
    assert output[0].split(" ")[0] == "NEVER"  # the only word to attend to
    assert "Unknown tokens: source 100.0% (1 of 1), target 100.0% (1 of 1)." in caplog.text


@pytest.mark.parametrize("option", ["-replace_unk", "-attn_debug", "-report_align", "-verbose", "-report_time"])
@pytest.mark.parametrize("beam_size", ["1", "3"])
def test_options_that_need_attention_work_with_beams(corpus, entmax_model, option, beam_size):
    output = corpus.translate(entmax_model, LINES, option, "-beam_size", beam_size)
    assert len(output) == len(LINES)
    if option == "-report_align":
        text, _, alignment = output[0].partition(" ||| ")
        assert len(alignment.split()) == len(text.split())


@pytest.mark.parametrize("penalty", ["wu", "summary"])
def test_coverage_penalties_with_zeros_in_the_attention(corpus, entmax_model, penalty):
    output = corpus.translate(entmax_model, LINES, "-coverage_penalty", penalty, "-beta", "0.5", "-stepwise_penalty")
    assert len(output) == len(LINES) and any(output)


def test_one_certificate_per_line_blank_lines_included(corpus, entmax_model):
    output, records = certificates(corpus, entmax_model, ["a b c", "", "d e"], "-n_best", "2")
    assert [record["line"] for record in records] == [1, 2, 3]
    assert records[1]["hypotheses"] == [] and records[1]["reason"] == "blank input line"
    for record in (records[0], records[2]):
        assert record["reason"] is None
        assert record["mass_found"] + record["mass_dropped"] == pytest.approx(1.0, abs=1e-5)
        assert all(hypothesis["prob"] > 0 for hypothesis in record["hypotheses"])
    assert output[0] == " ".join(records[0]["hypotheses"][0]["tokens"])


def test_no_hypothesis_of_probability_zero(corpus, entmax_model):
    _, records = certificates(corpus, entmax_model, corpus.sources[:40], "-n_best", "5")
    probs = [hypothesis["prob"] for record in records for hypothesis in record["hypotheses"]]
    assert min(probs) > 0
    assert any(len(record["hypotheses"]) < 5 for record in records), "every support holds five strings: test is idle"


def test_penalties_void_certificates_with_the_reason(corpus, entmax_model):
    _, records = certificates(corpus, entmax_model, ["a b"], "-length_penalty", "avg")
    assert records[0]["complete"] is None and "length_penalty" in records[0]["reason"]


def test_exact_search_is_never_worse_than_beam(corpus, softmax_model):
    _, beam = certificates(corpus, softmax_model, LINES, "-beam_size", "2")
    _, exact = certificates(corpus, softmax_model, LINES, "-beam_size", "2", "-search", "exact")
    for found, best in zip(beam, exact):
        assert best["hypotheses"][0]["log_prob"] >= found["hypotheses"][0]["log_prob"] - 1e-5
    assert all(record["optimal"] for record in exact)


@pytest.mark.parametrize("options", [("-max_expansions", "1"), ("-whole_support",)])
def test_what_exact_search_cannot_prove_is_said(corpus, softmax_model, caplog, options):
    _, records = certificates(corpus, softmax_model, LINES, "-beam_size", "2", "-search", "exact", *options)
    name = "complete" if "-whole_support" in options else "optimal"
    unproven = [str(record["line"]) for record in records if record[name] is False]
    said = (
        f"{len(unproven)} input lines ({', '.join(unproven)}) are not proven by exact search, which stopped at a limit"
    )
    assert unproven and said in caplog.text


def test_whole_support_lists_every_output(corpus, entmax_model):
    _, records = certificates(corpus, entmax_model, corpus.sources[:20], "-search", "exact", "-whole_support")
    complete = [record for record in records if record["complete"]]
    assert complete, "no support was exhausted: the test is idle"
    for record in complete:
        assert len(record["hypotheses"]) == record["found"]
        assert sum(h["prob"] for h in record["hypotheses"]) == pytest.approx(1.0, abs=1e-4)
    with pytest.raises(UserError, match="`whole_support`: True"):
        corpus.translate(entmax_model, LINES, "-whole_support")


@pytest.mark.parametrize("utility", ["chrf", "edit"])
@pytest.mark.parametrize("options", [(), ("-search", "exact"), ("-search", "exact", "-whole_support")])
def test_minimum_risk_is_that_of_what_was_found(corpus, entmax_model, softmax_model, utility, options):
    """The same search lists its hypotheses; their expected utilities, summed up here, make the order."""
    checked = 0
    for models in ([entmax_model], [entmax_model, softmax_model]):
        shared = ("-beam_size", "4", "-max_length", "8", "-max_expansions", "50", *options)
        _, records = certificates(corpus, models, LINES, *shared, "-n_best", "4")
        risky = (*shared, "-decision", "mbr", "-mbr_utility", utility, "-with_score", "-n_best", "2")
        output, chosen = certificates(corpus, models, LINES, *risky)
        for number, (record, one) in enumerate(zip(records, chosen)):
            assert one["mbr"]["utility"] == utility and one["mbr"]["candidates"] == min(one["found"], 100)
            assert one["mbr"]["exact"] == (one["complete"] and one["found"] <= 100)
            best = one["hypotheses"][0]
            text, score = output[2 * number].split("\t")
            assert text == " ".join(best["tokens"]) and float(score) == pytest.approx(best["expected_utility"])
            if one["found"] <= len(record["hypotheses"]):  # else there were more than the list of n best shows
                checked += 1
                found = [(hypothesis["tokens"], hypothesis["prob"]) for hypothesis in record["hypotheses"]]
                total = sum(prob for _, prob in found)
                weights = [prob / total for _, prob in found]
                expected = (utilities(utility, [tokens for tokens, _ in found]) @ weights).tolist()
                assert best["expected_utility"] == pytest.approx(max(expected))
                assert best["tokens"] == found[expected.index(max(expected))][0] or expected.count(max(expected)) > 1
            probabilities = [hypothesis["prob"] for hypothesis in record["hypotheses"]]
            assert one["optimal"] == (record["optimal"] and best["prob"] >= max(probabilities))
    assert checked


def test_minimum_risk_of_samples(corpus, entmax_model):
    drawn = ("-random_sampling_topk", "-1", "-seed", "3", "-beam_size", "6", "-n_best", "1", "-decision", "mbr")
    output, records = certificates(corpus, entmax_model, LINES, *drawn)
    for line, record in zip(output, records):
        assert record["reason"] == "sampling" and record["optimal"] is None
        assert record["mbr"]["exact"] is False and 1 <= record["mbr"]["candidates"] <= 6
        assert line == " ".join(record["hypotheses"][0]["tokens"])


def test_sampling_draws_from_the_support(corpus, entmax_model):
    output = corpus.translate(entmax_model, LINES, "-random_sampling_topk", "-1", "-seed", "1", "-max_length", "40")
    assert len(output) == len(LINES)
    drawn = [place for place, line in enumerate(output) if LINES[place].strip() and len(line.split()) < 40]
    forced = onmt_entmax.load(entmax_model).force([LINES[place] for place in drawn], [output[place] for place in drawn])
    assert drawn and all(one.impossible_at is None for one in forced)


@pytest.mark.parametrize("name", ["cnn_model", "standard_model", "averaging_model"])
def test_any_decoder_is_sampled_from(corpus, request, name):
    """Several samples of a sentence begin with several rows, which the decoder's state has to follow."""
    model = request.getfixturevalue(name)
    options = ["-random_sampling_topk", "-1", "-beam_size", "3", "-n_best", "3", "-with_score", "-max_length", "4"]
    options += ["-length_penalty", "none", "-seed", "1"]
    lines = corpus.translate(model, LINES, *options)
    loaded = onmt_entmax.load(model)
    targets = [line.split("\t") for line in lines]
    assert len(targets) == 3 * len(LINES)
    sources = [line for line in LINES for _ in range(3)]
    ended = [place for place, (text, _) in enumerate(targets) if sources[place].strip() and len(text.split()) < 4]
    forced = loaded.force([sources[place] for place in ended], [targets[place][0] for place in ended])
    assert ended and [float(targets[place][1]) for place in ended] == pytest.approx(
        [one.log_prob for one in forced], abs=1e-3
    )


@pytest.fixture(scope="module")
def standard_model(corpus):
    return corpus.train("standard", "-input_feed", "0", "-generator_function", "entmax15")


@pytest.fixture(scope="module")
def averaging_model(corpus):
    """Its attention has weights of its own, which decoding's default for ``self_attn_type`` does not fit."""
    sizes = ("-hidden_size", "16", "-word_vec_size", "16", "-heads", "2", "-transformer_ff", "16", "-layers", "1")
    kinds = ("-encoder_type", "transformer", "-decoder_type", "transformer", "-self_attn_type", "average")
    return corpus.train("averaging", *sizes, *kinds, "-generator_function", "entmax15")


def test_forced_prefixes(corpus, softmax_model):
    prefixes = corpus.folder / "prefix.tgt"
    prefixes.write_text("c b\ne\nh\nb\nc\n", encoding="utf-8")
    output = corpus.translate(softmax_model, LINES, "-tgt", str(prefixes), "-tgt_file_prefix")
    for line, prefix in zip(output, ["c b", "e", "h", "b", "c"]):
        assert line.startswith(prefix)


def test_a_blank_line_of_prefixes_forces_nothing(corpus, softmax_model):
    prefixes = corpus.folder / "prefix.tgt"
    prefixes.write_text("c b\n\n  \nb  a\nc\n", encoding="utf-8")
    options = ("-tgt", str(prefixes), "-tgt_file_prefix")
    output, records = certificates(corpus, softmax_model, LINES, *options)
    free, _ = certificates(corpus, softmax_model, LINES)
    assert [output[line].startswith(prefix) for line, prefix in ((0, "c b"), (3, "b a"), (4, "c"))] == [True] * 3
    assert output[1:3] == free[1:3]
    assert ["prefix_log_prob" in record for record in records] == [True, False, False, True, True]


@pytest.mark.parametrize("decision", [(), ("-decision", "mbr"), ("-random_sampling_topk", "-1", "-seed", "1")])
def test_an_impossible_prefix_is_said_and_scored_so(corpus, entmax_model, caplog, decision):
    model = onmt_entmax.load(entmax_model)
    targets = ["a", "b", "c", "d", "e", "f", "g", "h"]
    forced = model.force(["a b c"] * 8, targets)
    impossible = [one.text for one in forced if one.impossible_at == 0]
    possible = next(one.text for one in forced if one.impossible_at != 0)
    assert impossible  # its distributions are peaked
    prefixes = corpus.folder / "prefix.tgt"
    prefixes.write_text(f"{possible}\n{impossible[0]}\n\n", encoding="utf-8")
    options = ("-tgt", str(prefixes), "-tgt_file_prefix", "-with_score", *decision)
    output = corpus.translate(entmax_model, ["a b c", "a b c", ""], *options)
    assert output[0].startswith(possible) and math.isfinite(float(output[0].split("\t")[1]))
    assert output[1:] == ["\t-inf", "\t0.0"]
    assert "1 input lines (2) have a forced prefix of probability zero: they are scored -inf." in caplog.text


def test_an_end_inside_a_prefix_is_refused(corpus, softmax_model):
    prefixes = corpus.folder / "prefix.tgt"
    prefixes.write_text("c </s> b\n", encoding="utf-8")
    with pytest.raises(UserError, match="`tgt_file_prefix`: c </s> b. A prefix must not contain"):
        corpus.translate(softmax_model, LINES[:1], "-tgt", str(prefixes), "-tgt_file_prefix")


@pytest.mark.parametrize("target", [[], ["c"], ["c", "<blank>", "a"]])
def test_a_given_target_has_the_score_of_its_steps(softmax_model, target):
    # the same sum, step by step; what follows the length is padding, whatever tokens stand there
    translator = engine(softmax_model).translator
    start, end = translator._tgt_start_with, translator._tgt_eos_idx
    ids = translator.vocabs["tgt"]([*target, "</s>"])
    src, src_len = torch.tensor([[[4], [5]], [[6], [7]]]), torch.tensor([2, 2])
    padded = [start, *ids, translator._tgt_pad_idx, end], [start, *([5] * 5)]
    rows = torch.tensor([row[: len(ids) + 2] + [end] * (len(ids) + 2 - len(row)) for row in padded])
    batch = {"src": src, "srclen": src_len, "tgt": rows.unsqueeze(-1), "tgtlen": torch.tensor([len(ids) + 1, 2])}
    with torch.no_grad():
        found = translator._gold_scores(batch)
        scorer = build_scorer(translator.members, src[:1], src_len[:1], False)
        states, total = scorer.start(), 0.0
        for given, token in zip([start, *ids], ids):
            step = scorer.step(torch.tensor([given]), states, torch.tensor([0]))
            states, total = step.states, total + float(step.log_probs[0, token])
    assert float(found[0]) == pytest.approx(total, abs=1e-5)


def test_attention_as_json_sums_to_one(corpus, entmax_model):
    path = corpus.folder / "attention.jsonl"
    corpus.translate(entmax_model, ["a b c", "", "d e"], "-attention", str(path), "-beam_size", "3")
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    assert [record["source"] for record in records] == [["a", "b", "c"], [], ["d", "e"]]
    for record in (records[0], records[2]):
        for hypothesis in record["hypotheses"]:
            assert len(hypothesis["attention"]) == len(hypothesis["tokens"])
            assert all(sum(row) == pytest.approx(1.0, abs=1e-5) for row in hypothesis["attention"])


def test_ensembles_of_different_alphas_average_probabilities(corpus, entmax_model, softmax_model):
    lines = ["a b c"]
    _, alone = zip(*(certificates(corpus, model, lines, "-n_best", "5") for model in (entmax_model, softmax_model)))
    output, records = certificates(corpus, [entmax_model, softmax_model], lines, "-n_best", "5")
    assert output[0] in {" ".join(h["tokens"]) for record in alone for h in record[0]["hypotheses"]}
    assert records[0]["mass_found"] + records[0]["mass_dropped"] == pytest.approx(1.0, abs=1e-4)


def test_adding_a_constant_to_a_member_changes_nothing(entmax_model, softmax_model, tmp_path):
    from onmt_entmax.plugin.models import Models

    models = Models([str(entmax_model), str(softmax_model)])
    src, src_len = torch.tensor([[[4], [5], [6]]]), torch.tensor([3])

    def log_probs():
        scorer = build_scorer(models.members, src, src_len, True)
        states = scorer.start()
        with torch.no_grad():
            return scorer.step(torch.tensor([models.start]), states, torch.tensor([0])).log_probs

    before = log_probs()
    with torch.no_grad():
        models.members[1].generator.bias.add_(10.0)
    torch.testing.assert_close(log_probs(), before, atol=1e-5, rtol=1e-5)


def test_ensemble_members_must_share_both_vocabularies(corpus, entmax_model, tmp_path):
    checkpoint = torch.load(entmax_model, map_location="cpu", weights_only=False)
    checkpoint["vocab"]["tgt"] = list(reversed(checkpoint["vocab"]["tgt"]))
    torch.save(checkpoint, tmp_path / "other.pt")
    with pytest.raises(UserError, match=r"other\.pt: its target vocabulary"):
        corpus.translate([entmax_model, tmp_path / "other.pt"], LINES)


def test_python_api_returns_certificates_beside_predictions(entmax_model, tmp_path):
    translator = engine(entmax_model, "-certificates", str(tmp_path / "c.jsonl"))
    scores, predictions = translator.infer_list(["a b c", "", "d e"])
    assert len(scores) == len(predictions) == len(predictions.certificates) == 3
    assert predictions[1] == [""]
    assert predictions.certificates[0]["hypotheses"][0]["log_prob"] == pytest.approx(scores[0][0])
    assert all(math.isfinite(score) for score in scores[0])
    again = translator.infer_list(["d e"])[1]  # the file goes on, as that of the outputs does
    assert again.certificates[0]["line"] == 1
    assert read_records(tmp_path / "c.jsonl") == [*predictions.certificates, {**again.certificates[0], "line": 4}]
    translator.terminate()


def test_n_best_above_the_beam_names_both(corpus, entmax_model):
    with pytest.raises(UserError, match="`n_best`: 5.*`beam_size`, which is 3"):
        corpus.translate(entmax_model, LINES, "-n_best", "5", "-beam_size", "3")


@pytest.fixture(scope="module")
def cnn_model(corpus):
    cnn = ("-encoder_type", "cnn", "-decoder_type", "cnn", "-hidden_size", "16", "-word_vec_size", "16")
    return corpus.train("cnn", *cnn, "-generator_function", "entmax15")


def test_convolutional_models_decode_by_beam_and_exactly(corpus, cnn_model):
    options = ("-n_best", "3", "-max_length", "3", "-replace_unk")
    _, beam = certificates(corpus, cnn_model, LINES[:2], "-beam_size", "20", "-batch_size", "1", *options)
    _, exact = certificates(corpus, cnn_model, LINES[:2], "-search", "exact", "-batch_size", "1", *options)
    for found, best in zip(beam, exact):
        pairs = list(zip(found["hypotheses"], best["hypotheses"]))
        assert pairs and all(h["tokens"] == g["tokens"] for h, g in pairs)
        assert all(h["log_prob"] == pytest.approx(g["log_prob"], abs=1e-5) for h, g in pairs)


@pytest.mark.parametrize("search", ["beam", "exact"])
def test_convolutional_models_decode_a_sentence_alike_alone_and_beside_a_longer_one(corpus, cnn_model, search):
    lines = ["a", "b a c d e a b", "c d"]
    options = ("-n_best", "2", "-max_length", "3", "-search", search)
    _, together = certificates(corpus, cnn_model, lines, "-batch_size", "3", *options)
    _, alone = certificates(corpus, cnn_model, lines, "-batch_size", "1", *options)
    assert len(together) == len(alone) == 3
    for found, expected in zip(together, alone):
        assert len(found["hypotheses"]) == len(expected["hypotheses"]) > 0
        for ours, theirs in zip(found["hypotheses"], expected["hypotheses"]):
            assert ours["tokens"] == theirs["tokens"]
            assert ours["log_prob"] == pytest.approx(theirs["log_prob"], abs=1e-5)


@pytest.mark.parametrize("models", [["entmax_model"], ["cnn_model"], ["entmax_model", "softmax_model"]])
def test_gold_targets_are_aligned_beside_each_of_the_n_best(corpus, request, models):
    target = corpus.folder / "gold.tgt"
    target.write_text("c b a\ne d\n", encoding="utf-8")
    paths = [request.getfixturevalue(name) for name in models]
    options = ("-tgt", str(target), "-report_align", "-gold_align", "-align_debug", "-n_best", "2")
    alignments = [line.split(" ||| ")[1].split() for line in corpus.translate(paths, LINES[:2], *options)]
    aligned = ["".join(sorted(pair.split("-")[1] for pair in row)) for row in alignments]
    assert aligned == ["012", "012", "01", "01"]  # every gold token, once per line


def test_alignment_of_a_transformer_without_its_alignment_layer_is_refused(corpus):
    transformer = ("-encoder_type", "transformer", "-decoder_type", "transformer", "-heads", "2")
    sizes = ("-hidden_size", "16", "-word_vec_size", "16", "-transformer_ff", "16")
    model = corpus.train("transformer", *transformer, *sizes, "-generator_function", "entmax15")
    with pytest.raises(UserError, match="`report_align`: True. .*`alignment_layer` -3, but its decoder has 1 layers"):
        corpus.translate(model, LINES, "-report_align")


def test_an_ensembles_mean_has_no_false_zeros():
    log_probs = torch.tensor([[-110.0, -math.inf, 0.0], [-112.0, -math.inf, -math.inf]])
    found = combine(log_probs, True)  # log((e^-110 + e^-112) / 2): float32 has no e^-110
    assert combine(torch.zeros(7, 3), True).tolist() == [0.0] * 3  # certain members are certain together
    assert found.tolist() == pytest.approx([-110 + math.log((1 + math.exp(-2)) / 2), -math.inf, -math.log(2)], abs=1e-5)
