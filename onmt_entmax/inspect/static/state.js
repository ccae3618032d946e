// What the page shows, and the fragment of its address that says so: a permanent link.

export const VIEWS = ["search", "complete", "attention"];
export const SEARCHES = ["beam", "exact", "support"];

export const initial = (limits) => ({
  view: "search",
  model: 0, // place in the list of models
  beside: null,
  source: "", // of a model that reads text
  language: "",
  tags: [],
  lemma: "",
  search: "beam",
  beam: Math.min(5, limits.beam_size),
  length: limits.max_length,
  prefix: [], // tokens
  rank: 1, // the hypothesis that is looked at
  text: "", // in the editor
  attention: "",
  layer: 1,
  head: 1,
});

const LISTS = ["tags", "prefix"]; // tokens hold no blanks
const NUMBERS = ["beam", "length", "rank", "layer", "head"];
const MODELS = ["model", "beside"];

/** The fragment: everything that is not as it is at the start. */
export function write(state, models, limits) {
  const start = initial(limits);
  const fragment = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (MODELS.includes(name)) {
      if (value !== null && (models.length > 1 || name === "beside")) fragment.set(name, models[value].name);
    } else if (LISTS.includes(name)) {
      if (value.length) fragment.set(name, value.join(" "));
    } else if (value !== start[name]) fragment.set(name, String(value));
  }
  return `#${fragment}`;
}

/** The state that a fragment means, and sentences about what in it is not possible here. */
export function read(fragment, models, limits) {
  const state = initial(limits);
  const notices = [];
  const most = { beam: limits.beam_size, length: limits.max_length, rank: limits.beam_size, layer: Infinity, head: Infinity };
  const choices = { view: VIEWS, search: SEARCHES };
  for (const [name, value] of new URLSearchParams(fragment.replace(/^#/, ""))) {
    if (MODELS.includes(name)) {
      const place = models.findIndex((model) => model.name === value);
      if (place >= 0) state[name] = place;
      else notices.push(`The link names a model that is not loaded: ${value}.`);
    } else if (LISTS.includes(name)) state[name] = value.split(" ").filter(Boolean);
    else if (NUMBERS.includes(name)) {
      const wanted = Number(value);
      if (Number.isInteger(wanted) && wanted >= 1 && wanted <= most[name]) state[name] = wanted;
      else notices.push(`The link asks for ${name} ${value}; ${state[name]} is used.`);
    } else if (choices[name] && !choices[name].includes(value)) {
      notices.push(`The link asks for ${name} ${value}. Valid choices: ${choices[name].join(", ")}.`);
    } else if (name in state) state[name] = value;
    else notices.push(`The link says ${name}, which this page does not know.`);
  }
  return { state, notices };
}
