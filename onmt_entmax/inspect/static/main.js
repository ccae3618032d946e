// The page: one state, written into the address; every change asks the models anew.

import * as api from "./api.js";
import { attentionPanel } from "./attention.js";
import { completePanel, Editor } from "./complete.js";
import { byId, h, number, plural, replace, say } from "./dom.js";
import { compare, searchPanel } from "./search.js";
import { initial, read, VIEWS, write } from "./state.js";

const MANY_TAGS = 40; // beyond which those not chosen are found by typing
const RETRY = 1500; // milliseconds between questions to a dead server

let models = [];
let limits = {};
let state = null;
let editor = null;
let answers = []; // of the view, by place of the model (0, or 1: beside)
let timer = null; // until the models are asked
let writer = null; // until the address is written
let rounds = 0; // what an earlier round asked is not shown
let completed = ""; // input and model that the editor's offers are of
let dead = false;

const chosen = () => [state.model, state.beside].filter((place) => place !== null).map((place) => models[place]);
const panels = () => byId(`view-${state.view}`).querySelector(".panels");

// ---------------------------------------------------------------- state and address

/** Change the state, the controls, the address, and ask anew; `step`: the browser's Back undoes it. */
function update(changes, step = false, delay = 0) {
  const input = ["source", "language", "tags", "lemma", "model"].some((name) => name in changes);
  if (input && !("prefix" in changes)) Object.assign(changes, { prefix: [], rank: 1 });
  if (step) address();
  Object.assign(state, changes);
  show();
  if (step) address(true);
  else {
    clearTimeout(writer);
    writer = setTimeout(address, 200, false); // browsers count how often an address changes
  }
  clearTimeout(timer);
  busy(true);
  timer = setTimeout(refresh, delay);
}

function busy(now) {
  byId("main").setAttribute("aria-busy", String(now));
}

/** Write the state into the address. */
function address(step = false) {
  clearTimeout(writer);
  const fragment = write(state, models, limits);
  if (fragment !== (location.hash || "#")) history[step ? "pushState" : "replaceState"](null, "", fragment);
  byId("link").href = fragment;
}

/** Take the state from the address. */
function restore() {
  clearTimeout(writer);
  const found = read(location.hash, models, limits);
  state = found.state;
  const model = models[state.model];
  if (model.source === "inflection" && !model.languages.includes(state.language)) {
    if (state.language) found.notices.push(`The link asks for language ${state.language}, which ${model.name} does not know.`);
    state.language = model.languages[0] ?? "";
  }
  if (state.beside !== null && !fits(models[state.beside])) {
    found.notices.push(`${models[state.beside].name} cannot stand beside ${model.name}.`);
    state.beside = null;
  }
  const kinds = attentions();
  if (state.attention && !kinds.some((one) => one.name === state.attention)) {
    found.notices.push(`The link asks for attention ${state.attention}, which ${model.name} has not.`);
    state.attention = "";
  }
  const kind = attentionOf(kinds);
  for (const name of ["layer", "head"]) {
    if (kind && state[name] > kind[`${name}s`]) {
      found.notices.push(`The link asks for ${name} ${state[name]} of ${kind[`${name}s`]}; 1 is used.`);
      state[name] = 1;
    }
  }
  replace(byId("notices"), found.notices.map((text) => h("p", { class: "alert" }, text)));
  editor.set(state.text);
  show();
  address();
  refresh();
}

const fits = (other) => other !== models[state.model] && other.source === models[state.model].source;

// ---------------------------------------------------------------- controls

function options(select, entries, value) {
  replace(select, entries.map(([key, text]) => h("option", { value: key }, text)));
  select.value = value;
}

