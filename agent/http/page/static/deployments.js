// A card for each deployment: its state and progress, figures of the last minutes, its plan, and a place to try it.

import { definitions, make, show } from "./dom.js";
import { chart } from "./charts.js";
import { bytes, figure, seconds, shape } from "./figures.js";
import { PlanView } from "./plan_view.js";
import { RequestView } from "./request_view.js";
import { TryView } from "./try_view.js";

const MOST_OPEN = 2;  // Plans that are shown before anybody asks for them; more would make a page without end.

export class Deployments {
  constructor(element, eventList) {
    this.element = element;
    this.eventList = eventList;
    this.views = new Map();
    this.document = null;
    this.figures = { slice_s: 5, models: {} };
  }

  cards(document_) {
    this.document = document_;
    const names = new Set([...document_.cards.map(card => card.name), ...Object.keys(document_.under_way),
      ...Object.keys(document_.failed)]);
    for (const [name, view] of this.views) if (!names.has(name)) { view.element.remove(); this.views.delete(name); }
    for (const name of [...names].sort()) {
      if (!this.views.has(name)) this.views.set(name, new DeploymentView(name, this.views.size < MOST_OPEN));
    }
    show(this.element, [...names].sort(), () => names.size ? [...names].sort().map(name => this.views.get(name).element)
      : make("p", { class: "card soft" }, "Nothing is deployed. On any device: ", make("code", {}, "edgepart deploy model.onnx")));
    this.refresh();
  }

  traffic(document_) {
    this.figures = document_;
    this.refresh();
  }

  refresh() {
    if (!this.document) return;
    for (const [name, view] of this.views) {
      view.update(this.document.cards.find(card => card.name === name), this.document.under_way[name],
        this.document.failed[name], this.figures.models[name], this.figures.slice_s, this.eventList.plans(name));
    }
  }
}

class DeploymentView {
  constructor(name, open) {
    this.name = name;
    this.chosen = null;
    this.card = null;
    this.parts = Object.fromEntries(["title", "progress", "why", "stats"].map(part => [part, make("div", { class: part })]));
    this.body = make("div");
    this.tabs = make("div", { class: "tabs", role: "tablist", hidden: true });
    this.views = { Plan: new PlanView(name), "Last request": new RequestView(name), "Try it": new TryView(name),
      Details: { element: make("div"), update: (card, ...rest) => this.details(card, ...rest) } };
    for (const label of Object.keys(this.views)) {
      this.tabs.append(make("button", { type: "button", role: "tab", onclick: () => this.choose(label) }, label));
    }
    this.element = make("article", { class: "card deployment", "data-name": name }, ...Object.values(this.parts), this.tabs, this.body);
    this.choose(open ? "Plan" : null);
  }

  // Shows what is under a tab; under the tab that is open already, nothing.
  choose(label) {
    this.chosen = this.chosen === label ? null : label;
    for (const button of this.tabs.children) button.setAttribute("aria-selected", String(button.textContent === this.chosen));
    this.body.replaceChildren(...(this.chosen ? [this.views[this.chosen].element] : []));
    if (this.last) this.update(...this.last);
  }

  update(...all) {
    this.last = all;
    const [card, step, failure, traffic, sliceS, plans] = all;
    const serving = Boolean(card && card.epoch);
    show(this.parts.title, [card && [card.state, card.trouble, card.epoch, card.devices, card.set_aside], step, failure],
      () => this.title(card, serving, step, failure));
    show(this.parts.progress, [step, card && card.state, serving, card && card.weights], () => this.progress(card, serving, step));
    show(this.parts.why, [card && [card.trouble, card.why, card.note, card.candidate, card.candidate_of], failure], () => this.why(card, failure));
    this.parts.stats.hidden = !traffic;
    if (traffic) show(this.parts.stats, [traffic, plans.map(plan => plan.id), Math.floor(Date.now() / 1e3 / sliceS)],
      () => stats(traffic, sliceS, plans, card));
    this.tabs.hidden = !serving;
    this.body.hidden = !serving;
    if (serving && this.chosen) this.views[this.chosen].update(card, traffic);
  }

  title(card, serving, step, failure) {
    const tone = !card ? failure ? "bad" : "wait" : card.trouble ? serving || card.set_aside ? "bad" : "wait" : "good";
    const state = step && !serving ? "being deployed" : card ? card.state : "the last try failed";
    const on = card && card.devices.length ? `on ${card.devices.join(", ")}` : "";
    const predicted = card && card.predicted_latency_s !== null ? `predicted ${seconds(card.predicted_latency_s)} a request` : "";
    return [make("h3", {}, this.name), make("span", { class: `dot ${tone}` }, state.length > 60 ? "working" : state),
      make("span", { class: "soft" }, [on, predicted].filter(Boolean).join(" · "))];
  }

  progress(card, serving, step) {
    if (!step && (serving || !card || card.set_aside)) return [];
    const stage = step ? step.stage : card.state;
    const whole = step && step.total > 0;
    const fill = make("i");
    if (whole) fill.style.width = `${Math.min(100, 100 * step.done / step.total)}%`;
    const count = !whole ? "" : step.stage.includes("receiving") ? `${bytes(step.done)} of ${bytes(step.total)}`
      : `${figure(step.done)} of ${figure(step.total)}`;
    return [make("div", { class: `bar ${whole ? "" : "unknown"}`, role: "progressbar", "aria-label": stage }, fill),
      make("p", {}, stage, count && make("span", { class: "soft" }, ` ${count}`)), ...(card ? weights(card.weights || []) : [])];
  }

