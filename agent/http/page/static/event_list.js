// What happened, the newest first.

import { make } from "./dom.js";
import { clock } from "./figures.js";

const MOST = 200;
const TONES = { lost: "bad", failed: "bad", "set aside": "bad", "plan refused": "bad", suspected: "wait", returned: "good",
  joined: "good", plan: "good" };

export class EventList {
  constructor(element) {
    this.element = element;
    this.entries = [];
    this.known = new Set();
  }

  add(entry) {
    if (this.known.has(entry.id)) return;
    this.known.add(entry.id);
    this.entries.push(entry);
    if (this.entries.length === 1) this.element.replaceChildren();
    this.element.prepend(line(entry));
    while (this.entries.length > MOST) {
      this.known.delete(this.entries.shift().id);
      this.element.lastElementChild.remove();
    }
  }

  gap(count) {
    this.element.prepend(make("li", { class: "soft" }, "", make("div", {}, `${count} earlier events are forgotten`)));
    this.entries.push({ id: `gap ${Date.now()}` });
  }

  // When another plan took over, for the charts of a deployment.
  plans(name) {
    return this.entries.filter(entry => entry.kind === "plan" && entry.subject === name);
  }
}

function line(entry) {
  return make("li", {}, make("time", { title: new Date(entry.at_s * 1e3).toLocaleString() }, clock(entry.at_s)),
    make("div", {}, make("span", { class: TONES[entry.kind] || "" }, entry.text),
      entry.why && make("div", { class: "why", title: entry.why }, entry.why)));
}
