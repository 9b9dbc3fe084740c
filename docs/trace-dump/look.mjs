// Looks at a page of `trace-dump` as its readers do: every view, light, dark and narrow, and by keyboard alone. Writes what it saw
// beside this file, and fails where axe-core finds a violation, the script an error, or the page asks for anything.
//
//   npm install puppeteer-core axe-core
//   cargo run --bin trace-dump -- gemma-3-1b --emit html -o page.html
//   cargo run --release --all-features --bin tracewright -- bench decode demo --trace decode.json
//   cargo run --bin trace-dump -- demo --emit html --profile decode.json -o profile.html
//   node docs/trace-dump/look.mjs page.html profile.html [the browser, /usr/bin/chromium]
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const require = createRequire(resolve("package.json"));
const puppeteer = require("puppeteer-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const [, script, published, profiled, executablePath = "/usr/bin/chromium"] = process.argv;
const folder = dirname(fileURLToPath(pathToFileURL(resolve(script))));
const layer = "function=layer_5";

const problems = [];
const browser = await puppeteer.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"] });
const page = await browser.newPage();
page.on("pageerror", (error) => problems.push(error.message));
page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
page.on("request", (request) => request.url().startsWith("file:") || problems.push(`asks for ${request.url()}`));

async function look(name, hash, { dark = false, width = 1440, height = 900, box = null, keep = false, file = published } = {}) {
  await page.setViewport({ width, height });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }]);
  await page.goto("about:blank");
  await page.goto(`${pathToFileURL(resolve(file))}#${hash}`);
  if (box) await page.evaluate((text) => [...document.querySelectorAll(".box")].find((box) => box.textContent.includes(text)).focus(), box);
  await new Promise((done) => setTimeout(done, 400));
  if (keep) await page.screenshot({ path: `${folder}/${name}.png` });
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => axe.run());
  for (const { id, nodes } of violations) problems.push(`${name}: ${id} at ${nodes[0].target}`);
}

await look("whole", "", { keep: true });
await look("layer", layer, { box: "sdpa", keep: true });
await look("layer-dark", `${layer}&stage=simplified`, { dark: true, box: "k_proj", keep: true });
await look("masks", `${layer}&tab=attention`, { keep: true });
await look("changes", `${layer}&tab=changes`, { keep: true });
await look("narrow", layer, { width: 420, height: 860, box: "q_proj", keep: true });
for (const dark of [false, true]) {
  for (const tab of ["graph", "changes", "weights", "operations", "attention", "memory", "stablehlo"]) {
    await look(`${tab} ${dark ? "dark" : "light"}`, `${layer}&tab=${tab}`, { dark });
    await look(`${tab} narrow`, `tab=${tab}`, { dark, width: 420 });
  }
}

// What a call of the shipped model took.
await look("profile", "function=layer_3", { file: profiled, box: "up_proj", keep: true });
await look("profile-dark", "tab=profile", { file: profiled, dark: true, keep: true });
for (const dark of [false, true]) {
  for (const hash of ["tab=profile", "", "function=layer_3&stage=simplified"]) {
    await look(`${hash} ${dark ? "dark" : "light"}`, hash, { file: profiled, dark });
    await look(`${hash} narrow`, hash, { file: profiled, dark, width: 420 });
  }
}
// By keyboard from the profile to the field that took most, and its node is the measured one.
await look("keys of a profile", "tab=profile", { file: profiled });
await page.focus(".times button");
await page.keyboard.press("Enter");
if (!(await page.evaluate(() => document.querySelector(".graph.timed .of-field.heated")))) problems.push("no field is opened from the profile");

// From the top of the page into a layer and out of it, without a mouse.
await look("keys", "");
const chosen = () => page.evaluate(() => `${document.activeElement.getAttribute("class")} ${document.querySelector("#about h2").textContent}`);
const press = async (key, until, times = 60) => {
  for (let i = 0; i < times && !(await chosen()).match(until); i++) await page.keyboard.press(key);
  if (!(await chosen()).match(until)) problems.push(`${key} does not reach ${until}: ${await chosen()}`);
};
await press("Tab", /^box /);
await press("ArrowDown", /^box call .*layer/);
await press("Enter", /^box input/, 1);
await press("Escape", /tokens$/, 1);

await browser.close();
problems.forEach((problem) => console.error(problem));
console.log(problems.length ? `${problems.length} problems` : "nothing to object to");
process.exitCode = problems.length ? 1 : 0;
