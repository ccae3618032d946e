// The tree of a search as SVG: a row per leaf, the most probable branch straight on, a click forces a prefix.

import { number, percent, plural, s, visible } from "./dom.js";

const ROW = 30;
const SIZE = 17; // of the tokens
const LABEL = 66; // room for the line and the probability of a branch
const DEAD = 2; // branches shown of a prefix that did not finish; the rest is counted
const SMALL = 0.01; // probability of a branch below which it is only counted
const MANY = 30; // rows beyond which all branches that did not finish are only counted
const END = "</s>";
const NOTES = { finished: "finished", live: "goes on", dropped: "dropped by the search", cut: "cut by the length limit",
  stopped: "not finished when the search ended" };

const LEGEND = { "✕": "✕ dropped by the search", "…": "… not finished", "+": "+n: branches dropped that are not drawn",
  _: "underlined: not in the other model's tree" };

export const key = (tokens) => tokens.join(" ");

/** The prefixes of hypotheses as a tree like a beam search's, for searches that record none.
 * @param complete whether these are all there are: only then their sums are probabilities of prefixes
 * @param most only the first so many are drawn
 */
export function fromHypotheses(hypotheses, complete, most) {
  const nodes = [{ parent: null, token: "<s>", prob: 0, status: "live" }];
  const places = new Map([["", 0]]);
  hypotheses.forEach(({ tokens, prob, finished }, rank) => {
    const all = finished ? [...tokens, END] : tokens;
    nodes[0].prob += prob;
    let parent = 0;
    for (let size = 1; size <= all.length; size++) {
      const path = key(all.slice(0, size));
      if (!places.has(path)) {
        if (rank >= most) return; // it counts for what it shares with those that are drawn
        places.set(path, nodes.length);
        nodes.push({ parent, token: all[size - 1], prob: 0, status: "live" });
      }
      parent = places.get(path);
      nodes[parent].prob += prob;
    }
    nodes[parent].status = finished ? "finished" : "stopped";
  });
  for (const node of nodes) {
    node.log_prob = Math.log(node.prob);
    node.sure = complete || node.status === "finished";
  }
  return nodes;
}

/** Nodes with children, the most probable first; of dropped ones the first few, and how many more. */
function grow(record) {
  const nodes = record.map((node) => ({ ...node, children: [], more: 0 }));
  for (const node of nodes) if (node.parent !== null) nodes[node.parent].children.push(node);
  for (const node of nodes) {
    const up = node.parent === null ? null : nodes[node.parent];
    node.up = up;
    node.path = up === null ? [] : [...up.path, node.token];
    node.branch = up === null ? 1 : Math.exp(node.log_prob - up.log_prob);
    node.known = node.sure !== false && up?.sure !== false; // whether the branch's probability is known
  }
  for (const node of [...nodes].reverse()) {
    node.ends = node.status === "finished" || node.children.some((child) => child.ends);
  }
  for (const node of nodes) node.children.sort((a, b) => b.ends - a.ends || b.log_prob - a.log_prob);
  const prune = (most) => {
    for (const node of nodes) {
      let room = most;
      const seen = (child) => child.ends || (child.branch >= SMALL && room-- > 0);
      node.shown = node.ends || !nodes[0].ends ? node.children.filter(seen) : node.children.filter(seen).slice(0, 1);
      node.more = node.children.length - node.shown.length;
    }
  };
  prune(DEAD);
  const rows = (node) => Math.max(1, node.shown.reduce((sum, child) => sum + rows(child), 0));
  if (rows(nodes[0]) > MANY && nodes[0].ends) prune(0);
  for (const node of nodes) node.children = node.shown;
  return nodes[0];
}

/** The keys of all prefixes in a tree. */
export function paths(record) {
  const found = [];
  for (const { parent, token } of record) found.push(parent === null ? [] : [...found[parent], token]);
  return new Set(found.map(key));
}

/** Draw a tree.
 * @param record nodes as docs/formats.md describes them
 * @param options strong: path of the hypothesis looked at; prefix: forced tokens; other: keys of the paths of the model
 *   beside, or null; tight: tokens are characters; label; force: called with the tokens of a clicked prefix
 */
