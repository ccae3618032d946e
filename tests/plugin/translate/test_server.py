"""``onmt_server``: answers that are JSON, with certificates; the example of the documentation, run over HTTP."""

from __future__ import annotations

import json
import logging
import re
import shlex
import socket
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
from onmt.translate import translation_server

from onmt_entmax.errors import UserError
from onmt_entmax.plugin.translate.translator import SparseTranslator
from tests import serving

flask = pytest.importorskip("flask")

ROOT = Path(__file__).parents[3]


def no_constant(name: str):
    raise AssertionError(f"{name} is no JSON")


@pytest.fixture
def serve(entmax_model, tmp_path, monkeypatch):
    """Starts stock's own server with one model and the given options; returns a function that posts a request."""
    import onmt.bin.server as server

    made = server.TranslationServer()

    def start(preprocess=None, **opt):
        config, apps = tmp_path / "conf.json", []
        model = {"id": 7, "model": entmax_model.name, "opt": {"beam_size": 3, **opt}}
        if preprocess is not None:
            model["preprocess"] = [preprocess]
        config.write_text(json.dumps({"models_root": str(entmax_model.parent), "models": [model]}), encoding="utf-8")
        monkeypatch.setattr(server, "TranslationServer", lambda: made)
        monkeypatch.setattr(server, "serve", lambda app, **settings: apps.append(app))
        server.start(str(config), url_root="/translator", host="127.0.0.1", port=0, debug=False)
        client = apps[0].test_client()

        def post(inputs=None, to="translate", method="POST", **given):
            given = given or ({"json": inputs} if method == "POST" else {})
            answer = client.open(f"/translator/{to}", method=method, **given)
            return answer.status_code, json.loads(answer.text, parse_constant=no_constant)

        return post

    yield start
    for served in made.models.values():
        if served.loaded:
            served.translator.out_file.close()  # stock leaves that to the garbage collector


def sources(*texts: str) -> list[dict]:
    return [{"id": 7, "src": text} for text in texts]


def test_answers_carry_certificates(serve):
    _, answer = serve(n_best=2, certificates="-", verbose=False)(sources("a b c", "", "d e"))
    assert len(answer) == 2 and [len(rank) for rank in answer] == [3, 3]
    first = answer[0]
    assert first[1]["tgt"] == "" and first[1]["certificate"]["reason"] == "blank input line"
    assert [entry["certificate"]["line"] for entry in first] == [1, 2, 3]
    for entry in (first[0], first[2]):
        assert entry["certificate"]["reason"] is None
        assert " ".join(entry["certificate"]["hypotheses"][0]["tokens"]) == entry["tgt"]
        assert entry["certificate"]["hypotheses"][0]["log_prob"] == pytest.approx(entry["pred_score"])


def test_a_request_of_blank_lines_has_certificates(serve):
    _, answer = serve(certificates="-")(sources("", "  "))
    certificates = [entry["certificate"] for entry in answer[0]]
    assert [(record["line"], record["reason"]) for record in certificates] == [
        (1, "blank input line"),
        (2, "blank input line"),
    ]


def test_without_the_option_there_are_none(serve):
    _, answer = serve()(sources("a b c"))
    assert set(answer[0][0]) == {"src", "tgt", "n_best", "pred_score"}


def test_fewer_hypotheses_than_asked_for_have_no_score(serve, corpus):
    post = serve(n_best=3, length_penalty="none", certificates="-")
    _, answer = post(sources(*corpus.sources[:20]))
    missing = 0
    for rank, entries in enumerate(answer):
        for entry in entries:
            found = len(entry["certificate"]["hypotheses"])
            assert (entry["pred_score"] is None) == (rank >= found)
            missing += rank >= found
            assert entry["tgt"] == "" or rank < found
    assert missing, "every input has three hypotheses: the test is idle"


def split_at_f(sequence: dict, model) -> dict:
    """A function of a configuration's `preprocess`: each `f` begins a new segment."""
    segments = sequence["seg"][0].split(" f ")
    return {**sequence, "seg": segments, "n_seg": len(segments), "src_feats": [None] * len(segments)}


def test_an_input_of_several_segments_has_no_certificate(serve):
    post = serve(preprocess=f"{__name__}.split_at_f", certificates="-")
    _, answer = post(sources("a b c", "a b f d e", ""))
    certificates = [entry["certificate"] for entry in answer[0]]
    split = "the input was split into several segments"
    assert [record["reason"] for record in certificates] == [None, split, "blank input line"]
    assert [record["line"] for record in certificates] == [1, 2, 3]


def test_alignments(serve):
    _, answer = serve(report_align=True, certificates="-")(sources("a b c"))
    entry = answer[0][0]
    targets = range(len(entry["tgt"].split()))
    assert sorted(int(pair.split("-")[1]) for pair in entry["align"][0].split()) == list(targets)
    assert [int(pair.split("-")[0]) for pair in entry["align_score"][0].split()] == list(targets)
    assert " ".join(entry["certificate"]["hypotheses"][0]["tokens"]) == entry["tgt"]


