// The editor: the best completion in grey, possible next words, what is impossible underlined.

import { asFile, byId, download, h, percent, plural, s, say } from "./dom.js";
import { badge, button, fileName, head, traceRecord } from "./search.js";

/** The first word of a completion, with the blank behind it where more follows. */
export const firstWord = (completion) => completion.match(/^\s*\S+(\s(?=\S))?/u)?.[0] ?? "";

/** A part of a text by the server's places, which count code points. */
const cut = (text, from, to) => [...text].slice(from, to).join("");

/** What an answer offers: words, their probabilities, and the text after taking each.
 * @param blank what follows a word that was taken
 */
export function offers(answer, text, blank) {
  const wrong = answer.impossible;
  if (wrong) {
    const [from, to] = [wrong.word_start ?? wrong.start, wrong.word_end ?? wrong.end];
    return wrong.instead.map(({ word, prob }) => ({ word, prob, after: cut(text, 0, from) + word + (cut(text, to) || blank) }));
  }
  const half = cut(text, answer.word_start);
  const continues = (word) => word.toLowerCase().startsWith(half.toLowerCase());
  const before = cut(text, 0, answer.word_start);
  return answer.words.map(({ word, prob }) => ({
    word,
    prob,
    after: (continues(word) ? text + word.slice(half.length) : before + word) + blank,
  }));
}

export class Editor {
  /** @param changed called with the text when it changes */
  constructor(changed) {
    this.box = byId("editor");
    this.behind = byId("ghost");
    this.changed = changed;
    this.reset();
    this.box.addEventListener("input", () => this.typed());
    this.box.addEventListener("keydown", (event) => this.key(event));
    byId("take-word").addEventListener("click", () => this.take(this.text + firstWord(this.completion)));
    byId("take-all").addEventListener("click", () => this.take(this.text + this.completion));
    this.box.addEventListener("blur", () => (this.leaving = false));
  }

  reset() {
    this.completion = "";
    this.impossible = null;
    this.offers = [];
    this.chosen = -1;
    this.leaving = false; // whether Tab leaves the editor
    this.text = this.box.value;
    this.paint();
  }

  /** Put a text here, without telling anybody. */
  set(text) {
    if (this.box.value === text) return;
    this.box.value = text;
    this.reset();
  }

  typed() {
    const text = this.box.value.replace(/\s*\n\s*/gu, " ");
    if (text !== this.box.value) this.box.value = text;
    // what was typed as the completion says leaves the rest of it in place until the answer comes
    const added = text.startsWith(this.text) ? text.slice(this.text.length) : null;
    this.completion = added !== null && this.completion.startsWith(added) ? this.completion.slice(added.length) : "";
    if (added === null) this.impossible = null;
    this.text = text;
    this.offers = [];
    this.choose(-1);
    this.leaving = false;
    this.paint();
    this.changed(text);
  }

  take(text) {
    this.box.value = text;
    this.box.setSelectionRange(text.length, text.length);
    this.completion = text.startsWith(this.text) && this.completion.startsWith(text.slice(this.text.length))
      ? this.completion.slice(text.length - this.text.length) : "";
    this.text = text;
    this.impossible = null;
    this.offers = [];
    this.choose(-1);
    this.paint();
    this.changed(text);
  }

  choose(index) {
    this.chosen = index;
    document.querySelectorAll("#words-0 [role=option]").forEach((option, place) => {
      option.setAttribute("aria-selected", String(place === index));
      if (place === index) option.scrollIntoView({ block: "nearest" });
    });
    if (index >= 0) this.box.setAttribute("aria-activedescendant", `word-0-${index}`);
    else this.box.removeAttribute("aria-activedescendant");
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.key === "Tab" && !event.shiftKey && !this.leaving && this.completion) {
      event.preventDefault();
      this.take(this.text + firstWord(this.completion));
    } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && this.offers.length) {
      event.preventDefault();
      const count = this.offers.length;
      this.choose(event.key === "ArrowDown" ? (this.chosen + 1) % count : (Math.max(this.chosen, 0) + count - 1) % count);
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (this.chosen >= 0) this.take(this.offers[this.chosen].after);
    } else if (event.key === "Escape") {
      this.choose(-1);
      this.leaving = true;
      say("Tab leaves the editor now.");
    }
  }

  /** Offer nothing: what was offered is of another input. */
  forget() {
    this.completion = "";
    this.impossible = null;
    this.offers = [];
    this.choose(-1);
    this.paint();
  }

  /** Show the answer to the text that stands here. */
  answer(answer, blank) {
    this.completion = answer.impossible ? "" : answer.completion;
    this.impossible = answer.impossible;
    this.offers = offers(answer, this.text, blank);
    this.chosen = -1;
    this.box.removeAttribute("aria-activedescendant");
    this.paint();
  }

  paint() {
    const { text, impossible } = this;
    const wrong = impossible && impossible.start < [...text].length ? impossible : null;
    for (const name of ["take-word", "take-all"]) byId(name).disabled = !this.completion;
    // the blank of no width lets a line break where the editor's text breaks
    this.behind.replaceChildren(
      ...(wrong
        ? [cut(text, 0, wrong.start), h("u", {}, cut(text, wrong.start, wrong.end)), cut(text, wrong.end)]
        : [text]),
      "\u200b", h("span", { class: "rest" }, this.completion));
  }
}

