// What a search of one model found: certificate, hypotheses, tree, and what may come next.

import { download, h, number, percent, plural, standalone, visible } from "./dom.js";
import { drawTree, fromHypotheses, key, paths } from "./tree.js";

const END = "</s>";
export const CLASSES = {
  single: "one string",
  complete: "complete",
  optimal: "optimal",
  uncertified: "uncertified",
  void: "no certificate",
};
const LISTED = 50; // hypotheses shown
const DRAWN = 20; // in a tree that is made of hypotheses
const OURS = ["unknown", "not_listed", "class", "explanation", "seconds", "support_size", "of"]; // not of the file formats

/** What a model's target tokens are, for sentences. */
export const unit = (model) => (model.source === "inflection" ? "character" : model.joiner === "none" ? "word" : "word piece");

/** An answer as `onmt_entmax trace` (with a prefix: `onmt_entmax force --complete`) writes it. */
export function traceRecord(answer) {
  const record = Object.fromEntries(Object.entries(answer).filter(([name]) => !OURS.includes(name)));
  if (!answer.prefix?.length) for (const name of ["prefix", "prefix_impossible_at", "next_tokens"]) delete record[name];
  record.hypotheses = answer.hypotheses.map(({ text, ...hypothesis }) => hypothesis);
  return record;
}

export const fileName = (model, kind) => `${model.name.replace(/\.pt$/, "").replace(/[^\w.+-]+/g, "_")}.${kind}`;

/** The head of a model's panel. */
export function head(model, ...buttons) {
  return h("div", { class: "head" },
    h("h2", {}, h("bdi", {}, model.name), h("span", { class: "note" }, ` alphas ${model.alphas}`)),
    h("span", { class: "buttons" }, buttons));
}

export const button = (text, label, onclick, attributes = {}) =>
  h("button", { type: "button", "aria-label": label, onclick, ...attributes }, text);

export function badge(kind) {
  return h("span", { class: `badge ${kind}` }, CLASSES[kind] ?? kind);
}

/** Bars of probabilities, each a button. */
export function bars(entries, most) {
  const top = Math.max(...entries.map((entry) => entry.prob), 1e-9);
  return entries.slice(0, most).map(({ text, prob, take, label, mark }) => {
    const bar = h("span", { class: "bar" });
    bar.style.width = `${(100 * prob) / top}%`;
    const inside = [bar, h("bdi", { class: mark ? "differs" : null }, text), h("span", { class: "p" }, percent(prob))];
    return h("li", {}, take
      ? h("button", { type: "button", class: "option", onclick: take, "aria-label": `${label}, ${percent(prob)}`, "data-key": `next ${text}` }, inside)
      : h("span", { class: "option" }, inside));
  });
}

