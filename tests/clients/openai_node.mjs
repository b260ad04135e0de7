// OpenAI's client for JavaScript against the server whose base URL is the argument: prints what it got as JSON.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const ask = { model: "quiet", messages: [{ role: "user", content: "Hi" }], max_tokens: 6, temperature: 0 };

const whole = await client.chat.completions.create(ask);
let streamed = "";
for await (const chunk of await client.chat.completions.create({ ...ask, stream: true })) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
}
const models = [];
for await (const model of client.models.list()) models.push(model.id);
const vector = (await client.embeddings.create({ model: "quiet", input: "The sea" })).data[0].embedding;
const response = await client.responses.create({ model: "quiet", input: "Hi", max_output_tokens: 6, temperature: 0 });

const parameters = {
  type: "object", properties: { city: { enum: ["Rome"] } }, required: ["city"], additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "weather", parameters } }];
const calling = { ...ask, max_tokens: 300, tools, tool_choice: "required", parallel_tool_calls: false };
const read = ({ name, arguments: text }) => ({ name, arguments: JSON.parse(text) });
const call = (await client.chat.completions.create(calling)).choices[0].message.tool_calls[0].function;
const final = await client.chat.completions.stream(calling).finalChatCompletion();
const streamedCall = final.choices[0].message.tool_calls[0].function;
const responseStream = client.responses.stream({
  model: "quiet", input: "Hi", max_output_tokens: 300, tools: [{ type: "function", name: "weather", parameters }],
  tool_choice: "required", parallel_tool_calls: false,
});
const responseCall = (await responseStream.finalResponse()).output.find((item) => item.type === "function_call");
let refused = null;
try {
  await client.chat.completions.create({ ...ask, model: "nothing" });
} catch (error) {
  refused = error.status;
}
const text = whole.choices[0].message.content;
console.log(JSON.stringify({
  text, streamed, models, size: vector.length, response: response.output_text, refused,
  call: read(call), streamedCall: read(streamedCall), responseCall: read(responseCall),
}));
