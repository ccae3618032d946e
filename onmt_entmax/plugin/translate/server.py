"""``onmt_server``: certificates in its answers, and what its own code gets wrong. See ``docs/server.md``."""

from __future__ import annotations

import json
import math

from onmt.constants import DefaultTokens

from onmt_entmax.errors import UserError, invalid_setting
from onmt_entmax.files import BLANK_LINE, read_json
from onmt_entmax.plugin.entry_points import one_line_errors
from onmt_entmax.search.result import SEVERAL_SEGMENTS, void_record

# options of `onmt_translate` that a server's own code does not read
UNREAD = {
    "attention": "A server writes no files.",
    "transforms": "A server applies none: give its model a `tokenizer`, or a `preprocess` function.",
    "tgt": "A server takes targets from the `ref` of each input.",
}


def start(stock):
    def start(self, config_file):
        if not isinstance(read_json(config_file).get("models"), list):
            raise UserError(f"{config_file}: it has no list `models`.")
        return stock(self, config_file)

    return one_line_errors(start)


def parse_opt(stock):
    def parse_opt(self, opt):
        for name, reason in UNREAD.items():
            if opt.get(name):
                raise invalid_setting(name, opt[name], reason)
        if opt.get("certificates", "-") not in ("", "-"):
            raise invalid_setting("certificates", opt["certificates"], "A server writes no files: use `-`.")
        given = {name: value for name, value in opt.items() if value is not False}  # stock takes `false` for true
        parsed = stock(self, given)
        opt.update(models=given["models"], src=given["src"])  # as stock leaves them, for its list of models
        return parsed

    return one_line_errors(parse_opt)


def build_translator(stock):
    def build_translator(*args, **kwargs):
        translator = stock(*args, **kwargs)
        translator.reports_alignment_weights = True
        return translator

    return build_translator


def textbatch_to_tensor(stock):
    def textbatch_to_tensor(vocabs, batch, *args, **kwargs):
        if any(example["tgt"] is not None for example in batch):
            for example in batch:
                example["tgt"] = example["tgt"] or {"tgt": ""}  # forces nothing
        return stock(vocabs, batch, *args, **kwargs)

    return textbatch_to_tensor


def split_alignment(stock):
    def maybe_detokenize_with_align(self, sequence, src, side="tgt"):
        if not self.opt.report_align:
            return stock(self, sequence, src, side)
        # from the right: the text may hold the separator
        text, pairs, weights = sequence.rsplit(DefaultTokens.ALIGNMENT_SEPARATOR, 2)
        aligned = (pairs, weights)
        if self.tokenizers_opt is not None and pairs:
            aligned = self.maybe_convert_align(src, text, pairs, weights)
        return self.maybe_detokenize(text, side), aligned

    return maybe_detokenize_with_align


def run(stock):
    def run(self, inputs):
        try:
            model = _model(self, inputs)
            texts, scores, n_best, *rest = stock(self, inputs)
        except UserError as error:
            _refuse(error)
        if model.opt.certificates:
            _extend_answer([_certificate(place, entry, scores[place * n_best]) for place, entry in enumerate(inputs)])
        # JSON has no infinity: fewer than `n_best` hypotheses were found
        return (texts, [None if score == -math.inf else float(score) for score in scores], n_best, *rest)

    return run


def _model(server, inputs):
    """The model that inputs ask for.

    Raises:
        UserError: no such model, or no list of objects with a text ``src``.
    """
    if not isinstance(inputs, list) or not inputs:
        raise UserError('A request is a list of inputs, such as [{"id": 1, "src": "TOKENS"}].')
    for place, entry in enumerate(inputs, 1):
        if not isinstance(entry, dict) or not isinstance(entry.get("src"), str):
            raise UserError(f"Input {place} has no text `src`.")
    number = inputs[0].get("id", 0)
    if server.models.get(number) is None:
        known = ", ".join(str(known) for known in server.models)
        raise invalid_setting("id", number, f"No such model; models here: {known or 'none'}.")
    return server.models[number]


def _refuse(error: UserError) -> None:
    """Answer with status 400; stock would unload the model first. Outside a request the error goes on."""
    import flask

    if not flask.has_request_context():
        raise error
    flask.abort(flask.make_response(flask.jsonify(error=str(error), status="error"), 400))


def _certificate(place: int, entry: dict, score: float) -> dict:
    """Of one input: it came with its best score; none did for a blank input, nor for one of several segments."""
    found = getattr(score, "certificate", None)
    if found is None:
        return void_record(place + 1, SEVERAL_SEGMENTS if entry["src"].strip() else BLANK_LINE)
    return {**found, "line": place + 1}


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