/** Make the controls say what the state says. */
function show() {
  const model = models[state.model];
  const kinds = attentions();
  if (state.view === "attention" && !kinds.length) state.view = "search";
  options(byId("model"), models.map((one, place) => [place, `${one.name} (${one.alphas})`]), state.model);
  byId("beside-label").hidden = !models.some(fits);
  options(byId("beside"), [["", "nothing"], ...models.map((one, place) => [place, `${one.name} (${one.alphas})`])
    .filter(([place]) => fits(models[place]))], state.beside ?? "");
  const inflection = model.source === "inflection";
  byId("inflection").hidden = !inflection;
  byId("plain").hidden = inflection;
  byId("plain-label").textContent = model.source === "raw" ? "Source text" : "Source tokens, separated by blanks";
  if (inflection) {
    options(byId("language"), model.languages.map((one) => [one, one]), state.language);
    if (byId("lemma").value !== state.lemma) byId("lemma").value = state.lemma;
    showTags(model);
  } else if (byId("source").value !== state.source) byId("source").value = state.source;
  for (const radio of document.querySelectorAll("[name=search]")) radio.checked = radio.value === state.search;
  for (const name of ["beam", "length"]) if (document.activeElement !== byId(name)) byId(name).value = state[name];
  byId("beam").disabled = state.search === "support";
  byId("beam-label").textContent = state.search === "exact" ? "Strings" : "Beam size";
  byId("settings").hidden = state.view !== "search";
  for (const view of VIEWS) {
    const tab = byId(`tab-${view}`);
    tab.setAttribute("aria-selected", String(view === state.view));
    tab.tabIndex = view === state.view ? 0 : -1;
    byId(`view-${view}`).hidden = view !== state.view;
  }
  byId("tab-attention").hidden = !kinds.length;
  const kind = attentionOf(kinds);
  if (!kind) return;
  options(byId("attention"), kinds.map((one) => [one.name, spoken(one.name)]), kind.name);
  for (const [name, count] of [["layer", kind.layers], ["head", kind.heads]]) {
    state[name] = Math.min(state[name], count); // another model may have more
    options(byId(name), Array.from({ length: count }, (_, index) => [index + 1, index + 1]), state[name]);
    byId(`${name}-label`).hidden = count < 2;
  }
  byId("attention-settings").hidden = kinds.length < 2 && kind.layers < 2 && kind.heads < 2;
}

const spoken = (name) => name.replaceAll("_", " ");

/** The attentions that the chosen models have between them, each with the most layers and heads. */
function attentions() {
  const found = new Map();
  for (const { name, layers, heads } of chosen().flatMap((model) => model.attention)) {
    const known = found.get(name) ?? { layers: 0, heads: 0 };
    found.set(name, { name, layers: Math.max(layers, known.layers), heads: Math.max(heads, known.heads) });
  }
  return [...found.values()];
}

/** The one of some attentions that is shown: what the state names, else the context attention. */
function attentionOf(kinds) {
  return [state.attention, "context_attention"].map((name) => kinds.find((one) => one.name === name)).find(Boolean) ?? kinds[0];
}

/** The attention of a model that is shown, with its layer and head and what is said of them; an only head is always shown. */
function headOf(model) {
  const { name } = attentionOf(attentions());
  const kind = model.attention.find((one) => one.name === name);
  if (!kind) throw new Error(`${model.name} has no ${spoken(name)}.`);
  const single = kind.layers * kind.heads === 1;
  const [layer, head] = single ? [1, 1] : [state.layer, state.head];
  for (const [part, value, most] of [["layer", layer, kind.layers], ["head", head, kind.heads]]) {
    if (value > most) throw new Error(`${model.name} has no ${part} ${value} there: it has ${plural(most, part)}.`);
  }
  const alpha = kind.alphas?.[layer - 1][head - 1];
  const place = single && model.attention.length === 1 ? "" : `${spoken(name)}, layer ${layer}, head ${head}`;
  return { name, layer, head, text: place && `${place}${alpha ? `, α ${Number(alpha.toFixed(3))}` : ""}` };
}

function showTags(model) {
  const filter = byId("tag-filter");
  filter.hidden = model.tags.length <= MANY_TAGS;
  if (filter.hidden) filter.value = "";
  const typed = filter.value.trim().toLowerCase();
  const at = (tag) => tag.toLowerCase().indexOf(typed);
  const matching = model.tags.filter((tag) => !state.tags.includes(tag) && at(tag) >= 0)
    .sort((a, b) => (typed ? at(a) - at(b) || a.length - b.length : 0));
  const shown = matching.slice(0, MANY_TAGS);
  const chip = (tag) => h("button", { type: "button", class: "chip", "aria-pressed": String(state.tags.includes(tag)),
    "data-key": `tag ${tag}`, onclick: () => toggle(tag) }, tag);
  const rest = matching.length - shown.length;
  replace(byId("chips"), state.tags.map(chip), shown.map(chip),
    rest ? h("span", { class: "note" }, `${number(rest)} more: type to find them`) : null);
}

function toggle(tag) {
  byId("tag-filter").value = "";
  update({ tags: state.tags.includes(tag) ? state.tags.filter((one) => one !== tag) : [...state.tags, tag] });
}

// ---------------------------------------------------------------- asking

/** What all requests say about the input, or null where there is none yet. */
function input() {
  if (models[state.model].source !== "inflection") return state.source.trim() ? { text: state.source } : null;
  return state.lemma.trim() && state.tags.length ? { language: state.language, tags: state.tags, lemma: state.lemma } : null;
}

const searchBody = (more = {}) => ({ input: input(), search: state.search, beam_size: state.beam, max_length: state.length,
  prefix: state.prefix, ...more });

