"""Tables 1 to 3: our cells, the paper's, what is missing, and the three formats."""

from __future__ import annotations

import json
import re

import pytest

from onmt_entmax.cli import main
from onmt_entmax.errors import UserError
from onmt_entmax.report.table_formats import latex, markdown, terminal
from onmt_entmax.report.tables import PAPER1, PAPER2, table1, table2, table3
from tests.report import samples


def write(folder, results):
    paths = []
    for number, result in enumerate(results):
        paths.append(folder / f"r{number}.json")
        paths[-1].write_text(json.dumps(result), encoding="utf-8")
    return paths


def row(table, *labels):
    (found,) = [row for row in table.rows if row and tuple(row[: len(labels)]) == labels]
    return [cell.text() for cell in found[table.labels :]]


def cells_of(table, output, attention):
    current = None
    for items in table.rows:
        if items:
            current = items[0] or current
            if (current, items[1]) == (output, attention):
                return [cell.text() for cell in items[2:]]
    raise KeyError((output, attention))


def test_table1_means_and_ensembles(tmp_path):
    results = [
        samples.inflection_result(84.0, "1.5/1.5", "1"),
        samples.inflection_result(85.0, "1.5/1.5", "2"),
        samples.inflection_result(86.0, "1.5/1.5", "1+2"),
    ]
    table = table1(write(tmp_path, results))
    # ours and the paper's by turns: high avg., high ens., medium avg. = (84 + 85) / 2, sd = sqrt(1/2), medium ens.
    assert cells_of(table, "1.5", "1.5") == ["–", "94.44", "–", "95.00", "84.50 ±0.71", "84.93", "86.00", "86.55"]
    assert cells_of(table, "UZH", "") == ["–", "–", "–", "96.00", "–", "–", "–", "86.64"]
    assert table.notices == [
        "Ours: averages of 2 runs. ±: sample standard deviation.",
        "Single models, 1.5/1.5 medium: 84.00 (seed 1), 85.00 (seed 2).",
    ]
    assert table1(write(tmp_path, results[:1])).notices == ["Ours: one run each."]
    assert len(table.signatures) == 3


def test_another_recipe_is_said_and_is_not_averaged_with_the_papers(tmp_path):
    plain, smoothed = (samples.inflection_result(84.0, "2/1.5", seed) for seed in "12")
    text = smoothed["signatures"]["acc"]
    smoothed["signatures"]["acc"] = text.replace("|version:", "|recipe:smoothing 0.1|version:")
    assert smoothed["signatures"]["acc"] != text
    table = table1(write(tmp_path, [smoothed]))
    assert table.notices == ["Ours: one run each.", "Not the paper's training: alpha 2/1.5, smoothing 0.1."]
    with pytest.raises(UserError, match=r"has recipe smoothing 0\.1, that of another run of the same cell None"):
        table1(write(tmp_path, [plain, smoothed]))


def test_ensembles_of_several_alphas_and_smaller_ones_have_rows_of_their_own(tmp_path):
    results = [
        samples.inflection_result(86.0, "1.5/1.5", "1+2+3"),
        samples.inflection_result(85.0, "1.5/1.5", "1+3"),
        samples.inflection_result(87.0, "1.5/1.5+2/1.5+2/1.5", "1+1+2"),
        samples.inflection_result(94.0, "1.5/learned+2/1.5", "1+2", "high"),
    ]
    table = table1(write(tmp_path, results))
    assert cells_of(table, "1.5", "1.5")[6] == "86.00"  # the largest
    assert row(table, "ensemble of 1.5/1.5:1+3") == ["–"] * 6 + ["85.00", "–"]
    assert row(table, "ensemble of 1.5/1.5:1, 2/1.5:1+2") == ["–"] * 6 + ["87.00", "–"]
    assert row(table, "ensemble of 1.5/learned:1, 2/1.5:2") == ["–"] * 2 + ["94.00"] + ["–"] * 5
    best = [items[0] for items in table.rows if items and items[8].best]
    assert best == ["ensemble of 1.5/1.5:1, 2/1.5:1+2"]
    assert len(table.signatures) == 4
    for again in (0, 2):
        with pytest.raises(UserError, match="a second ensemble of"):
            table1(write(tmp_path, [*results, results[again]]))


def test_the_papers_own_bold_numbers(tmp_path):
    # in the paper 94.59, 95.10, 85.03 and 86.61 are bold in Table 1
    table = table1([])
    assert {cell.value for items in table.rows if items for cell in items[2:] if cell.best} == {
        94.59,
        95.10,
        85.03,
        86.61,
    }
    # and all six of 1.5-entmax in Table 2
    best = [cell for items in table2([]).rows for cell in items[2:] if cell.best]
    assert [cell.text() for cell in best][:2] == ["26.17 ±0.13", "22.42 ±0.08"] and len(best) == 6


