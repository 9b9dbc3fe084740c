// Writes JSON schemas of zod, and instances that zod accepts, for `schemas.jsonl`.
//
//     npm install zod@4.6.7 zod-to-json-schema@3.25.2
//     node schemas_zod.mjs 450 > zod.jsonl
//
// The schemas are random compositions of types with a fixed seed. Every third schema is of
// `zod-to-json-schema` and zod 3.
import { z } from "zod";
import * as z3 from "zod/v3";
import { zodToJsonSchema } from "zod-to-json-schema";

let state = 62;
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
const WORDS = "id name title email tags items price count owner address city zip status kind size notes start end score url path parent options values data user-agent role level rate total".split(" ");

const both = [
  (z) => [z.string(), "a \"b\""], (z) => [z.string().min(2).max(5), "abc"], (z) => [z.string().email(), "fox@example.com"],
  (z) => [z.string().url(), "https://example.com/a?b#c"], (z) => [z.string().uuid(), "123e4567-e89b-42d3-a456-426614174000"],
  (z) => [z.string().regex(/^[a-z]+-\d{2,}$/), "ab-12"], (z) => [z.string().datetime(), "2024-02-03T04:05:06Z"],
  (z) => [z.string().startsWith("ab").endsWith("z"), "ab.z"], (z) => [z.string().includes("b"), "abc"],
  (z) => [z.number(), 53.630839129292724], (z) => [z.number().int(), -3], (z) => [z.number().min(0).max(1), 0.25],
  (z) => [z.number().gt(0).lt(100), 99.5], (z) => [z.number().int().positive(), 7], (z) => [z.number().multipleOf(0.5), 2.5],
  (z) => [z.number().int().nonnegative().max(120), 120], (z) => [z.boolean(), true], (z) => [z.null(), null],
  (z) => [z.any(), { a: [1.5, null] }], (z) => [z.unknown(), "x"], (z) => [z.literal("fixed"), "fixed"],
  (z) => [z.literal(7), 7], (z) => [z.literal(0.1), 0.1], (z) => [z.literal(true), true],
  (z) => [z.enum(sample(["red", "green", "blue", "a b", "ü"], int(1, 4)).concat("x")), "x"],
  (z) => [z.nativeEnum({ A: 1, B: 2, C: "c" }), 2], (z) => [z.string().default("d"), "e"], (z) => [z.string().describe("A text."), ""],
  (z) => [z.string().ip ? z.string().ip() : z.ipv4(), "10.0.0.1"], (z) => [z.string().cuid(), "cjld2cjxh0000qzrmn831i7rn"],
  (z) => [z.string().base64(), "aGVsbG8="], (z) => [z.string().emoji(), "🦊"], (z) => [z.string().nanoid(), "V1StGXR8_Z5jdHi6B-myT"],
  (z) => [z.string().ulid(), "01ARZ3NDEKTSV4RRFFQ69G5FAV"], (z) => [z.string().length(3), "abc"], (z) => [z.string().nonempty(), "a"],
];
const new_only = [
  () => [z.int32(), -2147483648], () => [z.uint32(), 4294967295], () => [z.float32(), 0.5], () => [z.float64(), 1e300],
  () => [z.int(), 9007199254740991], () => [z.iso.date(), "2024-02-29"], () => [z.iso.time(), "01:02:03"],
  () => [z.iso.duration(), "P1DT2H"], () => [z.ipv6(), "::1"], () => [z.cidrv4(), "10.0.0.0/8"], () => [z.e164(), "+14155552671"],
  () => [z.email(), "a.b@example.co"], () => [z.url(), "https://example.com"], () => [z.guid(), "123e4567-e89b-12d3-a456-426614174000"],
  () => [z.hostname(), "example.com"], () => [z.jwt(), "e30.e30.e30"], () => [z.base64url(), "aGk"], () => [z.uuidv7(), "0190163d-8694-739b-aea5-966c26f8ad91"],
  () => [z.templateLiteral(["id-", z.number()]), "id-5"], () => [z.json(), [1, "a", null]],
  () => [z.literal(["a", 2, null]), 2], () => [z.never().optional(), undefined], () => [z.mac(), "00:1a:2b:3c:4d:5e"],
  () => [z.string().regex(/^(?=.*\d)[a-z\d]{4,8}$/), "abc1"],
];

