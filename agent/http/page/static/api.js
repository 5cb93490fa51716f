// The description of the HTTP API, for people.

import { at, make } from "./dom.js";
import { get } from "./asking.js";

function operation(method, path, one) {
  const types = content => Object.keys(content).filter(type => type !== "*/*").join(" or ");
  const takes = one.requestBody ? types(one.requestBody.content) : "";
  const answers = types(Object.values(one.responses)[0].content);
  const given = one.parameters.filter(parameter => parameter.in !== "path").map(parameter => make("p", { class: "soft small" },
    make("code", {}, parameter.in === "query" ? `?${parameter.name}=` : `${parameter.name}:`), ` ${parameter.description}`));
  return make("div", { class: "operation" }, make("p", {}, make("b", { class: `method ${method}` }, method.toUpperCase()), make("code", {}, path)),
    make("div", {}, make("p", {}, ...marked(one.summary)), ...given, make("p", { class: "soft small" },
      ...marked([takes && `Takes ${takes}.`, answers && `Answers ${answers}.`, one.description].filter(Boolean).join(" ")))));
}

// A text with what stands between backticks as code.
const marked = text => text.split("`").map((part, n) => n % 2 ? make("code", {}, part) : part);

function sections(document_) {
  const all = Object.entries(document_.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, one]) => ({ method, path, one })));
  return document_.tags.map(tag => make("section", {}, make("h2", {}, make("b", {}, tag.name), make("span", {}, tag.description)),
    make("div", { class: "card operations" }, ...all.filter(({ one }) => one.tags.includes(tag.name))
      .map(({ method, path, one }) => operation(method, path, one)))));
}

try {
  at("api").replaceChildren(...sections(await get("openapi.json")));
} catch (error) {
  at("api").replaceChildren(make("p", { class: "fault" }, `No answer from this agent: ${error.message}`));
}