def test_best_is_marked_among_ours_and_ties_share_it(tmp_path):
    results = [samples.inflection_result(v, a, "1") for v, a in ((80.001, "1/1"), (80.002, "2/2"), (79, "1.5/1"))]
    table = table1(write(tmp_path, results))
    marked = [(items[1], items[6].text()) for items in table.rows if items and items[6].best]
    assert marked == [("1", "80.00"), ("2", "80.00")]


def test_alphas_that_the_paper_does_not_have_get_a_row(tmp_path):
    table = table1(write(tmp_path, [samples.inflection_result(80.0, "1.33/1.5", "1")]))
    assert cells_of(table, "1.33", "1.5")[4:6] == ["80.00", "–"]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (samples.inflection_result(81.0, "1.5/1.5", "1"), "a second run of seed 1"),
        (samples.inflection_result(81.0, "1.5/1.5", "2", languages=2), "has langs 2, that of another run .* 102"),
        (samples.inflection_result(81.0, "unknown", "2"), "says alpha unknown; evaluate again with --alpha"),
        (samples.translation_result([20.0], "1/1"), "no `acc` in it .it has bleu_tok"),
    ],
)
def test_what_cannot_be_put_together_is_refused(tmp_path, second, message):
    with pytest.raises(UserError, match=message):
        table1(write(tmp_path, [samples.inflection_result(80.0, "1.5/1.5", "1"), second]))


def test_other_data_than_the_papers_is_said(tmp_path):
    results = [
        samples.inflection_result(99.0, "1/1", "1", "none", "bundled", 2),
        samples.inflection_result(80.0, "1/1", "1", "high", "conll2018.1", 3),
    ]
    notices = " ".join(table1(write(tmp_path, results)).notices)
    assert "Setting none is not in the paper's table" in notices
    assert "conll2018.1, 3 languages (high); the paper has conll2018.1 with 86" in notices


def test_table2_mean_and_sample_standard_deviation(tmp_path):
    results = [
        samples.translation_result([26.0, 26.2], "1.5/1.5"),
        samples.translation_result([25.0], "1/1", train=100),
    ]
    table = table2(write(tmp_path, results))
    # mean 26.1; deviations -0.1 and 0.1, so sd = sqrt(0.02 / 1) = 0.1414
    assert row(table, "1.5-entmax", "ours")[:2] == ["26.10 ±0.14", "–"]
    assert row(table, "softmax", "ours")[0] == "25.00"
    assert "trained on 100 pairs (the paper: 206112)" in " ".join(table.notices)


def test_table2_leaves_out_what_has_no_tokens(tmp_path):
    result = samples.translation_result([26.0], "1.5/1.5", "en-ja")
    result["signatures"] = {"bleu_raw": "bleu_raw|task:plain|dir:en-ja|alpha:1.5/1.5|version:0.1.0"}
    table = table2(write(tmp_path, [result, samples.translation_result([25.0], "1.5/1.5")]))
    assert row(table, "1.5-entmax", "ours") == ["25.00", "–", "–", "–", "–", "–"]
    assert "only BLEU on raw text" in " ".join(table.notices)


def test_table2_refuses_the_same_predictions_twice(tmp_path):
    result = samples.translation_result([26.0, 26.0], "1.5/1.5")  # two seeds may give the same
    assert row(table2(write(tmp_path, [result])), "1.5-entmax", "ours")[0] == "26.00 ±0.00"
    with pytest.raises(UserError, match=r"the predictions 26\.0\.pred are also in"):
        table2(write(tmp_path, [result, result]))


def test_table3_from_metrics_and_from_sparsity_files(tmp_path):
    rows = samples.metrics_rows(1.5, 1.5, 90, steps=3)
    for entry, accuracy in zip(rows, (1.0, 3.0, 2.0)):
        entry["accuracy"] = accuracy
    rows[1].update(support_output=16.0, support_attention=5.0)  # of the best validation
    metrics = samples.write_lines(tmp_path / "m_metrics.jsonl", rows)
    numbers = {"target_types": 18.0, "source_words": 7.0, "signature": "sparsity|src:de-en.dev|alpha:1.5/1.5"}
    table = table3([metrics, *write(tmp_path, [numbers])])
    assert row(table, "1.5-entmax") == ["6.00", "5.55", "17.00", "16.13"]
    assert row(table, "sparsemax") == ["–", "3.75", "–", "7.55"]
    # what a mean is of is said, and where it was not measured alike
    assert table.notices[0] == "Ours: averages of 2 runs."
    other = {**numbers, "signature": "sparsity|src:de-en.test|alpha:1.5/1.5"}
    first, second = write(tmp_path, [numbers, other])
    assert table3([first, second]).notices[1] == (
        f"{second}: averaged with another run of alpha 1.5, from which it differs in src (de-en.dev, de-en.test)."
    )
    mean = {**numbers, "signature": f"{numbers['signature']}|recipe:mean of 2 checkpoints"}
    first, second = write(tmp_path, [numbers, mean])
    differing = "from which it differs in recipe (None, mean of 2 checkpoints)."
    assert table3([first, second]).notices[1:3] == [
        f"{second}: averaged with another run of alpha 1.5, {differing}",
        "Not the paper's training: alpha 1.5/1.5, mean of 2 checkpoints.",
    ]


