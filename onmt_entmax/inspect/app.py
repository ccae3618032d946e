"""The page's server: routes, what it refuses, and who takes over from whom.

The page runs on somebody's own machine, where any site open in the same browser can send requests to it: the Host
header is checked against DNS rebinding, Origin and the type of the body against other sites' forms and scripts.
"""

from __future__ import annotations

import hmac
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from flask import Flask, Response, jsonify, redirect, request
from werkzeug.exceptions import HTTPException

from onmt_entmax.errors import UserError, choices, invalid_setting
from onmt_entmax.inspect.loaded import LIMITS, Loaded
from onmt_entmax.inspect.session import Cancelled
from onmt_entmax.inspect.texts import one_line, whole_characters
from onmt_entmax.version import version

MAX_BYTES = 64 * 1024
AT_ONCE = 16  # requests that compute or wait
CLIENTS = 1000  # remembered
COOKIE = "onmt_entmax_token"
CHANNELS = ("search", "complete", "attention")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


class Busy(Exception):
    """Too many requests at once, or one that took too long."""


class Requests:
    """Who asked last: a newer request of the same client, channel and model takes over from an older one."""

    def __init__(self, seconds: float = LIMITS["seconds"], at_once: int = AT_ONCE, now=time.monotonic) -> None:
        self._seconds, self._at_once, self._now = seconds, at_once, now
        self._last: OrderedDict[tuple, int] = OrderedDict()
        self._lock, self._running = threading.Lock(), 0

    def enter(self, client: tuple, sequence: int) -> Callable[[], None]:
        """Begin a request; :meth:`leave` ends it.

        Returns:
            What asks whether its answer is still wanted, and raises where it is not.

        Raises:
            Cancelled: a newer one was there before.
            Busy: there are too many.
        """
        with self._lock:
            if self._last.get(client, sequence) > sequence:
                raise Cancelled
            if self._running >= self._at_once:
                raise Busy(f"{self._at_once} requests are being answered already; try again.")
            self._running += 1
            self._last[client] = sequence
            self._last.move_to_end(client)
            while len(self._last) > CLIENTS:
                self._last.popitem(last=False)
        end = self._now() + self._seconds

        def wanted() -> None:
            if self._last.get(client, sequence) > sequence:
                raise Cancelled
            if self._now() > end:
                raise Busy(f"This took longer than {self._seconds:g} seconds and was given up; ask for less.")

        return wanted

    def leave(self) -> None:
        """End a request."""
        with self._lock:
            self._running -= 1