export function drawTree(record, { strong, prefix, other, tight, label, force }) {
  const root = grow(record);
  const pen = document.createElement("canvas").getContext("2d");
  const family = getComputedStyle(document.body).fontFamily;
  const strongKeys = new Set(strong.map((_, index) => key(strong.slice(0, index + 1))));
  const measure = (text, name) => {
    pen.font = `${strongKeys.has(name) ? 600 : 400} ${SIZE}px ${family}`;
    return pen.measureText(text).width;
  };
  const lines = s("g", { class: "lines" });
  const items = [];
  const totals = [];
  const marks = new Set();
  let rows = 0;
  let right = 0;

  function place(node, x, level) {
    const y = ROW * rows + ROW / 2 + 2;
    const start = node.up === null;
    const text = start ? "" : visible(node.token);
    const name = key(node.path);
    const width = start ? 10 : Math.max(measure(text, name), tight && node.token !== END ? 4 : 12);
    const pad = tight && node.token !== END ? 0.5 : 4;
    const classes = ["node"];
    if (start) classes.push("start");
    if (node.token === END) classes.push("end");
    if (!node.ends && node.status !== "live") classes.push("faint");
    else if (!node.ends && !node.children.some((child) => child.ends)) classes.push("faint");
    if (strongKeys.has(name)) classes.push("strong");
    if (!start && node.path.length <= prefix.length) classes.push("forced");
    const differs = other !== null && !start && !other.has(name);
    if (differs) classes.push("differs");
    if (differs) marks.add("_");
    const clickable = node.token !== END;
    const said = start
      ? "start: forces nothing"
      : `${text}, ${node.known ? `${percent(node.branch)} here, ` : ""}${node.sure === false ? "" : `${percent(node.prob)} in all, `}${NOTES[node.status]}${node.more ? `, ${plural(node.more, "branch")} more` : ""}${differs ? ", not in the other model's tree" : ""}`;
    const item = s("g", { class: classes.join(" "), role: "treeitem", tabindex: -1, "aria-level": level,
      "aria-label": said, "data-key": `node ${name}`, onclick: clickable ? () => force(node.path) : null },
      s("title", {}, start ? "start" : `${node.path.map(visible).join(" ")}\n${said}`),
      s("rect", { x: x - pad, y: y - 12, width: width + 2 * pad, height: 24, rx: 4 }));
    if (start) item.append(s("circle", { cx: x + 5, cy: y, r: 4 }));
    else item.append(s("text", { x, y: y + 6 }, text));
    item.node = node;
    items.push(item);
    let end = x + width + pad;
    node.at = { x, y, end };

    const single = node.children.length === 1 && node.children[0].branch > 0.9995 && !start;
    const next = [...node.children];
    const bend = end + 9;
    next.forEach((child, index) => {
      if (index) rows += 1;
      const below = ROW * rows + ROW / 2 + 2;
      if (single) {
        place(child, end + pad + (tight && child.token !== END ? 0 : 4), level + 1);
        return;
      }
      const plain = child.branch > 0.9995 || !child.known;
      const strongLine = strongKeys.has(key(child.path)) ? "line strong" : child.ends ? "line" : "line faint";
      const from = bend + 7;
      const to = from + (plain ? 10 : LABEL - 16);
      const corner = index ? `M${bend} ${y}V${below - 6}Q${bend} ${below} ${bend + 6} ${below}H${plain ? to : from}` : `M${end + 1} ${y}H${plain ? to : from}`;
      lines.append(s("path", { class: strongLine, d: corner }));
      if (!plain) lines.append(s("text", { class: `branch${child.ends ? "" : " faint"}`, x: from + 3, y: below + 4.5 }, percent(child.branch)));
      place(child, to + (plain ? 5 : 0), level + 1);
    });
    if (node.more && (node.ends || node.children.length)) {
      marks.add("+");
      lines.append(s("text", { class: "more", x: start ? x : x + 1, y: y + 18 }, `+${number(node.more)}`));
    }
    if (!node.children.length) {
      const mark = { dropped: "✕", cut: "…", stopped: "…", live: "✕" }[node.status] ?? "";
      if (mark) {
        marks.add(mark);
        lines.append(s("text", { class: "more", x: end, y: y + 5 }, mark));
        end += 14;
      }
      if (node.status === "finished") totals.push({ y, prob: node.prob, strong: strongKeys.has(name) });
    }
    right = Math.max(right, end);
  }
  place(root, 6, 1);

  for (const { y, prob, strong: bold } of totals) {
    lines.append(s("text", { class: `total${bold ? " strong" : ""}`, x: right + 58, y: y + 5 }, percent(prob)));
  }
  const width = Math.ceil(right + 62);
  const height = ROW * (rows + 1) + 4;
  const svg = s("svg", { class: "tree", role: "tree", "aria-label": label, width, height, viewBox: `0 0 ${width} ${height}`,
    "font-size": SIZE }, lines, items);
  const entry = [...items].reverse().find((item) => item.node.path.length === prefix.length && key(item.node.path) === key(prefix));
  const first = entry ?? items[0];
  first.setAttribute("tabindex", 0);
  first.dataset.fallback = "";
  svg.start = prefix.length ? first.node.at.x : 0; // where what is not forced begins
  svg.addEventListener("keydown", (event) => walk(event, items, force));
  svg.legend = [...marks].map((mark) => LEGEND[mark]);
  return svg;
}

/** Arrow keys: along the tree, and among branches; Enter forces a prefix. */
function walk(event, items, force) {
  const current = items.find((item) => item === document.activeElement);
  if (!current) return;
  const { node } = current;
  const beside = (step) => {
    const column = node.up ? node.up.children : [node];
    return column[column.indexOf(node) + step] ?? nearest(items, node, step);
  };
  const moves = {
    ArrowLeft: () => node.up,
    ArrowRight: () => node.children[0],
    ArrowUp: () => beside(-1),
    ArrowDown: () => beside(1),
    Home: () => items[0].node,
    End: () => items[items.length - 1].node,
  };
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    if (node.token !== END) force(node.path);
    return;
  }
  if (!moves[event.key]) return;
  event.preventDefault();
  const target = moves[event.key]();
  const item = target && items.find((one) => one.node === target);
  if (!item) return;
  for (const one of items) one.setAttribute("tabindex", one === item ? 0 : -1);
  item.focus();
  item.scrollIntoView({ block: "nearest", inline: "nearest" });
}

/** The node of the next row up or down that is nearest in x. */
function nearest(items, node, step) {
  const rest = items.map((item) => item.node).filter((one) => Math.sign(one.at.y - node.at.y) === step);
  if (!rest.length) return null;
  const row = step > 0 ? Math.min(...rest.map((one) => one.at.y)) : Math.max(...rest.map((one) => one.at.y));
  return rest.filter((one) => one.at.y === row)
    .reduce((best, one) => (Math.abs(one.at.x - node.at.x) < Math.abs(best.at.x - node.at.x) ? one : best));
}
