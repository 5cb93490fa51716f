// The last request: what its gateway knows of it, and, where it was recorded, what every device did.

import { adopt, make, show } from "./dom.js";
import { ask, credential } from "./asking.js";
import { ago, seconds } from "./figures.js";

const RECORDED_S = 3;
const WORTH_TELLING = 0.01;  // The part of a request from which waiting is told.

export class RequestView {
  constructor(name) {
    this.path = `api/models/${encodeURIComponent(name)}/trace`;
    this.summary = make("p");
    this.button = make("button", { type: "button", onclick: () => this.watch() }, `Record ${RECORDED_S} s of requests`);
    this.hint = make("span", { class: "soft" });
    this.drawn = make("div");
    this.element = make("div", {}, this.summary, make("div", { class: "row" }, this.button, this.hint), this.drawn);
  }

  update(card, traffic) {
    const last = traffic && traffic.last;
    this.summary.textContent = !last ? "No request came through this agent yet."
      : `Answered ${ago(last.at_s)} in ${seconds(last.seconds)}` +
        (last.queue_s > WORTH_TELLING * last.seconds ? `, of which it waited ${seconds(last.queue_s)} for its run` : "") +
        (last.replays ? `; run again ${last.replays} times after a loss` : "") + ".";
    this.button.disabled = !credential() || this.busy;
    if (!this.busy) this.hint.textContent = credential() ? this.said || "" : "Recording what every device does needs the admin credential (below).";
  }

  async watch() {
    const pause = () => new Promise(done => setTimeout(done, 1e3 * RECORDED_S));
    await this.record(pause).catch(() => {});  // `record` has said what went wrong.
  }

  // Records while `work` goes on, and draws the last request of that time.
  async record(work) {
    this.busy = true;
    this.hint.textContent = "recording…";
    this.button.disabled = true;
    try {
      await ask(`${this.path}?seconds=60`, { method: "POST" });
      let answer;
      try { answer = await work(); } finally { this.found = await (await ask(`${this.path}?drawn=1`, { method: "DELETE" })).json(); }
      this.said = this.found.request ? "" : "No request came in that time: send one with “Try it”.";
      show(this.drawn, this.found, () => this.found.request && [make("h4", {}, `What every device did in ${seconds(this.found.request.seconds)}`),
        make("p", { class: "soft small" }, "Solid: computing. Thin bar below: sending. Grey: waiting for data. Lines: messages."),
        adopt(this.found.request.timeline)]);
      return answer;
    } catch (error) {
      this.said = error.message;
      throw error;
    } finally {
      this.busy = false;
      this.hint.textContent = this.said || "";
      this.button.disabled = false;
    }
  }
}
