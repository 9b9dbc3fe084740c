// Markdown as elements: text of a model never becomes HTML, and no image is loaded.

export function node(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

export function button(name, label, run) {
  const made = node("button", name);
  made.type = "button";
  made.ariaLabel = label;
  made.addEventListener("click", run);
  return made;
}

/** Browsers offer the clipboard only to pages of this machine or with TLS, and may refuse it. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return;
  } catch {
    // The older way follows.
  }
  const field = node("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

// Code.

const KEYWORDS = new Set(
  ("abstract and as assert async await auto begin bool boolean break case catch char class const continue crate def default " +
    "defer del delete do double elif else elsif end enum except export extends extern false final finally float fn for from func " +
    "function global go if impl implements import in instanceof int interface is lambda let long loop match mod module mut namespace " +
    "new nil none not null of operator or package pass private protected pub public raise ref return self short sizeof static struct " +
    "super switch template then this throw trait true try type typedef typeof union unless unsafe unsigned until use using var void " +
    "where while with yield select insert update create table values set group order by having join limit").split(" "),
);
const HASH = new Set("bash dockerfile elixir ini julia makefile perl php powershell py python r rb ruby sh shell toml yaml yml zsh".split(" "));
const DASHES = new Set("elm haskell hs lua sql".split(" "));
const TAGS = new Set("html svg vue xml".split(" "));

function pattern(language) {
  let comment = String.raw`\/\/.*|\/\*[^]*?(?:\*\/|$)`;
  if (HASH.has(language)) comment = "#.*";
  if (DASHES.has(language)) comment = "--.*";
  if (TAGS.has(language)) comment = "<!--[^]*?(?:-->|$)";
  const string = String.raw`"""[^]*?(?:"""|$)|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|${"`"}(?:[^${"`"}\\]|\\[^])*${"`"}`;
  const word = TAGS.has(language) ? String.raw`<\/?[\w:-]+|\/?>` : String.raw`[A-Za-z_]\w*`;
  return new RegExp(String.raw`(${comment})|(${string})|(\b\d[\w.]*)|(${word})`, "g");
}

/** The text of a program as spans with a class for each kind of word. */
export function coloured(text, language) {
  const parts = [];
  let last = 0;
  for (const found of text.matchAll(pattern(language))) {
    const [whole, comment, string, number, word] = found;
    const isKeyword = word && (TAGS.has(language) || KEYWORDS.has(language === "sql" ? word.toLowerCase() : word));
    const kind = comment ? "comment" : string ? "string" : number ? "number" : isKeyword ? "keyword" : null;
    if (!kind) continue;
    const span = node("span", whole);
    span.className = kind;
    parts.push(text.slice(last, found.index), span);
    last = found.index + whole.length;
  }
  return [...parts, text.slice(last)];
}

function code(text, language) {
  const name = node("span", language || "text");
  const label = `Copy the code of ${language || "the text"}`;
  const copying = button("Copy", label, async () => {
    await copy(text);
    Object.assign(copying, { textContent: "Copied", ariaLabel: "Copied" });
    setTimeout(() => Object.assign(copying, { textContent: "Copy", ariaLabel: label }), 1500);
  });
  const pre = node("pre", node("code", ...coloured(text, language.toLowerCase())));
  pre.tabIndex = 0;
  const figure = node("figure", node("figcaption", name, copying), pre);
  figure.className = "code";
  return figure;
}

// Words.

const DEPTH = 8;
const INLINE = new RegExp(
  [
    String.raw`\\([\\${"`"}*_{}[\]()#+.!|~>-])`,
    "(`+)([^`]+?)\\2(?!`)",
    String.raw`!?\[([^[\]\n]*)\]\(([^\s()]*(?:\([^\s()]*\)[^\s()]*)?)(?:\s+"[^"\n]*")?\)`,
    String.raw`(https?:\/\/[^\s<>"'${"`"}]*[^\s<>"'${"`"}.,;:!?)\]*_])`,
    String.raw`\*\*((?:[^*\n]|\*(?!\*))+)\*\*`,
    String.raw`\*([^*\s](?:[^*\n]*[^*\s])?)\*`,
    String.raw`(?<!\w)_([^_\s](?:[^_\n]*[^_\s])?)_(?!\w)`,
    String.raw`~~([^~\n]+)~~`,
  ].join("|"),
  "g",
);

function link(parts, address) {
  if (!/^(https?:\/\/|mailto:)/i.test(address)) return node("span", ...parts);
  const made = node("a", ...parts);
  Object.assign(made, { href: address, target: "_blank", rel: "noopener noreferrer" });
  return made;
}

function inline(text, depth = 0) {
  if (depth > DEPTH) return [text];
  const inner = (part) => inline(part, depth + 1);
  const parts = [];
  let last = 0;
  for (const found of text.matchAll(INLINE)) {
    const [whole, escaped, , codeText, name, address, bare, strong, star, low, gone] = found;
    parts.push(text.slice(last, found.index));
    last = found.index + whole.length;
    if (escaped) parts.push(escaped);
    else if (codeText) parts.push(node("code", codeText.trim() || codeText));
    else if (address !== undefined) parts.push(link(inner(name || address), address));
    else if (bare) parts.push(link([bare], bare));
    else if (strong) parts.push(node("strong", ...inner(strong)));
    else if (gone) parts.push(node("del", ...inner(gone)));
    else parts.push(node("em", ...inner(star ?? low)));
  }
  return [...parts, text.slice(last)].filter((part) => part !== "");
}

// Blocks of lines.

const FENCE = /^\s*(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^\s{0,3}(#{1,6})\s+(\S.*)$/;
const RULE = /^\s{0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$/;
const QUOTE = /^\s{0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+)(.*)$/;
const COLUMNS = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

function cells(line) {
  const inside = line.trim().replace(/^\||(?<!\\)\|$/g, "");
  return inside.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

const isTable = (lines, at) => lines[at].includes("|") && lines[at + 1]?.includes("-") && COLUMNS.test(lines[at + 1].trim()) && cells(lines[at]).length === cells(lines[at + 1]).length;

function table(lines) {
  const sides = cells(lines[1]).map((cell) => (/^:-*:$/.test(cell) ? "center" : /:$/.test(cell) ? "end" : "start"));
  const row = (name, line) => {
    const found = cells(line);
    return node(
      "tr",
      ...sides.map((side, i) => {
        const cell = node(name, ...inline(found[i] ?? ""));
        cell.className = side;
        return cell;
      }),
    );
  };
  const whole = node("table", node("thead", row("th", lines[0])), node("tbody", ...lines.slice(2).map((line) => row("td", line))));
  const frame = node("div", whole);
  frame.className = "table";
  frame.tabIndex = 0;
  return frame;
}

/** The number of lines of a list's item: it ends at a line that is indented less than its text. */
function itemLength(lines, at, indent) {
  let next = at + 1;
  while (next < lines.length) {
    const line = lines[next];
    const isInside = line.search(/\S/) >= indent;
    const isLazy = lines[next - 1].trim() !== "" && !ITEM.test(line) && !FENCE.test(line) && !HEADING.test(line) && !QUOTE.test(line);
    if (line.trim() !== "" && !isInside && !isLazy) break;
    if (line.trim() === "" && !(lines[next + 1]?.search(/\S/) >= indent)) break;
    next += 1;
  }
  return next - at;
}

function list(lines, start, depth) {
  const [, margin, mark] = ITEM.exec(lines[start]);
  const isOrdered = /\d/.test(mark);
  const made = node(isOrdered ? "ol" : "ul");
  if (isOrdered) made.start = Number.parseInt(mark, 10);
  let at = start;
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]);
    if (!found || RULE.test(lines[at]) || /\d/.test(found[2]) !== isOrdered || Math.abs(found[1].length - margin.length) > 1) break;
    const indent = found[1].length + Math.min(found[2].length + found[3].length, 4);
    const length = itemLength(lines, at, found[1].length + 2);
    const rest = lines.slice(at + 1, at + length).map((line) => line.slice(Math.min(indent, Math.max(line.search(/\S/), 0))));
    made.append(node("li", ...blocks([found[4], ...rest], depth + 1, true)));
    at += length;
    // An empty line between two items.
    while (lines[at]?.trim() === "" && ITEM.test(lines[at + 1] ?? "")) at += 1;
  }
  return [made, at];
}

function paragraph(lines, isTight) {
  const parts = lines.flatMap((line, i) => (i ? [node("br"), ...inline(line.trim())] : inline(line.trim())));
  return isTight ? parts : [node("p", ...parts)];
}

function blocks(lines, depth, isTight = false) {
  if (depth > DEPTH) return paragraph(lines, isTight);
  const made = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    if (line.trim() === "") {
      at += 1;
    } else if (fence) {
      const isEnd = (other) => other.trim().startsWith(fence[1]) && !other.trim().replaceAll(fence[1][0], "");
      const length = lines.slice(at + 1).findIndex(isEnd);
      const end = length < 0 ? lines.length : at + 1 + length;
      made.push(code(lines.slice(at + 1, end).join("\n"), fence[2]));
      at = end + 1;
    } else if (heading) {
      const level = node("p", ...inline(heading[2].replace(/ #+\s*$/, "")));
      level.className = `heading h${heading[1].length}`;
      made.push(level);
      at += 1;
    } else if (RULE.test(line)) {
      made.push(node("hr"));
      at += 1;
    } else if (QUOTE.test(line)) {
      const start = at;
      while (at < lines.length && QUOTE.test(lines[at])) at += 1;
      made.push(node("blockquote", ...blocks(lines.slice(start, at).map((one) => one.replace(QUOTE, "")), depth + 1)));
    } else if (ITEM.test(line)) {
      const [one, next] = list(lines, at, depth);
      made.push(one);
      at = next;
    } else if (isTable(lines, at)) {
      const start = at;
      at += 2;
      while (at < lines.length && lines[at].includes("|")) at += 1;
      made.push(table(lines.slice(start, at)));
    } else {
      const start = at;
      const begins = (i) => [FENCE, HEADING, RULE, QUOTE, ITEM].some((one) => one.test(lines[i])) || isTable(lines, i);
      do at += 1;
      while (at < lines.length && lines[at].trim() !== "" && !begins(at));
      made.push(...paragraph(lines.slice(start, at), isTight));
    }
  }
  return made;
}

export function markdown(text) {
  return blocks(text.split("\n"), 0);
}

/** A text of the user, as it is. */
export function plain(text) {
  const made = node("p", text);
  made.className = "plain";
  return made;
}
