"""The page of ``onmt_entmax inspect`` in a headless Chromium: what it shows is what the Python API gives."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from xml.etree import ElementTree

import pytest

import onmt_entmax
from tests import serving
from tests.stock import Corpus, write

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
By = pytest.importorskip("selenium.webdriver.common.by").By
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
WebDriverWait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait

ROOT = Path(__file__).parents[2]
BROWSER = os.environ.get("ONMT_ENTMAX_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="no chromium with chromium-driver here")

VERBS = ["b a d", "c a b", "f e d", "g a b", "h a g", "a c e", "b e g", "d a b"]
LANGUAGE, LEMMA = "toyish", "bada"
SOURCE = "<lang:toyish> <tag:V> <tag:PST> b a d a"
AT = f"language={LANGUAGE}&tags=V+PST&lemma={LEMMA}"


class Verbs(Corpus):
    """A toy language of eight verbs: the past ends in -e. Of another verb a model that learnt them is unsure."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        forms = [(letters, tag) for letters in VERBS for tag in ("PST", "PRS")]
        for part in ("train", "valid"):
            write(folder / f"{part}.src", [f"<lang:toyish> <tag:V> <tag:{tag}> {letters}" for letters, tag in forms])
            write(folder / f"{part}.tgt", [letters + " e" * (tag == "PST") for letters, tag in forms])
        tags = ["V", "PST", "PRS", *(f"LGSPEC{number}" for number in range(40))]  # more than are shown at once
        names = [f"<lang:{LANGUAGE}>", *(f"<tag:{tag}>" for tag in tags), *"abcdefgh"]
        write(folder / "vocab.src", [f"{name}\t9" for name in names])


class Served:
    """A server of the page in a thread, that can be stopped and started again at the same port."""

    def __init__(self, paths: list[Path]) -> None:
        from onmt_entmax.inspect.loaded import Loaded

        self.loaded = [Loaded(number, [path]) for number, path in enumerate(paths)]
        self.port = 0
        self.start()

    def start(self) -> None:
        from waitress.server import create_server

        from onmt_entmax.inspect.app import make_app
        from onmt_entmax.inspect.serving import listen

        listening = listen("127.0.0.1", self.port)
        self.port = listening.getsockname()[1]
        self._server = create_server(
            make_app(self.loaded, "127.0.0.1", self.port),
            sockets=[listening],
            threads=4,
            clear_untrusted_proxy_headers=True,
        )
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        serving.stop(self._server, self._thread)


@pytest.fixture(scope="module")
def translating(tmp_path_factory) -> list[Path]:
    """A Transformer whose heads have alphas of their own, and a recurrent model: the input of both is tokens."""
    onmt_entmax.register()
    corpus = Corpus(tmp_path_factory.mktemp("translating"))
    sizes = ("-encoder_type", "transformer", "-decoder_type", "transformer", "-layers", "3", "-heads", "2")
    widths = ("-hidden_size", "16", "-transformer_ff", "16", "-attention_dropout", "0", "-position_encoding")
    learned = ("-self_attention_alpha", "learned", "-context_attention_alpha", "learned", "-learned_alpha_rate", "20")
    transformer = corpus.train("transformer", *sizes, *widths, *learned, "-generator_alpha", "1.5", steps=60)
    return [transformer, corpus.train("recurrent", "-global_attention_alpha", "1.5", steps=20)]


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> list[Path]:
    onmt_entmax.register()
    corpus = Verbs(tmp_path_factory.mktemp("verbs"))
    more = ("-learning_rate", "0.02", "-src_vocab", f"{corpus.folder}/vocab.src")
    functions = ("-generator_function", "entmax15", "-global_attention_function", "entmax15")
    return [corpus.train("sparse", *more, *functions, steps=60), corpus.train("dense", *more, steps=60)]


@pytest.fixture(scope="module")
def model(paths):
    return onmt_entmax.load(paths[0])


