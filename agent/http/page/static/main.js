// The page: follows the agent's feed, and hands each document to who shows it.

import { at, make, show } from "./dom.js";
import { follow, keep } from "./asking.js";
import { drawGraph } from "./cluster_graph.js";
import { Deployments } from "./deployments.js";
import { EventList } from "./event_list.js";
import { ago } from "./figures.js";

const known = { cluster: null };
const eventList = new EventList(at("events"));
const deployments = new Deployments(at("deployments"), eventList);

function showCluster() {
  const cluster = known.cluster;
  if (!cluster) return;
  const count = cluster.members.length;
  at("head").textContent = `cluster ${cluster.cluster.slice(0, 16)} · leader ${cluster.leader || "none yet"} · ` +
    `${count} ${count === 1 ? "device" : "devices"} · seen from ${cluster.name}, started ${ago(cluster.started_s)}`;
  const width = at("graph").clientWidth || 600;
  const passing = cluster.lost.map(gone => ago(gone.since_s));
  show(at("graph"), [cluster.members, cluster.lost, cluster.links, cluster.leader, width, passing], () => drawGraph(cluster, width));
  at("notices").hidden = !cluster.notices.length;
  show(at("notices"), cluster.notices, () => cluster.notices.map(notice =>
    make("li", { class: notice.trouble ? "bad" : "" }, notice.text)));
}

function told(type, document_) {
  if (type === "cluster") { known.cluster = document_; showCluster(); }
  else if (type === "deployments") deployments.cards(document_);
  else if (type === "traffic") deployments.traffic(document_);
  else if (type === "event") { eventList.add(document_); deployments.refresh(); }
  else if (type === "gap") eventList.gap(document_.forgotten);
  else if (type === "fault") showFault(document_ ? `The agent cannot tell how things are: ${document_}` : "");
}

function showFault(text, ...more) {
  at("fault").replaceChildren(text, ...more);
  at("fault").hidden = !text;
}

// Links to the pages of the other members, for when this agent is gone.
function elsewhere() {
  const others = known.cluster ? known.cluster.members.filter(one => one.name !== known.cluster.name && /^https?:\/\//.test(one.http || "")) : [];
  return others.length ? [" Others show theirs: ", ...others.flatMap((one, n) => [n ? ", " : "", make("a", { href: `${one.http}/` }, one.name)]), "."] : [];
}

function linked(state, why) {
  at("link").textContent = { live: "live", lost: "connection lost", refused: "needs the credential" }[state];
  at("link").className = `link ${state === "live" ? "good" : state === "lost" ? "bad" : "wait"}`;
  if (state === "refused") at("key").hidden = false;
  if (state === "live" && document.activeElement !== at("secret")) at("key").hidden = true;
  if (state === "live") showFault("");
  else if (state === "refused") showFault(`This agent shows nothing without the credential: ${why}.`);
  else showFault(`No answer from this agent (${why}). What you see is as it was; the page goes on when the agent does.`, ...elsewhere());
}

at("key").addEventListener("submit", event => {
  event.preventDefault();
  keep(at("secret").value.trim());
  at("secret").value = "";
  at("key").hidden = true;
  dispatchEvent(new Event("credential"));
});
at("key-button").addEventListener("click", () => { at("key").hidden = false; at("secret").focus(); });
new ResizeObserver(showCluster).observe(at("graph"));
setInterval(() => { showCluster(); deployments.refresh(); }, 1000);  // Times that pass; nothing is asked for.
follow("api/live", told, linked);
