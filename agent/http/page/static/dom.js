// Elements. Every text comes from other machines, so it is only ever set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export const at = id => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter(child => child !== null && child !== undefined && child !== false)
    .map(child => child instanceof Node ? child : document.createTextNode(String(child))));
  return element;
}

export const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const draw = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// A drawing that the agent made. It holds shapes and texts; the page's policy would not run a script in it.
export function adopt(svg) {
  const found = new DOMParser().parseFromString(svg, "text/html").querySelector("svg");
  return make("div", { class: "drawing" }, document.adoptNode(found));
}

// Replaces an element's children only if what they show has changed, so that what a reader selects or scrolls stays.
const shown = new WeakMap();
export function show(element, version, build) {
  const text = JSON.stringify(version);
  if (shown.get(element) === text) return;
  shown.set(element, text);
  element.replaceChildren(...[build()].flat().filter(Boolean));
}

export const definitions = pairs => make("dl", {}, ...pairs
  .filter(([, value]) => value !== null && value !== undefined && value !== "")
  .flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