@pytest.fixture(scope="module")
def served(paths):
    one = Served(paths)
    yield one
    one.stop()


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for word in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1280,900"):
        options.add_argument(f"--{word}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('browser')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


class Page:
    """The page as a user sees it."""

    def __init__(self, driver, address: str) -> None:
        self.driver, self.address = driver, address

    def open(self, fragment: str = "") -> None:
        self.driver.get("about:blank")
        self.driver.get(f"{self.address}#{fragment}")
        self.settle()

    def wait(self, condition):
        return WebDriverWait(self.driver, 30, poll_frequency=0.05).until(lambda _: condition())

    def settle(self) -> None:
        self.wait(lambda: self.find("#main").get_attribute("aria-busy") == "false")

    def find(self, selector: str):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
        return self.driver.execute_script(script, selector)

    def click(self, selector: str) -> None:
        self.find(selector).click()
        self.settle()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)
            self.settle()

    @property
    def focus(self) -> str:
        """Id of the focused element."""
        return self.driver.switch_to.active_element.get_attribute("id")

    @property
    def fragment(self) -> str:
        return self.driver.execute_script("return location.hash")


@pytest.fixture
def page(driver, served):
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    yield Page(driver, f"http://127.0.0.1:{served.port}/")
    log = [entry["message"] for entry in driver.get_log("browser")]
    assert [line for line in log if "Uncaught" in line or "Content Security Policy" in line] == []


def percent(prob: float) -> str:
    if prob < 0.0005:
        return "<0.1%"
    if prob > 0.9995:
        return "100%" if prob >= 1 - 1e-6 else ">99.9%"
    return f"{100 * prob:.1f}%"


def joined(hypotheses) -> list[str]:
    return ["".join(one.tokens) for one in hypotheses]


def test_a_typed_input_is_searched(page, model):
    page.open()
    assert "type a lemma" in page.texts("#view-search .hint")[0]
    page.find("#lemma").send_keys(LEMMA)
    assert page.texts("#chips .note") == ["3 more: type to find them"]  # 43 tags, 40 shown
    page.find("#tag-filter").send_keys("pst", Keys.ENTER, "V", Keys.ENTER)
    assert page.focus == "tag-filter" and page.texts("[aria-pressed=true].chip") == ["PST", "V"]
    page.click("[data-key='tag PST']")  # the order of tags is that in which they are chosen
    page.find("#tag-filter").send_keys("pst", Keys.ENTER)
    page.settle()
    assert page.texts("[aria-pressed=true].chip") == ["V", "PST"]
    (found,) = model.translate([SOURCE], n_best=5, tree=True)
    page.wait(lambda: page.texts(".list .text") == joined(found.hypotheses))
    assert page.texts(".list td.p span:last-child") == [percent(one.prob) for one in found.hypotheses]
    certificate = found.certificate
    kind = "complete" if certificate["complete"] else "optimal" if certificate["optimal"] else "uncertified"
    assert len(found.hypotheses) > 1 and page.texts(".badge") == [kind]
    # every token of a finished hypothesis is in the tree, and each one's probability at its end
    shown = page.driver.execute_script(
        "return [...document.querySelectorAll('.tree .node')].map((one) => one.dataset.key.slice('node '.length))"
    )
    whole = [[*one.tokens, "</s>"] for one in found.hypotheses]
    assert {" ".join(tokens[:size]) for tokens in whole for size in range(len(tokens) + 1)} <= set(shown)
    ends = [percent(one["prob"]) for one in found.tree if one["status"] == "finished"]
    assert sorted(page.texts(".tree .total")) == sorted(ends)
    # nothing impossible is there
    possible = {one["prob"] for one in found.tree}
    assert 0 not in possible and len(shown) <= len(found.tree)
    assert page.find("#live").text.startswith(page.texts(".certificate")[0].split(" ", 1)[1].strip()[:20])


