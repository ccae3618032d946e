"""The page's server: answers, refusals, who takes over, and what a browser is told."""

from __future__ import annotations

import pytest

import onmt_entmax
from onmt_entmax.inspect.app import MAX_BYTES, Busy, Requests, make_app
from onmt_entmax.inspect.loaded import explain
from onmt_entmax.inspect.session import Cancelled
from tests.inspect.conftest import PORT, Page

SEARCH, COMPLETE, ATTENTION = "/api/search", "/api/complete", "/api/attention"


def test_models_are_described(page):
    told = page.get("/api/models").get_json()
    first, second = told["models"]
    assert [first["id"], second["id"]] == [0, 1] and first["name"] != second["name"]
    # eight letters and four special tokens, filled up to a multiple of eight
    assert (first["alphas"], first["source"], first["target_types"]) == ("1.5/1.5", "tokens", 16)
    assert first["attention"] == [{"name": "context_attention", "layers": 1, "heads": 1}]
    assert told["limits"]["beam_size"] == 50


def test_a_search_is_that_of_the_api(page, entmax_model):
    told = page.post(SEARCH).get_json()
    (one,) = onmt_entmax.load(entmax_model).translate(["a b c"], n_best=5, attention=True, tree=True)
    assert [entry["tokens"] for entry in told["hypotheses"]] == [entry.tokens for entry in one.hypotheses]
    assert [entry["prob"] for entry in told["hypotheses"]] == pytest.approx([entry.prob for entry in one.hypotheses])
    assert [len(node) for node in told["tree"]] == [5] * len(one.tree)
    assert told["hypotheses"][0]["text"] == one.text and told["source"] == ["a", "b", "c"]
    assert len(told["hypotheses"][0]["attention"][0]) == 3 and told["of"] == 16
    assert told["support_size"] == len(told["next_tokens"]) and told["seconds"] >= 0


def test_a_prefix_is_forced(page, loaded):
    first = page.post(SEARCH).get_json()["next_tokens"][0]["token"]
    told = page.post(SEARCH, prefix=[first]).get_json()
    assert told["prefix_impossible_at"] is None and all(one["tokens"][0] == first for one in told["hypotheses"])
    assert told["explanation"].startswith("After this beginning: ")
    possible = {entry["token"] for entry in page.post(SEARCH).get_json()["next_tokens"]}
    impossible = next(token for token in "abcdefgh" if token not in possible)
    told = page.post(SEARCH, prefix=[impossible, "a"]).get_json()
    assert (told["class"], told["prefix_impossible_at"], told["next_tokens"]) == ("void", 0, [])
    assert told["explanation"] == "Nothing is known for certain: forced prefix has probability zero."


def test_exact_search_and_the_whole_support(page):
    whole = page.post(SEARCH, search="support", beam_size=1).get_json()
    assert whole["tree"] is None and whole["class"] in ("complete", "single")
    assert len(whole["hypotheses"]) + whole["not_listed"] == whole["found"]
    for kind in ("beam", "exact"):
        told = page.post(SEARCH, search=kind, beam_size=2).get_json()
        assert sum(entry["finished"] for entry in told["hypotheses"]) + told["not_listed"] == told["found"]
    known = {"mass_dropped": 0.0, "found": 3, "hypotheses": [{"finished": True}]}
    assert explain("complete", known).endswith("exactly 3 outputs possible; 2 of them are not listed here.")
    assert explain("complete", {**known, "found": 1}).startswith("These are all the outputs")
    exact = page.post(SEARCH, search="exact", beam_size=1).get_json()
    assert exact["hypotheses"][0]["tokens"] == whole["hypotheses"][0]["tokens"] and exact["optimal"]


def test_a_completion_goes_on_as_the_search_does(page):
    best = page.post(SEARCH).get_json()["hypotheses"][0]
    first, *rest = best["tokens"]
    told = page.post(COMPLETE, text=f"{first} ").get_json()
    assert told["completion"] == " ".join(rest) and told["certificate_class"] in ("single", "complete", "optimal")
    allowed = page.post(SEARCH, prefix=[first]).get_json()["next_tokens"]
    words = {entry["token"]: entry["prob"] for entry in allowed if entry["token"] in "abcdefgh"}
    assert {entry["word"]: entry["prob"] for entry in told["words"]} == pytest.approx(words)
    again = page.post(COMPLETE, text=f"{first} ", max_words=1).get_json()
    assert again["words"] == told["words"][:1] and again["words_complete"] == (len(words) == 1)


