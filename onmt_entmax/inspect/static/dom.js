// Elements, tokens and numbers as text, and downloads. Text becomes a text node, never HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An HTML element; attributes that start with "on" are listeners. */
export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

/** An SVG element. */
export const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export const byId = (id) => document.getElementById(id);

/** Say something to who listens to the page. */
export function say(text) {
  const live = byId("live");
  if (live.textContent !== text) live.textContent = text;
}

/** A probability as percent: 48.4%. What is not 0 or 1 never looks so. */
export function percent(prob) {
  if (prob <= 0) return "0%";
  if (prob < 0.0005) return "<0.1%";
  if (prob > 0.9995) return prob >= 1 - 1e-6 ? "100%" : ">99.9%";
  return `${(100 * prob).toFixed(1)}%`;
}

export const number = (value) => value.toLocaleString("en-US");
export const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : /(x|ch)$/.test(noun) ? "es" : "s"}`;

/** A token with its invisible characters made visible. */
export function visible(token) {
  return token.replace(/[\p{C}\p{Z}\u2581]/gu, (character) => {
    if (character === " " || character === "\u2581") return "␣";
    if (character === "\u200c" || character === "\u200d") return character; // they shape the letters around them
    return `⟨u+${character.codePointAt(0).toString(16).padStart(4, "0")}⟩`;
  });
}

/** Change what `container` holds; the focus stays on what has the same data-key, or goes to data-fallback. */
export function replace(container, ...children) {
  const active = container.contains(document.activeElement) ? document.activeElement : null;
  const key = active?.dataset.key;
  container.replaceChildren(...children.flat().filter(Boolean));
  if (!active) return;
  const all = [...container.querySelectorAll("[data-key]")];
  (all.find((element) => element.dataset.key === key) ?? container.querySelector("[data-fallback]") ?? container)
    .focus({ preventScroll: true });
}

/** Offer a file. */
export function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-family", "font-size",
  "font-weight", "text-anchor", "text-decoration-line", "display"];

/** A drawing of the page as a file of its own: styles become attributes, on the page's background. */
export function standalone(svg) {
  const copy = svg.cloneNode(true);
  const shown = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((element, index) => {
    const style = getComputedStyle(shown[index]);
    for (const name of STYLES) element.setAttribute(name.replace("-line", ""), style.getPropertyValue(name)); // SVG has no `-line`
    for (const name of ["class", "role", "tabindex", "data-key", "data-fallback"]) element.removeAttribute(name);
  });
  copy.prepend(s("rect", { width: "100%", height: "100%", fill: getComputedStyle(document.body).backgroundColor }));
  return asFile(copy);
}

export const asFile = (svg) => `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(svg)}\n`;
