// The chat page in a browser without a window: `page.mjs PACKAGES PORT [PICTURES]`. It sends, streams, stops, edits, retries,
// continues, exports, keeps several chats, and uses the keyboard alone. axe-core checks each state. With PICTURES, the script saves
// screenshots in this folder.
import assert from "node:assert/strict";
import { existsSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [, , packages, port, pictures] = process.argv;
const require = createRequire(join(resolve(packages), "package.json"));
const chromium = (await import(pathToFileURL(join(resolve(packages), "node_modules/@sparticuz/chromium/build/esm/index.js")))).default;
const puppeteer = require("puppeteer-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const home = `http://127.0.0.1:${port}/`;

const executablePath = await chromium.executablePath();
const browser = await puppeteer.launch({ executablePath, args: [...chromium.args, "--no-sandbox", "--disable-gpu"], headless: "shell" });
const page = await browser.newPage();
const downloads = mkdtempSync(join(tmpdir(), "downloads-"));
const session = await browser.target().createCDPSession();
await session.send("Browser.setDownloadBehavior", { behavior: "allow", downloadPath: downloads });
await browser.defaultBrowserContext().overridePermissions(home.slice(0, -1), ["clipboard-read", "clipboard-sanitized-write"]);
page.on("dialog", (dialog) => dialog.accept());
const problems = [];
page.on("pageerror", (error) => problems.push(String(error)));
page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
page.on("request", (request) => request.url().replace(/^blob:/, "").startsWith(home) || problems.push(`requests ${request.url()}`));

const state = () => page.$eval("#state", (element) => element.textContent);
const answers = () => page.$$eval("article.assistant", (all) => all.map((one) => one.querySelector("p, pre")?.textContent ?? ""));
const until = (test, ...values) => page.waitForFunction(test, { timeout: 60000 }, ...values);
const ended = () => until(() => /tokens in, .* out|stopped/.test(document.getElementById("state").textContent));

async function check(name, { width = 900, height = 640, dark = false } = {}) {
  await page.setViewport({ width, height });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }]);
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => axe.run());
  for (const { id, nodes } of violations) problems.push(`${name}: ${id} at ${nodes[0].target}`);
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  if (overflow > 0) problems.push(`${name}: the page is ${overflow} pixels wider than the window`);
  if (pictures) await page.screenshot({ path: join(pictures, `${name}.png`) });
}

async function ask(text) {
  await page.focus("#text");
  await page.keyboard.type(text);
  await page.keyboard.press("Enter");
}

async function set(name, value) {
  await page.$eval(`#${name}`, (input, value) => ((input.value = value), input.dispatchEvent(new Event("change", { bubbles: true }))), value);
}

const click = (label) => page.click(`[aria-label="${label}"]`);
const titles = () => page.$$eval("#chats li > button:first-child", (all) => all.map((one) => one.textContent));

async function downloaded(name) {
  for (let i = 0; i < 200 && !existsSync(join(downloads, name)); i += 1) await new Promise((done) => setTimeout(done, 50));
  return readFileSync(join(downloads, name), "utf8");
}

await page.goto(home);
await until(() => document.getElementById("model").value !== "" && document.querySelectorAll("#more input").length > 10);
assert.match(await page.$eval("#welcome", (one) => one.textContent), /^demo.*f32.* MB of weights.*512 tokens/);
await check("empty");
await page.click("#settings summary");
await set("temperature", "0");
await set("max_tokens", "24");
await check("settings");
await page.click("#settings summary");

// An answer appears in parts, and each part begins with the part before.
await page.evaluate(() => {
  globalThis.parts = [];
  new MutationObserver(() => {
    const text = document.querySelector("article.assistant p")?.textContent ?? "";
    if (text && text !== parts.at(-1)) parts.push(text);
  }).observe(document.getElementById("log"), { childList: true, subtree: true });
});
await ask("Tell me a story about a brave owl.");
await ended();
const parts = await page.evaluate(() => parts);
assert.ok(parts.length > 3, `the answer came in ${parts.length} parts`);
for (const [i, part] of parts.slice(1).entries()) assert.ok(part.startsWith(parts[i].trimEnd()), `${parts[i]} | ${part}`);
const [first] = await answers();
assert.match(await state(), /24 out at [\d.]+\/s/);
assert.match(await page.$eval("article .stats", (one) => one.textContent), /^24 tokens at [\d.]+\/s, the first after \d+ ms$/);
assert.match(await page.$eval("#context", (one) => one.textContent), /^\d\d of 512 tokens of context$/);
await check("answer");

// The same settings give the same answer again.
await page.$eval("#state", (element) => (element.textContent = ""));
await page.click('button[aria-label^="Retry"]');
await ended();
assert.deepEqual(await answers(), [first]);

