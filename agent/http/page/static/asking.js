// Requests to this agent, with the credential that the reader gave, and its feed of server-sent events.

const STORED = "credential";
const AGAIN_MS = [500, 1000, 2000, 5000];

export const credential = () => sessionStorage.getItem(STORED) || "";
export const keep = secret => sessionStorage.setItem(STORED, secret);

export class Refused extends Error {
  constructor(message, status) { super(message); this.status = status; }
}

export async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (credential()) headers.Authorization = `Bearer ${credential()}`;
  const response = await fetch(path, { cache: "no-store", ...options, headers });
  if (!response.ok) throw new Refused(await reason(response), response.status);
  return response;
}

export const get = async path => (await ask(path)).json();

async function reason(response) {
  const text = await response.text();
  try {
    const error = JSON.parse(text).error;
    return (error && error.message) || error || text;
  } catch {
    return text || `${response.status} ${response.statusText}`;
  }
}

// The events of a stream as {type, id, data}. EventSource would do, but it cannot send a credential.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const event = { type: "message", id: "", data: "" };
      for (const line of part.split("\n")) {
        const colon = line.indexOf(":");
        const [name, text] = [line.slice(0, colon), line.slice(colon + 1).trimStart()];
        if (name === "event") event.type = text;
        else if (name === "id") event.id = text;
        else if (name === "data") event.data += text;
      }
      if (event.data) yield event;
    }
  }
}

// Reads the feed for ever: `told(type, document)` for each event, `linked(state, why)` when the connection comes or goes.
export async function follow(path, told, linked) {
  let last = "", tries = 0;
  for (;;) {
    try {
      const response = await ask(path, last ? { headers: { "Last-Event-ID": last } } : {});
      linked("live", "");
      tries = 0;
      for await (const event of events(response)) {
        if (event.id) last = event.id;
        told(event.type, JSON.parse(event.data));
      }
      linked("lost", "the agent has ended the connection");
    } catch (error) {
      linked(error.status === 401 ? "refused" : "lost", error.message);
    }
    const pause = AGAIN_MS[Math.min(tries++, AGAIN_MS.length - 1)];
    await new Promise(done => { setTimeout(done, pause); addEventListener("credential", done, { once: true }); });
  }
}
