// Runs the `openai` package of npm, unchanged, against a server: `clients.mjs PATH_OF_PACKAGE PORT`.
import assert from "node:assert";
import { pathToFileURL } from "node:url";

const { default: OpenAI } = await import(pathToFileURL(`${process.argv[2]}/index.mjs`));
const client = new OpenAI({ baseURL: `http://127.0.0.1:${process.argv[3]}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Tell me a story about a brave owl." }];
const ask = { model: "demo", messages, max_tokens: 24 };

const whole = await client.chat.completions.create(ask);
const text = whole.choices[0].message.content;
assert(text.startsWith("Once upon a time"), text);
assert.equal(whole.usage.completion_tokens, 24);

let streamed = "";
for await (const chunk of await client.chat.completions.create({ ...ask, stream: true })) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
}
assert.equal(streamed, text);

const parameters = {
  type: "object",
  properties: { days: { type: "integer", minimum: 0, maximum: 9 } },
  required: ["days"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "weather", parameters } }];
const more = { ...ask, max_tokens: 80, tools, tool_choice: "required" };
const call = (await client.chat.completions.create(more)).choices[0].message.tool_calls[0];
assert(Number.isInteger(JSON.parse(call.function.arguments).days), call.function.arguments);
const final = await client.chat.completions.stream(more).finalChatCompletion();
assert.equal(final.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);

const embedded = await client.embeddings.create({ model: "embedder", input: "hi" });
assert(embedded.data[0].embedding.length > 3);

const response = await client.responses.create({ model: "demo", input: messages[0].content, max_output_tokens: 24 });
assert.equal(response.output_text, text);

// A client that stops reading a stream ends the connection.
const stopped = await client.chat.completions.create({ ...ask, max_tokens: 400, stream: true });
for await (const chunk of stopped) {
  assert(chunk.id);
  break;
}
await assert.rejects(client.chat.completions.create({ ...ask, model: "other" }), OpenAI.NotFoundError);
console.log("good");