def test_a_click_on_a_node_forces_it(page, model):
    page.open(AT)
    best = model.translate([SOURCE])[0].tokens
    page.click(f"[data-key='node {' '.join(best[:2])}']")
    assert page.fragment.endswith(f"prefix={'+'.join(best[:2])}")
    (found,) = model.complete([SOURCE], best[:2])
    assert page.texts(".crumb") == best[:2]
    names = ["end" if token == "</s>" else token for token, _ in found.next_tokens]
    assert page.texts(".next .option bdi") == names
    assert page.texts(".next .option .p") == [percent(prob) for _, prob in found.next_tokens]
    count = len(found.next_tokens)
    # eight letters and four special tokens, filled up to a multiple of 8
    assert page.texts(".next .note") == [f"{count} of 16 characters {'is' if count == 1 else 'are'} possible here."]
    assert page.texts(".list .text") == joined(found.hypotheses)
    # the focus stays in the tree: Enter on the node to its left forces one token less, Home and Enter none
    page.press(Keys.ARROW_LEFT, Keys.ENTER)
    assert page.texts(".crumb") == best[:1]
    page.press(Keys.HOME, Keys.ENTER)
    assert page.texts(".crumb") == [] and "prefix" not in page.fragment
    page.driver.back()
    page.wait(lambda: page.texts(".crumb") == best[:1])


def test_exact_search_and_whole_support_are_a_click_away(page, model):
    page.open(AT)
    (found,) = model.translate([SOURCE], search="exact", whole_support=True, n_best=5)
    page.driver.execute_script("document.querySelector('[value=support]').click()")
    page.settle()
    assert page.texts(".list .text") == joined(found.hypotheses)
    assert "search=support" in page.fragment and not page.find("#beam").is_enabled()


def test_an_output_is_completed_with_keys_alone(page, model):
    page.open(f"{AT}&view=complete")
    page.driver.execute_script("document.querySelector('#tab-complete').focus()")
    page.press(Keys.TAB)
    assert page.focus == "editor"
    best = model.translate([SOURCE])[0].tokens
    whole = "".join(best)
    page.wait(lambda: page.texts("#ghost .rest") == [whole])  # before a key is pressed: all of it
    page.press(best[0])
    assert page.texts("#ghost .rest") == [whole[1:]]
    page.press(Keys.TAB)
    assert page.find("#editor").get_attribute("value") == whole and page.focus == "editor"
    assert page.texts("#ghost .rest") == [""]
    # back to nothing; then the last of the words that are possible, with the arrow keys
    page.press(*[Keys.BACKSPACE] * len(whole))
    words = page.texts("#words-0 [role=option] bdi")
    (found,) = model.translate([SOURCE], beam_size=10, search="exact", whole_support=True, n_best=10)
    possible = joined(found.hypotheses)
    assert words == possible[: len(words)]
    page.press(Keys.ARROW_UP)
    assert page.find("#editor").get_attribute("aria-activedescendant") == f"word-0-{len(words) - 1}"
    page.press(Keys.ENTER)
    assert page.find("#editor").get_attribute("value") == words[-1]
    # Escape, and Tab leaves
    page.press(Keys.ESCAPE, Keys.TAB)
    assert page.focus != "editor"


def test_what_is_impossible_is_underlined_with_what_was_possible(page, model):
    best = model.translate([SOURCE])[0].tokens
    forced = next(
        (letter, steps[1])
        for letter in "hgfedcba"
        for steps in [model.force([SOURCE], [[best[0], letter]])[0].steps]
        if steps[1]["prob"] == 0
    )
    letter, step = forced
    page.open(f"{AT}&view=complete&text={best[0]}{letter}")
    page.wait(lambda: page.texts("#ghost u") == [letter])
    assert page.texts("#impossible") == [f"“{letter}” is impossible here."]
    assert page.texts("#ghost .rest") == [""]
    offered = page.texts("#words-0 [role=option] bdi")
    assert offered[0] == "".join(model.translate([SOURCE])[0].tokens)
    assert {word[1] for word in offered} <= {one["token"] for one in step["support"]}
    page.find("#editor").send_keys(Keys.ARROW_DOWN, Keys.ENTER)
    page.wait(lambda: page.find("#editor").get_attribute("value") == offered[0])
    page.wait(lambda: page.texts("#ghost u") == [])