def test_attention_has_a_row_for_the_end(page):
    told = page.post(ATTENTION, tokens=["c", "b"], attention="context_attention").get_json()
    assert told["queries"] == ["c", "b", "</s>"] and told["keys"] == ["a", "b", "c"]
    assert [sum(row) for row in told["weights"]] == pytest.approx([1, 1, 1], abs=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        (SEARCH, {"model": 2}, "`model`: 2"),
        (SEARCH, {"model": True}, "`model`: True"),
        (ATTENTION, {"attention": []}, "`attention`: []"),
        (ATTENTION, {"attention": "\ud800"}, "`attention`: \ufffd"),
        (SEARCH, {"search": "\ud800"}, "`search`: \ufffd. Valid choices: beam, exact, support"),
        (SEARCH, {"beam_size": 51}, "`beam_size`: 51. It must be a whole number from 1 to 50."),
        (SEARCH, {"beam_size": "5"}, "`beam_size`: 5"),
        (SEARCH, {"max_length": 0}, "`max_length`: 0"),
        (SEARCH, {"search": "wide"}, "Valid choices: beam, exact, support."),
        (SEARCH, {"input": None}, "`input` is missing"),
        (SEARCH, {"input": {"text": 3}}, "`text` is missing"),
        (SEARCH, {"input": {"text": " "}}, "The input is empty."),
        (SEARCH, {"input": {"text": "a " * 251}}, "The input has 251 tokens; at most 250 are taken."),
        (SEARCH, {"input": {"text": "a" * 2001}}, "The input has 2001 characters; at most 2000 are taken."),
        (SEARCH, {"prefix": "a"}, "`prefix`: a. It must be a list of tokens."),
        (SEARCH, {"prefix": ["</s>"]}, "It must not contain the end of the output."),
        (SEARCH, {"prefix": ["a"] * 251}, "`prefix` has 251 tokens"),
        (SEARCH, {"client": 3}, "`client` must be text"),
        (SEARCH, {"channel": "other"}, "Valid choices: search, complete, attention."),
        (SEARCH, {"sequence": -1}, "`sequence`: -1"),
        (COMPLETE, {}, "`text` is missing"),
        (COMPLETE, {"text": "a", "max_words": 0}, "`max_words`: 0. It must be a whole number from 1 to 50."),
        (COMPLETE, {"text": "a" * 2001}, "`text` has 2001 characters; at most 2000 are taken."),
        (ATTENTION, {"attention": "self"}, "Valid choices: context_attention."),
        (ATTENTION, {"attention": "context_attention", "layer": 2}, "`layer`: 2. It must be from 1 to 1."),
    ],
)
def test_bad_requests_are_named(page, path, body, says):
    answer = page.post(path, **body)
    assert answer.status_code == 400 and says in answer.get_json()["error"]


def test_what_is_no_json_and_what_is_too_large(page):
    host = {"Host": f"127.0.0.1:{PORT}"}
    plain = page.client.post(SEARCH, data="{}", headers=host, content_type="text/plain")
    assert plain.status_code == 400 and "application/json" in plain.get_json()["error"]
    for body in ("{", "[]", '"a"'):
        answer = page.client.post(SEARCH, data=body, headers=host, content_type="application/json")
        assert answer.status_code == 400 and answer.get_json()["error"]
    large = page.post(SEARCH, input={"text": "a" * MAX_BYTES})
    assert large.status_code == 413 and large.get_json()["error"] == f"A request has at most {MAX_BYTES} bytes."
    assert page.get("/nothing").status_code == 404 and page.get(SEARCH).status_code == 405


