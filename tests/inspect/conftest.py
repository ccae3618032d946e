"""Models of the tiny corpus behind Flask's test client."""

from __future__ import annotations

import json

import pytest

from onmt_entmax.inspect.app import make_app
from onmt_entmax.inspect.loaded import Loaded

PORT = 8642


@pytest.fixture(scope="session")
def loaded(entmax_model, softmax_model):
    return [Loaded(0, [entmax_model]), Loaded(1, [softmax_model])]


class Page:
    """The page's requests."""

    def __init__(self, app) -> None:
        self.client, self.sequence = app.test_client(), 0

    def get(self, path, host=f"127.0.0.1:{PORT}", **headers):
        return self.client.get(path, headers={"Host": host, **headers})

    def post(self, path, host=f"127.0.0.1:{PORT}", headers=(), **body):
        self.sequence += 1
        given = {"model": 0, "client": "test", "sequence": self.sequence, "input": {"text": "a b c"}, **body}
        sent = {"Host": host, **dict(headers)}  # with escapes, so that half a character can be sent
        return self.client.post(path, data=json.dumps(given), content_type="application/json", headers=sent)


@pytest.fixture
def page(loaded):
    return Page(make_app(loaded, "127.0.0.1", PORT))