def test_an_answer_that_comes_too_late_is_dropped(page, model):
    page.open(f"{AT}&view=complete")
    best = model.translate([SOURCE])[0].tokens
    page.driver.execute_script(
        """
        const real = window.fetch, late = {tokens: [], impossible: null, completion: "LATE", words: [], can_end: 0};
        window.sequences = [];
        window.fetch = (path, options) => {
          if (!path.endsWith("complete")) return real(path, options);
          sequences.push(JSON.parse(options.body).sequence);
          if (sequences.length > 1) return real(path, options);
          return new Promise((answer) => { window.answerLate = () => answer(new Response(JSON.stringify(late))); });
        };
        """
    )
    page.find("#editor").send_keys(best[0])
    page.wait(lambda: page.driver.execute_script("return sequences.length") == 1)
    page.find("#editor").send_keys(best[1])
    rest = "".join(best[2:])
    page.wait(lambda: page.texts("#ghost .rest") == [rest] and page.texts("#words-0 [role=option]"))
    page.driver.execute_async_script("answerLate(); setTimeout(arguments[0])")  # after what the answer sets off
    assert page.texts("#ghost .rest") == [rest] and page.texts("#words-0 [role=option]")
    first, second = page.driver.execute_script("return sequences")
    assert first < second


def test_two_models_stand_side_by_side(page, model, paths):
    page.open(f"{AT}&beside={paths[1].name}")
    lists = [onmt_entmax.load(path).translate([SOURCE], n_best=5)[0].hypotheses for path in paths]
    page.wait(lambda: len(page.texts(".panel .list")) == 2)
    for place, (own, other) in enumerate([lists, lists[::-1]], 1):
        alone = [text for text in joined(own) if text not in joined(other)]
        panel = f".panel:nth-child({place})"
        assert page.texts(f"{panel} h2 bdi") == [paths[place - 1].name]
        rows = page.driver.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map((row) => [row.querySelector('bdi').textContent,"
            " row.querySelector('.tag')?.textContent ?? ''])",
            f"{panel} .list tbody tr",
        )
        assert rows == [[text, "only here" if text in alone else ""] for text in joined(own)]
    shared = len(set(joined(lists[0])) & set(joined(lists[1])))
    assert f"{shared} of {len(lists[0])} and {len(lists[1])} string" in page.texts("#compared")[0]


def test_attention_is_blank_where_it_is_zero(page, model):
    page.open(f"{AT}&view=attention")
    found = model.translate([SOURCE], attention=True)[0].hypotheses[0]
    page.wait(lambda: page.texts(".heat .query"))
    weights = [weight for row in found.attention for weight in row]
    assert len(page.texts(".heat .cell")) == sum(weight > 0 for weight in weights) < len(weights)
    page.driver.execute_script("document.querySelector('.heat .query').focus()")
    first = zip(found.attention[0], SOURCE.split())
    seen = sorted(((weight, key) for weight, key in first if weight > 0), reverse=True)
    sentence = f"“{found.tokens[0]}” looked at {', '.join(f'{key} {percent(weight)}' for weight, key in seen)}."
    assert page.texts(".readout") == [sentence]
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert page.texts(".readout")[0].startswith(f"“{found.tokens[1]}” looked at ")


def cells(page) -> list[list[float]]:
    """The weights that are drawn, by their opacity; what is blank is 0."""
    return page.driver.execute_script(
        """
        const [frame] = document.querySelectorAll(".heat .frame"), at = Number(frame.getAttribute("x"));
        return [...document.querySelectorAll(".heat .query")].map((row) => {
          const weights = Array(frame.getAttribute("width") / 24).fill(0);
          for (const cell of row.querySelectorAll(".cell"))
            weights[(cell.getAttribute("x") - 1 - at) / 24] = Number(cell.getAttribute("fill-opacity"));
          return weights;
        });
        """
    )


def test_every_layer_and_head_of_a_transformer_can_be_chosen(driver, translating):
    served = Served(translating)
    try:
        page = Page(driver, f"http://127.0.0.1:{served.port}/")
        transformer, recurrent = served.loaded
        choose_heads(page, transformer, recurrent)
    finally:
        served.stop()


def choose_heads(page, transformer, recurrent):
    name = transformer.name
    source, at = ["a", "b", "c", "d"], "source=a+b+c+d&view=attention"
    kinds = {one["name"]: one for one in transformer.attentions}
    tokens = transformer.search(source, [], [], "beam", 5, 250, lambda: None)["hypotheses"][0]["tokens"]

    def select(what: str, text: str) -> None:
        page.find(f"#{what}").send_keys(text)
        page.settle()

    def shown(kind: str, layer: int, head: int) -> list[list[float]]:
        alpha = kinds[kind]["alphas"][layer - 1][head - 1]
        rounded = f"{alpha:.3f}".rstrip("0").rstrip(".")
        text = f"{kind.replace('_', ' ')}, layer {layer}, head {head}, α {rounded}"
        page.wait(lambda: page.texts(".panel .place") == [text])
        weights = transformer.attention(source, tokens, kind, layer, head, lambda: None)["weights"]
        drawn = [[max(0.06, weight) if weight > 0 else 0 for weight in row] for row in weights]  # faint, but seen
        assert cells(page) == [pytest.approx(row, abs=6e-4) for row in drawn]
        return weights

    page.open(f"{at}&model={name}")
    assert page.texts("#layer option") == ["1", "2", "3"] and page.texts("#head option") == ["1", "2"]
    assert page.texts("#attention option") == [kind.replace("_", " ") for kind in kinds]
    seen = [shown("context_attention", 1, 1)]
    select("layer", "3")
    seen.append(shown("context_attention", 3, 1))
    select("head", "2")
    seen.append(shown("context_attention", 3, 2))
    assert "layer=3" in page.fragment and "head=2" in page.fragment
    select("attention", "encoder")
    seen.append(shown("encoder_self_attention", 1, 1))
    page.driver.back()
    shown("context_attention", 3, 2)
    assert len({str(weights) for weights in seen}) == len(seen)  # no two look alike

    # a recurrent model has one attention: there is nothing to choose
    page.open(f"{at}&model={recurrent.name}")
    page.wait(lambda: page.texts(".heat .query"))
    assert not page.find("#attention-settings").is_displayed() and page.texts(".panel .place") == []
    # beside it, whichever stands first, the Transformer's are there
    for first, second in ((name, recurrent.name), (recurrent.name, name)):
        page.open(f"{at}&model={first}&beside={second}&layer=2&head=2")
        page.wait(lambda: len(page.texts(".panel .heat")) == 2)
        assert [text[:37] for text in page.texts(".panel .place")] == ["context attention, layer 2, head 2, α"]
    select("attention", "decoder")
    page.wait(lambda: page.texts(".panel .alert"))
    assert page.texts(".panel .alert") == [f"{recurrent.name} has no decoder self attention."]

    # a link to what is not there
    page.open(f"{at}&model={name}&layer=4&head=3")
    assert page.texts("#notices p") == [
        "The link asks for layer 4 of 3; 1 is used.",
        "The link asks for head 3 of 2; 1 is used.",
    ]
    shown("context_attention", 1, 1)


def test_a_permanent_link_restores_everything(page, model, paths):
    best = model.translate([SOURCE])[0].tokens
    page.open(f"{AT}&model={paths[1].name}&beside={paths[0].name}&beam=3&length=12&prefix={best[0]}&rank=2")
    before = page.texts("#view-search .panel")
    page.driver.refresh()
    page.settle()
    cut = [text.rpartition(" expanded in")[0] for text in before]  # without the milliseconds
    assert [text.rpartition(" expanded in")[0] for text in page.texts("#view-search .panel")] == cut
    assert all(cut) and len(cut) == 2
    values = {"beam": "3", "length": "12", "lemma": LEMMA, "model": "1", "beside": "0"}
    assert {name: page.find(f"#{name}").get_attribute("value") for name in values} == values
    assert page.texts(".rank[aria-pressed=true]") == ["2", "2"] and page.texts("#notices p") == []


def test_a_link_that_asks_for_what_is_not_there_says_so(page):
    page.open(f"{AT}&model=gone.pt&beam=5000&search=none&colour=red")
    assert page.texts("#notices p") == [
        "The link names a model that is not loaded: gone.pt.",
        "The link asks for beam 5000; 5 is used.",
        "The link asks for search none. Valid choices: beam, exact, support.",
        "The link says colour, which this page does not know.",
    ]


def test_hostile_text_is_shown_as_text(page):
    hostile = "<script>window.hostile=1</script><img src=x onerror=window.hostile=2>"
    page.open(f"language={LANGUAGE}&tags=V")
    page.find("#lemma").send_keys(hostile)
    page.wait(lambda: page.texts(".panel .warn, .panel .alert"))
    page.settle()
    assert "<" in page.texts(".panel .warn")[0]  # letters that the model does not know
    page.click("#tab-attention")
    page.click("#tab-complete")
    page.find("#editor").send_keys(hostile)
    page.settle()
    assert page.find("#editor").get_attribute("value") == hostile
    harm = "return window.hostile ?? document.querySelectorAll('main script, main img').length"
    assert page.driver.execute_script(harm) == 0


def test_a_dead_server_is_said_and_survived(page, served, model):
    page.open(AT)
    served.stop()
    try:
        page.find("#lemma").send_keys("a")
        page.wait(lambda: page.find("#dead").is_displayed())
        assert page.find("#dead").text.startswith("The server does not answer.")
    finally:
        served.start()
    page.wait(lambda: not page.find("#dead").is_displayed())
    (found,) = model.translate([f"{SOURCE} a"], n_best=5)
    page.wait(lambda: page.texts(".list .text") == joined(found.hypotheses))


@pytest.mark.parametrize("view", ["search", "complete", "attention"])
def test_a_phone_needs_no_scrolling_sideways(page, paths, view):
    size = {"width": 380, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.open(f"{AT}&view={view}&beside={paths[1].name}")
    page.wait(lambda: len(page.texts(f"#view-{view} .panel .head")) == 2)
    assert page.driver.execute_script("return [innerWidth, document.documentElement.scrollWidth]") == [380, 380]


def test_everything_has_a_name_for_who_cannot_see(page):
    page.open(AT)
    unnamed = page.driver.execute_script(
        "return [...document.querySelectorAll('button, input, select, textarea, svg, section, article')]"
        ".filter((one) => !(one.labels?.length || one.getAttribute('aria-label') || one.getAttribute('aria-labelledby')"
        " || one.textContent.trim())).map((one) => one.outerHTML)"
    )
    assert unnamed == []
    colours = []
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        colours.append(page.driver.execute_script("return getComputedStyle(document.body).backgroundColor"))
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert colours == ["rgb(251, 250, 248)", "rgb(20, 23, 26)"]


def test_exports_are_files_of_the_documented_formats(page, model, tmp_path):
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    page.open(AT)
    names = ["trace.jsonl", "tree.svg", "attention.jsonl", "attention.svg", "complete.jsonl", "words.svg"]
    for view in ("search", "attention", "complete"):
        page.click(f"#tab-{view}")
        for button in page.driver.find_elements(By.CSS_SELECTOR, f"#view-{view} .panel .buttons button"):
            button.click()
    files = {name: tmp_path / f"{Path(model.paths[0]).stem}.{name}" for name in names}
    page.wait(lambda: all(path.exists() and path.stat().st_size for path in files.values()))
    trace = json.loads(files["trace.jsonl"].read_text(encoding="utf-8"))
    (found,) = model.translate([SOURCE], n_best=5, tree=True, attention=True)
    assert trace.keys() == {*found.certificate, "source", "tree"}
    assert [one["token"] for one in trace["tree"]] == [one["token"] for one in found.tree]
    assert [one["tokens"] for one in trace["hypotheses"]] == [one.tokens for one in found.hypotheses]
    attention = json.loads(files["attention.jsonl"].read_text(encoding="utf-8"))
    assert attention["source"] == SOURCE.split()
    assert attention["hypotheses"][0]["tokens"] == [*found.tokens, "</s>"]
    complete = json.loads(files["complete.jsonl"].read_text(encoding="utf-8"))
    assert [one["tokens"] for one in complete["hypotheses"]] == [one.tokens for one in found.hypotheses]
    assert "".join(found.tokens) in files["words.svg"].read_text(encoding="utf-8")
    from onmt_entmax.cli import main

    for kind, name in (("beam", "trace.jsonl"), ("attention", "attention.jsonl")):
        assert main(["figure", kind, "--input", str(files[name]), "--output", str(tmp_path / f"{kind}.svg")]) == 0
    for name in ("tree.svg", "attention.svg"):
        drawing = ElementTree.parse(files[name]).getroot()
        assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
        words = [one.text for one in drawing.iter("{http://www.w3.org/2000/svg}text")]
        assert set(found.tokens) <= set(words)
        assert not any("class" in one.attrib or "style" in one.attrib for one in drawing.iter())
