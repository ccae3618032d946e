"""``onmt_server``: answers carry certificates; requests in several threads do not mix."""

from __future__ import annotations

import json

import pytest

flask = pytest.importorskip("flask")


@pytest.fixture
def client(entmax_model, tmp_path, monkeypatch):
    """A test client of stock's own server, with one model."""
    import onmt.bin.server as server

    config = tmp_path / "conf.json"
    model = {
        "id": 7,
        "model": entmax_model.name,
        "opt": {"n_best": 2, "beam_size": 3, "certificates": "-", "verbose": False},
    }
    config.write_text(json.dumps({"models_root": str(entmax_model.parent), "models": [model]}), encoding="utf-8")
    apps, made = [], server.TranslationServer()
    monkeypatch.setattr(server, "TranslationServer", lambda: made)
    monkeypatch.setattr(server, "serve", lambda app, **settings: apps.append(app))
    server.start(str(config), url_root="/translator", host="127.0.0.1", port=0, debug=False)
    yield apps[0].test_client()
    for served in made.models.values():
        served.translator.out_file.close()  # stock leaves that to the garbage collector


def test_answers_carry_certificates(client):
    inputs = [{"id": 7, "src": "a b c"}, {"id": 7, "src": ""}, {"id": 7, "src": "d e"}]
    answer = client.post("/translator/translate", json=inputs).get_json()
    assert len(answer) == 2 and [len(rank) for rank in answer] == [3, 3]
    first = answer[0]
    assert first[1]["tgt"] == "" and first[1]["certificate"]["reason"] == "blank input line"
    assert [entry["certificate"]["line"] for entry in first] == [1, 2, 3]
    for entry in (first[0], first[2]):
        assert entry["certificate"]["reason"] is None
        assert " ".join(entry["certificate"]["hypotheses"][0]["tokens"]) == entry["tgt"]
        assert entry["certificate"]["hypotheses"][0]["log_prob"] == pytest.approx(entry["pred_score"])
