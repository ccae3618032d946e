// Requests: a newer one of a kind takes the place of the older; a dead server is told apart from a refusal.

const client = [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
const newest = new Map(); // channel and model -> the AbortController of the newest request
let sequence = 0;

/** A newer request has taken this one's place: nothing is to be said. */
export class Stale extends Error {}

/** Nobody answered. */
export class Dead extends Error {
  constructor() {
    super("The server does not answer.");
  }
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", credentials: "same-origin", ...options });
  } catch (error) {
    throw error.name === "AbortError" ? new Stale() : new Dead();
  }
  let answer;
  try {
    answer = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw new Stale();
    if (error instanceof TypeError) throw new Dead(); // cut off while it answered
    throw new Error(`The server's answer (${response.status}) cannot be read.`);
  }
  if (answer?.cancelled) throw new Stale();
  if (!response.ok) throw new Error(answer?.error ?? `The server refuses (${response.status}).`);
  return answer;
}

export const models = () => ask("/api/models", {});

/** Ask about a model; the older request of this channel and model is cancelled, here and on the server. */
export async function post(channel, model, body) {
  const key = `${channel} ${model}`;
  newest.get(key)?.abort();
  const controller = new AbortController();
  newest.set(key, controller);
  const answer = await ask(`/api/${channel}`, {
    method: "POST",
    signal: controller.signal,
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, model, channel, client, sequence: ++sequence }),
  });
  if (newest.get(key) !== controller) throw new Stale();
  return answer;
}

/** Drop what is asked on a channel. */
export function cancel(channel) {
  for (const [key, controller] of newest) if (key.startsWith(`${channel} `)) controller.abort();
}
