"use strict";
const data = JSON.parse(document.getElementById("report").textContent);
const say = (place) => data.strings[place];
const byId = (id) => document.getElementById(id);

/** An element: its name, attributes (`on…` are listeners), children. */
function make(name, attributes = {}, ...children) {
  const element = document.createElementNS(name.startsWith("svg:") ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml", name.replace("svg:", ""));
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((child) => child !== null && child !== undefined));
  return element;
}

// What the data means.

const STAGES = { traced: "Recorded", simplified: "Simplified" };
const CLASSES = ["product", "attention", "reduction", "elementwise", "movement", "state", "call"];
const functions = new Map(data.functions.map((f) => [f.name, f]));
for (const f of data.functions) {
  for (const stage of Object.values(f.stages)) {
    stage.nodes = stage.nodes.map(([label, text, kind, types, path, file, line, operands, bytes, read, flops, ns, callee, measured], id) => ({
      id, label: say(label), text: say(text), kind: say(kind), types: types.map(say), path: say(path), file: say(file), line, operands,
      bytes, read, flops, ns, callee: callee === null ? null : data.functions[callee].name, measured, users: [],
    }));
    for (const node of stage.nodes) for (const operand of new Set(node.operands)) stage.nodes[operand].users.push(node.id);
    stage.statements = stage.statements.map(([text, path, file, line]) => ({ text: say(text), path: say(path), file: say(file), line }));
  }
}

