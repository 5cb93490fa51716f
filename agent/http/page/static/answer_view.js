// An answer: the likeliest classes where an output has one figure for each class, and a glance at every tensor.

import { make } from "./dom.js";
import { figure, seconds, shape } from "./figures.js";
import { count, value } from "./tensors.js";

const SHOWN = 8, TOP = 5, MOST_CLASSES = 100_000;

export function showAnswer(answer, tookS, labels) {
  const about = answer.parameters;
  const classes = answer.outputs.find(one => isClasses(one));
  return [make("p", {}, "answered in ", make("b", {}, seconds(about.seconds ?? tookS)), make("span", { class: "soft" },
    ` by the plan of epoch ${about.epoch}${about.replays ? `, run ${about.replays + 1} times` : ""}; ${seconds(tookS)} with the way to this page`)),
    classes && topClasses(classes, labels), make("div", { class: "scroll" }, make("table", {},
      make("tr", {}, ...["output", "type", "shape", "first values"].map(head => make("th", {}, head))),
      ...answer.outputs.map(one => make("tr", {}, make("td", {}, make("code", {}, one.name)), make("td", {}, one.datatype),
        make("td", {}, shape(one.shape)), make("td", { class: "mono" }, glance(one))))))];
}

const isClasses = one => one.datatype.startsWith("FP") && one.shape.length > 0 && one.shape.length < 5 &&
  count(one.shape) === Math.max(...one.shape) && count(one.shape) > 1 && count(one.shape) <= MOST_CLASSES;

function topClasses(one, labels) {
  const scores = Array.from({ length: one.data.length }, (_, n) => value(one, n));
  const sum = scores.reduce((total, score) => total + score, 0);
  const likely = Math.abs(sum - 1) < 0.02 && Math.min(...scores) >= 0;
  const most = scores.reduce((so_far, score) => Math.max(so_far, score), -Infinity);
  const powers = likely ? scores : scores.map(score => Math.exp(score - most));
  const all = likely ? 1 : powers.reduce((total, power) => total + power, 0);
  const order = [...powers.keys()].sort((a, b) => powers[b] - powers[a]).slice(0, TOP);
  return make("ol", { class: "classes", title: likely ? "" : "softmax of the output" }, ...order.map(n => {
    const fill = make("i");
    fill.style.width = `${100 * powers[n] / all}%`;
    const name = labels && labels[n] ? labels[n] : `class ${n}`;
    return make("li", {}, make("span", { title: `${name}: ${scores[n]}` }, name), make("div", { class: "bar" }, fill),
      make("span", {}, `${figure(100 * powers[n] / all)}%`));
  }));
}

function glance(one) {
  const values = Array.from({ length: Math.min(SHOWN, one.data.length) }, (_, n) => value(one, n));
  return values.map(v => typeof v === "number" ? figure(v, 5) : String(v).slice(0, 60)).join("  ") + (one.data.length > SHOWN ? " …" : "");
}