def test_table3_says_what_has_no_place_in_it(tmp_path):
    numbers = {"target_types": 18.0, "source_words": 7.0}
    shown = ["1.5/learned:1.370", "1.5/none", "1.5/1.5+1.5/1.5", "1.5/2"]
    files = write(tmp_path, [{**numbers, "signature": f"sparsity|src:dev|alpha:{alpha}"} for alpha in shown])
    rows = samples.metrics_rows(1.5, 1.5, 90, steps=1)
    rows[0]["alpha_learned"] = True
    table = table3([*files, samples.write_lines(tmp_path / "m_metrics.jsonl", rows)])
    for path, alpha in zip([*files, tmp_path / "m_metrics.jsonl"], [*shown, "1.5/1.5 (learned)"]):
        assert f"{path.name}: alpha {alpha} has no place in this table" in " ".join(table.notices)
    assert row(table, "1.5-entmax")[::2] == ["–", "–"]
    with pytest.raises(UserError, match="holds a result of `onmt_entmax evaluate"):
        table3(write(tmp_path, [samples.inflection_result(1.0, "1/1", "1")]))


def test_a_learned_alpha_has_no_place_in_tables_1_and_2(tmp_path):
    table = table1(write(tmp_path, [samples.inflection_result(80.0, "1.5/learned", "1")]))
    assert table.notices == [f"{tmp_path}/r0.json: alpha 1.5/learned has no place in this table: left out."]
    table = table2(write(tmp_path, [samples.translation_result([26.0], "1.5/learned")]))
    assert "alphas 1.5/learned, direction de-en have no place" in " ".join(table.notices)


def test_formats(tmp_path):
    table = table3(write(tmp_path, [{"target_types": 2.0, "source_words": 1.5, "signature": "sparsity|a_b|alpha:2/2"}]))
    plain, marks, tex = terminal(table), markdown(table), latex(table)
    assert plain.split("\n")[7].split() == ["sparsemax", "1.50", "3.75", "2.00", "7.55"]
    assert "sparsity|a_b|alpha:2/2" in plain
    assert [re.split(" *\\| *", line)[1:-1] for line in marks.split("\n") if "sparsemax" in line] == [
        ["sparsemax", "1.50", "3.75", "2.00", "7.55"]
    ]
    assert r"method & \multicolumn{2}{c}{\# attended} & \multicolumn{2}{c}{\# target words} \\" in tex
    assert r"sparsemax & 1.50 & 3.75 & 2.00 & 7.55 \\" in tex
    assert tex.count(r"\toprule") == tex.count(r"\midrule") == tex.count(r"\bottomrule") == 1
    assert all(line.count(" & ") <= 4 for line in tex.split("\n"))


def test_formats_mark_the_best():
    assert r"\textbf{26.17 $\pm$0.13}" in latex(table2([]))
    assert "**26.17 ±0.13**" in markdown(table2([]))
    assert " *26.17 ±0.13 " in terminal(table2([]))
    assert "\033[1m26.17 ±0.13\033[0m" in terminal(table2([]), bold=True)


def test_columns_of_the_terminal_line_up():
    lines = terminal(table2([])).split("\n")
    body = [line for line in lines if " ±" in line]
    assert len(body) == 3 and len({line.index(" ±") for line in body}) == 1


def test_command(tmp_path, capsys):
    paths = write(tmp_path, [samples.inflection_result(84.0, "1.5/1.5", "1")])
    assert main(["table", "1", "--input", *map(str, paths)]) == 0
    assert "84.00" in capsys.readouterr().out
    assert main(["table", "1", "--input", *map(str, paths), "--output", str(tmp_path / "t.tex")]) == 0
    assert (tmp_path / "t.tex").read_text().startswith("\\begin{tabular}{llrrrrrrrr}\n")
    paths[0].write_text("")
    assert main(["table", "1", "--input", str(paths[0])]) == 2
    assert capsys.readouterr().err == f"onmt_entmax table: {paths[0]} is empty: nothing to show.\n"


def test_the_papers_numbers_are_those_of_the_paper():
    # sums over the numbers in the paper's source, taken by a script: a guard against a slip of the finger
    assert round(sum(map(sum, PAPER1.values())), 2) == 3227.21
    assert round(sum(value for cells in PAPER2.values() for value, _ in cells), 2) == 449.48
    assert round(sum(sd for cells in PAPER2.values() for _, sd in cells), 2) == 3.16