// Escape stops a long answer, and its beginning stays. The page receives only the first text until then, because the whole answer may
// take less time than this script needs to press a key.
await page.evaluate(() => {
  const { fetch } = globalThis;
  globalThis.fetch = async (path, options) => {
    const response = await fetch(path, options);
    if (!options?.signal) return response;
    globalThis.fetch = fetch;
    const { signal } = options;
    const stopped = new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const start = async (out) => {
      let [text, begin] = ["", null];
      while (!begin) {
        const { done, value } = await reader.read();
        if (done) throw new Error("the answer has no text");
        text += value;
        begin = /^[^]*?"content":"[^"].*\n/.exec(text)?.[0];
      }
      out.enqueue(new TextEncoder().encode(begin));
      await stopped;
    };
    return new Response(new ReadableStream({ start }), response);
  };
});
await set("max_tokens", "400");
await ask("Tell me a story about a brave fox.");
await until(() => document.querySelectorAll("article.assistant").length === 2 && document.querySelectorAll("article.assistant p").length > 1);
await page.keyboard.press("Escape");
await until(() => document.getElementById("state").textContent === "stopped");
const stopped = await answers();
assert.equal(stopped.length, 2);
assert.ok(stopped[1].length > 0);

// Continue adds to the stopped answer.
await set("max_tokens", "8");
await page.$eval("#state", (element) => (element.textContent = ""));
await click("Continue message 4");
await ended();
const [, continued] = await answers();
assert.ok(continued.startsWith(stopped[1]) && continued.length > stopped[1].length, `${stopped[1]} | ${continued}`);
stopped[1] = continued;

// The conversation survives a reload.
await page.reload();
await until(() => document.getElementById("model").value !== "");
assert.deepEqual(await answers(), stopped);

// Edit puts the message back into the field, and removes what followed.
await page.click('button[aria-label="Edit message 3"]');
assert.equal(await page.$eval("#text", (field) => field.value), "Tell me a story about a brave fox.");
assert.deepEqual(await answers(), [first]);
await page.$eval("#text", (field) => (field.value = ""));

// The keyboard alone reaches every control, and sends.
await set("max_tokens", "8");
await page.evaluate(() => document.activeElement.blur());
const reached = new Set();
for (let i = 0; i < 80; i += 1) {
  await page.keyboard.press("Tab");
  reached.add(await page.evaluate(() => document.activeElement.id || document.activeElement.ariaLabel || document.activeElement.localName));
}
for (const id of ["search", "export", "attach", "model", "new", "theme", "summary", "log", "Edit message 1", "Retry the answer to message 1", "text", "send"]) {
  assert.ok(reached.has(id), `Tab does not reach ${id}: ${[...reached]}`);
}
await page.focus("#text");
await page.keyboard.type("Once");
await page.keyboard.down("Shift");
await page.keyboard.press("Enter");
await page.keyboard.up("Shift");
assert.equal(await page.$eval("#text", (field) => field.value), "Once\n");
await page.focus("#send");
await page.keyboard.press("Space");
await until(() => document.querySelectorAll("article.assistant").length === 2);
await ended();

// Text of the model and of the user never becomes HTML.
await ask("<img src=x onerror=\"document.title='changed'\"> `<b>code</b>`");
await until(() => document.querySelectorAll("article.assistant").length === 3);
await ended();
assert.equal(await page.$("article img, article b"), null);
assert.equal(await page.title(), "Tracewright");

// A second chat; the list searches, and opens the first one again.
await page.click("#new");
assert.deepEqual(await answers(), []);
await ask("Tell me about a frog.");
await until(() => document.querySelectorAll("article.assistant").length === 1);
await ended();
assert.deepEqual(await titles(), ["Tell me about a frog.", "Tell me a story about a brave owl."]);
await page.type("#search", "OWL");
assert.deepEqual(await titles(), ["Tell me a story about a brave owl."]);
await page.$eval("#search", (field) => ((field.value = ""), field.dispatchEvent(new Event("input"))));
await click("Open the chat Tell me a story about a brave owl.");
assert.equal((await answers())[0], first);

