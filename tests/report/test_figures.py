"""Every figure comes out in every format, shows what it must, and says what it leaves out."""

from __future__ import annotations

import json
import math
from pathlib import Path

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread

from onmt_entmax.cli import main
from onmt_entmax.commands.figure import FIGURES
from onmt_entmax.errors import UserError
from onmt_entmax.report.figures import attention, plots, style
from onmt_entmax.report.figures.search import search_figure
from onmt_entmax.report.figures.trees import beam_figure, forced_figure
from onmt_entmax.report.figures.trust import named, sentences, trust_figure, trusts_of
from onmt_entmax.report.metrics import Metrics, read_metrics
from onmt_entmax.report.steps import forced_of
from onmt_entmax.report.trees import tree_of
from tests.report import samples

MAGIC = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def texts(drawn) -> list[str]:
    """All texts of a figure in the order drawn."""
    return [artist.get_text() for axes in drawn.axes for artist in axes.texts]


def runs(*settings):
    return [Metrics(None, samples.metrics_rows(*setting)) for setting in settings]


@pytest.fixture
def inputs(tmp_path, draw_file, forced_file):
    """Figure -> arguments that draw it."""
    metrics = [
        str(samples.write_lines(tmp_path / f"{number}_metrics.jsonl", samples.metrics_rows(*alphas, 90)))
        for number, alphas in enumerate([(1.5, 1), (1.5, 1.5), (2, 1.5)])
    ]
    trusted = tmp_path / "evaluation.json"
    trusted.write_text(json.dumps(samples.trust_result([1.0, 0.8, 0.8, 0.3], [100, 100, 0, 0])), encoding="utf-8")
    searched = tmp_path / "search.json"
    searched.write_text(json.dumps(samples.search_result([38, 39, 35], "1/1")), encoding="utf-8")
    return {
        "mappings": [],
        "search": ["--input", str(searched)],
        "trust": ["--input", str(trusted)],
        "beam": ["--input", str(draw_file)],
        "forced": ["--input", str(forced_file)],
        "attention": ["--input", str(forced_file), str(forced_file), "--labels", "one", "other"],
        "alpha-grid": ["--input", *metrics],
        "training-speed": ["--input", *metrics],
        "learning-curves": ["--input", *metrics],
        "support-histogram": ["--input", str(forced_file)],
        "heads": ["--input", str(samples.write_heads(tmp_path / "heads.jsonl", [1.5, 1.7], [50, 60]))],
    }


@pytest.mark.parametrize("suffix", sorted(MAGIC))
@pytest.mark.parametrize("name", sorted(FIGURES))
def test_every_figure_in_every_format(name, suffix, inputs, tmp_path, capsys):
    output = tmp_path / f"out.{suffix}"
    assert main(["figure", name, *inputs[name], "--output", str(output)]) == 0
    content = output.read_bytes()
    assert content.startswith(MAGIC[suffix]) and len(content) > 1500
    signature = capsys.readouterr().out.split("\n")[-2]
    assert "|" in signature
    if suffix != "pdf":  # whose metadata may be compressed
        assert signature.split(";")[0].encode("ascii") in content
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_pictures_are_no_wider_than_the_page_and_not_blank(inputs, tmp_path):
    for name, arguments in inputs.items():
        output = tmp_path / f"{name}.png"
        assert main(["figure", name, *arguments, "--output", str(output)]) == 0
        pixels = imread(output)[..., :3]
        assert pixels.shape[1] <= (style.PAGE + 0.2) * 200
        assert 0.002 < (pixels.min(axis=-1) < 0.6).mean() < 0.4  # ink, but mostly paper


def test_lines_differ_in_lightness_dash_and_marker():
    lightness = []
    for color, _, _ in style.LINES[:4]:
        red, green, blue = matplotlib.colors.to_rgb(color)
        lightness.append(0.2126 * red + 0.7152 * green + 0.0722 * blue)
    assert min(abs(a - b) for i, a in enumerate(lightness) for b in lightness[:i]) > 0.03
    for part in (1, 2):
        assert len({str(line[part]) for line in style.LINES}) == len(style.LINES)


