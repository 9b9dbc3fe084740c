// The chats, which only the browser keeps: one entry of its storage for each chat, so that two tabs do not overwrite each other.

const PREFIX = "tracewright.chat.";
const TITLE = 60;

/** All chats by their ids: `{ id, title, changed, messages }`, with the time of the last change in milliseconds. */
export const chats = new Map();

const isFile = (one) => typeof one?.name === "string" && typeof one.text === "string";
const isNumber = (one) => one === null || typeof one === "number";
const isStats = (one) => one === undefined || (one !== null && ["tokens", "rate", "first", "context"].every((key) => isNumber(one[key])));

function isMessage(one) {
  const hasFiles = one?.files === undefined || (Array.isArray(one.files) && one.files.every(isFile));
  return typeof one?.content === "string" && ["user", "assistant"].includes(one.role) && hasFiles && isStats(one.stats);
}

function isChat(value) {
  const isWhole = typeof value?.id === "string" && typeof value.title === "string" && typeof value.changed === "number";
  return isWhole && Array.isArray(value.messages) && value.messages.every(isMessage);
}

function read(text) {
  try {
    const chat = JSON.parse(text);
    return isChat(chat) ? chat : null;
  } catch {
    // What is kept is damaged.
    return null;
  }
}

export function loadChats() {
  chats.clear();
  for (const key of Object.keys(localStorage)) {
    const chat = key.startsWith(PREFIX) ? read(localStorage.getItem(key)) : null;
    if (chat) chats.set(chat.id, chat);
  }
}

export function newChat(messages = []) {
  const id = `${Date.now().toString(36)}${Math.random().toString(36).slice(2, 8)}`;
  return { id, title: "", changed: Date.now(), messages };
}

/** Keeps a chat that has a message. Throws if the storage is full. */
export function keep(chat, changed = Date.now()) {
  if (!chat.messages.length) return;
  const first = chat.messages.find((message) => message.role === "user") ?? chat.messages[0];
  const title = (first.content || first.files?.[0]?.name || "").trim().replace(/\s+/g, " ");
  chat.title = title.length > TITLE ? `${title.slice(0, TITLE)}…` : title;
  chat.changed = changed;
  chats.set(chat.id, chat);
  try {
    localStorage.setItem(PREFIX + chat.id, JSON.stringify(chat));
  } catch {
    throw new Error("the browser's storage is full: export your chats, and delete some");
  }
}

export function forget(chat) {
  chats.delete(chat.id);
  localStorage.removeItem(PREFIX + chat.id);
}

/** The chats with a text, the last one first. */
export function found(text) {
  const wanted = text.trim().toLowerCase();
  const has = (one) => one.toLowerCase().includes(wanted);
  const isFound = (chat) => has(chat.title) || chat.messages.some(({ content, files }) => has(content) || files?.some((file) => has(file.name)));
  return [...chats.values()].filter(isFound).sort((a, b) => b.changed - a.changed);
}

/** The content of a message with its files, as the model reads it. */
export function contentOf({ content, files = [] }) {
  const parts = files.map(({ name, text }) => {
    const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
    const fence = "`".repeat(longest + 1);
    return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
  });
  return [...parts, content].filter(Boolean).join("\n\n");
}

/** A chat as Markdown. */
export function exported({ title, messages }) {
  const part = (message) => `## ${message.role === "user" ? "You" : (message.model ?? "Model")}\n\n${contentOf(message)}\n`;
  return [`# ${title || "Chat"}\n`, ...messages.map(part)].join("\n");
}

/** Adds the chats of an exported file, and returns how many there were. */
export function imported(text) {
  let list = null;
  try {
    list = JSON.parse(text).chats;
  } catch {
    // Reported below.
  }
  if (!Array.isArray(list) || !list.every(isChat)) throw new Error("the file has no chats, expected a file of `Export all`");
  for (const chat of list) keep(chat, chat.changed);
  return list.length;
}

/** Calls `changed` when another tab changes a chat. */
export function watchChats(changed) {
  addEventListener("storage", ({ key }) => {
    if (key !== null && !key.startsWith(PREFIX)) return;
    loadChats();
    changed();
  });
}
