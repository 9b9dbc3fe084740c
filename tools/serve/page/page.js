// Chats with the server that sent this page. Nothing else is asked, and all that is kept is in the browser.

import { chats, contentOf, exported, forget, found, imported, keep, loadChats, newChat, watchChats } from "./chats.js";
import { button, copy, markdown, node, plain } from "./markdown.js";
import { fail, headers, kept, loadSettings, models, options, saveSettings, showSamplers } from "./settings.js";

const at = (id) => document.getElementById(id);
/** The largest text file, in bytes. */
const LARGEST = 1 << 20;
/** A longer answer is drawn at most every 100 ms. */
const LONG = 4000;

let chat = newChat();
let files = [];
let known = [];
/** The answer that arrives: its chat, and the controller that stops it. */
let running = null;

function tell(text, isWrong = false) {
  at("state").textContent = text;
  at("state").classList.toggle("wrong", isWrong);
}

function guarded(run) {
  return async (...values) => {
    try {
      await run(...values);
    } catch (error) {
      tell(error.message, true);
    }
  };
}

// The conversation.

function stats({ tokens, rate, first }) {
  const made = node("div", `${tokens} tokens at ${rate ? rate.toFixed(1) : "–"}/s, the first after ${first} ms`);
  made.className = "stats";
  return made;
}

function shown(message, index) {
  const isUser = message.role === "user";
  const article = node("article", node("h2", isUser ? "You" : (message.model ?? "Model")));
  article.className = message.role;
  if (message.reasoning) {
    const thought = plain(message.reasoning);
    thought.classList.add("thought");
    article.append(node("details", node("summary", "Reasoning"), thought));
  }
  for (const { name, text } of message.files ?? []) {
    article.append(node("details", node("summary", `${name}, ${text.length} characters`), node("pre", text)));
  }
  article.append(...(isUser ? [plain(message.content)] : markdown(message.content)));
  if (message.stats) article.append(stats(message.stats));
  const number = index + 1;
  const tools = node("div", button("Copy", `Copy message ${number}`, () => copy(message.content)));
  tools.className = "tools";
  tools.append(button("Edit", `Edit message ${number}`, () => (isUser ? edit(index) : rewrite(article, message))));
  if (!isUser) tools.append(button("Retry", `Retry the answer to message ${index}`, () => retry(index)));
  if (!isUser && number === chat.messages.length && message.content) {
    tools.append(button("Continue", `Continue message ${number}`, () => running || answer(message)));
  }
  article.append(tools);
  return article;
}

function welcome() {
  const model = known.find((one) => one.id === at("model").value);
  if (!model) return node("p");
  const { formats = [], size, context } = model.meta ?? {};
  const megabytes = size ? `${(size / 1e6).toFixed(size < 1e7 ? 1 : 0)} MB of weights` : "";
  const facts = [formats.slice(0, 3).join(" + "), megabytes, `context of ${context} tokens`];
  const text = model.meta ? facts.filter(Boolean).join(" · ") : "not loaded; the first message loads it";
  const made = node("div", node("h2", model.id), node("p", text));
  made.id = "welcome";
  return made;
}

const isAtEnd = (log) => log.scrollHeight - log.scrollTop - log.clientHeight < 40;

function draw() {
  const log = at("log");
  const follows = isAtEnd(log);
  log.replaceChildren(...(chat.messages.length ? chat.messages.map(shown) : [welcome()]));
  if (follows || running?.chat === chat) log.scrollTop = log.scrollHeight;
  gauge();
}

let drawn = 0;

/** Draws the last message again, which grows. */
function grow() {
  if (running?.chat !== chat) return;
  const index = chat.messages.length - 1;
  const now = performance.now();
  if (chat.messages[index].content.length > LONG && now - drawn < 100) return;
  drawn = now;
  const log = at("log");
  const follows = isAtEnd(log);
  log.lastElementChild?.replaceWith(shown(chat.messages[index], index));
  if (follows) log.scrollTop = log.scrollHeight;
  gauge();
}

/** Shows how much of the context the chat fills. */
function gauge() {
  const most = known.find((one) => one.id === at("model").value)?.meta?.context;
  const used = chat.messages.findLast((message) => message.stats)?.stats.context ?? 0;
  at("context").textContent = most ? `${used} of ${most} tokens of context` : "";
  at("filled").hidden = !most;
  at("filled").value = most ? Math.min(used / most, 1) : 0;
}