def test_mappings_saturate_where_the_paper_says():
    t, lines = plots.mapping_curves((1.0, 1.5, 2.0))
    softmax, entmax15, sparsemax = lines
    # softmax never saturates; the others reach 0 and 1 at t = -+1/(alpha - 1): 2 for 1.5 and 1 for 2
    assert min(softmax) > 0 and max(softmax) < 1
    for line, end in ((entmax15, 2.0), (sparsemax, 1.0)):
        zeros = [x for x, p in zip(t, line) if p == 0]
        assert max(zeros) == pytest.approx(-end, abs=0.011)
    half = min(range(len(t)), key=lambda index: abs(t[index] - 0.5))
    assert sparsemax[half] == pytest.approx((t[half] + 1) / 2)


def test_beam_shows_branches_and_certificate_and_no_impossible_ones():
    shown = texts(beam_figure(tree_of({"line": 1, "certificate": samples.draw(), "source": ["d", "r"]})))
    assert {"draw", "ed", "n", "66.4%", "32.2%", "1.4%", "Input: d r"} <= set(shown)
    assert shown.count("</s>") == 3
    assert any("Certificate: complete. Exactly 3 strings" in text for text in shown)


@pytest.mark.parametrize("length", [30, 200])
def test_beam_of_long_sentences_stays_on_the_page(length):
    drawn = beam_figure(tree_of({"line": 1, "tree": samples.long_tree(length)}))
    width, height = drawn.get_size_inches()
    assert width <= style.PAGE + 0.2 and height < 12
    renderer = drawn.canvas.get_renderer() if hasattr(drawn.canvas, "get_renderer") else None
    if renderer is None:
        renderer = FigureCanvasAgg(drawn).get_renderer()
    with style.look():
        right = max(text.get_window_extent(renderer).x1 for text in drawn.axes[0].texts)
    assert right <= drawn.bbox.width


def test_forced_shows_gold_in_bold_only():
    drawn = forced_figure(forced_of(samples.TREE_OF_LIFE))
    bold = [artist.get_text() for artist in drawn.axes[0].texts if artist.get_weight() == "bold"]
    assert bold == ["This", "is", "another", "view", "of", "the", "tree", "of life . </s>"]


def test_forced_of_200_tokens_is_cut_with_a_notice():
    tokens = ["w"] * 200
    drawn = forced_figure(forced_of(samples.forced(tokens, [{"w": 0.5, "v": 0.5}] * 200), max_steps=60))
    assert "Cut: the first 60 of 200 steps are shown." in texts(drawn)
    assert drawn.get_size_inches()[1] < 9


def test_dollar_signs_are_no_formulas(tmp_path):
    example = samples.forced(["$x_1$", "\\alpha", "</s>"], [{"$x_1$": 0.5, "$": 0.5}, {}, {}], ["$a$", "b_c$"])
    output = tmp_path / "a.png"
    style.save(forced_figure(forced_of(example)), output)
    style.save(attention.attention_figure([attention.heat_map_of(example)]), output)
    assert output.stat().st_size > 1000


def test_labels_are_no_formulas_and_a_users_settings_do_not_matter(tmp_path, inputs):
    def drawn(name, label):
        output = tmp_path / f"{name}.png"
        words = ["learning-curves", *inputs["learning-curves"][:3], "--labels", label, "b_c"]
        assert main(["figure", *words, "--output", str(output)]) == 0
        return output.read_bytes()

    plain = drawn("plain", "$x_1$ costs $5")
    with matplotlib.rc_context({"text.usetex": True, "axes.facecolor": "black", "lines.linewidth": 9, "font.size": 30}):
        assert drawn("own", "$x_1$ costs $5") == plain
    groups = plots.group(runs((1.5, 1.5, 90)), ["$x$"])
    assert not plots.training_speed(groups).legends[0].get_texts()[0].get_parse_math()


def test_attention_outlines_exactly_the_nonzeros():
    one = attention.heat_map_of(samples.forced(["a", "b"], [{}, {}], ["x", "y", "z"]), "model")
    drawn = attention.attention_figure([one, one])
    assert [len(axes.collections[0].get_paths()) for axes in drawn.axes] == [4, 4]  # two per target token
    assert drawn.axes[0].get_xlabel() == "model, 2.0 non-zeros per token"


