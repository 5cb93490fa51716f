// Talks to a language model, by OpenAI's route for chats.

import { make } from "./dom.js";
import { ask, events } from "./asking.js";
import { figure, seconds } from "./figures.js";

const MOST_TOKENS = 512;

export class TalkView {
  constructor(name) {
    this.name = name;
    this.messages = [];
    this.said = make("div", { class: "talk" });
    this.text = make("textarea", { placeholder: "Say something", "aria-label": "message", onkeydown: event => {
      if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); this.send(); }
    } });
    this.button = make("button", { type: "button", onclick: () => this.under_way ? this.under_way.abort() : this.send() }, "Send");
    const anew = make("button", { type: "button", onclick: () => this.anew() }, "Begin anew");
    this.element = make("div", {}, this.said, make("div", { class: "talk" }, this.text, make("div", { class: "row" }, this.button, anew)));
  }

  // Forgets the chat; an answer that still grows is stopped, and is no part of the next one.
  anew() {
    if (this.under_way) this.under_way.abort();
    this.messages = [];
    this.said.replaceChildren();
  }

  async send() {
    const content = this.text.value.trim(), messages = this.messages;
    if (!content || this.under_way) return;
    this.text.value = "";
    messages.push({ role: "user", content });
    this.said.append(make("div", { class: "said you" }, content));
    const answer = make("div", { class: "said" }, "…"), about = make("div", { class: "soft small" });
    this.said.append(answer, about);
    this.under_way = new AbortController();
    this.button.textContent = "Stop";
    let text = "";
    try {
      const response = await ask("v1/chat/completions", { method: "POST", signal: this.under_way.signal,
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ model: this.name, messages, stream: true, max_tokens: MOST_TOKENS }) });
      for await (const event of events(response)) {
        if (event.data === "[DONE]") break;
        const part = JSON.parse(event.data);
        if (part.error) throw new Error(part.error.message);
        text += part.choices.length ? part.choices[0].delta.content || "" : "";
        answer.textContent = text || "…";
        if (part.edgepart) about.textContent = figures(part.edgepart);
      }
    } catch (error) {
      const stopped = error.name === "AbortError";
      about.textContent = stopped ? "stopped" : error instanceof TypeError  // The connection broke; browsers differ in the words.
        ? `This agent was lost ${text ? "in the middle of" : "before"} its answer (${error.message}). Ask again here or at another member.`
        : error.message;
      about.className = stopped ? "soft small" : "bad small";
      if (!text && !stopped && !this.text.value) this.text.value = content;
    } finally {
      if (text) messages.push({ role: "assistant", content: text });
      else { answer.remove(); messages.pop(); }
      this.under_way = null;
      this.button.textContent = "Send";
    }
  }
}

function figures(about) {
  const paused = about.replays ? `; paused for ${seconds(about.paused_s)}, as a device was lost` : "";
  return `first token after ${seconds(about.ttft_s)}, then ${figure(about.tokens_per_s)} tokens/s on ${about.devices.join(", ")}${paused}`;
}
