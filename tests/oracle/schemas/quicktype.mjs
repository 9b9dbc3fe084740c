// Writes the JSON schemas that quicktype infers from JSON documents, for `schemas.jsonl`.
//
//     npm install quicktype-core@26.0.0
//     node schemas_quicktype.mjs 300 > quicktype.jsonl
//
// The documents are random, with a fixed seed.
import { InputData, jsonInputForTargetLanguage, quicktype } from "quicktype-core";

let state = 64;
// The generator mulberry32.
const random = () => {
  state = (state + 0x6d2b79f5) | 0;
  let t = Math.imul(state ^ (state >>> 15), 1 | state);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
};
const int = (low, high) => low + Math.floor(random() * (high - low + 1));
const choice = (list) => list[int(0, list.length - 1)];
const sample = (list, count) => {
  const left = [...list];
  return Array.from({ length: count }, () => left.splice(int(0, left.length - 1), 1)[0]);
};
const WORDS = "id name title email tags items price count owner address city zip status kind size notes start end score url path parent options values data user-agent role level rate total größe @type $ref".split(" ");
const leaf = () => choice(["a", "fox", "", 1, -5, 2.5, 53.630839129292724, true, false, null, "2024-02-03T04:05:06Z", "2024-02-03", "123e4567-e89b-42d3-a456-426614174000", "https://example.com", "12", "true", "01:02:03Z"]);
const value = (depth) => {
  const kind = random();
  if (depth > 2 || kind < 0.5) return leaf();
  if (kind < 0.7) return Array.from({ length: int(0, 3) }, ((one) => () => (random() < 0.7 ? one : value(depth + 1)))(value(depth + 1)));
  return object(depth + 1);
};
const object = (depth) => Object.fromEntries(sample(WORDS, int(1, 4)).map((name) => [name, value(depth + 1)]));

const count = Number(process.argv[2]);
const seen = new Set();
while (seen.size < count) {
  const first = object(0);
  const documents = [first];
  if (random() < 0.5) documents.push({ ...first, [choice(WORDS)]: value(1) });
  const input = jsonInputForTargetLanguage("schema");
  await input.addSource({ name: choice(["Top", "Order Item", "Ünï"]), samples: documents.map((one) => JSON.stringify(one)) });
  const data = new InputData();
  data.addInput(input);
  const { lines } = await quicktype({ inputData: data, lang: "schema", rendererOptions: {} });
  const schema = JSON.parse(lines.join("\n"));
  const words = JSON.stringify(schema);
  if (seen.has(words) || words.length > 1200) continue;
  seen.add(words);
  console.log(`{"from":"quicktype","schema":${words},"instance":${JSON.stringify(first)}}`);
}