def test_attention_of_200_tokens_is_cut_with_a_notice():
    words = [samples.WORDS[i % 19] for i in range(200)]
    one = attention.heat_map_of(samples.forced(words, [{}] * 200, words))
    assert (len(one.source), len(one.target), len(one.weights[0])) == (50, 50, 50)
    assert one.notices[0] == "cut, the first 50 of 200 source tokens are shown."
    drawn = attention.attention_figure([one])
    assert drawn.get_size_inches()[0] <= style.PAGE + 0.01
    assert {text.get_text() for text in drawn.texts} == {f"C{notice[1:]}" for notice in one.notices}


def test_many_models_go_on_several_rows():
    words = [samples.WORDS[i % 19] for i in range(40)]
    one = attention.heat_map_of(samples.forced(words, [{}] * 40, words), "model")
    width, height = attention.attention_figure([one] * 3).get_size_inches()
    assert width <= style.PAGE + 0.01 and height > 10


def test_runs_with_the_same_alphas_are_one_line_in_the_legend():
    groups = plots.group(runs((1.5, 1, 91), (1.5, 1.5, 92), (1, 1, 90), (1.5, 1.5, 91, 8, 2)))  # in any order
    assert list(groups) == ["softmax", "1.5-entmax", "output 1.5, attention 1"]
    drawn = plots.training_speed(groups)
    axes = drawn.axes[0]
    assert len(axes.lines) == 4
    # a marker per validation on every run, so that one with a single validation is seen
    assert [line.get_marker() for line in axes.lines] == ["o", "s", "s", "^"]
    assert not any(line.get_clip_on() for line in axes.lines)
    assert drawn.legends[0].get_texts()[0].get_text() == "softmax (1,000 words/s)"


def test_runs_of_equal_alphas_but_other_kinds_are_told_apart():
    def signed(text, **more):
        (run,) = runs((1.5, 1.5, 92))
        run.rows[-1].update(signature=f"measure:valid|alpha:1.5/1.5|step:9|{text}", **more)
        return run

    seeds = [signed(f"seed:{seed}|lr:0.001|decay:valid_loss|version:{seed}") for seed in (1, 2)]
    assert list(plots.group(seeds)) == ["1.5-entmax"]
    # older metrics say nothing of heads: what they were trained with tells
    older = signed("seed:1|lr:1|decay:noam|version:1")
    groups = plots.group([*seeds, older])
    assert {name: len(own) for name, own in groups.items()} == {
        "1.5-entmax, lr 0.001, decay valid_loss": 2,
        "1.5-entmax, lr 1, decay noam": 1,
    }
    heads = signed("seed:1|lr:1|decay:noam|version:1", heads={"context_attention": {}})
    assert list(plots.group([*seeds, heads])) == ["1.5-entmax", "1.5-entmax, Transformer"]
    assert list(plots.group([*seeds, heads], ["a", "a", "b"])) == ["a", "b"]


def test_runs_that_not_even_a_seed_tells_apart_are_named_by_their_files(tmp_path, capsys):
    paths = []
    for name, seed in (("small", 1), ("large", 1), ("third", 2)):
        (tmp_path / name).mkdir()
        rows = samples.metrics_rows(1.5, 1.5, 92, seed=seed)
        paths.append(samples.write_lines(tmp_path / name / "m_metrics.jsonl", rows))
    found = [read_metrics(path) for path in paths]
    assert plots.same_seed(found) == found[:2] and plots.same_seed(found[1:]) == []
    assert list(plots.group(found[1:])) == ["1.5-entmax"]
    names = [f"1.5-entmax, {path.parent / path.stem}" for path in paths]
    assert list(plots.group(found)) == names

    def figure(kind, *files, labels=()):
        words = ["figure", kind, "--input", *map(str, files), "--output", str(tmp_path / "a.svg")]
        code = main([*words, *(["--labels", *labels] if labels else [])])
        return code, "".join(capsys.readouterr())

    # what is drawn alike is said, and so is what a mean is of
    assert f"1.5-entmax: {paths[1].parent / 'm_metrics'}, " in figure("learning-curves", *paths[1:])[1]
    other = samples.write_lines(tmp_path / "other_metrics.jsonl", samples.metrics_rows(1.5, 1, 90))
    code, said = figure("alpha-grid", *paths, other)
    assert code == 0 and "Averaged, though each of them has alphas and seed of another one: " in said
    assert str(paths[2].parent) not in said.split("another one: ")[1]
    code, said = figure("learning-curves", paths[0], paths[0])
    assert code == 2 and said.endswith("m_metrics.jsonl. It is given twice.\n")