/** Ask every chosen model what the view shows. */
function refresh() {
  clearTimeout(timer);
  timer = null;
  if (dead) return;
  const round = ++rounds;
  const about = JSON.stringify([input(), state.model]);
  if (about !== completed) editor.forget();
  completed = about;
  answers = [];
  byId("compared").hidden = true;
  const shown = chosen();
  const box = panels();
  busy(true);
  box.classList.toggle("beside", shown.length > 1);
  if (!input()) {
    busy(false);
    for (const channel of ["search", "complete", "attention"]) api.cancel(channel);
    replace(box, h("p", { class: "hint" }, models[state.model].source === "inflection"
      ? "Choose a language and tags, and type a lemma: here appears everything that the model holds possible."
      : "Type a source sentence: here appears everything that the model holds possible."));
    return;
  }
  while (box.children.length > shown.length || box.firstElementChild?.matches(":not(article)")) box.lastElementChild.remove();
  while (box.children.length < shown.length) box.append(h("article", { class: "panel", tabindex: -1 }));
  shown.forEach((model, place) => {
    box.children[place].setAttribute("aria-label", `${model.name}, alphas ${model.alphas}`);
    ask(model, place, box.children[place], round);
  });
}

async function ask(model, place, panel, round) {
  const view = state.view;
  panel.setAttribute("aria-busy", "true");
  try {
    const answer = await { search: askSearch, complete: askComplete, attention: askAttention }[view](model);
    if (round !== rounds || view !== state.view || chosen()[place] !== model) return;
    answers[place] = answer;
    draw();
    answered(panel);
  } catch (error) {
    if (error instanceof api.Stale) return;
    if (error instanceof api.Dead) died();
    if (round !== rounds) return;
    answers[place] = undefined;
    if (place === 0) editor.forget();
    if (!(error instanceof api.Dead)) replace(panel, h("h2", {}, model.name), h("p", { class: "alert", role: "alert" }, error.message));
    answered(panel);
  }
}

function answered(panel) {
  panel.removeAttribute("aria-busy");
  if (timer === null && !panels().querySelector("[aria-busy]")) busy(false); // else something newer is about to be asked
}

const askSearch = (model) => api.post("search", model.id, searchBody());

const askComplete = async (model) => ({ text: state.text,
  found: await api.post("complete", model.id, { input: input(), text: state.text, max_words: 10 }) });

async function askAttention(model) {
  const kind = headOf(model);
  const body = searchBody();
  const found = await api.post("search", model.id, body);
  const hypothesis = found.hypotheses[state.rank - 1] ?? found.hypotheses[0];
  if (!hypothesis) throw new Error("Nothing was found whose attention could be shown.");
  const map = await api.post("attention", model.id, { input: body.input, tokens: hypothesis.tokens,
    attention: kind.name, layer: kind.layer, head: kind.head });
  return { map, kind, text: hypothesis.text };
}

// ---------------------------------------------------------------- showing answers

function draw() {
  const shown = chosen();
  const both = shown.length > 1 && answers[0] && answers[1];
  shown.forEach((model, place) => {
    const answer = answers[place];
    if (!answer) return;
    const other = both ? answers[1 - place] : null;
    const panel = panels().children[place];
    if (state.view === "search") {
      replace(panel, searchPanel(answer, model, state, other, update));
      const tree = panel.querySelector(".tree");
      if (tree) tree.parentElement.scrollLeft = Math.max(0, tree.start - 40);
    }
    if (state.view === "attention") replace(panel, attentionPanel(answer.map, model, answer.kind, answer.text));
    if (state.view === "complete") {
      if (answer.text !== state.text) return;
      if (place === 0) editor.answer(answer.found, model.source === "inflection" ? "" : " ");
      replace(panel, completePanel(answer.found, model, place, answer.text, other?.found, take, recordOf(model)));
    }
  });
  if (answers.filter(Boolean).length < shown.length) return;
  const compared = byId("compared");
  if (state.view === "search") {
    compared.textContent = both ? compare(shown, answers) : "";
    const best = answers[0].hypotheses[0];
    say(both ? compared.textContent : `${answers[0].explanation} ${best ? `Best: ${best.text}` : ""}`);
  } else {
    compared.textContent = "";
    const found = answers[0].found;
    if (found) {
      say(found.impossible ? `“${found.impossible.token}” is impossible here.`
        : `${plural(found.words.length, "possible word")}. Completion: ${found.completion || "none"}`);
    }
  }
  compared.hidden = !compared.textContent;
}

function take(text) {
  editor.take(text);
  byId("editor").focus();
}

const recordOf = (model) => async (tokens) => {
  try {
    return await api.post("search", model.id, searchBody({ search: "beam", prefix: tokens }));
  } catch (error) {
    if (error instanceof api.Dead) died();
    else if (!(error instanceof api.Stale)) replace(byId("notices"), h("p", { class: "alert" }, error.message));
    return null;
  }
};

