// Writes JSON schemas of TypeBox, and instances that TypeBox made and checked, for `schemas.jsonl`.
//
//     npm install @sinclair/typebox@0.34.52
//     node schemas_typebox.mjs 400 > typebox.jsonl
//
// The schemas are random compositions of types with a fixed seed.
import { Type as T, FormatRegistry } from "@sinclair/typebox";
import { Value } from "@sinclair/typebox/value";

let state = 63;
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
for (const name of ["email", "uri", "date-time", "custom", "uuid"]) FormatRegistry.Set(name, () => true);

let serial = 0;
const leaves = [
  () => [T.String(), "a"], () => [T.String({ minLength: 1, maxLength: 9 }), "fox"], () => [T.String({ pattern: "^[a-z]+$" }), "fox"],
  () => [T.String({ format: "email" }), "fox@example.com"], () => [T.String({ format: "uri" }), "https://example.com"],
  () => [T.String({ format: "date-time" }), "2024-02-03T04:05:06Z"], () => [T.String({ format: "custom" }), "anything"],
  () => [T.Number(), 1.5], () => [T.Number({ minimum: 0, exclusiveMaximum: 10 }), 9.75], () => [T.Integer(), -4],
  () => [T.Integer({ minimum: 1, maximum: 65535 }), 8080], () => [T.Number({ multipleOf: 0.25 }), 0.75], () => [T.BigInt(), undefined],
  () => [T.Boolean(), false], () => [T.Null(), null], () => [T.Any(), [1]], () => [T.Unknown(), "x"], () => [T.Never(), undefined],
  () => [T.Literal("a"), "a"], () => [T.Literal(0.3), 0.3], () => [T.Literal(true), true], () => [T.Enum({ A: "a", B: 2 }), 2],
  () => [T.Union([T.Literal("x"), T.Literal("y"), T.Literal("z")]), "z"], () => [T.RegExp(/^\d+$/), "12"],
  () => [T.TemplateLiteral([T.Literal("on"), T.Union([T.Literal("Open"), T.Literal("Close")])]), "onClose"],
  () => [T.Unsafe({ type: "string", enum: ["p", "q"] }), "q"], () => [T.Date(), undefined], () => [T.Uint8Array(), undefined],
  () => [T.Not(T.String()), 5], () => [T.String({ title: "T", default: "d", examples: ["e"] }), "e"],
];

function composed(depth) {
  if (depth > 2 || random() < 0.5) return choice(leaves)();
  const [inner, value] = composed(depth + 1);
  const [other, another] = choice(leaves)();
  return choice([
    () => [T.Array(inner), [value, value]], () => [T.Array(inner, { minItems: 1, maxItems: 4 }), [value]],
    () => [T.Array(T.Union([T.Literal("a"), T.Literal("b"), T.Literal("c")]), { uniqueItems: true }), ["c", "a"]],
    () => [T.Array(inner, { uniqueItems: true }), [value]], () => [T.Tuple([inner, other]), [value, another]],
    () => [T.Array(T.Any(), { contains: T.Literal("a") }), ["a"]],
    () => [T.Record(T.String(), inner), { a: value }], () => [T.Record(T.String({ pattern: "^[a-z]{2}$" }), inner), { en: value }],
    () => [T.Record(T.Union([T.Literal("x"), T.Literal("y")]), inner), { x: value, y: value }], () => [T.Record(T.Number(), inner), { 5: value }],
    () => [T.Union([inner, other]), value], () => [T.Union([inner, T.Null()]), null], () => model(depth), () => model(depth), () => model(depth), () => model(depth), () => model(depth),
  ])();
}

function model(depth) {
  const kind = random();
  if (kind < 0.1) {
    const [inner, value] = choice(leaves)();
    const made = T.Recursive((self) => T.Object({ value: inner, nodes: T.Array(self) }), { $id: `Node${serial++}` });
    return [made, { value, nodes: [{ value, nodes: [] }] }];
  }
  if (kind < 0.16) {
    const [inner, value] = choice(leaves)();
    const module = T.Module({ Leaf: T.Object({ value: inner }), Tree: T.Object({ leaf: T.Ref("Leaf"), next: T.Optional(T.Ref("Tree")) }) });
    return [module.Import("Tree"), { leaf: { value }, next: { leaf: { value } } }];
  }
  const shape = {}, values = {};
  for (const name of sample(WORDS, int(1, depth ? 3 : 5))) {
    let [inner, value] = composed(depth + 1);
    if (random() < 0.25) inner = T.Optional(inner);
    shape[name] = inner;
    values[name] = value;
  }
  let made = T.Object(shape, choice([{}, {}, { additionalProperties: false }, { additionalProperties: T.String() }, { $id: `Model${serial++}` }, { minProperties: 1 }]));
  if (kind < 0.24) {
    const more = T.Object({ more: T.Boolean() });
    return [choice([() => T.Intersect([made, more]), () => T.Intersect([made, more], { unevaluatedProperties: false }), () => T.Composite([made, more])])(), { ...values, more: true }];
  }
  if (kind < 0.3) made = T.Partial(made);
  if (kind < 0.34) return [T.Union([T.Object({ kind: T.Literal("a"), ...shape }), T.Object({ kind: T.Literal("b"), more: T.String() })]), { kind: "b", more: "" }];
  return [made, values];
}

const count = Number(process.argv[2]);
const seen = new Set();
while (seen.size < count) {
  const [made, value] = model(0);
  let valid = false;
  try {
    valid = Value.Check(made, value) && JSON.stringify(value) !== undefined;
  } catch {
    continue;
  }
  const words = JSON.stringify(made);
  if (!valid || seen.has(words) || words.length > 1200) continue;
  seen.add(words);
  console.log(`{"from":"typebox","schema":${words},"instance":${JSON.stringify(value)}}`);
}
