// Small charts of the last minutes: a line, or bars, and marks where another plan took over.

import { draw } from "./dom.js";
import { clock } from "./figures.js";

const HEIGHT = 34;

// `values` has a figure for each slice of time, null for none; `marks` are events with a time.
export function chart(values, sliceS, marks, { bars = false, title = "" } = {}) {
  const count = values.length;
  const svg = draw("svg", { viewBox: `0 0 ${count} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title });
  svg.append(draw("title", {}, title), draw("line", { class: "chart-base", x1: 0, x2: count, y1: HEIGHT, y2: HEIGHT }));
  const most = Math.max(...values.map(value => value || 0)) || 1;
  const y = value => HEIGHT - 2 - (HEIGHT - 6) * value / most;
  if (bars) {
    values.forEach((value, n) => value && svg.append(
      draw("rect", { class: "chart-bad", x: n + 0.1, y: y(value), width: 0.8, height: HEIGHT - y(value) })));
  } else {
    for (const run of runs(values)) {
      const points = run.map(([n, value]) => `${n + 0.5},${y(value).toFixed(2)}`);
      if (points.length === 1) points.push(`${run[0][0] + 1},${y(run[0][1]).toFixed(2)}`);
      const [first, last] = [points[0].split(",")[0], points[points.length - 1].split(",")[0]];
      svg.append(draw("polygon", { class: "chart-area", points: `${first},${HEIGHT} ${points.join(" ")} ${last},${HEIGHT}` }),
        draw("polyline", { class: "chart-line", points: points.join(" ") }));
    }
  }
  const end = Date.now() / 1e3;
  for (const mark of marks) {
    const x = count - (end - mark.at_s) / sliceS;
    if (x > 0) svg.append(draw("line", { class: "chart-mark", x1: x, x2: x, y1: 0, y2: HEIGHT },
      draw("title", {}, `${clock(mark.at_s)} ${mark.text}\n${mark.why}`)));
  }
  return svg;
}

function runs(values) {
  const found = [];
  let run = [];
  values.forEach((value, n) => {
    if (value !== null) run.push([n, value]);
    else if (run.length) { found.push(run); run = []; }
  });
  return run.length ? [...found, run] : found;
}
