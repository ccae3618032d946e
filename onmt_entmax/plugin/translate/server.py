"""``onmt_server``: certificates in its answers, and what its own code gets wrong. See ``docs/server.md``."""

from __future__ import annotations

import errno
import json
import math
import sys

from onmt.constants import DefaultTokens
from onmt.translate.translation_server import ServerModelError

from onmt_entmax.errors import UserError, invalid_setting
from onmt_entmax.files import BLANK_LINE, read_json
from onmt_entmax.plugin.options import check_gpu
from onmt_entmax.plugin.parsing import nearest, one_line_errors, running_command
from onmt_entmax.search.result import SEVERAL_SEGMENTS, void_record

# options of `onmt_translate` that a server's own code does not read
UNREAD = {
    "attention": "A server writes no files.",
    "transforms": "A server applies none: give its model a `tokenizer`, or a `preprocess` function.",
    "tgt": "A server takes targets from the `ref` of each input.",
    "config": "Put its options here.",
    "output": "A server writes no files.",
    "with_score": "Answers have the scores.",
}


# keys of a model in the configuration; `model` is an older name of `models`
_KEYS = {
    *("id", "model", "models", "model_root", "opt", "load", "timeout", "on_timeout", "tokenizer", "preprocess"),
    *("postprocess", "custom_opt", "ct2_model", "ct2_translator_args", "ct2_translate_batch_args", "features"),
}


_NO_CLONES = "Models cannot be cloned; name one twice in the configuration, with other options."


class _Models(dict):
    """Models by their number; a number that none has is a mistake of the request."""

    def __missing__(self, number):
        raise _RequestError(_no_model(self, number), 404)


class _RequestError(UserError):
    """What cannot be answered, with the status of HTTP."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def start(stock):
    def start(self, config_file):
        _check_configuration(config_file)
        self.models = _Models(self.models)
        _answer_in_json()
        _listen_in_one_line()
        try:
            return stock(self, config_file)
        except (LookupError, ValueError, TypeError, AttributeError, ImportError, OSError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{config_file}: {type(error).__name__}: {error}") from error

    return one_line_errors(start)


def _check_configuration(path: str) -> None:
    """Refuse a configuration with keys that nothing reads, or without those that are needed."""
    models = read_json(path).get("models")
    if not isinstance(models, list):
        raise UserError(f"{path}: it has no list `models`.")
    for place, model in enumerate(models, 1):
        where = f"{path}, model {place}"
        if not isinstance(model, dict) or not isinstance(model.get("opt"), dict):
            raise UserError(f"{where}: it has no object `opt`; {{}} is for the options' defaults.")
        if not isinstance(model.get("models", model.get("model")), (str, list)):
            raise UserError(f"{where}: it has no `model`, the name of a checkpoint (or `models`, a list of them).")
        for name in model.keys() - _KEYS:
            raise UserError(f"{where}: unknown key `{name}`.{nearest(name, _KEYS)}")
        if type(model.get("id", 0)) is not int:
            raise invalid_setting("id", model["id"], f"It must be a whole number (in {where}).")
        if isinstance(model.get("timeout", -1), bool) or not isinstance(model.get("timeout", -1), (int, float)):
            raise invalid_setting("timeout", model["timeout"], f"It must be a number of seconds (in {where}).")
        if model.get("on_timeout", "unload") not in ("to_cpu", "unload"):
            raise invalid_setting("on_timeout", model["on_timeout"], f"Valid choices: to_cpu, unload (in {where}).")


def _answer_in_json() -> None:
    """Let refusals of flask's own and crashes be answers in JSON, with one sentence; stock makes the app by itself."""
    import flask

    if getattr(flask.Flask.handle_user_exception, "_in_json", False):
        return
    stock = flask.Flask.handle_user_exception

    def handle_user_exception(self, error):
        if self.import_name != "onmt.bin.server" and running_command() != "onmt_server":
            return stock(self, error)  # an app of somebody else's
        if flask.request.endpoint == "clone_model":
            error = _RequestError(_NO_CLONES, 501)
        status = getattr(error, "status", None) or getattr(error, "code", None) or 500
        if getattr(error, "response", None) is not None or 300 <= status < 400:
            return stock(self, error)
        if isinstance(error, RecursionError):  # of the reader of JSON
            error = UserError("The request is nested too deep.")
        if isinstance(error, UserError):
            status = getattr(error, "status", 400)
        elif status == 500:
            self.log_exception(sys.exc_info())
        # flask hides what is wrong with a request's JSON
        texts = (getattr(one, "description", None) for one in (error.__cause__, error))
        text = next(filter(None, texts), None) or str(error) or type(error).__name__
        return flask.make_response(flask.jsonify(error=" ".join(text.split()), status="error"), status)

    handle_user_exception._in_json = True  # type: ignore[attr-defined]
    flask.Flask.handle_user_exception = handle_user_exception  # type: ignore[method-assign]


def _listen_in_one_line() -> None:
    """Let an address that cannot be listened at be one line; ``serve`` is in the module that runs as the command."""
    for name in ("onmt.bin.server", "__main__"):
        serve = getattr(sys.modules.get(name), "serve", None)
        ours = name == "onmt.bin.server" or running_command() == "onmt_server"
        if ours and callable(serve) and not hasattr(serve, "_in_one_line"):
            listen = one_line_errors(_listening(serve))
            listen._in_one_line = True  # type: ignore[attr-defined]
            sys.modules[name].serve = listen  # type: ignore[attr-defined]


