// A chat with the server that sent this page. Nothing else is asked, and all that is kept is in the browser.

const at = (id) => document.getElementById(id);
const STORE = "tracewright";
const SETTINGS = ["system", "temperature", "top_p", "top_k", "max_tokens", "seed"];
const state = { messages: [], dark: matchMedia("(prefers-color-scheme: dark)").matches };
let running = null;

function load() {
  try {
    Object.assign(state, JSON.parse(localStorage.getItem(STORE) ?? "{}"));
  } catch {
    // What is kept is damaged: the chat begins anew.
  }
  for (const name of SETTINGS) at(name).value = state[name] ?? "";
  at("key").value = sessionStorage.getItem(STORE) ?? "";
}

function save() {
  for (const name of SETTINGS) state[name] = at(name).value;
  localStorage.setItem(STORE, JSON.stringify(state));
  sessionStorage.setItem(STORE, at("key").value);
}

function tell(text, isWrong = false) {
  at("state").textContent = text;
  at("state").classList.toggle("wrong", isWrong);
}

function headers() {
  const key = at("key").value.trim();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function fail(response) {
  const body = await response.json().catch(() => null);
  throw new Error(body?.error?.message ?? `the server answers ${response.status}`);
}

// Markdown, as elements: text of a model never becomes HTML.

function node(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

function inline(text) {
  const parts = [];
  const pattern = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*/g;
  let last = 0;
  for (const found of text.matchAll(pattern)) {
    parts.push(text.slice(last, found.index));
    const [whole, code, strong, em] = found;
    parts.push(code ? node("code", code) : strong ? node("strong", strong) : node("em", em));
    last = found.index + whole.length;
  }
  return [...parts, text.slice(last)];
}

function block(text) {
  const lines = text.split("\n");
  const heading = /^#{1,6} +(.*)$/.exec(text);
  if (heading) return node("p", node("strong", ...inline(heading[1])));
  if (lines.every((line) => /^\s*[-*] /.test(line))) {
    return node("ul", ...lines.map((line) => node("li", ...inline(line.replace(/^\s*[-*] /, "")))));
  }
  if (lines.every((line) => /^\s*\d+[.)] /.test(line))) {
    return node("ol", ...lines.map((line) => node("li", ...inline(line.replace(/^\s*\d+[.)] /, "")))));
  }
  return node("p", ...lines.flatMap((line, i) => (i ? [node("br"), ...inline(line)] : inline(line))));
}

