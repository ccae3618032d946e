"""The page of a run: complete, self-contained, and drawn by a browser at the width of a desk and of a phone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.image
import pytest

from onmt_entmax.cli import main
from onmt_entmax.errors import UserError
from onmt_entmax.report.page import page
from onmt_entmax.report.run_files import rank, read_run
from onmt_entmax.search.result import void_record
from tests.report import samples

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Checker(HTMLParser):
    """Collects addresses, and tags that are not closed in order."""

    void = ("meta", "img", "rect", "br")

    def __init__(self):
        super().__init__()
        self.addresses, self.open, self.wrong, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag not in self.void or tag == "rect":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        self.text.append(data)


def check(html: str) -> Checker:
    checker = Checker()
    checker.feed(html)
    assert not checker.wrong and not checker.open
    return checker


def words(html: str) -> str:
    """The text with single blanks."""
    return re.sub(r"(<[^>]+>|\s)+", " ", html)


def test_page_holds_everything_and_loads_nothing(run_dir):
    html = page(read_run(run_dir))
    checker = check(html)
    assert checker.addresses and all(address.startswith("data:image/svg+xml;base64,") for address in checker.addresses)
    assert "<script" not in html and "@import" not in html and "url(" not in html
    text = " ".join(checker.text)
    for wanted in (
        "Set-up", "α = 1.5 (1.5-entmax)", "optim: adam", "Training", "valid|task:toy|alpha:1.5/1.5|seed:1",
        "95.25", "acc|task:bundled", "sparsity|src:dev", "Certificates", "No certificate for 1: length_penalty is set",
        "66.4%", "Exactly 3 strings", "Along the target", "Attention",
    ):  # fmt: skip
        assert wanted in text, wanted
    assert html.count("<img ") == 4  # loss, accuracy, two support sizes


def test_page_says_which_outputs_to_trust(run_dir):
    result = samples.trust_result([1.0, 0.8, 0.8, 0.3], [100, 100, 0, 0])
    (run_dir / "evaluation.json").write_text(json.dumps(result), encoding="utf-8")
    html = page(read_run(run_dir))
    check(html)
    assert html.count("<img ") == 5
    text = words(html)
    assert (
        "Which outputs to trust evaluation.json Accept outputs of probability 1 or more (25% of them): 100.0%" in text
    )
    assert "trust|task:toy|bins:10" in text and "onmt_entmax accept" in text


def test_page_says_where_results_of_search_are_shown(run_dir):
    (run_dir / "search.json").write_text(json.dumps(samples.search_result([1, 2, 3], "1/1")), encoding="utf-8")
    assert "search.json is not shown here: `onmt_entmax figure search` draws it." in read_run(run_dir).notices


def test_certificate_rates_count_void_ones_as_not_certified(run_dir):
    # three complete certificates, a void one and a blank line: 60%; one string alone in none of the three
    text = re.sub("<[^>]+>", " ", page(read_run(run_dir)))
    assert re.search(r"5 inputs\s+of all inputs\s+One string only \(%\)\s+0\.0\s+Complete \(%\)\s+60\.0", text)
    assert "No certificate for 1: blank input line." in text


def test_least_certain_examples_come_first(run_dir):
    examples = read_run(run_dir).examples(20)
    # 0.99 ** 200 = 0.134 before 0.664; and the forced decoding of line 1 has joined its trace
    assert [example["line"] for example in examples] == [2, 1]
    assert "steps" in examples[1] and "steps" not in examples[0]
    assert len(read_run(run_dir).examples(1)) == 1
    assert examples[1]["log_prob"] == json.loads((run_dir / "examples.forced.jsonl").read_text())["log_prob"]
    assert "Probability of the whole target: 32.2%." in page(read_run(run_dir))


def test_a_sparsity_file_without_steps_is_shown(run_dir):
    path = run_dir / "sparsity.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "target_types": None, "source_words": None}))
    assert "Target types of non-zero probability" in page(read_run(run_dir))


def test_without_traces_the_certificates_give_the_examples(run_dir):
    for name in ("examples.trace.jsonl", "examples.forced.jsonl"):
        (run_dir / name).unlink()
    run = read_run(run_dir)
    assert [example["line"] for example in run.examples(20)] == [1, 2, 3, 4]
    assert "Strings found" in page(run)
    assert any("No traces here" in notice for notice in run.notices)


def test_a_run_without_metrics_says_so(run_dir, capsys):
    (run_dir / "model_metrics.jsonl").unlink()
    assert main(["report", str(run_dir)]) == 0
    assert "No metrics file (PREFIX_metrics.jsonl) here: no curves." in capsys.readouterr().out
    assert "No metrics file" in (run_dir / "report.html").read_text(encoding="utf-8")


def test_broken_and_foreign_files_do_not_stop_the_page(run_dir):
    (run_dir / "evaluation.json").write_text("")
    (run_dir / "other.json").write_text('{"a": 1}')
    (run_dir / "notes.jsonl").write_text("not json\n")
    (run_dir / "cut.jsonl").write_text('{"line": 1')
    run = read_run(run_dir)
    assert any("evaluation.json is empty" in notice for notice in run.notices)
    assert any("cut.jsonl is not shown: a line of it is cut off" in notice for notice in run.notices)
    assert not any("other.json" in notice or "notes" in notice for notice in run.notices)
    check(page(run))


def test_a_folder_without_a_run_is_refused(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no metrics, results, certificates or traces of a run." in capsys.readouterr().err
    samples.run_folder(tmp_path / "entmax15")
    with pytest.raises(UserError, match=r"Its folders entmax15 do\."):
        read_run(tmp_path)
    with pytest.raises(UserError, match="not there; a run's folder is needed"):
        read_run(tmp_path / "none")


def test_texts_are_escaped(run_dir):
    evil = samples.forced(
        ["<script>", "a&b", "</s>"], [{"<script>": 0.5, "<b>": 0.5}, {}, {}], ["<img src=x>", "&amp;"]
    )
    for name in ("examples.trace.jsonl", "test.jsonl"):
        (run_dir / name).unlink()
    samples.write_lines(run_dir / "examples.forced.jsonl", [evil])
    html = page(read_run(run_dir))
    check(html)
    assert "<script>" not in html and "&lt;script&gt;" in html and "&lt;img␣src=x&gt;" in html


def test_long_sentences_are_cut_with_a_notice(run_dir):
    text = page(read_run(run_dir))
    assert "Cut, the first 50 of 200 source tokens are shown." in text


def test_same_files_same_page(run_dir):
    assert page(read_run(run_dir)) == page(read_run(run_dir))


def test_the_headline_is_the_test_sets_and_says_so(run_dir):
    dev = [samples.certificate([("a", 0.5), ("b", 0.4)], complete=False, optimal=False)]
    samples.write_lines(run_dir / "dev.jsonl", dev)  # before test.jsonl in the alphabet
    text = words(page(read_run(run_dir)))
    assert "60.0% complete searches, of all inputs of test.jsonl" in text
    assert re.search(r"Certificates test\.jsonl .* dev\.jsonl 1 input ", text)  # all are listed, in this order
    assert rank(Path("model_best.jsonl")) < rank(Path("a.jsonl")) < rank(Path("valid.jsonl"))
    assert rank(Path("evaluation.json"), samples.inflection_result(1, "1/1", "1"))[0] == 0  # its signature: split:test


def test_two_averages_of_one_name_are_told_apart(run_dir):
    result = samples.inflection_result(95.25, "1.5/1.5", "1", "none", "bundled", 2)
    result["macro"]["single"] = 33.3
    (run_dir / "evaluation.json").write_text(json.dumps(result), encoding="utf-8")
    text = words(page(read_run(run_dir)))
    assert "mean of 2 languages" in text and "of all inputs" in text
    assert "Rates here are means over languages; under Certificates every input counts the same." in text


def test_attention_files_have_their_place(run_dir):
    (run_dir / "examples.trace.jsonl").unlink()
    (run_dir / "examples.forced.jsonl").unlink()
    weights = [[1.0, 0.0], [0.5, 0.5]]
    record = {"line": 2, "source": ["x", "y"], "hypotheses": [{"tokens": ["a", "</s>"], "attention": weights}]}
    samples.write_lines(run_dir / "test.attention.jsonl", [record])
    run = read_run(run_dir)
    assert not any("certificate lacks" in notice for notice in run.notices)
    shown = {example["line"]: example for example in run.examples(20)}
    assert shown[2]["attention"]["weights"] == weights and "attention" not in shown[1]
    assert check(page(run)) and page(run).count("class=cell") == 3


def test_a_learned_alpha_and_the_best_checkpoint_are_said(run_dir):
    rows = samples.metrics_rows(1.5, 1.5, 92)
    for row in rows:
        row.update(alpha_learned=True, alpha_attention=1.3739)
    samples.write_lines(run_dir / "model_metrics.jsonl", rows)
    note = {"step": 700, "measure": "accuracy", "value": 91.5, "checkpoint": "run/model_best.pt", "signature": "valid"}
    (run_dir / "model_best.json").write_text(json.dumps(note, indent=2))
    text = words(page(read_run(run_dir)))
    assert "output 1.5, attention learned" in text and "α learned: 1.374 at the last validation" in text
    assert "run/model_best.pt, step 700, accuracy 91.50 (model_best.json)" in text


def test_overview(run_dir, capsys):
    assert main(["overview", f"mine={run_dir}"]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == ["mine", "95.2", "1.50", "2.25", "–", "–", "–"]
    assert lines[4].startswith("acc|task:bundled") and lines[5].startswith("sparsity|src:dev")
    for words in ([str(run_dir)], [f"={run_dir}"]):
        assert main(["overview", *words]) == 2
        assert "Write NAME=FOLDER." in capsys.readouterr().err
    assert main(["overview", f"mine={run_dir}", f"mine={run_dir}"]) == 2
    assert "Another row is called mine." in capsys.readouterr().err
    (run_dir / "sparsity.json").unlink()
    assert main(["overview", f"mine={run_dir}"]) == 2
    path = run_dir / "sparsity.json"
    assert f"{path} is missing; `onmt_entmax sparsity --output {path}` writes it." in capsys.readouterr().err


def test_uncertain_writes_the_least_certain_lines(tmp_path, capsys):
    source = tmp_path / "a.src"
    source.write_text("one\ntwo\n\nfour\n")
    certificates = [samples.certificate([("a", prob)], line=line) for line, prob in ((1, 0.9), (2, 0.2), (4, 0.5))]
    certificates.insert(2, void_record(3))
    samples.write_lines(tmp_path / "c.jsonl", certificates)
    arguments = ["uncertain", "--certificates", str(tmp_path / "c.jsonl"), "--src", str(source), "--count", "2"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == "2\t20.0%\ttwo\n4\t50.0%\tfour\n"
    assert main([*arguments, "--tgt", str(source), "--output", str(tmp_path / "u")]) == 0
    assert (tmp_path / "u.src").read_text() == (tmp_path / "u.tgt").read_text() == "two\nfour\n"
    assert main([*arguments, "--output", str(tmp_path / "u")]) == 2  # u.tgt would stay beside other inputs
    assert "u.tgt is there from another time" in capsys.readouterr().err
    source.write_text("one\ntwo\n\nfour\nfive\n")
    assert main(arguments) == 2
    assert "a.src has 5 lines, and" in capsys.readouterr().err


def test_uncertain_takes_whole_files_only_and_leaves_out_what_was_not_searched(tmp_path, capsys):
    path, source = tmp_path / "c.jsonl", tmp_path / "a.src"
    source.write_text("one\ntwo\nthree\n")
    own = [samples.certificate([("a", prob)], line=line) for line, prob in ((1, 0.9), (2, 0.5))]
    samples.write_lines(path, [*own, void_record(3, "left out by transform filtertoolong")])
    arguments = ["uncertain", "--certificates", str(path), "--src", str(source)]
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert shown.out == "2\t50.0%\ttwo\n1\t90.0%\tone\n"
    assert shown.err == "1 input line without an output (blank, or left out): not among these\n"
    samples.write_lines(path, [*own, samples.certificate([("a", 0.1)], line=1)])  # two files, one behind the other
    assert main(arguments) == 2
    assert "its object number 3 is of input line 1; all lines are needed, in order" in capsys.readouterr().err


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [1200, 390])
def test_a_browser_draws_the_page_without_scrolling_sideways(run_dir, tmp_path, width):
    assert main(["report", str(run_dir), "--output", str(tmp_path / "page.html")]) == 0
    # a window cannot be as narrow as a phone, a frame can; the outer page reports how wide the inner one has become
    (tmp_path / "frame.html").write_text(
        f'<body style="margin:0"><iframe id=f src="page.html" style="width:{width}px;height:900px;border:0"></iframe>'
        "<script>document.getElementById('f').onload = (event) => {"
        "const page = event.target.contentDocument.documentElement;"
        "document.title = [page.scrollWidth, page.clientWidth, page.scrollHeight].join(' ');"
        "const note = document.createElement('p'); note.id = 'sizes'; note.textContent = document.title;"
        "document.body.append(note);};</script>"
    )
    shot = tmp_path / "shot.png"
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
        "--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900",
    ]  # fmt: skip
    address = (tmp_path / "frame.html").as_uri()
    dumped = subprocess.run([*command, "--dump-dom", address], capture_output=True, timeout=120, check=True)
    found = re.search(r'id="sizes">(\d+) (\d+) (\d+)<', dumped.stdout.decode("utf-8"))
    assert found, dumped.stdout[-500:]
    scroll, client, height = map(int, found.groups())
    assert scroll == client == width
    assert height > 2000
    subprocess.run([*command, f"--screenshot={shot}", address], capture_output=True, timeout=120, check=True)
    pixels = matplotlib.image.imread(shot)[..., :3]
    assert 0.005 < (pixels.min(axis=-1) < 0.5).mean() < 0.5
