// Anthropic's client for JavaScript against the server whose base URL is the argument: prints what it got as JSON.
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.argv[2].replace(/\/v1$/, ""), apiKey: "none", maxRetries: 0 });
const ask = { model: "quiet", messages: [{ role: "user", content: "Hi" }], max_tokens: 6, temperature: 0 };

const whole = await client.messages.create(ask);
const stream = client.messages.stream(ask);
let streamed = "";
stream.on("text", (text) => { streamed += text; });
const last = await stream.finalMessage();
const count = await client.messages.countTokens({ model: "quiet", messages: ask.messages });
const city = { type: "object", properties: { city: { enum: ["Rome"] } }, required: ["city"], additionalProperties: false };
const tools = [{ name: "weather", description: "of a city", input_schema: city }];
const choice = { type: "tool", name: "weather", disable_parallel_tool_use: true };
const calling = { ...ask, max_tokens: 300, tools, tool_choice: choice };
const call = (await client.messages.create(calling)).content[0];
const streamedCall = (await client.messages.stream(calling).finalMessage()).content[0];
let refused = null;
try {
  await client.messages.create({ ...ask, model: "nothing" });
} catch (error) {
  refused = [error instanceof Anthropic.NotFoundError, error.status];
}
console.log(JSON.stringify({
  text: whole.content[0].text, streamed, final: last.content[0].text, reason: last.stop_reason,
  counted: count.input_tokens, prompt: whole.usage.input_tokens + whole.usage.cache_read_input_tokens,
  call: [call.type, call.name, call.input], streamedCall: [streamedCall.type, streamedCall.name, streamedCall.input],
  refused,
}));