/** Puts a message of the user back into the field, and removes what followed. */
function edit(index) {
  if (running) return;
  const { content, files: attached = [] } = chat.messages[index];
  at("text").value = content;
  files = [...attached];
  showFiles();
  chat.messages.length = index;
  if (index) keep(chat);
  else forget(chat);
  list();
  draw();
  at("text").focus();
}

/** Changes an answer in its place, for example so that the model continues another beginning. */
function rewrite(article, message) {
  if (running) return;
  const field = node("textarea");
  field.value = message.content;
  field.rows = Math.min(20, message.content.split("\n").length + 2);
  field.ariaLabel = "Text of the answer";
  const save = guarded(() => {
    Object.assign(message, { content: field.value, stats: undefined });
    keep(chat);
    draw();
  });
  const tools = node("div", button("Save", "Save the answer", save), button("Cancel", "Keep the answer", draw));
  tools.className = "tools";
  article.replaceChildren(field, tools);
  field.focus();
}

function retry(index) {
  if (running) return;
  chat.messages.length = index;
  answer();
}

// Requests and answers.

function request(continues) {
  const system = at("system").value.trim();
  const messages = chat.messages.map((message) => ({ role: message.role, content: contentOf(message) }));
  const body = { model: at("model").value || undefined, stream: true, stream_options: { include_usage: true }, ...options() };
  body.messages = system ? [{ role: "system", content: system }, ...messages] : messages;
  if (continues) body.continue_final_message = true;
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

/** Reads an answer to the end of the message, and returns the text of the status line. */
async function receive(response, message) {
  const start = running.start;
  let [first, usage] = [0, null];
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
  if (!usage) throw new Error("the connection closed before the answer ended");
  const { prompt_tokens: prompt, completion_tokens: tokens } = usage;
  const rate = tokens > 1 ? (tokens - 1) / seconds : 0;
  message.stats = { tokens, rate, first: Math.round((first || performance.now()) - start), context: prompt + tokens };
  return `${prompt} tokens in, ${tokens} out at ${rate ? rate.toFixed(1) : "–"}/s; the first after ${message.stats.first} ms`;
}

/** Asks for an answer, or for the rest of the last message. */
async function answer(continued) {
  const own = chat;
  const message = continued ?? { role: "assistant", content: "", reasoning: "", model: at("model").value };
  running = { chat: own, controller: new AbortController(), start: performance.now() };
  at("stop-answer").disabled = false;
  at("send").disabled = true;
  tell("…");
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json", ...headers() },
      body: JSON.stringify(request(continued)),
      signal: running.controller.signal,
    });
    if (!response.ok) await fail(response);
    message.reasoning ??= "";
    if (!continued) own.messages.push(message);
    draw();
    tell(await receive(response, message));
  } catch (error) {
    if (error.name === "AbortError") tell("stopped");
    else tell(error.message, true);
  } finally {
    running = null;
    at("stop-answer").disabled = true;
    at("send").disabled = false;
    if (chats.has(own.id)) guarded(() => keep(own))();
    list();
    draw();
    if (!document.activeElement || document.activeElement === document.body) at("text").focus();
  }
  if (!known.find((one) => one.id === at("model").value)?.meta) showModels();
}

const send = guarded(() => {
  const text = at("text").value.trim();
  if (running || !(text || files.length)) return;
  options();
  chat.messages.push({ role: "user", content: text, files });
  try {
    keep(chat);
  } catch (error) {
    // The text stays in its field.
    chat.messages.pop();
    throw error;
  }
  at("text").value = "";
  files = [];
  showFiles();
  open(chat);
  answer();
});

// Text files.

function showFiles() {
  const remove = (file) => () => {
    files = files.filter((other) => other !== file);
    showFiles();
  };
  at("files").replaceChildren(...files.map((file) => button(`${file.name} ×`, `Remove ${file.name}`, remove(file))));
}

const attach = guarded(async (list) => {
  for (const file of list) {
    if (file.size > LARGEST) throw new Error(`${file.name} is larger than 1 MiB`);
    const text = await file.text();
    if (text.includes("\0") || text.includes("\uFFFD")) throw new Error(`${file.name} is not a text file`);
    files.push({ name: file.name, text });
  }
  showFiles();
});