  why(card, failure) {
    const found = [];
    if (failure) found.push(make("p", { class: "bad" }, `The last try to deploy it through this agent failed: ${failure}`));
    if (card && card.trouble && (card.epoch || card.set_aside)) found.push(make("p", { class: "bad" }, card.trouble));
    if (card && card.epoch) {
      const [first, ...more] = card.why.split("\n");
      found.push(more.length ? make("details", {}, make("summary", {}, first), ...more.map(line => make("p", { class: "soft" }, line)))
        : make("p", {}, first));
    }
    if (card && card.candidate) found.push(make("p", { class: card.candidate.trouble ? "bad" : "" }, trial(card)));
    if (card && card.candidate_of) found.push(make("p", { class: "soft" }, `the candidate of ${card.candidate_of}, version ${card.version}`));
    if (card && card.note) found.push(make("p", { class: "soft" }, card.note));
    return found;
  }

  details(card) {
    const values = side => card[side].map(v => make("div", {}, make("code", {}, v.name), ` ${v.dtype} ${shape(v.shape)}`));
    const bound = (card.bindings || []).map(b => make("div", {}, Object.entries(b.shapes).map(([n, s]) => `${n} ${shape(s)}`).join(" "),
      make("span", { class: "soft" }, b.epoch ? ` on ${b.devices.join(", ")}, predicted ${seconds(b.predicted_latency_s)}` : ` ${b.state}`)));
    const rows = [["strategy", card.strategy], ["epoch", `${card.epoch.term}.${card.epoch.number}`], ["inputs", values("inputs")],
      ["outputs", values("outputs")], ["shapes", bound.length ? bound : null], ["prepared for the loss of", card.covered && card.covered.length ? card.covered.join(", ") : null],
      ["rounding", card.rounding || null], ["weights", card.quantised || null],
      ...sequences(card.sequences), ["endpoint", make("code", {}, `${location.origin}/v2/models/${this.name}/infer`)],
      ["model", make("code", {}, card.model_digest.slice(0, 16))]];
    show(this.views.Details.element, [card], () => definitions(rows));
  }
}

// How far the weights of each device of the plan have come that is being prepared.
function weights(found) {
  return found.map(({ device, here_bytes, needed_bytes }) => {
    const fill = make("i"), label = `weights on ${device}`;
    fill.style.width = `${Math.min(100, 100 * here_bytes / needed_bytes)}%`;
    const bar = make("div", { class: "bar", role: "progressbar", "aria-label": label, "aria-valuemin": 0,
      "aria-valuemax": needed_bytes, "aria-valuenow": here_bytes }, fill);
    return make("div", { class: "weights" }, make("span", {}, label), bar,
      make("span", { class: "soft" }, `${bytes(here_bytes)} of ${bytes(needed_bytes)}`));
  });
}

// The candidate of a deployment, as `edgepart status` says it in more words.
function trial(card) {
  const one = card.candidate, gets = one.shadow ? "gets a copy of each request" : `answers ${one.share} % of the requests`;
  const seen = one.shadow ? one.compared ? `${one.compared} compared, ${one.different} with another choice` : ""
    : `${one.answers} of ${one.answers + one.serving_answers} so far`;
  const lost = one.fallbacks || one.copy_errors, failed = lost ? `${lost} failed: ${one.last_failure}` : "";
  return [`Candidate: version ${one.version} ${gets}`, seen, failed, one.trouble].filter(Boolean).join("; ");
}

function sequences(found) {
  if (!found) return [];
  const held = Object.entries(found.state_bytes).map(([name, nbytes]) => `${name} ${bytes(nbytes)}`).join(", ");
  return [["sequences", `${found.under_way} under way, ${found.idle} kept for later prompts, ${found.most} at most`],
    ["their states", held]];
}

function stats(traffic, sliceS, plans, card) {
  const lately = traffic.lately, minutes = `last ${Math.round(traffic.per_s.length * sliceS / 60)} min, through this agent`;
  const tile = (label, value, values, options = {}) => make("div", { class: "stat" },
    make("p", { title: label }, make("b", {}, value), make("span", { class: "soft" }, label)),
    chart(values, sliceS, plans, { title: `${label}, ${minutes}`, ...options }));
  const errors = Object.entries(traffic.errors).map(([kind, count]) => `${kind} ${count}`).join(", ");
  const total = Object.values(traffic.errors).reduce((sum, count) => sum + count, 0);
  const text = traffic.tokens_per_s.some(Boolean) || card && card.sequences;
  const speed = card && card.sequences && card.sequences.tokens_per_s;
  return [tile(text ? "answers/s" : "requests/s", figure(lately.per_s), traffic.per_s), tile("p50", seconds(lately.p50_s), traffic.p50_s),
    tile("p99", seconds(lately.p99_s), traffic.p99_s),
    text && tile("tokens/s", figure(speed || lately.tokens_per_s), traffic.tokens_per_s),
    tile(errors ? `errors: ${errors}` : "errors", String(total), traffic.failed, { bars: true })];
}