function markdown(text) {
  return text.split(/^```/m).flatMap((part, i) => {
    if (i % 2) {
      const end = part.indexOf("\n");
      return [node("pre", node("code", end < 0 ? "" : part.slice(end + 1)))];
    }
    return part.split(/\n{2,}/).filter((one) => one.trim()).map((one) => block(one.trim()));
  });
}

// The conversation.

function tool(name, label, run) {
  const button = node("button", name);
  button.type = "button";
  button.ariaLabel = label;
  button.addEventListener("click", run);
  return button;
}

function shown(message, index) {
  const isUser = message.role === "user";
  const article = node("article", node("h2", isUser ? "You" : "Model"));
  article.className = message.role;
  if (message.reasoning) {
    const thought = node("div", message.reasoning);
    thought.className = "thought";
    article.append(node("details", node("summary", "Reasoning"), thought));
  }
  article.append(...(isUser ? [block(message.content)] : markdown(message.content)));
  const tools = node("div");
  tools.className = "tools";
  if (isUser) {
    tools.append(tool("Edit", `Edit message ${index + 1}`, () => edit(index)));
  } else {
    tools.append(tool("Copy", `Copy message ${index + 1}`, () => navigator.clipboard?.writeText(message.content)));
    tools.append(tool("Retry", `Retry the answer to message ${index}`, () => retry(index)));
  }
  article.append(tools);
  return article;
}

function draw() {
  const log = at("log");
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  log.replaceChildren(...state.messages.map(shown));
  if (isAtEnd || running) log.scrollTop = log.scrollHeight;
}

/** Draws the last message again, which grows. */
function grow() {
  const log = at("log");
  const index = state.messages.length - 1;
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  log.lastElementChild?.replaceWith(shown(state.messages[index], index));
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

function edit(index) {
  if (running) return;
  at("text").value = state.messages[index].content;
  state.messages.length = index;
  save();
  draw();
  at("text").focus();
}

function retry(index) {
  if (running) return;
  state.messages.length = index;
  answer();
}

function request() {
  const system = at("system").value.trim();
  const messages = state.messages.map(({ role, content }) => ({ role, content }));
  const body = { model: at("model").value || undefined, stream: true, stream_options: { include_usage: true } };
  body.messages = system ? [{ role: "system", content: system }, ...messages] : messages;
  for (const name of SETTINGS.slice(1)) {
    if (at(name).value !== "") body[name] = Number(at(name).value);
  }
  return body;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      const data = line.slice(6);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

async function answer() {
  const body = request();
  running = new AbortController();
  const message = { role: "assistant", content: "", reasoning: "" };
  const start = performance.now();
  let [first, usage] = [0, null];
  at("stop").disabled = false;
  at("send").disabled = true;
  tell("…");
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json", ...headers() },
      body: JSON.stringify(body),
      signal: running.signal,
    });
    if (!response.ok) await fail(response);
    state.messages.push(message);
    draw();
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage ?? usage;
      const delta = event.choices[0]?.delta ?? {};
      if (!delta.content && !delta.reasoning_content) continue;
      first ||= performance.now();
      message.content += delta.content ?? "";
      message.reasoning += delta.reasoning_content ?? "";
      grow();
    }
    const seconds = (performance.now() - first) / 1000;
    const { prompt_tokens: prompt, completion_tokens: count } = usage;
    const rate = count > 1 ? ((count - 1) / seconds).toFixed(1) : "–";
    tell(`${prompt} tokens in, ${count} out at ${rate}/s; the first after ${Math.round(first - start)} ms`);
  } catch (error) {
    if (error.name === "AbortError") tell("stopped");
    else tell(error.message, true);
  } finally {
    running = null;
    at("stop").disabled = true;
    at("send").disabled = false;
    save();
    draw();
    at("text").focus();
  }
}

function send() {
  const text = at("text").value.trim();
  if (running || !text) return;
  at("text").value = "";
  state.messages.push({ role: "user", content: text });
  save();
  draw();
  answer();
}

// Models, speed and colours.

async function models() {
  const response = await fetch("v1/models", { headers: headers() });
  if (!response.ok) await fail(response);
  const names = (await response.json()).data.filter((model) => !model.meta?.embeds).map((model) => model.id);
  at("model").replaceChildren(...names.map((name) => new Option(name)));
}

const SAMPLES = 60;
const rates = [];
let before = null;

/** Draws the speeds of the last two minutes as a line. */
function plot() {
  const most = Math.max(...rates, 1);
  const from = SAMPLES - rates.length;
  const points = rates.map((rate, i) => `${from + i},${(20 - (18 * rate) / most).toFixed(1)}`);
  at("line").setAttribute("points", points.join(" "));
  at("plot").ariaLabel = `Tokens per second in the last two minutes, at most ${most.toFixed(1)}`;
}

async function measure() {
  const response = await fetch("metrics", { headers: headers() });
  if (!response.ok) return;
  const text = await response.text();
  const read = (name) => Number(new RegExp(`^tracewright_${name} (.*)$`, "m").exec(text)?.[1] ?? 0);
  const now = { at: performance.now(), tokens: read("generated_tokens_total") };
  const [open, slots] = [read("answers_open"), read("slots")];
  at("slots").textContent = `${Math.min(open, slots)} of ${slots} slots in use, ${Math.max(open - slots, 0)} waiting`;
  at("busy").value = slots ? Math.min(open / slots, 1) : 0;
  const rate = before ? ((now.tokens - before.tokens) * 1000) / (now.at - before.at) : 0;
  at("speed").textContent = `${rate.toFixed(1)} tokens/s`;
  if (before) rates.push(rate);
  if (rates.length > SAMPLES) rates.shift();
  plot();
  before = now;
}

function paint() {
  document.documentElement.classList.toggle("dark", state.dark);
  at("theme").ariaPressed = String(state.dark);
}

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
at("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
at("stop").addEventListener("click", () => running?.abort());
at("new").addEventListener("click", () => {
  running?.abort();
  state.messages = [];
  save();
  draw();
  tell("");
  at("text").focus();
});
at("theme").addEventListener("click", () => {
  state.dark = !state.dark;
  paint();
  save();
});
at("settings").addEventListener("change", save);
at("key").addEventListener("change", () => models().catch((error) => tell(error.message, true)));

load();
paint();
draw();
models().catch((error) => tell(error.message, true));
setInterval(() => document.hidden || measure().catch(() => {}), 2000);