/** Which words of `own` are not in the longest common subsequence with `other`. */
export function differing(own, other) {
  const table = Array.from({ length: own.length + 1 }, () => new Array(other.length + 1).fill(0));
  for (let i = own.length - 1; i >= 0; i--) {
    for (let j = other.length - 1; j >= 0; j--) {
      table[i][j] = own[i] === other[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
    }
  }
  const differs = own.map(() => true);
  for (let i = 0, j = 0; i < own.length && j < other.length; ) {
    if (own[i] === other[j]) {
      differs[i++] = false;
      j++;
    }
    else if (table[i + 1][j] >= table[i][j + 1]) i++;
    else j++;
  }
  return differs;
}

/** A sentence about two models' answers. */
export function compare(models, [one, two]) {
  const best = [one, two].map((answer) => answer.hypotheses[0]?.text);
  if (best.includes(undefined)) return "";
  const shared = one.hypotheses.filter((a) => two.hypotheses.some((b) => b.text === a.text)).length;
  const lists = `${shared} of ${one.hypotheses.length} and ${plural(two.hypotheses.length, "string")} listed are the same.`;
  return best[0] === best[1]
    ? `Both models put “${best[0]}” first; ${lists}`
    : `The models differ: “${best[0]}” (${models[0].name}) and “${best[1]}” (${models[1].name}) come first; ${lists}`;
}

const recorded = (answer) => (answer.tree?.length ? answer.tree : fromHypotheses(answer.hypotheses, answer.complete && !answer.not_listed, DRAWN));

function words(hypothesis, model, other) {
  if (!other) return h("bdi", {}, hypothesis.text);
  const space = model.source === "inflection" ? "" : " ";
  const [own, others] = [hypothesis, other].map((one) => one.text.split(space));
  const marks = differing(own, others);
  return h("bdi", {}, own.map((word, index) => [index ? space : "", marks[index] ? h("mark", {}, word) : word]));
}

function list(answer, model, state, other, update) {
  const top = answer.hypotheses[0]?.prob || 1;
  const rows = answer.hypotheses.slice(0, LISTED).map((hypothesis, index) => {
    const alone = other && !other.hypotheses.some((one) => one.text === hypothesis.text);
    const bar = h("span", { class: "bar" });
    bar.style.width = `${(100 * hypothesis.prob) / top}%`;
    const chosen = state.rank === index + 1;
    return h("tr", { class: chosen ? "chosen" : null },
      h("td", {}, h("button", { type: "button", class: "rank", "aria-pressed": String(chosen), "data-key": `rank ${index}`,
        "aria-label": `Look at number ${index + 1}: ${hypothesis.text || "empty"}`, onclick: () => update({ rank: index + 1 }) }, index + 1)),
      h("td", { class: "text", dir: "auto" }, hypothesis.text ? words(hypothesis, model, alone ? other.hypotheses[0] : null) : h("i", {}, "empty"),
        alone ? h("span", { class: "tag" }, "only here") : null,
        hypothesis.finished ? null : h("span", { class: "tag" }, "unfinished")),
      h("td", { class: "p" }, bar, h("span", {}, percent(hypothesis.prob))),
      h("td", { class: "log" }, hypothesis.log_prob.toFixed(3)));
  });
  return h("table", { class: "list" },
    h("caption", {}, `${plural(answer.hypotheses.length, "string")}, most probable first${answer.hypotheses.length > LISTED ? ` (${LISTED} shown, all in the JSON)` : ""}`),
    h("thead", {}, h("tr", {}, ["#", "output", "probability", "log p"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows));
}

function next(answer, model, other, update) {
  const size = answer.support_size ?? answer.next_tokens.length;
  const kinds = plural(answer.of ?? model.target_types, unit(model));
  const whole = other && other.next_tokens.length >= (other.support_size ?? 0); // else the rest is unknown here
  const seen = whole && new Set(other.next_tokens.map((one) => one.token));
  const shown = answer.next_tokens.slice(0, 50);
  const items = bars(shown.map(({ token, prob }) => ({
    text: token === END ? "end" : visible(token),
    prob,
    label: `force ${visible(token)}`,
    mark: seen && !seen.has(token),
    take: token === END ? null : () => update({ prefix: [...answer.prefix, token], rank: 1 }, true),
  })));
  return h("div", { class: "next" },
    h("h3", {}, answer.prefix.length ? "Next" : "At the start"),
    h("p", { class: "note" }, answer.prefix_impossible_at !== null && answer.prefix_impossible_at !== undefined
      ? "Nothing can follow: the prefix is impossible."
      : `${number(size)} of ${kinds} ${size === 1 ? "is" : "are"} possible here${size > shown.length ? `; the first ${shown.length}` : ""}.`),
    h("ul", { class: "bars", tabindex: items.length > 12 ? 0 : null, "aria-label": "Possible next tokens" }, items));
}

/** The prefix that is forced, each token a way back. */
export function crumbs(prefix, update) {
  if (!prefix.length) return null;
  return h("p", { class: "crumbs" }, "Forced: ",
    prefix.map((token, index) => button(visible(token), `Force only up to ${visible(token)}`,
      () => update({ prefix: prefix.slice(0, index + 1), rank: 1 }, true), { class: "crumb", "data-key": `crumb ${index}` })),
    button("Clear", "Force nothing", () => update({ prefix: [], rank: 1 }, true), { class: "quiet" }));
}

/** A model's panel of the search view.
 * @param other the answer of the model beside, or null
 */
export function searchPanel(answer, model, state, other, update) {
  const tight = model.source === "inflection";
  const tree = recorded(answer);
  const picked = answer.hypotheses[state.rank - 1] ?? answer.hypotheses[0];
  const svg = drawTree(tree, {
    strong: picked ? (picked.finished ? [...picked.tokens, END] : picked.tokens) : [],
    prefix: answer.prefix,
    other: other && paths(recorded(other)),
    tight,
    label: `Search tree of ${model.name}`,
    force: (path) => update({ prefix: key(path) === key(answer.prefix) ? path.slice(0, -1) : path, rank: 1 }, true),
  });
  return [
    head(model,
      button("JSON", `Save the search of ${model.name} as JSON`,
        () => download(fileName(model, "trace.jsonl"), `${JSON.stringify(traceRecord(answer))}\n`, "application/jsonl")),
      button("SVG", `Save the tree of ${model.name} as SVG`, () => download(fileName(model, "tree.svg"), standalone(svg), "image/svg+xml"))),
    h("p", { class: "certificate" }, badge(answer.class), " ", answer.explanation),
    answer.not_listed ? h("p", { class: "note" }, `${plural(answer.not_listed, "string")} more are not listed.`) : null,
    answer.unknown?.length
      ? h("p", { class: "warn" }, `Unknown to the model: ${answer.unknown.map(visible).join(" ")}`) : null,
    crumbs(answer.prefix, update),
    answer.prefix_impossible_at !== null && answer.prefix_impossible_at !== undefined
      ? h("p", { class: "warn" }, `The prefix is impossible from “${visible(answer.prefix[answer.prefix_impossible_at])}” on.`) : null,
    answer.hypotheses.length
      ? h("div", { class: "scroll", role: "group", "aria-label": "Search tree; arrow keys walk, Enter forces a prefix" }, svg) : null,
    answer.hypotheses.length
      ? h("p", { class: "note" }, ["A click on a token forces what leads there.", ...svg.legend.map((one) => `${one}.`)].join(" ")) : null,
    h("div", { class: "two" }, list(answer, model, state, other, update), next(answer, model, other, update)),
    answer.seconds === undefined ? null
      : h("p", { class: "note" }, `${plural(answer.expansions ?? 0, "prefix")} expanded in ${(1000 * answer.seconds).toFixed(0)} ms`),
  ];
}
