// A heat map of attention as SVG: exact zeros stay blank; a word says where it looked.

import { download, h, percent, s, say, standalone, visible } from "./dom.js";
import { button, fileName, head } from "./search.js";

const CELL = 24;

/** Where a query looked, in a sentence. */
export function looked({ queries, keys, weights }, row) {
  const seen = weights[row].map((weight, column) => ({ weight, key: keys[column] })).filter(({ weight }) => weight > 0)
    .sort((a, b) => b.weight - a.weight);
  const more = seen.length > 8 ? ` and ${seen.length - 8} more` : "";
  return `“${visible(queries[row])}” looked at ${seen.slice(0, 8).map(({ weight, key }) => `${visible(key)} ${percent(weight)}`).join(", ")}${more}.`;
}

function lookedAt({ queries, keys, weights }, column) {
  const seen = weights.map((row, place) => ({ weight: row[column], query: queries[place] })).filter(({ weight }) => weight > 0);
  return seen.length
    ? `“${visible(keys[column])}” was looked at by ${seen.map(({ weight, query }) => `${visible(query)} ${percent(weight)}`).join(", ")}.`
    : `“${visible(keys[column])}” was not looked at.`;
}

/** Draw weights; `tell` is called with a sentence, or null when nothing is pointed at. */
export function drawHeat(map, label, tell) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `14px ${getComputedStyle(document.body).fontFamily}`;
  const measure = (tokens) => Math.max(...tokens.map((token) => pen.measureText(visible(token)).width), 10);
  const left = Math.ceil(measure(map.queries)) + 14;
  const long = measure(map.keys);
  const upright = long < 20; // characters
  const top = Math.ceil(upright ? 24 : long + 14);
  const width = left + CELL * map.keys.length + 8;
  const height = top + CELL * map.queries.length + 8;
  const svg = s("svg", { class: "heat", role: "group", "aria-label": label, width, height, viewBox: `0 0 ${width} ${height}`, "font-size": 14 });
  const columns = map.keys.map((token, column) => {
    const x = left + CELL * column + CELL / 2;
    const at = upright ? { x, y: top - 8, "text-anchor": "middle" } : { transform: `translate(${x + 5} ${top - 6}) rotate(-90)` };
    const text = s("text", { class: "column", ...at }, visible(token));
    text.addEventListener("pointerenter", () => point(-1, column));
    text.addEventListener("pointerleave", () => point(-1, -1));
    return text;
  });
  const rows = map.queries.map((token, row) => {
    const y = top + CELL * row;
    const cells = map.weights[row].map((weight, column) => (weight > 0
      ? s("rect", { class: "cell", x: left + CELL * column + 1, y: y + 1, width: CELL - 2, height: CELL - 2, rx: 3,
        "fill-opacity": Math.max(0.06, Math.min(1, weight)).toFixed(3) },
      s("title", {}, `${visible(token)} → ${visible(map.keys[column])}: ${percent(weight)}`)) : null));
    const group = s("g", { class: "query", role: "img", tabindex: row ? -1 : 0, "aria-label": looked(map, row), "data-key": `row ${row}`,
      "data-fallback": row ? null : true },
    s("rect", { class: "band", x: 0, y, width: width - 8, height: CELL, rx: 3 }),
    s("text", { x: left - 7, y: y + CELL / 2 + 5, "text-anchor": "end" }, visible(token)), cells);
    group.addEventListener("pointerenter", () => point(row, -1));
    group.addEventListener("pointerleave", () => point(-1, -1));
    group.addEventListener("focus", () => point(row, -1));
    group.addEventListener("blur", () => point(-1, -1));
    return group;
  });
  svg.append(...rows, s("rect", { class: "frame", x: left, y: top, width: CELL * map.keys.length, height: CELL * map.queries.length, rx: 3 }), ...columns);
  svg.addEventListener("keydown", (event) => {
    const row = rows.indexOf(document.activeElement);
    const step = { ArrowDown: 1, ArrowUp: -1, Home: -row, End: rows.length - 1 - row }[event.key];
    if (row < 0 || step === undefined) return;
    event.preventDefault();
    const target = rows[Math.max(0, Math.min(rows.length - 1, row + step))];
    for (const one of rows) one.setAttribute("tabindex", one === target ? 0 : -1);
    target.focus();
  });

  function point(row, column) {
    rows.forEach((group, place) => group.classList.toggle("on", place === row));
    columns.forEach((text, place) => text.classList.toggle("on", place === column || (row >= 0 && map.weights[row][place] > 0)));
    svg.classList.toggle("pointing", row >= 0 || column >= 0);
    tell(row >= 0 ? looked(map, row) : column >= 0 ? lookedAt(map, column) : null);
  }
  return svg;
}

/** A model's panel of the attention view; `map` as /api/attention gives it, `kind` says of which head (see `headOf`). */
export function attentionPanel(map, model, kind, text) {
  const cells = map.weights.flat();
  const nonzero = cells.filter((weight) => weight > 0).length;
  const mean = (nonzero / Math.max(map.queries.length, 1)).toFixed(1);
  const whole = `Each token looks at ${mean} of ${map.keys.length} tokens on average; blank means exactly zero.`;
  const readout = h("p", { class: "readout" }, whole);
  const svg = drawHeat(map, `${kind.text || "Attention"} of ${model.name}: a row per token that looks, a column per token looked at`, (sentence) => {
    readout.textContent = sentence ?? whole;
    if (sentence && svg.contains(document.activeElement)) say(sentence);
  });
  const record = { line: 1, source: map.keys, hypotheses: [{ tokens: map.queries, attention: map.weights }],
    attention: kind.name, layer: kind.layer, head: kind.head };
  return [
    head(model,
      button("JSON", `Save the attention of ${model.name} as JSON`,
        () => download(fileName(model, "attention.jsonl"), `${JSON.stringify(record)}\n`, "application/jsonl")),
      button("SVG", `Save the attention of ${model.name} as SVG`,
        () => download(fileName(model, "attention.svg"), standalone(svg), "image/svg+xml"))),
    text === null ? null : h("p", {}, "Output: ", h("bdi", {}, text)),
    kind.text ? h("h3", { class: "place" }, kind.text) : null,
    h("div", { class: "scroll" }, svg),
    readout,
  ];
}