SEARCHED = samples.search_result([38, 39, 35], "1/1")
TRUSTED = samples.trust_result([1.0, 0.8, 0.8, 0.3], [100, 100, 0, 0])


def test_a_label_of_two_files_is_refused_where_one_would_hide_the_other(tmp_path, capsys):
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for kind, made in (("search", SEARCHED), ("trust", TRUSTED)):
        for path in files:
            path.write_text(json.dumps(made), encoding="utf-8")
        words = ["figure", kind, "--input", *map(str, files), "--output", str(tmp_path / "a.svg"), "--labels", "x", "x"]
        assert main(words) == 2
        assert "Invalid setting for `labels`: x. Two files have it" in capsys.readouterr().err


def test_learning_curves_ring_the_best_validation():
    drawn = plots.learning_curves(plots.group(runs((1.5, 1.5, 92))))
    assert [axes.get_title(loc="left") for axes in drawn.axes] == [
        "Validation loss",
        "Token accuracy (%)",
        "Target types of non-zero probability",
        "Source tokens attended to",
    ]
    ring = drawn.axes[1].lines[-1]
    assert list(ring.get_xdata()) == [700]  # the eighth is made lower than the seventh
    assert not ring.get_clip_on()


def test_losses_of_different_alphas_share_no_axis():
    drawn = plots.learning_curves(plots.group(runs((1, 1, 90), (1.5, 1.5, 92), (1.5, 1, 91))))
    lines = {axes.get_title(loc="left"): len(axes.lines) for axes in drawn.axes}
    assert lines["Validation loss, output α = 1"] == 1 and lines["Validation loss, output α = 1.5"] == 2
    assert lines["Token accuracy (%)"] == 6  # three lines and three rings
    names = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert names == ["softmax", "1.5-entmax", "output 1.5, attention 1"]


def test_a_learned_alpha_is_shown():
    (run,) = runs((1.5, 1.4, 92))
    for number, row in enumerate(run.rows):
        row.update(alpha_learned=True, alpha_attention=1.5 - 0.01 * number)
    groups = plots.group([run])
    assert list(groups) == ["output 1.5, attention learned"]
    drawn = plots.learning_curves(groups)
    assert drawn.axes[-1].get_title(loc="left") == "Learned α of the attention"
    assert list(drawn.axes[-1].lines[0].get_ydata())[-1] == pytest.approx(1.43)
    grid = plots.alpha_grid([run, *runs((1.5, 1, 90), (1.5, 1.5, 91))])
    assert list(grid.axes[0].lines[0].get_xdata()) == [1, 1.5]
    star = grid.axes[0].lines[-1]
    assert star.get_marker() == "*" and star.get_xdata()[0] == pytest.approx(1.43)


def test_legends_lie_outside_of_the_axes():
    labels = {
        "a_very_long_name_of_a_model_with_folders/and_its_file/support": [samples.TREE_OF_LIFE],
        "b": [samples.TREE_OF_LIFE],
        "c": [samples.TREE_OF_LIFE],
    }
    drawn = plots.support_histogram(labels)
    renderer = FigureCanvasAgg(drawn).get_renderer()
    drawn.draw(renderer)
    assert len(drawn.subfigs) == 2
    for part in drawn.subfigs:
        top = part.legends[0].get_window_extent(renderer).y1
        assert top <= part.axes[0].get_tightbbox(renderer).y0
        legend = part.legends[0].get_window_extent(renderer)
        assert part.bbox.x0 <= legend.x0 and legend.x1 <= part.bbox.x1  # beside that of the other panel