def _listening(serve):
    def listen(app, **settings):
        if not 0 <= settings.get("port", 0) <= 65535:  # waitress takes it modulo 65,536
            raise invalid_setting("port", settings["port"], "It must be from 0 to 65535.")
        try:
            return serve(app, **settings)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            taken = getattr(error, "errno", None) == errno.EADDRINUSE
            where = f"`ip` {settings.get('host')}, `port` {settings.get('port')}"
            raise UserError(f"Cannot listen at {where}: {reason}.{' Choose another port.' if taken else ''}") from error

    return listen


def parse_opt(stock):
    def parse_opt(self, opt):
        for name, reason in UNREAD.items():
            if opt.get(name):
                raise invalid_setting(name, opt[name], reason)
        if opt.get("certificates", "-") not in ("", "-", False):
            raise invalid_setting("certificates", opt["certificates"], "A server writes no files: use `-`.")
        lists = [name for name, value in opt.items() if isinstance(value, list) and name != "models"]
        if lists:  # stock would make one word of it
            raise invalid_setting(lists[0], opt[lists[0]], "It must be a text or a number.")
        given = {name: value for name, value in opt.items() if value is not False}  # stock takes `false` for true
        before = sys.argv
        try:
            parsed = stock(self, given)
        finally:
            sys.argv = before
        opt.update(models=given["models"], src=given["src"])  # as stock leaves them, for its list of models
        return parsed

    return parse_opt


def load(stock):
    def load(self, *args, **kwargs):
        try:
            return stock(self, *args, **kwargs)
        except UserError as error:  # not the request's fault
            raise _RequestError(str(error), 500) from error
        finally:
            self.loading_lock.set()  # stock lets later requests wait for a model that could not be loaded

    return load


def clone_model(self, model_id, opt, timeout=-1):
    """Takes the place of stock's, which crashes."""
    raise _RequestError(_NO_CLONES, 501)


def if_loaded(stock):
    """Refuse to move, or unload, a model that is not loaded."""

    def function(self):
        if not self.loaded:
            raise _RequestError(f"Model {self.model_id} is not loaded; the first request to translate loads it.", 409)
        return stock(self)

    return function


def to_gpu(stock):
    def to_gpu(self):
        check_gpu("gpu", self.opt.gpu)
        return stock(self)

    return if_loaded(to_gpu)


def unload(stock):
    def unload(self):
        translator = self.translator
        stock(self)  # waits for the request that is being answered
        if hasattr(translator, "out_file"):
            translator.out_file.close()  # stock leaves that to the garbage collector

    return if_loaded(unload)


def unload_model(stock):
    def unload_model(self, model_id):
        try:
            self.models[model_id].unload()
        except _RequestError as error:  # stock answers with status 200
            _set_status(error.status)
            raise

    return unload_model


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
        model = _model(self, inputs)
        try:
            texts, scores, n_best, *rest = stock(self, inputs)
        except ServerModelError as error:
            if isinstance(error.__context__, UserError):
                raise error.__context__ from None
            if "lock timeout" in str(error) or "loading timeout" in str(error):
                raise _RequestError(f"{error}: try again later.", 503) from error
            if model.loaded:
                model.unload()  # as stock does: the next request loads it afresh
            raise _RequestError(str(error), 500) from error
        if model.opt.certificates:
            _extend_answer([_certificate(place, entry, scores[place * n_best]) for place, entry in enumerate(inputs)])
        # JSON has no infinity: fewer than `n_best` hypotheses were found
        return (texts, [None if score == -math.inf else float(score) for score in scores], n_best, *rest)

    return run


def _no_model(models, number: object) -> str:
    known = ", ".join(str(known) for known in models)
    return f"Invalid setting for `id`: {json.dumps(number)}. No such model; models here: {known or 'none'}."


def _model(server, inputs):
    """The model that inputs ask for.

    Raises:
        UserError: no such model, or no list of objects with a text ``src``; something that would not be used.
    """
    if not isinstance(inputs, list) or not inputs:
        raise UserError('A request is a list of inputs, such as [{"id": 1, "src": "TOKENS"}].')
    for place, entry in enumerate(inputs, 1):
        if not isinstance(entry, dict) or not isinstance(entry.get("src"), str):
            raise UserError(f"Input {place} has no text `src`.")
        if not isinstance(entry.get("ref"), (str, type(None))):
            raise UserError(f"Input {place}: its `ref` is no text.")
        try:
            f"{entry['src']} {entry.get('ref')}".encode()
        except UnicodeEncodeError:
            raise UserError(f"Input {place} holds half a character (one surrogate of UTF-16).") from None
    number = inputs[0].get("id", 0)
    if isinstance(number, bool) or not isinstance(number, (int, float)) or server.models.get(number) is None:
        raise _RequestError(_no_model(server.models, number), 404)
    model = server.models[number]
    for place, entry in enumerate(inputs, 1):
        if entry.get("id", number) != number:
            raise invalid_setting("id", json.dumps(entry["id"]), "All inputs of a request go to one model.")
        for name in entry.keys() & vars(model.opt).keys() - {"src"}:
            raise UserError(f"Input {place}: `{name}` belongs to the `opt` of the configuration, not to a request.")
    return model


def _set_status(status: int) -> None:
    import flask

    @flask.after_this_request
    def change(response):
        response.status_code = status
        return response


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