const entries = data.functions.filter((f) => f.entry);
/** The entry point that a function is, or one that leads to it: this one, if it does. */
const entryOf = (name, preferred) => {
  if (functions.get(name).entry) return name;
  const calls = (f) => f.stages.traced.nodes.some((node) => node.callee === name);
  const caller = [functions.get(preferred), ...data.functions].find((f) => f && calls(f));
  return caller ? entryOf(caller.name, preferred) : entries[0].name;
};
const number = (x) => Math.round(x).toLocaleString("en");
const scaled = (x, units) => {
  let unit = 0;
  while (x >= 1000 && unit < units.length - 1) { x /= 1000; unit++; }
  return `${x === Math.round(x) ? x : x.toPrecision(x >= 999.5 ? 4 : 3)} ${units[unit]}`;
};
const bytes = (x) => scaled(x, ["B", "kB", "MB", "GB", "TB"]);
const flops = (x) => scaled(x, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"]);
const time = (ns) => scaled(ns, ["ns", "µs", "ms", "s"]);
const percent = (share) => (share >= 0.0005 ? `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %` : "");
const short = (path, prefix) => (prefix && path.startsWith(prefix) ? path.slice(prefix.length).replace(/^\./, "") : path) || path;

// What is looked at.

const at = { tab: "graph", name: data.first, entry: entryOf(data.first), layer: null, stage: "traced", node: null, field: null, zoom: 1, timed: "profile" in data };
if (!functions.get(at.name).entry) at.layer = functions.get(at.name).layers[0] ?? null;
const here = () => functions.get(at.name);
const graph = () => here().stages[at.stage];
const real = (path) => (at.layer && here().prefix && path.startsWith(here().prefix) ? at.layer + path.slice(here().prefix.length) : path);

// What was measured, of one entry point.

const profile = data.profile ?? null;
const canTime = () => profile !== null && at.entry === profile.entry;
/** Whether measured times are shown, and not those of the roofline. */
const isTimed = () => at.timed && canTime();
/** Nanoseconds that a node took, or all that it calls. */
const took = (node, stage) => (node.callee ? functionTook(node.callee, stage) : node.measured ?? 0);
const functionTook = (name, stage) => functions.get(name).stages[stage].nodes.reduce((sum, node) => sum + took(node, stage), 0);
const ofCall = (ns) => percent(ns / (profile.dispatched * 1e9)) || "0 %";

function go(change) {
  const moved = change.name !== undefined && change.name !== at.name;
  const restaged = change.stage !== undefined && change.stage !== at.stage;
  if (moved || restaged) { at.node = null; at.field = null; }
  if (moved && change.layer === undefined) at.layer = null;
  Object.assign(at, change);
  at.entry = entryOf(at.name, change.entry ?? at.entry);
  draw();
}

function choose(id) {
  at.node = id;
  about(id);
  mark();
}

// The model.

/** Nanoseconds of each field path in one call of a function, calls followed. */
function times(name, stage, prefix, into) {
  const f = functions.get(name);
  for (const node of f.stages[stage].nodes) {
    const path = prefix && f.prefix ? node.path.replace(f.prefix, prefix) : node.path;
    if (node.callee) times(node.callee, stage, node.path, into);
    else into.set(path, (into.get(path) ?? 0) + (isTimed() ? node.measured ?? 0 : node.ns));
    if (node.callee) into.set(node.path, into.get(node.path) ?? 0);
  }
  return into;
}

function modelTree() {
  const entry = at.entry;
  const calls = new Map();
  for (const node of functions.get(entry).stages.traced.nodes) if (node.callee) calls.set(node.path, node.callee);
  const root = { name: entry, path: "", ns: 0, children: new Map() };
  for (const [path, ns] of times(entry, at.stage, null, new Map())) {
    let level = root;
    level.ns += ns;
    for (const [i, part] of path.split(".").entries()) {
      if (!part) continue;
      const whole = path.split(".").slice(0, i + 1).join(".");
      if (!level.children.has(part)) level.children.set(part, { name: part, path: whole, ns: 0, children: new Map() });
      level = level.children.get(part);
      level.ns += ns;
    }
  }
  const inLayer = (path) => [...calls.keys()].find((layer) => path === layer || path.startsWith(layer + "."));
  const item = (branch, level) => {
    const layer = inLayer(branch.path);
    const children = [...branch.children.values()];
    const open = level < 3 && !(children.length > 4 && /^\d+$/.test(children[0].name));
    const group = make("ul", { role: "group" });
    let filled = false;
    const node = make("li", {
      role: "treeitem", tabindex: -1, "aria-level": level, "data-path": branch.path,
      "aria-expanded": children.length ? String(open) : null, "aria-selected": "false",
    });
    const twist = make("span", { class: "twist", "aria-hidden": "true" });
    const expand = (is) => {
      if (!children.length) return;
      if (is && !filled) { filled = true; group.append(...children.map((child) => item(child, level + 1))); }
      node.setAttribute("aria-expanded", String(is));
      group.hidden = !is;
      twist.textContent = is ? "▾" : "▸";
    };
    const show = () => {
      if (layer) {
        const inside = branch.path.slice(layer.length + 1);
        go({ tab: "graph", name: calls.get(layer), layer, field: inside || null, node: null });
      } else go({ tab: "graph", name: entry, field: branch.path || null, node: null });
    };
    node.expand = expand;
    node.show = show;
    node.append(make("div", { class: "row", onclick: (event) => {
      if (event.target === twist) expand(node.getAttribute("aria-expanded") !== "true");
      else { expand(true); show(); }
    } }, twist, make("span", { class: "name", title: branch.path || entry }, branch.name), make("span", { class: "share" }, percent(branch.ns / (root.ns || 1)))), group);
    expand(open);
    return node;
  };
  return item(root, 1);
}

let treeOf = null;
function drawTree() {
  const of = `${at.entry} ${at.stage} ${isTimed()}`;
  if (treeOf !== of) {
    treeOf = of;
    byId("model-heading").textContent = isTimed() ? "Model, share of measured time" : "Model, share of time";
    byId("tree").replaceChildren(modelTree());
    byId("tree").querySelector("li").tabIndex = 0;
  }
  const path = at.layer ? at.layer + (at.field ? "." + at.field : "") : at.field ?? "";
  for (const item of byId("tree").querySelectorAll("li")) item.setAttribute("aria-selected", String(item.dataset.path === path));
}

byId("tree").addEventListener("keydown", (event) => {
  const items = [...byId("tree").querySelectorAll("li")].filter((item) => item.offsetParent !== null);
  const item = event.target.closest("li");
  const place = items.indexOf(item);
  const to = (target) => {
    if (!target) return;
    items.forEach((other) => (other.tabIndex = -1));
    target.tabIndex = 0;
    target.focus();
  };
  const expanded = item.getAttribute("aria-expanded");
  const moves = {
    ArrowDown: () => to(items[place + 1]), ArrowUp: () => to(items[place - 1]), Home: () => to(items[0]), End: () => to(items.at(-1)),
    ArrowRight: () => (expanded === "false" ? item.expand(true) : to(item.querySelector("li"))),
    ArrowLeft: () => (expanded === "true" ? item.expand(false) : to(item.parentElement.closest("li"))),
    Enter: () => item.show(), " ": () => item.show(),
  };
  if (!moves[event.key]) return;
  event.preventDefault();
  moves[event.key]();
});

// Graphs.

function picture(name, stage) {
  const template = byId(`${stage}/${name}`);
  const svg = template.content.firstElementChild.cloneNode(true);
  const boxes = [...svg.querySelectorAll(".box")];
  const main = (box) => (box.dataset.nodes ? Number(box.dataset.nodes.split(" ")[0]) : null);
  const find = (id) => boxes.find((box) => box.dataset.nodes.split(" ").includes(String(id)));
  const enter = (box) => {
    const call = functions.get(name).stages[stage].nodes[main(box)];
    if (box.dataset.calls) goIn({ name: box.dataset.calls, layer: call.path });
  };
  const goIn = (change) => { go(change); drawn.querySelector(".box")?.focus(); };
  const focus = (box) => {
    if (!box) return;
    boxes.forEach((other) => other.setAttribute("tabindex", "-1"));
    box.setAttribute("tabindex", "0");
    box.focus({ preventScroll: true });
  };
  for (const box of boxes) {
    const id = main(box);
    box.addEventListener("focus", () => { if (id !== null) { choose(id); revealed(box); } });
    box.addEventListener("click", () => focus(box));
    box.addEventListener("dblclick", () => enter(box));
    box.addEventListener("mouseenter", () => id !== null && about(id));
    box.addEventListener("mouseleave", () => about(at.node));
  }
  svg.addEventListener("keydown", (event) => {
    const box = event.target.closest(".box");
    if (!box) return;
    const middle = (other) => { const card = other.querySelector(".card"); return { x: Number(card.getAttribute("x")) + Number(card.getAttribute("width")) / 2, y: Number(card.getAttribute("y")) }; };
    const from = middle(box);
    const nearest = (is) => {
      const distance = (other) => { const to = middle(other); return Math.hypot(to.x - from.x, 3 * (to.y - from.y)); };
      return boxes.filter((other) => other !== box && is(middle(other))).sort((a, b) => distance(a) - distance(b))[0];
    };
    const linked = (end, other) => {
      const id = String(main(box));
      const edge = [...svg.querySelectorAll(".edge")].find((edge) => edge.dataset[end] === id && edge.dataset[other] !== "");
      return edge && find(edge.dataset[other]);
    };
    const moves = {
      ArrowDown: () => focus(linked("from", "to") ?? nearest((to) => to.y > from.y)),
      ArrowUp: () => focus(linked("to", "from") ?? nearest((to) => to.y < from.y)),
      ArrowLeft: () => focus(nearest((to) => to.x < from.x && Math.abs(to.y - from.y) < 60)),
      ArrowRight: () => focus(nearest((to) => to.x > from.x && Math.abs(to.y - from.y) < 60)),
      Home: () => focus(boxes[0]), End: () => focus(boxes.at(-1)),
      Enter: () => enter(box), " ": () => enter(box),
      Escape: () => at.layer && goIn({ name: at.entry, layer: null }),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
  });
  boxes[0]?.setAttribute("tabindex", "0");
  if (isTimed()) heat(svg, boxes, functions.get(name).stages[stage].nodes, stage);
  svg.find = find;
  return svg;
}

/** Colours boxes by what their nodes took, and writes it beside them. */
function heat(svg, boxes, nodes, stage) {
  svg.classList.add("timed");
  const times = boxes.map((box) => box.dataset.nodes.split(" ").filter(Boolean).reduce((sum, id) => sum + took(nodes[id], stage), 0));
  const most = Math.max(...times);
  boxes.forEach((box, i) => {
    if (times[i] <= 0) return;
    box.classList.add("heated");
    box.style.setProperty("--share", `${(70 * times[i] / most).toFixed(1)}%`);
    const card = box.querySelector(".card");
    const [x, y, width] = ["x", "y", "width"].map((key) => Number(card.getAttribute(key)));
    const label = make("svg:text", { class: "took", x: x + width - 2, y: y - 4, "text-anchor": "end" });
    label.textContent = `${time(times[i])} · ${ofCall(times[i])}`;
    box.append(label);
  });
}

let drawn = null;
function mark() {
  if (drawn) {
    drawn.querySelectorAll(".chosen, .lit").forEach((element) => element.classList.remove("chosen", "lit"));
    const inField = (path) => at.field !== null && (short(path, here().prefix) === at.field || short(path, here().prefix).startsWith(at.field + "."));
    let any = false;
    for (const box of drawn.querySelectorAll(".box")) {
      const is = box.dataset.nodes.split(" ").some((id) => id && inField(graph().nodes[id].path));
      box.classList.toggle("of-field", is);
      any ||= is;
    }
    drawn.classList.toggle("dimmed", any);
    const box = at.node !== null && drawn.find(at.node);
    if (box) {
      box.classList.add("chosen");
      const id = box.dataset.nodes.split(" ")[0];
      drawn.querySelectorAll(".edge").forEach((edge) => edge.classList.toggle("lit", edge.dataset.from === id || edge.dataset.to === id));
    }
  }
  for (const button of byId("panel").querySelectorAll("[data-node]")) {
    if (button.dataset.stage === at.stage && Number(button.dataset.node) === at.node) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
}

function zoomed(svg) {
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  svg.setAttribute("width", width * at.zoom);
  svg.setAttribute("height", height * at.zoom);
  const shown = byId("zoom");
  if (shown) shown.textContent = `${Math.round(at.zoom * 100)} %`;
}

/** The part of the panel that nothing covers. */
function seen() {
  const { left, right, top, bottom } = byId("panel").getBoundingClientRect();
  const below = byId("about").getBoundingClientRect().top;
  return { left, right, top, bottom: Math.min(bottom, window.innerHeight, below > top ? below : bottom) };
}

/** Scrolls only if a box cannot be seen whole. */
function revealed(box) {
  const [own, around] = [box.getBoundingClientRect(), seen()];
  if (own.left < around.left || own.right > around.right || own.top < around.top + 40 || own.bottom > around.bottom) centred(box, true);
}

/** Scrolls the panel, and nothing around it, so that a box is in the middle of what is seen of it. */
function centred(box, down) {
  const panel = byId("panel");
  const [own, around] = [box.getBoundingClientRect(), seen()];
  panel.scrollLeft += (own.left + own.right - around.left - around.right) / 2;
  if (down) panel.scrollTop += (own.top + own.bottom - around.top - around.bottom) / 2;
}

function fitted() {
  const [, , width, height] = drawn.getAttribute("viewBox").split(" ").map(Number);
  const panel = byId("panel");
  at.zoom = Math.min(1, (panel.clientWidth - 24) / width, (panel.clientHeight - 70) / height);
  zoomed(drawn);
}

// What is chosen.

function about(id) {
  const aside = byId("about");
  if (id === null || id === undefined) return aside.replaceChildren(...aboutFunction());
  const node = graph().nodes[id];
  const whole = functions.get(at.entry).stages[at.stage].cost.seconds * 1e9;
  const fact = (name, ...value) => [make("dt", {}, name), make("dd", {}, ...value)];
  const link = (other) => {
    const target = graph().nodes[other];
    return make("button", { type: "button", class: "link mono", onclick: () => reach(other) }, `%${other} ${target.label}`);
  };
  const list = (of) => make("ul", {}, of.map((other, i) => make("li", {}, make("span", { class: "quiet mono" }, `${i} `), link(other), make("span", { class: "quiet mono" }, ` ${graph().nodes[other].types[0]}`))));
  const parts = [
    make("h2", {}, node.label),
    make("code", {}, node.text.length > 220 ? node.text.slice(0, 220) + "…" : node.text),
    make("dl", {},
      fact(node.types.length > 1 ? "types" : "type", node.types.map((type) => make("div", { class: "mono" }, type))),
      fact("result", bytes(node.bytes)),
      canTime() && (node.callee || took(node, at.stage)) ? fact("measured", `${time(Math.round(took(node, at.stage)))}  ${ofCall(took(node, at.stage))}`) : null,
      node.ns ? [fact("moves", bytes(node.read)), fact("computes", flops(node.flops)), fact("roofline", `${time(node.ns)}  ${percent(node.ns / whole)}`)] : null,
      fact("field", make("code", {}, real(node.path) || "—")),
    ),
  ];
  if (node.callee) parts.push(make("button", { type: "button", onclick: () => go({ tab: "graph", name: node.callee, layer: node.path, node: null }) }, `Open ${node.path}`));
  if (node.operands.length) parts.push(make("h3", {}, "Operands"), list(node.operands));
  if (node.users.length) parts.push(make("h3", {}, "Used by"), make("ul", {}, node.users.slice(0, 12).map((user) => make("li", {}, link(user))), node.users.length > 12 ? make("li", { class: "quiet" }, `and ${node.users.length - 12} more`) : null));
  if (node.kind === "parameter") {
    const group = data.parameters.find((group) => group.key === node.label);
    if (group) parts.push(make("h3", {}, "In the archive"), make("p", {}, group.stored), group.recipe ? make("code", {}, group.recipe) : null);
  }
  parts.push(make("h3", {}, "Rust"), ...snippet(node));
  const statements = here().stages.expanded.statements.filter((s) => s.line === node.line && s.file === node.file && s.path === node.path);
  if (statements.length) {
    const shown = statements.slice(0, 24);
    parts.push(make("h3", {}, "StableHLO of this line and field"), make("pre", { tabindex: 0 }, shown.map((s) => s.text).join("\n") + (statements.length > shown.length ? `\n… ${statements.length - shown.length} more` : "")));
  }
  aside.replaceChildren(...parts.filter(Boolean));
}

function snippet(node) {
  const lines = data.sources[node.file];
  const place = make("p", {}, make("code", {}, `${node.file}:${node.line}`));
  if (!lines) return [place];
  const shown = Object.entries(lines).filter(([n]) => Math.abs(n - node.line) <= 3);
  const indent = Math.min(...shown.filter(([, text]) => text.trim()).map(([, text]) => text.length - text.trimStart().length));
  return [place, make("pre", { tabindex: 0 }, shown.map(([n, text]) => make("div", { class: Number(n) === node.line ? "at" : "" }, make("span", { class: "number" }, n), text.slice(indent))))];
}

function aboutFunction() {
  const f = here();
  const { cost, size } = graph();
  const fact = (name, value) => [make("dt", {}, name), make("dd", {}, value)];
  return [
    make("h2", {}, at.layer ?? f.name),
    make("p", { class: "quiet" }, f.entry ? "An entry point, called from outside." : `The function ${f.name} computes ${f.span}.`),
    make("dl", {}, fact("nodes", number(size)), fact("moves", bytes(cost.bytes)), fact("computes", flops(cost.flops)), fact("roofline", time(cost.seconds * 1e9)),
      canTime() ? fact("measured", `${time(Math.round(functionTook(f.name, at.stage)))}  ${ofCall(functionTook(f.name, at.stage))}`) : []),
    make("p", { class: "quiet" }, `${profile ? "Times without a measurement" : "Times"} are estimates by a roofline of ${bytes(data.network.bandwidth)} and ${flops(data.network.flops)} per second.`),
    make("h3", { class: "keys" }, "Keys"),
    make("dl", { class: "keys" }, ...[["arrows", "along operands"], ["Enter", "into a layer"], ["Esc", "out of it"], ["/", "search"]].flatMap(([key, does]) => [make("dt", {}, key), make("dd", {}, does)])),
  ];
}

function reach(id) {
  if (at.tab !== "graph") go({ tab: "graph" });
  const box = drawn?.find(id);
  if (box) centred(box, true);
  choose(id);
}

// The views.

const table = (name, heads, rows) => make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name }, make("table", {},
  make("thead", {}, make("tr", {}, heads.map(([head, amount]) => make("th", { class: amount ? "amount" : null, scope: "col" }, head)))),
  make("tbody", {}, rows.map((row) => make("tr", {}, row.map((cell, i) => make("td", { class: heads[i][1] ? "amount" : null }, cell)))))));

const views = {
  graph: ["Graph", (panel) => {
    panel.classList.add("drawn");
    drawn = picture(at.name, at.stage);
    zoomed(drawn);
    const kinds = CLASSES.map((kind) => make("li", {}, make("span", { class: "swatch", style: `background: var(--${kind})` }), kind));
    const scale = make("li", {}, "measured time: none ", make("span", { class: "scale" }), " the longest in this picture; without a colour: fused with another operation");
    panel.replaceChildren(make("ul", { class: "legend" }, isTimed() ? scale : kinds), drawn);
    const first = at.node !== null ? drawn.find(at.node) : drawn.querySelector(".box.call") ?? drawn.querySelector(".box");
    if (first) centred(first, at.node !== null);
  }],
  changes: ["Before and after", (panel) => {
    const { traced, simplified, expanded } = here().stages;
    const line = (node) => `%${node.id} = ${node.text.length > 90 ? node.text.slice(0, 90) + "…" : node.text} (${node.operands.map((operand) => "%" + operand).join(", ")}) : ${node.types[0]}`;
    const whole = (node) => [node.text, node.types, node.path, node.file, node.line].join("\n");
    const listing = (stage, name, other, word) => {
      const left = new Map();
      for (const node of other.nodes) left.set(whole(node), (left.get(whole(node)) ?? 0) + 1);
      const isNew = (node) => { const count = left.get(whole(node)) ?? 0; left.set(whole(node), count - 1); return count <= 0; };
      return make("pre", { class: "listing", tabindex: -1 }, stage.nodes.map((node) => make("button", {
        type: "button", class: isNew(node) ? word : "", "data-node": node.id, "data-stage": name,
        title: node.path, onclick: () => { at.stage = name; drawBar(); drawTree(); choose(node.id); },
      }, line(node))));
    };
    const rules = (name, fired) => {
      const rows = Object.entries(fired).map(([name, count]) => [name, make("code", {}, data.rules.find((rule) => rule.name === name)?.equation ?? ""), number(count)]);
      return rows.length ? table(name, [["rule"], ["equation"], ["uses", 1]], rows) : make("p", {}, "None.");
    };
    const cost = (stage) => [number(stage.size), bytes(stage.cost.bytes), flops(stage.cost.flops), time(stage.cost.seconds * 1e9)];
    const amounts = [["nodes", 1], ["moves", 1], ["computes", 1], ["roofline", 1]];
    panel.replaceChildren(
      make("p", { class: "quiet" }, "Every rule keeps all bits, unless you asked for approximate rules. Choose a line to see all of it."),
      table("costs", [["stage"], ...amounts], [["recorded", ...cost(traced)], ["simplified", ...cost(simplified)], ["in primitives", ...cost(expanded)]]),
      make("h3", {}, "Rules that were used here"), rules("rules", simplified.fired),
      make("details", {}, make("summary", {}, "Rules that were used after the expansion into primitives"), rules("rules in primitives", expanded.fired)),
      make("div", { class: "columns" },
        make("section", {}, make("h3", {}, "Recorded; removed lines are marked"), listing(traced, "traced", simplified, "removed")),
        make("section", {}, make("h3", {}, "Simplified; new lines are marked"), listing(simplified, "simplified", traced, "added"))),
    );
  }],
  weights: ["Weights", (panel) => {
    const rows = data.parameters.map((group) => [
      [make("code", {}, group.key), group.recipe ? make("div", { class: "quiet" }, make("code", {}, group.recipe.length > 240 ? group.recipe.slice(0, 240) + "…" : group.recipe)) : null],
      number(group.count), make("code", { class: "whole" }, group.type), group.stored, bytes(group.bytes * group.count),
    ]);
    const of = data.parameters.reduce((sum, group) => sum + group.bytes * group.count, 0);
    panel.replaceChildren(
      make("p", {}, `${number(data.network.parameters)} declared parameters; ${bytes(of)} in the archive. A weight with a recipe is computed once from tensors of the checkpoint, when the archive is written.`),
      table("weights", [["key and recipe"], ["times", 1], ["type"], ["stored as"], ["bytes", 1]], rows));
  }],
  operations: ["Operations", (panel) => {
    const count = (name, stage, times, into) => {
      for (const node of functions.get(name).stages[stage].nodes) {
        if (node.callee) count(node.callee, stage, times, into);
        else if (!["input", "parameter", "result"].includes(node.kind)) into.set(node.label, (into.get(node.label) ?? 0) + times);
      }
      return into;
    };
    const stable = (name, into) => {
      for (const s of functions.get(name).stages.expanded.statements) {
        const op = /= (?:"?stablehlo\.([a-z_0-9]+)|call @([^( ]+))/.exec(s.text);
        if (op?.[1]) into.set(op[1], (into.get(op[1]) ?? 0) + 1);
        else if (op?.[2] && functions.has(op[2])) stable(op[2], into);
      }
      return into;
    };
    const entry = at.entry;
    const [before, after] = ["traced", "simplified"].map((stage) => count(entry, stage, 1, new Map()));
    const lowered = stable(entry, new Map());
    const bars = (columns) => {
      const names = [...new Set(columns.flatMap((column) => [...column.keys()]))];
      const most = Math.max(...columns.flatMap((column) => [...column.values()]));
      const largest = (name) => Math.max(...columns.map((column) => column.get(name) ?? 0));
      return make("div", { class: "bars" }, names.sort((a, b) => largest(b) - largest(a) || (a < b ? -1 : 1)).flatMap((name) => [
        make("code", {}, name),
        make("span", {}, columns.map((column, i) => make("div", { class: i + 1 < columns.length ? "meter before" : "meter", style: `width: ${100 * (column.get(name) ?? 0) / most}%` }))),
        make("span", { class: "mono" }, columns.map((column) => number(column.get(name) ?? 0)).join(" → ")),
      ]));
    };
    panel.replaceChildren(
      make("p", {}, `Operations in one call of ${entry}, counted in every layer.`),
      make("h3", {}, "Recorded → simplified"), bars([before, after]),
      make("h3", {}, "StableHLO"), bars([lowered]));
  }],
  attention: ["Attention", (panel) => {
    const entry = at.entry;
    const masks = data.masks.filter((mask) => mask.entries.includes(entry));
    panel.replaceChildren(
      make("p", {}, `Attention masks of ${entry}. A row is a query position, a column a key position. A query sees the coloured keys.`),
      make("div", { class: "figures" }, masks.flatMap(maskFigures)),
      masks.length ? "" : make("p", {}, "This entry point has no attention."),
      make("h3", {}, "Rotary embeddings: positions in a full turn, by pair of features"),
      data.rotary.length ? rotaryPlot() : make("p", {}, "None."));
  }],
  memory: ["Memory", (panel) => {
    const memory = data.memory;
    const sum = (of) => Object.values(of).reduce((a, b) => a + b, 0);
    const largest = Math.max(0, ...Object.values(memory.activations));
    const parts = [
      ["weights", sum(memory.weights.map((stored) => stored.bytes)), "product"], ["packed when loaded", memory.repacked, "attention"],
      ["state", sum(memory.state), "state"], ["activations", largest, "reduction"], ["constants, twice", 2 * memory.constants, "elementwise"],
    ].filter(([, size]) => size > 0);
    const all = parts.reduce((total, [, size]) => total + size, 0);
    panel.replaceChildren(
      make("p", {}, `Running takes about ${bytes(memory.running)} with a context of ${number(data.network.context)}; the compiler takes about ${bytes(memory.compiling)} before that. Estimated from the trace alone.`),
      make("div", { class: "stack", role: "img", "aria-label": parts.map(([name, size]) => `${name} ${bytes(size)}`).join(", ") }, parts.map(([, size, colour]) => make("span", { style: `width: ${100 * size / all}%; background: var(--${colour})` }))),
      make("ul", { class: "legend" }, parts.map(([name, size, colour]) => make("li", {}, make("span", { class: "swatch", style: `background: var(--${colour})` }), `${name} ${bytes(size)}`))),
      table("memory", [["what"], ["which", 0], ["bytes", 1]], [
        ...memory.weights.map((stored) => ["weights", `${stored.count} of ${stored.stored}`, number(stored.bytes)]),
        ...(memory.repacked ? [["packed copy", "made when the program is loaded", number(memory.repacked)]] : []),
        ...Object.entries(memory.state).map(([kind, size]) => ["state", kind, number(size)]),
        ...Object.entries(memory.activations).map(([name, size]) => ["activations", `largest in ${name}`, number(size)]),
        ["constants", "tables in the compiled module", number(memory.constants)],
        ["running", "total, with the process itself", number(memory.running)],
        ["compiling", "about, in the compiler's process", number(memory.compiling)],
      ]));
  }],
  stablehlo: ["StableHLO", (panel) => {
    const node = at.node === null ? null : graph().nodes[at.node];
    const of = (s) => node && s.line === node.line && s.file === node.file && s.path === node.path;
    panel.replaceChildren(
      make("p", { class: "quiet" }, `${number(here().stages.expanded.statements.length)} statements of ${at.name}. Statements of the chosen node's line and field are marked.`),
      make("pre", { class: "statements", tabindex: 0 }, here().stages.expanded.statements.map((s) => make("div", { class: of(s) ? "of-node" : "", title: `${s.path} ${s.file}:${s.line}` }, s.text))));
    const first = panel.querySelector(".of-node");
    if (first) panel.scrollTop = first.offsetTop - panel.offsetTop - 80;
  }],
};

if (profile) {
  views.profile = ["Profile", (panel) => {
    const most = Math.max(...profile.paths.map((path) => path.seconds));
    const open = (path) => {
      const inside = data.functions.find((f) => f.prefix && path.startsWith(f.prefix) && entryOf(f.name, profile.entry) === profile.entry);
      const field = inside ? path.slice(inside.prefix.length + 1) : path;
      go({ tab: "graph", name: inside?.name ?? profile.entry, layer: inside?.layers[0] ?? null, entry: profile.entry, field: field || null, node: null, timed: true });
    };
    const row = ({ path, seconds, calls }) => make("li", {}, make("button", { type: "button", onclick: () => open(path) },
      make("code", {}, path || profile.entry), make("span", { class: "track" }, make("span", { class: "meter", style: `width: ${100 * seconds / most}%` })),
      make("span", { class: "amount" }, time(Math.round(seconds * 1e9))), make("span", { class: "amount" }, ofCall(seconds * 1e9)), make("span", { class: "amount quiet" }, `${number(calls)} ×`)));
    const rate = (amount, seconds) => (amount ? (amount / seconds / 1e9).toPrecision(3) : "");
    const rows = profile.functions.map((one) => [
      [make("code", {}, one.function), make("div", { class: "quiet" }, [...one.paths].join(", "))], number(one.calls), time(Math.round(one.seconds * 1e9)), ofCall(one.seconds * 1e9),
      rate(one.bytes, one.seconds), rate(one.flops, one.seconds),
    ]);
    const said = Object.entries(profile.variant).map(([name, value]) => `${name} ${value}`).join(", ");
    panel.replaceChildren(
      make("p", {}, `A call of ${profile.entry} took ${time(Math.round(profile.seconds * 1e9))}, the median of calls without profiling. In profiled calls the dispatches took ${time(Math.round(profile.dispatched * 1e9))}${profile.elsewhere > 0 ? `, ${time(Math.round(profile.elsewhere * 1e9))} of it outside the recorded nodes` : ""}.`),
      make("p", { class: "quiet" }, `${profile.model}: ${said}.`),
      make("h3", {}, "By field path, all layers together"),
      make("ul", { class: "times" }, profile.paths.map(row)),
      make("h3", {}, "By dispatch"),
      table("dispatches", [["function and field paths"], ["times", 1], ["took", 1], ["share", 1], ["GB/s", 1], ["GFLOP/s", 1]], rows),
      make("p", { class: "quiet" }, "If one dispatch computes several fields, the cost model divides its time among them. Rates count all bytes that operations read and write; fused operations move fewer."));
  }];
}

const WORDS = {
  causal: () => "j ≤ i", window: (n) => `i − ${n} < j`, chunk: (n) => `⌊i / ${n}⌋ = ⌊j / ${n}⌋`,
  padding: () => "j ≥ padding", prefix: () => "j ≤ i or j < prefix", additive: () => "and an added tensor", ring: () => "in a ring",
};

function maskFigures(mask) {
  const terms = mask.terms.map((term) => { const [, name, size] = /^([a-z]+)(?:\((\d+)\))?$/.exec(term); return [name, Number(size)]; });
  const ring = terms.some(([name]) => name === "ring");
  const context = data.network.context;
  const size = Math.min(context, 4096);
  const [prefix, padding] = [Math.round(size / 4), Math.round(size / 8)];
  const sees = (i, j) => j < size && terms.every(([name, n]) => ({
    causal: () => j <= i, window: () => i - n < j, chunk: () => Math.floor(i / n) === Math.floor(j / n),
    padding: () => j >= padding, prefix: () => j <= i || j < prefix,
  })[name]?.() ?? true);
  const causal = terms.some(([name]) => name === "causal");
  const inSlot = (i, slot) => {
    const position = i - ((((i - slot) % mask.keys) + mask.keys) % mask.keys);
    return position >= 0 && (!causal || position <= i) && sees(i, position);
  };
  const words = terms.map(([name, n]) => WORDS[name](n)).filter((word) => word !== "in a ring").join(", ");
  const rule = words ? `Query i sees key j if ${words}` : "Every query sees every key";
  const more = [`scale ${Number(mask.scale.toPrecision(4))}`, mask.softcap ? `scores capped at ${mask.softcap}` : null, mask.groups > 1 ? `${mask.groups} query heads per key head` : null,
    terms.some(([name]) => name === "prefix") ? `drawn with a prefix of ${prefix}` : null, terms.some(([name]) => name === "padding") ? `drawn with ${padding} of padding` : null].filter(Boolean).join("; ");
  const figure = (title, columns, is, caption) => make("figure", {}, make("h3", {}, title),
    raster(size, columns, is, `${title}: ${rule}`), make("figcaption", {}, caption));
  const where = mask.span || mask.function;
  const figures = [figure(where, size, sees, `${rule}. Positions 0 to ${number(size - 1)}. ${more}.`)];
  if (ring) figures.push(figure("the same, by slot", mask.keys, inSlot, `The same keys by their place in memory: a ring of ${number(mask.keys)} slots, the position j in slot j mod ${number(mask.keys)}.`));
  return figures;
}

/** A square of what is true, a pixel or a cell for some rows and columns. */
function raster(rows, columns, is, label) {
  const side = 240;
  const sharp = window.devicePixelRatio || 1;
  const [width, height] = [Math.max(24, Math.round(side * Math.min(1, columns / rows))), Math.round(side * Math.min(1, rows / columns))];
  const canvas = make("canvas", { width: width * sharp, height: height * sharp, style: `width: ${width}px; height: ${height}px`, role: "img", "aria-label": label });
  const paint = () => {
    const style = getComputedStyle(canvas);
    const brush = canvas.getContext("2d");
    const resolve = (name) => { canvas.style.color = `var(--${name})`; return style.color; };
    const [seen, hidden] = [resolve("product"), resolve("card")];
    brush.fillStyle = hidden;
    brush.fillRect(0, 0, canvas.width, canvas.height);
    brush.fillStyle = seen;
    const [tall, wide] = [Math.min(rows, canvas.height), Math.min(columns, canvas.width)];
    const [h, w] = [canvas.height / tall, canvas.width / wide];
    const gap = h >= 8 ? 1 : 0;
    for (let y = 0; y < tall; y++) {
      const i = Math.floor((y + 0.5) * rows / tall);
      for (let x = 0; x < wide; x++) {
        if (is(i, Math.floor((x + 0.5) * columns / wide))) brush.fillRect(Math.floor(x * w), Math.floor(y * h), Math.ceil(w) - gap, Math.ceil(h) - gap);
      }
    }
  };
  canvas.paint = paint;
  requestAnimationFrame(paint);
  return canvas;
}

function rotaryPlot() {
  const [width, height, left, bottom] = [760, 300, 56, 34];
  const turn = (frequency) => 2 * Math.PI / frequency;
  const all = data.rotary.flatMap((rotary) => rotary.frequencies.filter((f) => f > 0).map(turn)).concat(data.network.context);
  const top = Math.ceil(Math.log10(Math.max(...all)));
  const most = Math.max(...data.rotary.map((rotary) => rotary.frequencies.length));
  const x = (i) => left + (width - left - 16) * i / Math.max(1, most - 1);
  const y = (positions) => height - bottom - (height - bottom - 12) * Math.log10(positions) / top;
  const label = (text, at) => { const element = make("svg:text", at); element.textContent = text; return element; };
  const svg = make("svg:svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "positions in a full turn by pair of features" });
  for (let power = 0; power <= top; power++) {
    svg.append(make("svg:line", { class: "axis", x1: left, x2: width - 16, y1: y(10 ** power), y2: y(10 ** power) }), label(power < 4 ? String(10 ** power) : `10^${power}`, { x: left - 8, y: y(10 ** power) + 4, "text-anchor": "end" }));
  }
  svg.append(make("svg:line", { class: "limit", x1: left, x2: width - 16, y1: y(data.network.context), y2: y(data.network.context) }), label(`context ${data.network.context}`, { x: width - 16, y: y(data.network.context) - 5, "text-anchor": "end" }));
  const step = most > 16 ? 8 * Math.ceil(most / 64) : 1;
  for (let i = 0; i < most; i += step) svg.append(label(String(i), { x: x(i), y: height - 12, "text-anchor": "middle" }));
  const colours = ["product", "attention", "reduction", "elementwise"];
  data.rotary.forEach((rotary, n) => {
    const points = rotary.frequencies.map((f, i) => (f > 0 ? `${x(i).toFixed(1)},${y(turn(f)).toFixed(1)}` : "")).filter(Boolean).join(" ");
    svg.append(make("svg:polyline", { points, style: `stroke: var(--${colours[n % 4]})` }));
  });
  return make("figure", {}, svg, make("ul", { class: "legend" }, data.rotary.map((rotary, n) => make("li", {}, make("span", { class: "swatch", style: `background: var(--${colours[n % 4]})` }),
    `${rotary.layers || "all"}: ${rotary.frequencies.length} pairs, turns of ${number(Math.round(turn(rotary.frequencies[0])))} to ${number(Math.round(turn(rotary.frequencies.at(-1))))} positions${rotary.scaling === 1 ? "" : `, × ${rotary.scaling}`}`))));
}

// Everything around.

function drawBar() {
  const f = here();
  const entry = at.entry;
  const select = make("select", { id: "entry", onchange: (event) => go({ name: event.target.value, layer: null }) }, entries.map((e) => make("option", { value: e.name, selected: e.name === entry }, e.name)));
  const layers = functions.get(entry).stages.traced.nodes.filter((node) => node.callee);
  const layer = layers.length ? make("select", { id: "layer", onchange: (event) => {
    const call = layers.find((node) => node.path === event.target.value);
    go(call ? { name: call.callee, layer: call.path } : { name: entry, layer: null });
  } }, make("option", { value: "" }, "whole"), layers.map((node) => make("option", { value: node.path, selected: node.path === at.layer }, node.path))) : null;
  const stages = make("span", { class: "choice", role: "group", "aria-label": "Stage" }, Object.entries(STAGES).map(([stage, name]) =>
    make("button", { type: "button", "aria-pressed": String(stage === at.stage), onclick: () => go({ stage }) }, name)));
  const zoom = (factor) => () => { at.zoom = Math.min(3, Math.max(0.1, at.zoom * factor)); zoomed(drawn); };
  const parts = ["weights", "memory", "profile"].includes(at.tab) ? [] : [make("label", { for: "entry" }, "Entry"), select];
  if (layer && ["graph", "changes", "stablehlo"].includes(at.tab)) parts.push(make("label", { for: "layer" }, "Part"), layer);
  if (at.tab === "graph") parts.push(stages);
  if (at.tab === "graph" && canTime()) {
    parts.push(make("span", { class: "choice", role: "group", "aria-label": "Colours" }, [[false, "Kind"], [true, "Measured time"]].map(([timed, name]) =>
      make("button", { type: "button", "aria-pressed": String(timed === at.timed), onclick: () => go({ timed }) }, name))));
  }
  parts.push(make("span", { class: "grow" }));
  if (at.tab === "graph") {
    parts.push(make("span", { class: "choice", role: "group", "aria-label": "Size" },
      make("button", { type: "button", "aria-label": "smaller", onclick: zoom(0.8) }, "−"),
      make("button", { type: "button", id: "zoom", title: "actual size", onclick: () => { at.zoom = 1; zoomed(drawn); } }, `${Math.round(at.zoom * 100)} %`),
      make("button", { type: "button", "aria-label": "larger", onclick: zoom(1.25) }, "+"),
      make("button", { type: "button", onclick: fitted }, "fit")));
  }
  const focused = document.activeElement?.id;
  byId("bar").replaceChildren(...parts);
  byId("bar").hidden = parts.length < 2;
  if (["entry", "layer"].includes(focused)) byId(focused)?.focus();
}

function drawTabs() {
  const names = Object.keys(views);
  const focused = byId("tabs").contains(document.activeElement);
  byId("tabs").replaceChildren(...names.map((name) => make("button", {
    type: "button", role: "tab", id: `tab-${name}`, "aria-selected": String(name === at.tab), "aria-controls": "panel", tabindex: name === at.tab ? 0 : -1,
    onclick: () => go({ tab: name }),
    onkeydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      go({ tab: names[(names.indexOf(at.tab) + step + names.length) % names.length] });
      byId(`tab-${at.tab}`).focus();
    },
  }, views[name][0])));
  if (focused) byId(`tab-${at.tab}`).focus();
}

function draw() {
  drawTabs();
  drawBar();
  drawTree();
  const panel = byId("panel");
  panel.className = "panel";
  panel.setAttribute("aria-labelledby", `tab-${at.tab}`);
  panel.scrollTo(0, 0);
  drawn = null;
  views[at.tab][1](panel);
  about(at.node);
  mark();
}

// Search.

const found = byId("found");
const search = byId("search");
let results = [];
function look() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (text) => words.every((word) => text.toLowerCase().includes(word));
  results = [];
  if (words.length) {
    for (const f of data.functions) {
      if (fits(`${f.name} ${f.span}`)) results.push({ title: f.name, where: f.span || "entry point", go: () => go({ tab: "graph", name: f.name, layer: f.layers[0] ?? null }) });
    }
    const own = here();
    for (const f of [own, ...data.functions.filter((f) => f !== own)]) {
      for (const node of f.stages[at.stage].nodes) {
        if (results.length >= 60) break;
        if (fits(`%${node.id} ${node.label} ${node.text.slice(0, 200)} ${node.path} ${node.types[0]} ${f.name}`)) {
          results.push({ title: `%${node.id} ${node.label}`, where: `${f.name} · ${node.path || "entry"} · ${node.types[0]}`, go: () => { if (f !== here()) go({ tab: "graph", name: f.name, layer: f.layers[0] ?? null }); reach(node.id); } });
        }
      }
    }
  }
  found.replaceChildren(...results.map((result, i) => make("li", { role: "option", id: `found-${i}`, "aria-selected": String(i === 0), onclick: () => take(i) }, result.title, make("small", {}, result.where))));
  if (words.length && !results.length) found.replaceChildren(make("li", { role: "option", "aria-selected": "false" }, "No results."));
  found.hidden = !words.length;
  search.setAttribute("aria-expanded", String(!found.hidden));
  search.setAttribute("aria-activedescendant", results.length ? "found-0" : "");
}
function take(i) {
  found.hidden = true;
  search.setAttribute("aria-expanded", "false");
  results[i]?.go();
}
search.addEventListener("input", look);
search.addEventListener("focus", () => search.value && look());
search.addEventListener("blur", () => setTimeout(() => { found.hidden = true; search.setAttribute("aria-expanded", "false"); }, 200));
search.addEventListener("keydown", (event) => {
  const items = [...found.children];
  const now = items.findIndex((item) => item.getAttribute("aria-selected") === "true");
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step && items.length) {
    event.preventDefault();
    const next = Math.min(items.length - 1, Math.max(0, now + step));
    items.forEach((item, i) => item.setAttribute("aria-selected", String(i === next)));
    items[next].scrollIntoView({ block: "nearest" });
    search.setAttribute("aria-activedescendant", items[next].id);
  } else if (event.key === "Enter") take(Math.max(0, now));
  else if (event.key === "Escape") { search.value = ""; look(); }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !["INPUT", "SELECT"].includes(document.activeElement?.tagName)) { event.preventDefault(); search.focus(); }
});

// Light and dark: as the system says, until somebody chooses.

const isDark = () => (document.documentElement.style.colorScheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
function themed() {
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", isDark() ? "Light colours" : "Dark colours");
  document.querySelectorAll("canvas").forEach((canvas) => canvas.paint?.());
}
byId("theme").addEventListener("click", () => { document.documentElement.style.colorScheme = isDark() ? "light" : "dark"; themed(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);

const n = data.network;
byId("facts").textContent = `${scaled(n.parameters, ["", "thousand", "million", "billion"])} parameters, ${bytes(n.parameter_bytes)} of ${n.element}; context ${number(n.context)}, chunk ${number(n.chunk)}${n.batch > 1 ? `, batch ${n.batch}` : ""}`;
const asked = new URLSearchParams(location.hash.slice(1));
if (views[asked.get("tab")]) at.tab = asked.get("tab");
if (functions.has(asked.get("function"))) { at.name = asked.get("function"); at.layer = here().layers[0] ?? null; at.entry = entryOf(at.name); }
if (STAGES[asked.get("stage")]) at.stage = asked.get("stage");
themed();
draw();