def make_app(
    loaded: Sequence[Loaded], host: str, port: int, token: str | None = None, requests: Requests | None = None
) -> Flask:
    """The server of some models.

    Args:
        loaded: the models.
        host, port: where it listens.
        token: what a browser must bring, for addresses that others reach.
        requests: for tests.
    """
    app = Flask(__name__, static_folder="static", static_url_path="/static")
    app.config["MAX_CONTENT_LENGTH"] = MAX_BYTES
    app.json.ensure_ascii, app.json.sort_keys = False, False
    running = requests or Requests()
    bound = (f"[{host}]" if ":" in host else host).lower()
    names = {f"{name}:{port}" for name in (*LOOPBACK, bound)}
    names |= {name.rpartition(":")[0] for name in names if port == 80}
    anywhere = token is not None and host in ("0.0.0.0", "::", "")  # any name may lead here; the token guards

    cookie = f"{COOKIE}_{port}"  # cookies are of a host, whatever the port

    @app.before_request
    def check() -> Response | None:
        if not anywhere and request.host.lower() not in names:
            return _error(403, f"This server answers at {bound}:{port}, not at {request.host}.")
        origin = request.headers.get("Origin")
        if origin is not None and origin != f"http://{request.host}":
            return _error(403, f"Requests of {origin} are not answered.")
        if token is not None:
            given = request.args.get("token")
            if given is not None and request.path == "/" and _same(given, token):
                answer = redirect("/")
                answer.set_cookie(cookie, token, httponly=True, samesite="Strict")
                return answer
            if not _same(request.cookies.get(cookie, ""), token):
                return _error(403, "The token is missing or wrong: open the address that the command printed.")
        if request.method == "POST" and not request.is_json:
            return _error(400, "The body must be JSON (Content-Type: application/json).")
        return None

    @app.after_request
    def guard(answer: Response) -> Response:
        answer.headers.update(HEADERS)
        return answer

    @app.errorhandler(HTTPException)
    def refused(error: HTTPException) -> Response:
        what = {404: f"There is no {request.path}.", 413: f"A request has at most {MAX_BYTES} bytes."}
        code = error.code or 500
        return _error(code, what.get(code, error.description or "This cannot be answered."))

    @app.errorhandler(Exception)
    def failed(error: Exception) -> Response:
        if isinstance(error, UserError):
            return _error(400, " ".join(str(error).split()))
        if isinstance(error, Cancelled):
            return _error(409, "A newer request took over.", cancelled=True)
        if isinstance(error, Busy):
            return _error(503, str(error))
        app.logger.exception("%s", request.path)
        return _error(500, f"The server failed ({type(error).__name__}); its log says more.")

    @app.get("/")
    def page() -> Response:
        return app.send_static_file("index.html")

    @app.get("/api/models")
    def models() -> Response:
        return jsonify(version=version(), models=[one.describe() for one in loaded], limits=LIMITS)

    def answer(channel: str, compute: Callable[[Loaded, dict, list[str], list[str], Callable], dict]) -> Response:
        body = request.get_json()
        if not isinstance(body, dict):
            raise UserError("The body must be a JSON object.")
        number = whole(body, "model", 0, len(loaded) - 1)
        client, sequence = body.get("client"), whole(body, "sequence", 0, 2**53)
        if not isinstance(client, str) or len(client) > 100:
            raise UserError("`client` must be text of at most 100 characters.")
        named = body.get("channel", channel)
        if named not in CHANNELS:
            raise invalid_setting("channel", named, choices(CHANNELS))
        began = time.monotonic()
        wanted = running.enter((client, named, number), sequence)
        try:
            one = loaded[number]
            source, unknown = one.source(body.get("input"))
            found = compute(one, body, source, unknown, wanted)
        finally:
            running.leave()
        return jsonify({**found, "seconds": time.monotonic() - began})

    @app.post("/api/search")
    def search() -> Response:
        def compute(one: Loaded, body: dict, source: list[str], unknown: list[str], wanted: Callable) -> dict:
            return one.search(
                source,
                unknown,
                texts(body, "prefix"),
                body.get("search", "beam"),
                whole(body, "beam_size", 1, LIMITS["beam_size"], 5),
                whole(body, "max_length", 1, LIMITS["max_length"], LIMITS["max_length"]),
                wanted,
            )

        return answer("search", compute)

    @app.post("/api/complete")
    def complete() -> Response:
        def compute(one: Loaded, body: dict, source: list[str], unknown: list[str], wanted: Callable) -> dict:
            text = one_line(body, "text", collapse=False)  # places in it are the sender's
            return one.complete(source, text, whole(body, "max_words", 1, 50, 10), wanted)

        return answer("complete", compute)

    @app.post("/api/attention")
    def attention() -> Response:
        def compute(one: Loaded, body: dict, source: list[str], unknown: list[str], wanted: Callable) -> dict:
            layer, head = (whole(body, name, 1, 1000, 1) for name in ("layer", "head"))
            return one.attention(source, texts(body, "tokens"), body.get("attention"), layer, head, wanted)

        return answer("attention", compute)

    return app


def whole(body: dict[str, Any], name: str, least: int, most: int, default: int | None = None) -> int:
    """A field that is a whole number.

    Raises:
        UserError: it is missing without a default, no whole number, or out of bounds.
    """
    value = body.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise invalid_setting(name, value, f"It must be a whole number from {least} to {most}.")
    return value


def texts(body: dict[str, Any], name: str) -> list[str]:
    """A field that is a list of tokens; left out, there are none."""
    value = body.get(name, [])
    if not isinstance(value, list) or not all(isinstance(token, str) and token for token in value):
        raise invalid_setting(name, value, "It must be a list of tokens.")
    return [whole_characters(token) for token in value]


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8"), token.encode("utf-8"))


def _error(code: int, sentence: str, **more: Any) -> Response:
    answer = jsonify(error=whole_characters(sentence), **more)
    answer.status_code = code
    return answer
