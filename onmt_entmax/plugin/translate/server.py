"""Certificates in the answers of ``onmt_server``: set ``"certificates": "-"`` among a model's ``opt``.

Every entry of an answer then has a ``certificate`` beside ``tgt`` and ``pred_score``; see ``docs/formats.md``.
"""

from __future__ import annotations

import json

from onmt_entmax.plugin.translate import output
from onmt_entmax.search.result import records_per_input


def run(stock):
    def run(self, inputs):
        output.LATEST.certificates = None
        answer = stock(self, inputs)
        certificates = output.LATEST.certificates
        if certificates is not None:
            _extend_answer(records_per_input(certificates, [bool(entry["src"].strip()) for entry in inputs]))
        return answer

    return run


def _extend_answer(certificates: list[dict]) -> None:
    import flask

    if not flask.has_request_context():
        return

    @flask.after_this_request
    def add(response):
        content = response.get_json(silent=True)
        if isinstance(content, list):  # one list per rank, each with one entry per input; a dictionary is an error
            for rank in content:
                for entry, certificate in zip(rank, certificates):
                    entry["certificate"] = certificate
            response.set_data(json.dumps(content, ensure_ascii=False))
        return response
