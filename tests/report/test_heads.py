"""``figure heads``, and heads in the HTML report; invented numbers."""

from __future__ import annotations

import json

import pytest

from onmt_entmax.cli import main
from onmt_entmax.errors import UserError
from onmt_entmax.report.figures.heads import heads_figure, heads_of, read_heads, trajectories
from onmt_entmax.report.metrics import read_metrics
from tests.report.samples import PLACES, write_heads


def test_the_figure_shows_trajectories_and_the_best_validation(tmp_path):
    write_heads(tmp_path / "learned.jsonl", [1.5, 1.8, 1.6], [50, 60, 55])
    write_heads(tmp_path / "fixed.jsonl", [1.5, 1.5], [50, 60])
    learned, fixed = (read_metrics(tmp_path / f"{name}.jsonl") for name in ("learned", "fixed"))
    assert trajectories(learned, PLACES[0]) == ([1, 2, 3], [[[1.5, 1.5]], [[1.5, 1.8]], [[1.5, 1.6]]])
    drawn = heads_figure({"learned": [learned], "fixed": [fixed]})
    curves, densities, divergence = (part.axes for part in drawn.subfigs)  # one run of the two learns
    assert len(curves) == len(densities) == len(divergence) == 3
    assert [list(line.get_ydata()) for line in curves[0].lines] == [[1.5, 1.5, 1.5], [1.5, 1.8, 1.6]]
    # the best has densities 0.8 and 0.25, the other run 0.5 and 0.25: tenths 8 and 2, and 5 and 2
    heights = [bar.get_height() for bar in densities[1].patches]
    assert [place for place, height in enumerate(heights) if height] == [2, 8, 10 + 2, 10 + 5]
    assert [list(line.get_ydata()) for line in divergence[2].lines] == [[0.45], [0.375]]


def test_alphas_are_drawn_from_where_they_began_between_their_bounds(tmp_path):
    path = tmp_path / "learned.jsonl"
    write_heads(path, [1.5, 1.8], [50, 60])
    rows = [{**json.loads(line), "alpha_start": 1.25} for line in path.read_text(encoding="utf-8").splitlines()]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    run = read_metrics(path)
    assert trajectories(run, PLACES[0]) == ([0, 1, 2], [[[1.25, 1.25]], [[1.5, 1.5]], [[1.5, 1.8]]])
    (axes, *_) = heads_figure({"": [run]}).subfigs[0].axes
    assert axes.get_ylim() == (1, 2)
    assert [list(line.get_ydata()) for line in axes.lines] == [[1.25, 1.5, 1.5], [1.25, 1.5, 1.8]]


def test_runs_without_heads_are_refused_or_left_out(tmp_path, capsys):
    write_heads(tmp_path / "lstm.jsonl", [1.5], [50], heads=False)
    with pytest.raises(UserError, match="written by Transformers"):
        heads_figure({"": [read_metrics(tmp_path / "lstm.jsonl")]})
    words = ["figure", "heads", "--input", str(tmp_path / "lstm.jsonl"), "--output", str(tmp_path / "a.svg")]
    assert main(words) == 2 and "written by Transformers" in capsys.readouterr().err


def test_measures_of_the_command_are_drawn_too(tmp_path, capsys):
    heads = [
        {
            "attention": place,
            "layer": layer,
            "head": head,
            "alpha": 1.5,
            "density": head / 4,
            "jensen_shannon": layer / 4,
        }
        for place in PLACES
        for layer in (1, 2)
        for head in (1, 2)
    ]
    path = tmp_path / "heads.json"
    path.write_text(json.dumps({"heads": heads, "models": ["m"], "signature": "heads|lines:1"}), encoding="utf-8")
    run = read_heads(path)
    assert heads_of(run)[PLACES[2]] == {
        "alpha": [[1.5, 1.5]] * 2,
        "density": [[0.25, 0.5]] * 2,
        "jensen_shannon": [0.25, 0.5],
    }
    assert len(heads_figure({"": [run]}).subfigs) == 2  # nothing moves
    words = ["figure", "heads", "--input", str(path), "--output", str(tmp_path / "a.svg")]
    assert main(words) == 0 and "heads|lines:1" in capsys.readouterr().out


def test_the_report_shows_heads(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    write_heads(run / "m_metrics.jsonl", [1.5, 1.7], [50, 60])
    assert main(["report", str(run), "--output", str(tmp_path / "page.html")]) == 0
    assert "Heads at the best validation (m_metrics.jsonl)" in (tmp_path / "page.html").read_text(encoding="utf-8")
