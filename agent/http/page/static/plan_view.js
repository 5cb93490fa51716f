// The plan as a picture: the predicted timeline of one request, who computes which part of every layer, and a table.

import { adopt, make, show } from "./dom.js";
import { get } from "./asking.js";
import { bytes, seconds } from "./figures.js";

const MEASURED_AGAIN_S = 15;

export class PlanView {
  constructor(name) {
    this.path = `api/models/${encodeURIComponent(name)}`;
    this.element = make("div", {}, make("p", { class: "soft" }, "drawing…"));
    this.epoch = "";
    this.table = make("div", { class: "scroll" });
    this.measuredAt = 0;
  }

  async update(card, traffic) {
    const epoch = `${card.epoch.term}.${card.epoch.number}`;
    const last = traffic && traffic.last ? traffic.last.at_s : 0;
    if (epoch === this.epoch) {
      // Requests have come since: what devices measured may be other figures now.
      if (last - this.measuredAt > MEASURED_AGAIN_S) await this.measure(last);
      return;
    }
    this.epoch = epoch;
    this.measuredAt = last;
    try {
      const [drawing, plan] = await Promise.all([get(`${this.path}/drawing`), get(`${this.path}/plan`)]);
      this.drawing = drawing;
      show(this.table, plan, () => table(drawing, plan));
      show(this.element, [epoch, drawing], () => [...pictures(drawing, plan), this.table]);
    } catch (error) {
      this.epoch = "";
      show(this.element, [error.message], () => make("p", { class: "bad" }, `The plan cannot be drawn now: ${error.message}`));
    }
  }

  async measure(last) {
    this.measuredAt = last;
    try {
      const plan = await get(`${this.path}/plan`);
      if (this.drawing) show(this.table, plan, () => table(this.drawing, plan));
    } catch (error) {
      console.info(`measurements are as they were: ${error.message}`);
    }
  }
}

function pictures(drawing, plan) {
  const found = [];
  if (drawing.timeline) {
    found.push(make("h4", {}, "Timeline of one request, predicted"),
      make("p", { class: "soft small" }, "Solid: computing. Thin bar below: sending. Grey: waiting for data. Lines: messages. ⌂: where it is asked."),
      adopt(drawing.timeline));
  }
  found.push(make("h4", {}, "Who computes which part of every layer"));
  const names = Object.keys(drawing.devices);
  if (drawing.layers) {
    found.push(make("p", { class: "soft small" }, "Left to right: the layers. Top to bottom: the axis that is split. Borders that two devices compute are mixed."),
      adopt(drawing.layers));
  } else {
    found.push(make("p", { class: "soft" }, names.length === 1 ? `${names[0]} computes every layer, whole.`
      : "The agent that made this plan does not tell."));
  }
  if (plan.replicas.length) found.push(make("p", { class: "soft" },
    `A request goes to one of the replicas: ${plan.replicas.map(one => one.devices.join(" with ")).join("; ")}.`));
  return found;
}

function table(drawing, plan) {
  const measured = (plan.measured && plan.measured.devices) || {};
  const known = Object.values(measured).some(one => one.measured_compute_s);
  const heads = ["device", "computes", ...(known ? ["measured"] : []), "sends", "receives", "weights", "peak memory", "segments"];
  const rows = Object.entries(plan.devices).map(([name, row]) => {
    const swatch = make("span", { class: "swatch" });
    swatch.style.background = drawing.devices[name];
    const took = measured[name] && measured[name].measured_compute_s;
    const cells = [seconds(row.compute_s), ...(known ? [took ? seconds(took) : "–"] : []), bytes(row.sent_bytes), bytes(row.received_bytes),
      bytes(row.weight_bytes), bytes(row.peak_memory_bytes), row.segments];
    return make("tr", {}, make("td", {}, swatch, name), ...cells.map(cell => make("td", {}, cell)));
  });
  return make("table", {}, make("tr", {}, ...heads.map(head => make("th", {}, head))), ...rows);
}