def test_only_its_own_page_is_answered(page):
    for host in (f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"[::1]:{PORT}"):
        assert page.get("/api/models", host=host).status_code == 200
    for host in ("127.0.0.1", "127.0.0.1:1", f"evil.example:{PORT}", f"127.0.0.1.evil.example:{PORT}"):
        assert page.get("/api/models", host=host).status_code == 403
    own, other = f"http://127.0.0.1:{PORT}", "http://evil.example"
    assert page.post(SEARCH, headers={"Origin": own}).status_code == 200
    for origin in (other, "null", f"https://127.0.0.1:{PORT}", f"http://localhost:{PORT}"):
        assert page.post(SEARCH, headers={"Origin": origin}).status_code == 403


def test_names_of_hosts_have_no_case(loaded):
    page = Page(make_app(loaded, "MyHost.local", PORT, token="t"))
    assert page.get("/?token=t", host=f"myhost.local:{PORT}").status_code == 302
    assert page.get("/?token=t", host=f"other.local:{PORT}").status_code == 403


def test_places_are_those_of_the_text_sent(page):
    # two blanks and a character outside the basic plane: places count characters of this very text
    told = page.post(COMPLETE, text="😀  zz ").get_json()
    assert (told["impossible"]["start"], told["impossible"]["end"]) in ((0, 1), (3, 5))
    assert [(one["start"], one["end"]) for one in told["tokens"]] == [(0, 1), (3, 5)] and told["word_start"] == 6


def test_browsers_are_told_to_run_nothing_else(page):
    for answer in (page.get("/api/models"), page.get("/nothing"), page.get("/", host="evil.example")):
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'self'")
        assert answer.headers["X-Content-Type-Options"] == "nosniff" and answer.headers["X-Frame-Options"] == "DENY"
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_text_that_looks_like_html_comes_back_as_json(page):
    hostile = "<script>alert(1)</script>"
    answer = page.post(SEARCH, input={"text": hostile})
    assert answer.mimetype == "application/json" and answer.get_json()["unknown"] == [hostile]
    assert page.get(f"/{hostile}").mimetype == "application/json"


def test_a_token_becomes_a_cookie(loaded):
    page = Page(make_app(loaded, "0.0.0.0", PORT, token="s e%cret"))
    host = f"some.name:{PORT}"
    assert page.get("/api/models", host=host).status_code == 403
    assert page.get("/?token=wrong", host=host).status_code == 403
    welcome = page.get("/?token=s+e%25cret", host=host)
    assert (welcome.status_code, welcome.headers["Location"]) == (302, "/")
    cookie = welcome.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    page.client.set_cookie(f"onmt_entmax_token_{PORT}", "s e%cret", domain="some.name")
    assert page.get("/api/models", host=host).status_code == 200


def test_a_newer_request_takes_over():
    running = Requests()
    old = running.enter(("a", "search", 0), 1)
    old()
    other = running.enter(("a", "complete", 0), 1)
    new = running.enter(("a", "search", 0), 2)
    with pytest.raises(Cancelled):
        old()
    other(), new()
    with pytest.raises(Cancelled):  # it arrived late
        running.enter(("a", "search", 0), 1)


def test_time_and_number_are_limited():
    clock = [0.0]
    running = Requests(seconds=20, at_once=2, now=lambda: clock[0])
    wanted = running.enter(("a", "search", 0), 1)
    running.enter(("b", "search", 0), 1)
    with pytest.raises(Busy, match="2 requests are being answered already"):
        running.enter(("c", "search", 0), 1)
    running.leave()
    running.enter(("c", "search", 0), 1)
    clock[0] = 20.0
    wanted()
    clock[0] = 20.5
    with pytest.raises(Busy, match="longer than 20 seconds"):
        wanted()


def test_whoever_is_not_waited_for_stops_between_steps(loaded):
    """The clock runs on by a second each time that it is asked: a search of many steps does not end."""
    clock = iter(range(1000))
    page = Page(make_app(loaded, "127.0.0.1", PORT, requests=Requests(seconds=3, now=lambda: next(clock))))
    answer = page.post(SEARCH, search="support", input={"text": "a b c d e f g h"})
    assert answer.status_code == 503 and "longer than 3 seconds" in answer.get_json()["error"]
    assert not loaded[0].lock.locked()


def test_an_older_request_is_told(page):
    page.sequence = 10
    assert page.post(SEARCH).status_code == 200
    page.sequence = 3
    answer = page.post(SEARCH)
    assert answer.status_code == 409 and answer.get_json()["cancelled"] is True