function composed(z, depth) {
  if (depth > 2 || random() < 0.5) return choice(z === z3.z || random() < 0.6 ? both : new_only)(z);
  const [inner, value] = composed(z, depth + 1);
  const [other, another] = choice(both)(z);
  return choice([
    () => [z.array(inner), [value, value]], () => [z.array(inner).min(1).max(3), [value]], () => [z.array(inner).length(2), [value, value]],
    () => [z.tuple([inner, other]), [value, another]], () => [z.tuple([inner]).rest(other), [value, another]],
    () => [z.record(z.string(), inner), { a: value }], () => [z.record(z.string().regex(/^[a-z]{2}$/), inner), { en: value }],
    () => [(z.partialRecord ?? z.record)(z.enum(["x", "y"]), inner), { x: value }], () => [z.record(z.enum(["x", "y"]), inner), { x: value, y: value }],
    () => [z.record(z.string().min(2), inner), { ab: value }], () => [z.union([inner, other]), value],
    () => [inner.nullable(), null], () => [inner.nullable(), value], () => [inner.readonly(), value],
    () => [inner.describe("Inner."), value], () => [z.set ? z.array(other).min(1) : inner, [another]],
    () => model(z, depth), () => model(z, depth), () => model(z, depth), () => model(z, depth), () => model(z, depth), () => model(z, depth),
  ])();
}

function model(z, depth) {
  const kind = random();
  if (kind < 0.12) {
    const cases = sample(["cat", "dog", "fish"], 2).map((tag) => [tag, ...composed(z, depth + 1)]);
    const made = z.discriminatedUnion("kind", cases.map(([tag, inner]) => z.object({ kind: z.literal(tag), value: inner })));
    return [made, { kind: cases[0][0], value: cases[0][2] }];
  }
  if (kind < 0.18) {
    const [inner, value] = choice(both)(z);
    const node = z.object({ value: inner, children: z.lazy(() => z.array(node)) });
    return [node, { value, children: [{ value, children: [] }] }];
  }
  const shape = {}, values = {};
  for (const name of sample(WORDS, int(1, depth ? 3 : 5))) {
    let [inner, value] = composed(z, depth + 1);
    const rest = random();
    if (rest < 0.2) inner = inner.optional();
    else if (rest < 0.3) inner = inner.nullish();
    shape[name] = inner;
    values[name] = value;
  }
  let made = z.object(shape);
  const rest = random();
  if (rest < 0.3) made = made.strict();
  else if (rest < 0.4) made = made.passthrough();
  else if (rest < 0.5) made = made.catchall(z.string());
  else if (rest < 0.57) return [z.intersection(made, z.object({ more: z.boolean() })), { ...values, more: true }];
  else if (rest < 0.64) made = made.extend({ extra: z.number().optional() });
  else if (rest < 0.7) made = made.partial();
  return [made, values];
}

const count = Number(process.argv[2]);
const seen = new Set();
for (let turn = 0; seen.size < count; turn++) {
  const old = turn % 3 === 2;
  const [made, value] = model(old ? z3.z : z, 0);
  if (!made.safeParse(value).success) continue;
  let schema;
  try {
    schema = old ? zodToJsonSchema(made, { $refStrategy: choice(["root", "none"]), target: choice(["jsonSchema7", "openApi3", "jsonSchema2019-09"]) })
      : z.toJSONSchema(made, { target: choice(["draft-2020-12", "draft-7"]), io: choice(["input", "output"]), reused: choice(["inline", "ref"]) });
  } catch {
    continue;
  }
  const words = JSON.stringify(schema);
  if (seen.has(words) || words.length > 1300) continue;
  seen.add(words);
  // A key of which the schema has no property comes last.
  console.log(`{"from":"${old ? "zod-to-json-schema" : "zod"}","schema":${words},"instance":${JSON.stringify(value)}}`);
}
