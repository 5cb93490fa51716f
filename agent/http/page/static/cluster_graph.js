// The cluster as a graph: a box for each device, larger if it is faster, and a line for each link, wider if it is faster.
// What requests of this agent's clients send over a link is drawn over it.

import { draw } from "./dom.js";
import { ago, bytes, figure, seconds } from "./figures.js";

const MOST_LABELLED = 4;
const CROSSING = 0.34;  // Where the label of an upright link stands, which another one may cross in the middle.
const NARROW = 500;
const BOX = { width: 128, height: 58 };

export function drawGraph(cluster, width) {
  const boxes = [...cluster.members, ...cluster.lost.map(gone => ({ ...gone, gone: true }))]
    .sort((one, other) => one.name < other.name ? -1 : 1);
  const many = boxes.length > 8;
  const height = boxes.length < 3 ? 170 : many ? 460 : 300;
  const place = places(boxes, width, height);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img",
    "aria-label": `${cluster.members.length} devices and their links` });
  const links = cluster.links.filter(link => place.has(link.a) && place.has(link.b));
  for (const link of links) svg.append(wire(link, place, boxes.length <= MOST_LABELLED, width < NARROW));
  const most = Math.max(1, ...boxes.map(box => box.device ? box.device.flops_per_s : 0));
  for (const box of boxes) svg.append(drawBox(box, place.get(box.name), most, cluster, width, many));
  return svg;
}

function places(boxes, width, height) {
  const found = new Map();
  const across = Math.max(width / 2 - BOX.width / 2 - 14, 40), down = height / 2 - BOX.height / 2 - 14;
  const turn = boxes.length === 2 ? Math.PI : -Math.PI / 2;
  const angles = boxes.map((_, n) => turn + 2 * Math.PI * n / boxes.length);
  const [xs, ys] = [spread(angles.map(Math.cos)), spread(angles.map(Math.sin))];
  boxes.forEach((box, n) => found.set(box.name, { x: width / 2 + across * xs[n], y: height / 2 + down * ys[n] }));
  return found;
}

// The numbers, moved and stretched to reach from -1 to 1.
function spread(numbers) {
  const [least, most] = [Math.min(...numbers), Math.max(...numbers)];
  return numbers.map(number => most - least < 1e-9 ? 0 : 2 * (number - least) / (most - least) - 1);
}

function wire(link, place, labelled, narrow) {
  const [a, b] = [place.get(link.a), place.get(link.b)];
  const along = Math.abs(a.x - b.x) < 1 ? CROSSING : 0.5;
  const ends = { x1: a.x, y1: a.y, x2: b.x, y2: b.y };
  const load = link.sent_bytes_per_s / link.bytes_per_s;
  const wide = Math.min(Math.max(1, 1.6 * Math.log10(link.bytes_per_s / 1e5)), 9);
  const used = load > 0.0005 ? ` · ${figure(100 * load, 2)}% used` : "";
  const label = narrow && used ? `${figure(100 * load, 2)}%` : `${bytes(link.bytes_per_s)}/s${used}`;
  const title = `${link.a} – ${link.b}: ${bytes(link.bytes_per_s)}/s, ${seconds(link.latency_s)} one way` +
    (used ? `; requests through this agent send ${bytes(link.sent_bytes_per_s)}/s` : "");
  return draw("g", {}, draw("title", {}, title), draw("line", { ...ends, class: "wire", "stroke-width": wide }),
    load > 0.0005 && draw("line", { ...ends, class: "flow", "stroke-width": Math.max(wide * Math.min(load, 1), 1.2) }),
    labelled && draw("text", { class: "rate", x: a.x + along * (b.x - a.x), y: a.y + along * (b.y - a.y) + 4 }, label));
}

function drawBox(box, { x, y }, most, cluster, width, many) {
  const speed = box.device ? box.device.flops_per_s / most : 0;
  const scale = (many ? 0.7 : 0.86) + 0.24 * Math.sqrt(speed);
  const [wide, tall] = [Math.min(BOX.width * scale, width / 3), BOX.height * scale];
  const state = box.gone ? "gone" : box.state === "suspect" ? "suspect" : box.leader ? "leader" : "";
  const lines = box.gone ? [`${box.state} ${ago(box.since_s)}`] : box.device
    ? [`${figure(box.device.flops_per_s / 1e9)} GFLOP/s`, `${box.device.threads} ${box.device.threads === 1 ? "thread" : "threads"}, ${bytes(box.device.memory_bytes)}`]
    : ["not measured yet"];
  if (!box.gone && box.state !== "alive") lines[0] = box.state;
  const name = clip(box.name, Math.floor(wide / 8.2));
  const top = y - 8 * lines.length + 4;
  return draw("g", {}, draw("title", {}, about(box, cluster)),
    draw("rect", { class: `box ${state}`, x: x - wide / 2, y: y - tall / 2, width: wide, height: tall, rx: 9 }),
    draw("text", { class: `name ${box.gone ? "gone" : ""}`, x, y: top, "text-anchor": "middle" }, box.leader ? `★ ${name}` : name),
    (many ? lines.slice(0, 1) : lines).map((line, n) =>
      draw("text", { class: "soft", x, y: top + 16 + 14 * n, "text-anchor": "middle" }, line)));
}

function about(box, cluster) {
  const facts = [box.name, box.leader ? "the leader: it plans" : "", box.name === cluster.name ? "this agent" : "",
    box.device ? `${box.device.kind}, memory ${bytes(box.device.memory_bytes_per_s)}/s` : "", box.address, box.grpc && `gRPC ${box.grpc}`, box.note];
  return facts.filter(Boolean).join("\n");
}

const clip = (text, most) => text.length <= most ? text : `${text.slice(0, Math.max(most - 1, 1))}…`;
