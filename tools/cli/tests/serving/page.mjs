// The chat page in a browser without a window: `page.mjs PACKAGES PORT [PICTURES]`. It sends, streams, stops, edits, retries, reloads,
// and uses the keyboard alone. axe-core checks each state. With PICTURES, the script saves screenshots in this folder.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
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
const problems = [];
page.on("pageerror", (error) => problems.push(String(error)));
page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
page.on("request", (request) => request.url().startsWith(home) || problems.push(`requests ${request.url()}`));

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

await page.goto(home);
await until(() => document.getElementById("model").value !== "");
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
for (let i = 0; i < 40; i += 1) {
  await page.keyboard.press("Tab");
  reached.add(await page.evaluate(() => document.activeElement.id || document.activeElement.ariaLabel || document.activeElement.localName));
}
for (const id of ["model", "new", "theme", "summary", "log", "Edit message 1", "Retry the answer to message 1", "text", "send"]) {
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

// The picture of the speed has a point for each measurement, and some tokens were measured.
await until(() => document.getElementById("line").points.length > 2);
assert.match(await page.$eval("#slots", (element) => element.textContent), /0 of \d+ slots in use/);

await page.click("#theme");
await check("dark", { dark: true });
await check("narrow", { width: 320 });

// A setting outside its range is an error of the server, which the page shows.
await page.click("#settings summary");
await set("top_p", "7");
const before = problems.length;
await ask("Hi");
await until(() => document.getElementById("state").classList.contains("wrong"));
assert.match(await state(), /top_p/);
// The browser itself logs the status 400.
problems.splice(before);
await page.click("#new");
assert.deepEqual(await answers(), []);

await browser.close();
assert.deepEqual(problems, []);
console.log("good");