// An answer is edited in place: code has colours and a button that copies it, and nothing in it becomes HTML.
const program = 'fn main() {\n    // A comment.\n    println!("{}", 42);\n}';
const rich = `# Title\n\nSome **bold _nested_** text with \`code\`, [a link](https://example.com/a_(b)) and <b>no tag</b>.\n\n\`\`\`rust\n${program}\n\`\`\`\n\n| a | b |\n|---|--:|\n| 1 | 2 \\| 3 |\n\n1. one\n   - inner\n   - second\n2. two\n\n> quoted\n\n[bad](javascript:alert) ![image](https://example.com/x.png)`;
await click("Edit message 2");
await page.$eval("article > textarea", (field, text) => (field.value = text), rich);
await click("Save the answer");
const shape = await page.$eval("article.assistant", (one) => ({
  kinds: [...one.querySelectorAll("pre span")].map((span) => `${span.className} ${span.textContent}`),
  cells: [...one.querySelectorAll("td")].map((cell) => cell.textContent),
  links: [...one.querySelectorAll("a")].map((link) => [link.textContent, link.href, link.rel]),
  inner: one.querySelectorAll("ol > li > ul > li").length,
  items: one.querySelectorAll("ol > li").length,
  nested: one.querySelector("strong em").textContent,
  quote: one.querySelector("blockquote p").textContent,
  tags: one.querySelectorAll("b, img").length,
}));
assert.deepEqual(shape, {
  kinds: ["keyword fn", "comment // A comment.", 'string "{}"', "number 42"],
  cells: ["1", "2 | 3"],
  links: [["a link", "https://example.com/a_(b)", "noopener noreferrer"], ["image", "https://example.com/x.png", "noopener noreferrer"]],
  inner: 2,
  items: 2,
  nested: "nested",
  quote: "quoted",
  tags: 0,
});
// Half a table, and half an address of an image.
const halves = await page.evaluate(async () => {
  const { markdown } = await import("/markdown.js");
  const draw = (text) => markdown(text).map((one) => one.textContent).join("");
  const start = performance.now();
  draw(`![i](data:image/png;base64,${"x".repeat(40000)}`);
  return { texts: ["Use the pipe |\n---", "| a |\n---", "|\n-"].map(draw), isFast: performance.now() - start < 1000 };
});
assert.ok(halves.isFast && halves.texts[0].includes("Use the pipe") && halves.texts[1].includes("a"), JSON.stringify(halves));
await click("Copy the code of rust");
await until(() => document.querySelector("figcaption button").textContent === "Copied");
assert.equal(await page.evaluate(() => navigator.clipboard.readText()), program);
await page.$eval("#log", (log) => (log.scrollTop = 0));
await check("rich");

// Export writes the chat as Markdown, and Export all the chats, which Import reads after they are deleted.
await page.click("#export");
const text = await downloaded("Tell-me-a-story-about-a-brave-owl.md");
assert.ok(text.startsWith("# Tell me a story about a brave owl.\n\n## You\n\nTell me a story about a brave owl.\n\n## demo\n\n# Title\n") && text.includes(program), text);
await page.click("#export-all");
await downloaded("tracewright-chats.json");
for (const title of await titles()) await click(`Delete the chat ${title}`);
assert.deepEqual(await titles(), []);
await (await page.$("#imported")).uploadFile(join(downloads, "tracewright-chats.json"));
await until(() => document.querySelectorAll("#chats li").length === 2);
assert.equal(await state(), "2 chats imported");
await page.click("#new");

// A text file becomes a part of the message; a binary file does not.
const [notes, binary] = [join(downloads, "notes.txt"), join(downloads, "binary.dat")];
writeFileSync(notes, "Three `````fences` in a file.\n");
writeFileSync(binary, Buffer.from([1, 0, 255]));
const field = await page.$("#attached");
await field.uploadFile(binary);
await until(() => /binary.dat is not a text file/.test(document.getElementById("state").textContent));
await field.uploadFile(notes);
await until(() => document.querySelectorAll("#files button").length === 1);
const sent = page.waitForRequest((request) => request.url().endsWith("/chat/completions"));
await set("top_p", "0.9");
await set("schema", '{"type": "object", "properties": {"name": {"enum": ["owl"]}}, "required": ["name"]}');
await page.click("#settings summary");
await page.$eval("#more", (more) => (more.parentElement.open = true));
await page.$eval('#more input[name="min_p"]', (input) => (input.value = "0.05"));
await set("max_tokens", "40");
await check("samplers");
await page.click("#settings summary");
await ask("Which animal?");
const body = JSON.parse((await sent).postData());
assert.equal(body.messages[0].content, "notes.txt:\n``````\nThree `````fences` in a file.\n``````\n\nWhich animal?");
assert.deepEqual([body.min_p, body.top_p, body.temperature, body.max_tokens], [0.05, 0.9, 0, 40]);
await until(() => document.querySelectorAll("article.assistant").length === 1);
await ended();
assert.deepEqual(await answers(), ['{"name":"owl"}']);
for (const name of ["schema", "top_p"]) await set(name, "");

// The picture of the speed has a point for each measurement, and some tokens were measured.
await until(() => document.getElementById("line").points.length > 2);
assert.match(await page.$eval("#slots", (element) => element.textContent), /0 of \d+ slots in use/);

await click("Open the chat Tell me a story about a brave owl.");
await page.$eval("#log", (log) => (log.scrollTop = 0));
await page.click("#theme");
await check("dark", { dark: true });
await check("phone", { width: 390, height: 800, dark: true });
await page.click("#list");
await check("list", { width: 390, height: 800, dark: true });
await page.click("#list");
await check("narrow", { width: 320 });

// A setting outside its range is an error of the server, which the page shows.
await page.click("#settings summary");
await set("top_p", "7");
const before = problems.length;
await ask("Hi");
await until(() => document.getElementById("state").classList.contains("wrong"));
assert.match(await state(), /top_p/);
await page.setViewport({ width: 900, height: 640 });
// The browser itself logs the status 400.
problems.splice(before);
await page.click("#new");
assert.deepEqual(await answers(), []);

await browser.close();
assert.deepEqual(problems, []);
console.log("good");