// ---------------------------------------------------------------- a dead server

async function died() {
  if (dead) return;
  dead = true;
  const banner = byId("dead");
  banner.textContent = "The server does not answer. Is onmt_entmax inspect still running? The page goes on by itself when it is back.";
  banner.hidden = false;
  const again = async () => {
    try {
      const found = await api.models();
      dead = false;
      banner.hidden = true;
      if (!models.length || JSON.stringify(found.models) !== JSON.stringify(models)) begin(found);
      else refresh();
    } catch (error) {
      if (!(error instanceof api.Dead || error instanceof api.Stale)) banner.textContent = error.message;
      setTimeout(again, RETRY);
    }
  };
  setTimeout(again, RETRY);
}

// ---------------------------------------------------------------- start

function begin(found) {
  ({ models, limits } = found);
  byId("version").textContent = found.version ?? "";
  if (limits.source_characters) for (const name of ["source", "lemma"]) byId(name).maxLength = limits.source_characters;
  if (limits.target_characters) byId("editor").maxLength = limits.target_characters;
  byId("beam").max = limits.beam_size;
  byId("length").max = limits.max_length;
  restore();
}

function listen() {
  editor = new Editor((text) => update({ text }));
  byId("form").addEventListener("submit", (event) => event.preventDefault());
  for (const name of ["source", "lemma"]) byId(name).addEventListener("input", (event) => update({ [name]: event.target.value }, false, 150));
  byId("tag-filter").addEventListener("input", () => showTags(models[state.model]));
  byId("tag-filter").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !event.target.value.trim()) return;
    const first = byId("chips").querySelector("[aria-pressed=false]");
    if (first) toggle(first.textContent);
  });
  byId("language").addEventListener("change", (event) => update({ language: event.target.value }));
  byId("model").addEventListener("change", (event) => {
    const model = Number(event.target.value);
    const one = models[model];
    const beside = state.beside !== null && state.beside !== model && models[state.beside].source === one.source ? state.beside : null;
    const known = one.source === "inflection" ? { language: one.languages.includes(state.language) ? state.language : one.languages[0] ?? "",
      tags: state.tags.filter((tag) => one.tags.includes(tag)) } : {};
    update({ model, beside, ...known }, true);
  });
  byId("beside").addEventListener("change", (event) => update({ beside: event.target.value === "" ? null : Number(event.target.value) }, true));
  for (const radio of document.querySelectorAll("[name=search]")) {
    radio.addEventListener("change", () => update({ search: radio.value, rank: 1 }, true));
  }
  for (const [name, most] of [["beam", "beam_size"], ["length", "max_length"]]) {
    byId(name).addEventListener("input", (event) => {
      const value = event.target.valueAsNumber;
      const fine = Number.isInteger(value) && value >= 1 && value <= limits[most];
      event.target.setCustomValidity(fine ? "" : `From 1 to ${limits[most]}.`);
      event.target.setAttribute("aria-invalid", String(!fine));
      if (fine) update({ [name]: value, rank: 1 }, false, 150);
    });
    byId(name).addEventListener("change", (event) => event.target.reportValidity());
    byId(name).addEventListener("blur", (event) => {
      event.target.setCustomValidity("");
      event.target.removeAttribute("aria-invalid");
      event.target.value = state[name];
    });
  }
  byId("attention").addEventListener("change", (event) => update({ attention: event.target.value, layer: 1, head: 1 }, true));
  for (const name of ["layer", "head"]) byId(name).addEventListener("change", (event) => update({ [name]: Number(event.target.value) }, true));
  for (const view of VIEWS) byId(`tab-${view}`).addEventListener("click", () => update({ view }, true));
  document.querySelector("[role=tablist]").addEventListener("keydown", (event) => {
    const tabs = VIEWS.filter((view) => !byId(`tab-${view}`).hidden);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const view = tabs[(tabs.indexOf(state.view) + step + tabs.length) % tabs.length];
    update({ view }, true);
    byId(`tab-${view}`).focus();
  });
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("main").focus();
  });
  byId("link").addEventListener("click", async (event) => {
    event.preventDefault();
    address();
    try {
      await navigator.clipboard.writeText(location.href);
      byId("link").textContent = "Copied";
    } catch {
      byId("link").textContent = "It is the page's address";
    }
    say(byId("link").textContent);
    setTimeout(() => (byId("link").textContent = "Permanent link"), 2000);
  });
  window.addEventListener("popstate", () => models.length && restore());
}

listen();
state = initial({ beam_size: 5, max_length: 250 });
try {
  begin(await api.models());
} catch (error) {
  if (error instanceof api.Dead) died();
  else replace(byId("notices"), h("p", { class: "alert", role: "alert" }, error.message));
}