def test_a_ref_is_the_prefix_of_its_input_alone(serve):
    post = serve(tgt_file_prefix=True, certificates="-")
    _, answer = post([{"id": 7, "src": "a b c"}, {"id": 7, "src": "a b c", "ref": "c"}])
    free, forced = answer[0]
    assert forced["tgt"].startswith("c") and forced["certificate"]["conditional_on_prefix"] is True
    assert "conditional_on_prefix" not in free["certificate"]


@pytest.mark.parametrize(
    ("inputs", "status", "message"),
    [
        ([{"id": 3, "src": "a"}], 404, "`id`: 3. No such model; models here: 7."),
        ([{"id": "7", "src": "a"}], 404, '`id`: "7". No such model; models here: 7.'),
        ([{"id": [7], "src": "a"}], 404, "`id`: [7]. No such model"),
        ([{"id": True, "src": "a"}], 404, "`id`: true. No such model"),
        ([{"id": 7, "src": "a"}, {"id": 8, "src": "a"}], 400, "`id`: 8. All inputs of a request go to one model"),
        ([{"id": 7}], 400, "Input 1 has no text `src`."),
        ([{"id": 7, "src": "a"}, None], 400, "Input 2 has no text `src`."),
        ([{"id": 7, "src": "a", "ref": ["a"]}], 400, "Input 1: its `ref` is no text"),
        ([{"id": 7, "src": "a", "n_best": 9}], 400, "Input 1: `n_best` belongs to the `opt` of the configuration"),
        ([{"id": 7, "src": "\ud800"}], 400, "Input 1 holds half a character"),
        ([], 400, "A request is a list of inputs"),
        ({"src": "a"}, 400, "A request is a list of inputs"),
        ("a", 400, "A request is a list of inputs"),
        ([{"id": 7, "src": "a\uffe8b"}], 400, "Invalid line"),
    ],
)
def test_a_wrong_request_is_answered(serve, inputs, status, message):
    found, answer = serve()(inputs)
    assert found == status and answer["status"] == "error" and message in answer["error"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "Failed to decode JSON object: Expecting property name"),
        (b"", "Failed to decode JSON object: Expecting value"),
        (b'[{"id": 7, "src": "\xff"}]', "Failed to decode JSON object: 'utf-8' codec can't decode byte 0xff"),
        (b"[" * 100_000, "The request is nested too deep"),
    ],
)
def test_what_is_no_json_is_answered_in_json(serve, data, message):
    status, answer = serve()(data=data)
    assert status == 400 and set(answer) == {"status", "error"} and message in answer["error"]