// The list of chats.

function open(next) {
  chat = next;
  kept.current = chat.id;
  saveSettings();
  list();
  draw();
}

function list() {
  const items = found(at("search").value).map((one) => {
    const opening = button(one.title || "Chat", `Open the chat ${one.title}`, () => {
      tell("");
      showSide(false);
      open(one);
    });
    if (one.id === chat.id) opening.setAttribute("aria-current", "true");
    const removing = button("×", `Delete the chat ${one.title}`, () => {
      if (!confirm(`Delete the chat “${one.title}”?`)) return;
      if (running?.chat === one) running.controller.abort();
      forget(one);
      if (one === chat) open(newChat());
      else list();
    });
    return node("li", opening, removing);
  });
  at("chats").replaceChildren(...items);
}

function showSide(isShown) {
  at("list").ariaExpanded = String(isShown);
  at("side").classList.toggle("shown", isShown);
}

function download(name, text, kind) {
  const link = node("a");
  link.href = URL.createObjectURL(new Blob([text], { type: kind }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

// Models, speed and colours.

const showModels = guarded(async () => {
  const before = at("model").value;
  known = await models();
  at("model").replaceChildren(...known.map((model) => new Option(model.id)));
  if (known.some((model) => model.id === before)) at("model").value = before;
  if (!chat.messages.length) draw();
  gauge();
  if (at("model").value) await showSamplers(at("model").value);
});

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
  const read = (name) => {
    const lines = text.matchAll(new RegExp(`^tracewright_${name}(?:\\{[^}]*\\})? (.*)$`, "gm"));
    return [...lines].reduce((sum, [, number]) => sum + Number(number), 0);
  };
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
  document.documentElement.classList.toggle("dark", kept.dark);
  at("theme").ariaPressed = String(kept.dark);
}

const stop = () => running?.controller.abort();

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
  if (event.key === "Escape") stop();
});
at("stop-answer").addEventListener("click", stop);
at("new").addEventListener("click", () => {
  tell("");
  showSide(false);
  open(newChat());
  at("text").focus();
});
at("theme").addEventListener("click", () => {
  kept.dark = !kept.dark;
  paint();
  saveSettings();
});
at("list").addEventListener("click", () => showSide(!at("side").classList.contains("shown")));
at("search").addEventListener("input", list);
at("export").addEventListener("click", () => {
  const name = chat.title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "chat";
  download(`${name}.md`, exported(chat), "text/markdown");
});
at("export-all").addEventListener("click", () => {
  download("tracewright-chats.json", JSON.stringify({ chats: [...chats.values()] }, null, 1), "application/json");
});
at("import").addEventListener("click", () => at("imported").click());
at("imported").addEventListener("change", guarded(async () => {
  const [file] = at("imported").files;
  if (!file) return;
  const text = await file.text();
  at("imported").value = "";
  tell(`${imported(text)} chats imported`);
  list();
}));
at("attach").addEventListener("click", () => at("attached").click());
at("attached").addEventListener("change", async () => {
  await attach([...at("attached").files]);
  at("attached").value = "";
});
at("form").addEventListener("dragover", (event) => event.preventDefault());
at("form").addEventListener("drop", (event) => {
  event.preventDefault();
  attach([...event.dataTransfer.files]);
});
at("text").addEventListener("paste", (event) => {
  if (!event.clipboardData.files.length) return;
  event.preventDefault();
  attach([...event.clipboardData.files]);
});
at("settings").addEventListener("change", saveSettings);
at("key").addEventListener("change", showModels);
at("model").addEventListener("change", () => {
  if (!chat.messages.length) draw();
  gauge();
  guarded(showSamplers)(at("model").value);
});

const earlier = loadSettings();
loadChats();
if (earlier.length) {
  chat = newChat(earlier);
  keep(chat);
  saveSettings();
} else {
  chat = chats.get(kept.current) ?? chat;
}
watchChats(() => {
  // The stored copy lacks the answer that arrives.
  if (running && chats.has(running.chat.id)) chats.set(running.chat.id, running.chat);
  if (running?.chat !== chat) chat = chats.get(chat.id) ?? chat;
  list();
  if (!running) draw();
});
paint();
list();
draw();
showModels();
setInterval(() => document.hidden || measure().catch(() => {}), 2000);
