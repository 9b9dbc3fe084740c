// The settings of requests. The server names the options of its sampler, with their help and their ranges.

import { node } from "./markdown.js";

const at = (id) => document.getElementById(id);
const STORE = "tracewright";
/** The fields of the page's HTML. */
const FIELDS = ["system", "temperature", "top_p", "top_k", "max_tokens", "seed", "stop", "samplers", "schema"];
const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];

/** What the browser keeps besides the chats. */
export const kept = { dark: matchMedia("(prefers-color-scheme: dark)").matches, more: {}, current: null };

/** Returns what is kept. An earlier version kept the messages of its only chat here. */
export function loadSettings() {
  try {
    Object.assign(kept, JSON.parse(localStorage.getItem(STORE) ?? "{}"));
  } catch {
    // What is kept is damaged: the settings begin anew.
  }
  for (const name of FIELDS) at(name).value = kept[name] ?? "";
  at("key").value = sessionStorage.getItem(STORE) ?? "";
  const { messages } = kept;
  delete kept.messages;
  return Array.isArray(messages) ? messages : [];
}

export function saveSettings() {
  for (const name of FIELDS) kept[name] = at(name).value;
  for (const input of at("more").querySelectorAll("input")) kept.more[input.name] = input.value;
  localStorage.setItem(STORE, JSON.stringify(kept));
  sessionStorage.setItem(STORE, at("key").value);
}

export function headers() {
  const key = at("key").value.trim();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

export async function fail(response) {
  const body = await response.json().catch(() => null);
  throw new Error(body?.error?.message ?? `the server answers ${response.status}`);
}

async function get(path) {
  const response = await fetch(path, { headers: headers() });
  if (!response.ok) await fail(response);
  return response.json();
}

/** The models of the server that generate text. */
export async function models() {
  return (await get("v1/models")).data.filter((model) => !model.meta?.embeds);
}

let described = null;

/** Shows a field for each option of the sampler that has no field yet, with the model's default. */
export async function showSamplers(model) {
  const { default_generation_settings: usual } = await get(`props?model=${encodeURIComponent(model)}`);
  if (!usual) return;
  described ??= (await get("openapi.json")).paths["/v1/completions"].post.requestBody.content["application/json"].schema;
  const properties = Object.assign({}, described.properties, ...(described.allOf ?? []).map((one) => one.properties));
  const fields = Object.entries(usual.params).map(([name, value]) => {
    const shown = String(Number(value.toPrecision(6)));
    if (FIELDS.includes(name)) {
      at(name).placeholder = shown;
      return null;
    }
    const { description = "", minimum, maximum } = properties[name] ?? {};
    const input = node("input");
    Object.assign(input, { name, type: "number", step: "any", placeholder: shown, min: minimum ?? "", max: maximum ?? "" });
    input.value = kept.more[name] ?? "";
    const label = node("label", `${name} `, input);
    label.title = description;
    return label;
  });
  at("more").replaceChildren(...fields.filter(Boolean));
}

/** The fields of a request. */
export function options() {
  const body = {};
  for (const name of NUMBERS) if (at(name).value !== "") body[name] = Number(at(name).value);
  for (const { name, value } of at("more").querySelectorAll("input")) if (value !== "") body[name] = Number(value);
  const stops = at("stop").value.split("\n").filter(Boolean);
  if (stops.length) body.stop = stops;
  const steps = at("samplers").value.split(/[;,\s]+/).filter(Boolean);
  if (steps.length) body.samplers = steps;
  const schema = at("schema").value.trim();
  if (schema) {
    let parsed = null;
    try {
      parsed = JSON.parse(schema);
    } catch (error) {
      throw new Error(`the schema is not JSON: ${error.message}`);
    }
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: parsed } };
  }
  return body;
}