def test_alpha_grid_averages_runs_and_fixes_the_other_alpha():
    grid = runs((1.5, 1, 90), (1.5, 1, 92), (1.5, 1.5, 95), (1.33, 1.5, 96), (1.5, 2, 94), (2, 2, 99))
    best = [run.best["accuracy"] for run in grid]
    drawn = plots.alpha_grid(grid)
    left, right = (axes.lines[0] for axes in drawn.axes)
    assert list(left.get_xdata()) == [1, 1.5, 2]
    assert left.get_ydata()[0] == pytest.approx((best[0] + best[1]) / 2)
    assert list(right.get_xdata()) == [1.33, 1.5]  # (2, 2) has its other alpha elsewhere
    with pytest.raises(UserError, match="no two models that differ in one alpha"):
        plots.alpha_grid(grid[-1:])


def test_differences_between_runs_are_named():
    first, second = runs((1, 1, 90), (1.5, 1.5, 90))
    assert plots.differing_fields([first, second]) == []
    second.rows[-1]["signature"] += "|lr:0.1"
    assert plots.differing_fields([first, second]) == ["lr"]


def test_support_sizes():
    examples = [samples.TREE_OF_LIFE, samples.forced(["a"], [{"a": 0.5, "b": 0.5}], ["x", "y", "z"])]
    output, attended = plots.support_sizes(examples)
    assert output == [3, 2, 3, 8, 3, 1, 2, 1, 1, 1, 1, 2]
    assert attended == [2] * 12
    with pytest.raises(UserError, match="no support sizes"):
        plots.support_histogram({"a": [{"line": 1}]})


def test_support_histogram_shares_add_up_to_one():
    drawn = plots.support_histogram({"a": [samples.TREE_OF_LIFE]})
    for axes in drawn.axes:
        assert math.fsum(bar.get_height() for bar in axes.patches) == pytest.approx(100)


