// Vercel's ai with one of its providers against the server of the argument: a loop with a tool, whole and streamed, and an object.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false; // they would come before the result
const [root, provider] = process.argv.slice(2);
const given = { baseURL: `${root}/v1`, apiKey: "none" };
const model = {
  responses: () => createOpenAI(given).responses("scripted"),
  chat: () => createOpenAI(given).chat("scripted"),
  anthropic: () => createAnthropic(given)("scripted"),
  compatible: () => createOpenAICompatible({ ...given, name: "own" })("scripted"),
}[provider]();
const called = [];
const weather = tool({
  description: "The weather of a city", inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => (called.push(city), `sunny, 21 degrees in ${city}`),
});
const ask = { model, maxRetries: 0, tools: { weather }, stopWhen: stepCountIs(3), prompt: "How is the weather in Rome?" };
const whole = await generateText(ask);
const stream = streamText({ ...ask, onError: ({ error }) => { throw error; } });
let streamed = "";
for await (const piece of stream.textStream) streamed += piece;
const steps = (await stream.steps).length;
const { object } = await generateObject({ model, maxRetries: 0, prompt: "Where?", schema: z.object({ city: z.string() }) });
console.log(JSON.stringify({ text: whole.text, reasoning: whole.steps[0].reasoningText ?? null, streamed, steps, called, object }));