def test_other_addresses_answer_too(serve, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    post = serve()
    assert post(sources("a"))[0] == 200
    for place, method, status, message in (
        ("nowhere", "GET", 404, "not found"),
        ("translate", "GET", 405, "not allowed"),
        ("to_cpu/9", "GET", 404, "`id`: 9. No such model; models here: 7."),
        ("unload_model/9", "GET", 404, "`id`: 9. No such model"),
        ("to_gpu/7", "GET", 400, "torch sees no CUDA device"),
        ("clone_model/7", "POST", 501, "Models cannot be cloned"),
        ("unload_model/7", "GET", 200, None),
        ("unload_model/7", "GET", 409, "Model 7 is not loaded"),
        ("to_cpu/7", "GET", 409, "Model 7 is not loaded"),
        ("clone_model/7", "POST", 501, "Models cannot be cloned"),
    ):
        found, answer = post({}, to=place, method=method)
        assert found == status and (message is None or message in answer["error"]), place
    assert post(sources("a"))[0] == 200  # loaded again


def test_a_failure_inside_is_said_and_the_next_request_served(serve, monkeypatch, caplog):
    post = serve()
    translate = SparseTranslator._translate
    monkeypatch.setattr(SparseTranslator, "_translate", lambda *args, **kwargs: 1 / 0)
    assert post(sources("a")) == (500, {"status": "error", "error": "Error: division by zero"})
    monkeypatch.setattr(SparseTranslator, "_translate", translate)
    assert post(sources("a"))[0] == 200


def test_a_model_that_cannot_be_loaded_keeps_nobody_waiting(serve, monkeypatch):
    def load(*args, out_file, **kwargs):
        out_file.close()
        raise UserError("Cannot load m.pt: there is no such file.")

    post = serve()
    monkeypatch.setattr(translation_server, "build_translator", load)
    for _ in range(2):  # stock lets the second request wait for half a minute
        assert post(sources("a")) == (500, {"status": "error", "error": "Cannot load m.pt: there is no such file."})


def test_unknown_source_tokens_are_named(serve, caplog, monkeypatch):
    post = serve()
    monkeypatch.setattr(logging.getLogger("onmt"), "propagate", True)
    post(sources("a b c x", "y"))
    assert "Unknown tokens: source 40.0% (2 of 5). Some are 'x', 'y'." in caplog.text


@pytest.mark.parametrize(
    ("opt", "message"),
    [
        ({"certificates": "c.jsonl"}, "`certificates`: c.jsonl. A server writes no files: use `-`"),
        ({"attention": "a.jsonl"}, "`attention`: a.jsonl. A server writes no files"),
        ({"transforms": ["prefix"]}, "`transforms`: .*A server applies none"),
        ({"tgt": "t"}, "`tgt`: t. A server takes targets from the `ref`"),
        ({"config": "t.yaml"}, "`config`: t.yaml. Put its options here"),
        ({"with_score": True}, "`with_score`: True. Answers have the scores"),
        ({"ignore_when_blocking": ["a", "b"]}, "`ignore_when_blocking`: .*It must be a text or a number"),
    ],
)
def test_options_that_a_server_does_not_read_are_refused(serve, opt, message):
    with pytest.raises(UserError, match=message):
        serve(**opt)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "conf.json"),
        ("{}", "it has no list `models`"),
        ('{"models": ["m.pt"]}', "conf.json, model 1: it has no object `opt`"),
        ('{"models": [{"opt": {}}]}', "conf.json, model 1: it has no `model`"),
        ('{"models": [{"model": "m.pt", "opt": {}, "timout": 3}]}', "unknown key `timout`. Did you mean `timeout`"),
        ('{"models": [{"model": "m.pt", "opt": {}, "id": "1"}]}', "`id`: 1. It must be a whole number"),
        ('{"models": [{"model": "m.pt", "opt": {}, "timeout": "soon"}]}', "`timeout`: soon. It must be a number"),
        ('{"models": [{"model": "m.pt", "opt": {}, "on_timeout": "x"}]}', "Valid choices: to_cpu, unload"),
        ('{"models": [{"model": "none.pt", "opt": {}, "id": 1}]}', "FileNotFoundError: .*none.pt from model 1"),
    ],
)
def test_a_broken_configuration_is_named(tmp_path, text, message):
    from onmt.translate import TranslationServer

    (tmp_path / "conf.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        TranslationServer().start(str(tmp_path / "conf.json"))


def test_an_address_that_cannot_be_listened_at_is_one_line(tmp_path, monkeypatch, capsys):
    import onmt.bin.server as server

    def serve(app, host, port):  # waitress's own leaves its socket open when it fails
        with socket.socket() as own:
            own.bind((host, port))

    monkeypatch.setattr(server, "serve", serve)
    (tmp_path / "conf.json").write_text('{"models": []}', encoding="utf-8")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        used = taken.getsockname()[1]
        for port, said in (
            (used, f"Cannot listen at `ip` 127.0.0.1, `port` {used}: .+ in use. Choose another port."),
            (70000, "Invalid setting for `port`: 70000. It must be from 0 to 65535."),
        ):
            words = ["--model_config", str(tmp_path / "conf.json"), "--ip", "127.0.0.1", "--port", str(port)]
            monkeypatch.setattr(sys, "argv", ["onmt_server", *words])
            with pytest.raises(SystemExit) as ended:
                server.main()
            assert ended.value.code == 2
            assert re.fullmatch(rf"onmt_server: {said}\n", capsys.readouterr().err)


def blocks(language: str) -> list[str]:
    text = (ROOT / "docs/server.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_the_example_of_the_documentation(entmax_model, tmp_path, monkeypatch):
    import onmt.bin.server as server
    import waitress

    config, shown = (json.loads(block) for block in blocks("json"))
    start, request = (shlex.split(block.replace("\\\n", " ")) for block in blocks("bash"))
    (tmp_path / "available_models").mkdir()
    (tmp_path / "available_models" / config["models"][0]["model"]).symlink_to(entmax_model)
    (tmp_path / "available_models/conf.json").write_text(json.dumps(config), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    args = server._get_parser().parse_args(start[1:])
    made, listening = server.TranslationServer(), []
    monkeypatch.setattr(server, "TranslationServer", lambda: made)
    # a free port; it is open from here on, so that nobody has to wait for it
    monkeypatch.setattr(
        server, "serve", lambda app, host, port: listening.append(waitress.create_server(app, host=host, port=0))
    )
    server.start(args.model_config, url_root=args.url_root, host=args.ip, port=args.port, debug=args.debug)
    thread = threading.Thread(target=listening[0].run)
    thread.start()
    try:
        url = request[2].replace(str(args.port), str(listening[0].effective_port))
        with urllib.request.urlopen(url, data=request[request.index("-d") + 1].encode()) as response:
            answer = json.loads(response.read(), parse_constant=no_constant)
    finally:
        serving.stop(listening[0], thread)
        made.models[1].translator.out_file.close()
    assert [len(rank) for rank in answer] == [len(rank) for rank in shown] == [2]
    for entry, shown_entry in zip(answer[0], shown[0]):
        assert set(entry) == set(shown_entry) and set(entry["certificate"]) == set(shown_entry["certificate"])
        assert (entry["src"], entry["tgt"]) == (shown_entry["src"], shown_entry["tgt"])