/** Words and their probabilities as an SVG file. */
function drawing(text, title, given) {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const top = Math.max(...given.map((one) => one.prob), 1e-9);
  const line = (x, y, words, fill, more = {}) => s("text", { x, y, fill, ...more }, words);
  const svg = s("svg", { width: 480, height: 66 + 28 * given.length, "font-family": "sans-serif", "font-size": 15 },
    s("rect", { width: "100%", height: "100%", fill: colour("--card") }),
    line(12, 26, text, colour("--ink"), { "font-weight": 600 }), line(12, 48, title, colour("--soft"), { "font-size": 13 }),
    given.map(({ word, prob }, row) => [
      s("rect", { x: 12, y: 60 + 28 * row, width: Math.max(1, (456 * prob) / top), height: 24, rx: 3, fill: colour("--tint") }),
      line(20, 77 + 28 * row, word, colour("--ink")),
      line(460, 77 + 28 * row, percent(prob), colour("--soft"), { "text-anchor": "end", "font-size": 13 })]));
  return asFile(svg);
}

/** A model's panel of the completion view.
 * @param place 0 for the model whose completion stands in the editor
 * @param other the answer of the model beside, or null
 * @param take called with the text that stands in the editor after a word is taken
 * @param record asks for the search record of this text
 */
export function completePanel(answer, model, place, text, other, take, record) {
  const blank = model.source === "inflection" ? "" : " ";
  const given = offers(answer, text, blank);
  const whole = other && (other.impossible ? other.impossible.instead_complete : other.words_complete); // only then is what is missing there impossible there
  const seen = whole && new Set(offers(other, text, blank).map((one) => one.word));
  const wrong = answer.impossible;
  const top = Math.max(...given.map((one) => one.prob), 1e-9);
  const options = given.map(({ word, prob, after }, index) => {
    const bar = h("span", { class: "bar" });
    bar.style.width = `${(100 * prob) / top}%`;
    return h("li", { role: "option", id: `word-${place}-${index}`, class: "option", "aria-selected": "false", onclick: () => take(after),
      "aria-label": `${word}, ${percent(prob)}${seen && !seen.has(word) ? ", only in this model" : ""}` },
    bar, h("bdi", { class: seen && !seen.has(word) ? "differs" : null }, word), h("span", { class: "p" }, percent(prob)));
  });
  const half = /\S$/u.test(text);
  const title = wrong
    ? `Possible instead of “${wrong.token}”`
    : answer.words_complete
      ? `${plural(given.length, "word")} ${given.length === 1 ? "is" : "are"} possible${half ? " that begin so" : " next"}`
      : `The ${given.length} most probable words${half ? " that begin so" : ""}; there are more`;
  return [
    head(model,
      button("JSON", `Save the completions of ${model.name} as JSON`, async () => {
        const found = await record(answer.tokens.filter((one) => !one.half_typed).map((one) => one.token)); // of the words that are whole
        if (found) download(fileName(model, "complete.jsonl"), `${JSON.stringify(traceRecord(found))}\n`, "application/jsonl");
      }),
      button("SVG", `Save the words of ${model.name} as SVG`,
        () => download(fileName(model, "words.svg"), drawing(`${text} …`, title, given), "image/svg+xml"))),
    wrong
      ? h("p", { class: "warn", id: place ? null : "impossible" }, `“${wrong.token}” is impossible here.`)
      : h("p", { class: "certificate" }, answer.certificate_class ? badge(answer.certificate_class) : null, " ",
        answer.completion ? h("bdi", {}, text, h("b", {}, answer.completion))
          : answer.can_end > 0 ? "The text may end here." : "No way to the end was found."),
    answer.tokens.length
      ? h("p", { class: "pieces", "aria-label": "Probability of each token" }, answer.tokens.map(({ token, prob }) =>
        h("span", { class: prob > 0 ? null : "zero" }, h("bdi", {}, token), h("small", {}, percent(prob))))) : null,
    h("h3", {}, title),
    h("ul", { class: "bars", role: "listbox", id: `words-${place}`, "aria-label": title }, options),
    wrong ? null : h("p", { class: "note" }, answer.can_end > 0 ? `The output ends here with ${percent(answer.can_end)}.` : "The output cannot end here."),
  ];
}