def test_beam_and_forced_in_the_terminal(draw_file, forced_file, capsys):
    assert main(["figure", "beam", "--input", str(draw_file)]) == 0
    assert "draw ┬ 66.4% ─ ed </s>" in capsys.readouterr().out
    assert main(["figure", "forced", "--input", str(forced_file)]) == 0
    assert "> view  22.0%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["beam"], "`figure beam` needs --input: output of `trace`"),
        (["mappings", "--input", "x"], "takes no --input"),
        (["mappings"], "needs --output. Valid choices: *.png, *.svg, *.pdf."),
        (["mappings", "--output", "a.gif"], "Invalid setting for `output`: a.gif. Valid choices: *.png, *.svg, *.pdf."),
        (["mappings", "--output", "a.png", "--alphas", "0.5"], "Invalid setting for `alphas`: 0.5."),
        (["mappings", "--output", "a.png", "--alphas", "2", "nan"], "Invalid setting for `alphas`: nan."),
        (["mappings", "--output", "a.png", "--alphas", "inf"], "Invalid setting for `alphas`: inf."),
        (["beam", "--input", "x", "--line", "0"], "Invalid setting for `line`: 0. It must be at least 1."),
        (["forced", "--input", "x", "--max_steps", "0"], "Invalid setting for `max-steps`: 0. It must be at least 1."),
        (["beam", "--input", "x", "y"], "`figure beam` shows one input of one file"),
        (["beam", "--input", "x", "--width", "1", "--output", "a.png"], "Invalid setting for `width`: 1.0. It must be"),
        (["beam", "--input", "x", "--width", "5"], "Invalid setting for `width`: 5.0. It goes with --output"),
        (["forced", "--input", "x", "--font", "f.ttf"], "Invalid setting for `font`: f.ttf. It goes with --output"),
        (
            ["forced", "--input", "x", "--labels", "a"],
            "`labels`: a. `figure forced` does not use it",
        ),
        (["support-histogram", "--input", "x", "--line", "9"], "`line`: 9. `figure support-histogram` does not use it"),
        (
            ["trust", "--input", "x", "--alphas", "2", "3"],
            "`alphas`: 2.0 3.0. `figure trust` does not use it",
        ),
        (["mappings", "--fixed", "1.5"], "`fixed`: 1.5. `figure mappings` does not use it: it is for alpha-grid."),
        (
            ["beam", "--input", "x", "--max-steps", "9"],
            "`max-steps`: 9. `figure beam` does not use it",
        ),
        (["attention", "--input", "x", "y", "--labels", "a", "--output", "a.png"], "One per file is needed: 2."),
        (["beam", "--input", "missing.jsonl"], "missing.jsonl: no such file."),
    ],
)
def test_mistakes_are_said_in_one_line(arguments, message, capsys):
    assert main(["figure", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_an_attention_file_is_drawn_and_refused_where_it_does_not_fit(tmp_path, capsys):
    record = {"line": 1, "source": ["x", "$y$"], "hypotheses": [{"tokens": ["a"], "attention": [[0.25, 0.75]]}]}
    path = samples.write_lines(tmp_path / "att.jsonl", [record])
    output = str(tmp_path / "a.png")
    assert main(["figure", "attention", "--input", str(path), "--output", output]) == 0
    capsys.readouterr()
    for name in ("beam", "forced", "support-histogram", "learning-curves"):
        assert main(["figure", name, "--input", str(path), "--output", output]) == 2
        error = capsys.readouterr().err
        assert "holds attention weights of `onmt_translate -attention` or `heads --weights`, for `figure att" in error
        assert error.count("\n") == 1


def test_empty_files_are_said_in_one_line(tmp_path, capsys):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    for name, (_, source) in FIGURES.items():
        if source:
            assert main(["figure", name, "--input", str(empty), "--output", str(tmp_path / "a.png")]) == 2
            assert capsys.readouterr().err == f"onmt_entmax figure: {empty} is empty: nothing to show.\n"
    assert not (tmp_path / "a.png").exists()


def test_search_has_exact_search_apart_at_the_end(tmp_path, capsys):
    paths = []
    for name, scores, alpha in (("a", [38, 39, 35], "1/1"), ("b", [40, 41, 41], "1.5/1.5")):
        (tmp_path / f"{name}.json").write_text(json.dumps(samples.search_result(scores, alpha)), encoding="utf-8")
        paths.append(str(tmp_path / f"{name}.json"))
    results = {path: json.loads(Path(path).read_text(encoding="utf-8")) for path in paths}
    drawn = search_figure(results)
    line, dotted, ring = drawn.axes[0].lines[:3]
    assert list(line.get_ydata()) == [38, 39] and list(dotted.get_ydata()) == [39, 35]
    assert list(ring.get_xdata()) == [2.3] and list(ring.get_ydata()) == [35]
    assert [text.get_text() for text in drawn.axes[0].get_xticklabels()] == ["1", "5", "exact"]
    assert list(drawn.axes[1].lines[0].get_ydata()) == [38 / 40, 39 / 40]
    assert main(["figure", "search", "--input", *paths, "--output", str(tmp_path / "s.png")]) == 0
    said = capsys.readouterr().out.split("\n")
    assert said[1] == "softmax: exact search has proved 9 of 10 outputs to be the most probable."
    assert said[2].startswith("1.5-entmax: ")
    with pytest.raises(UserError, match="Accuracy and BLEU do not fit in one figure"):
        search_figure({**results, "c": samples.search_result([1, 2, 3], "2/2", "acc")})


def test_trust_says_what_it_means():
    # the four most probable of ten are right, the next two half; 60% of the outputs have 0.8 or more, 5 of 6 right
    probs = [1.0, 1.0, 0.9, 0.9, 0.8, 0.8, 0.3, 0.3, 0.3, 0.3]
    result = samples.trust_result(probs, [100, 100, 100, 100, 100, 0, 0, 0, 0, 0])
    assert sentences(result["trust"]) == [
        "Accept outputs of probability 0.9 or more (40% of them): 100.0% are right; of all outputs, 50.0%.",
        "For 20.0% of the outputs the model holds no other string possible; 100.0% of them are right.",
    ]
    wrong = samples.trust_result([0.6, 0.5, 0.4], [0, 100, 0])["trust"]
    assert sentences(wrong) == [  # nowhere 80% right: the more probable half
        "Accept outputs of probability 0.5 or more (67% of them): 50.0% are right; of all outputs, 33.3%."
    ]
    graded = samples.trust_result([0.6, 0.5], [60, 20], "chrf")["runs"][0]["trust"]
    said = (
        "Accept outputs of probability 0.6 or more (50% of them): their mean chrF is 60.0; that of all outputs, 40.0."
    )
    assert sentences(graded) == [said]


def test_trust_lines_hold_the_numbers():
    result = samples.trust_result([1.0, 0.8, 0.8, 0.3], [100, 100, 0, 0])
    drawn = trust_figure({"model": result["trust"], "other": result["trust"]})
    diagonal, line = drawn.axes[0].lines[:2]
    assert line.get_xdata() == pytest.approx([30, 80, 100]) and list(line.get_ydata()) == [0, 50, 100]
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata()) == [0, 100]  # percent on all axes
    curve, ring = drawn.axes[1].lines[:2]
    assert list(curve.get_xdata()) == [25, 75, 100] and curve.get_ydata() == pytest.approx([0, 100 / 3, 50])
    assert (list(ring.get_xdata()), list(ring.get_ydata())) == ([25], [0])  # the one of probability 1
    assert [text.get_text().split(":")[0] for text in drawn.legends[0].texts[:2]] == ["model", "other"]
    perfect = trust_figure({"model": samples.trust_result([1.0, 0.5], [100, 0])["trust"], "other": result["trust"]})
    assert "area under risk-coverage curve 25.0" in perfect.legends[0].texts[0].get_text()
    none = {"ece": {"value": 0.0}, "auroc": {"value": None}, "aurc": {"value": 0.0}}
    assert named("m", none) == "m: calibration error 0.0, area under risk-coverage curve 0.0"


def test_trust_of_translations(tmp_path, capsys):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(samples.trust_result([0.6, 0.5], [60, 20], "chrf")), encoding="utf-8")
    assert main(["figure", "trust", "--input", str(path), "--output", str(tmp_path / "t.png")]) == 0
    assert "r 2.pred: Accept outputs of probability 0.6" in capsys.readouterr().out
    graded = samples.trust_result([0.6, 0.5], [60, 20], "chrf")
    assert [name for name, _ in trusts_of(graded)] == ["1.pred", "2.pred"]
    assert len(trust_figure({"t": graded["runs"][0]["trust"]}).axes) == 1  # no calibration
    with pytest.raises(UserError, match="do not fit in one figure"):
        trust_figure({"t": graded["runs"][0]["trust"], "i": samples.trust_result([0.5], [0])["trust"]})
    path.write_text(json.dumps(samples.inflection_result(90, "1/1", "1")), encoding="utf-8")
    assert main(["figure", "trust", "--input", str(path), "--output", str(tmp_path / "t.png")]) == 2
    assert "says nothing of trust: run `onmt_entmax evaluate` with --certificates" in capsys.readouterr().err


def test_trust_names_models_by_their_alphas(tmp_path, capsys):
    paths = []
    for name, alpha in (("a", "1.0/1.0"), ("b", "2/1.5"), ("c", "unknown")):
        result = samples.trust_result([0.6, 0.5], [100, 0])
        result["signatures"]["trust"] = f"trust|alpha:{alpha}|version:0.1.0"
        (tmp_path / f"{name}.json").write_text(json.dumps(result), encoding="utf-8")
        paths.append(str(tmp_path / f"{name}.json"))
    for given, labels in ((paths[:2], ("softmax: ", "output 2, attention 1.5: ")), (paths, ("a: ", "b: ", "c: "))):
        assert main(["figure", "trust", "--input", *given, "--output", str(tmp_path / "t.png")]) == 0
        lines = capsys.readouterr().out.split("\n")[1:]
        assert all(line.startswith(label) for line, label in zip(lines, labels))
