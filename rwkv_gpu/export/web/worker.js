// Runs the model of the page in a worker, which keeps no conversations: the page sends messages, and receives chunks as from OpenAI's API.
import { ExportError, need } from "./manifest.js";
import { fromLink, toLink } from "./conversation.js";
import { Chat, Transcript } from "./chat.js";
import { load } from "./rwkv-gpu.js";

const MAX_RECENT = 16;
const recent = []; // newest first: messages, and the transcript of what the model has read of them
const signals = new Map(); // AbortControllers by number of the command
let source = null;
let opening = null;

const sentenceOf = (error) => (error instanceof ExportError ? error.message : `The page failed: ${error.message}`);

// The model. If loading fails, the next command loads it again.
function opened() {
  opening ??= load(source, { progress: (...loading) => postMessage({ loading }) }).then((model) => {
    const { manifest: { model: { name }, chat }, context, warning } = model;
    postMessage({ loaded: { name, context, warning, can_think: Object.keys(chat.think).length > 0 } });
    return model;
  }).catch((error) => {
    opening = null;
    postMessage({ failure: sentenceOf(error) });
    throw error;
  });
  return opening;
}

function remember({ messages, transcript }) {
  recent.unshift({ messages, transcript });
  recent.length = Math.min(recent.length, MAX_RECENT);
}

// Messages of an API as rows of a conversation. Messages of the same role that follow each other become one.
function rowsOf(messages) {
  const rows = [];
  for (const { role, content, reasoning_content: reasoning = "" } of messages) {
    need(typeof content === "string" && role !== "tool", "The conversation has images or tool calls, which this page cannot answer; open it in rwkv-gpu.");
    if (rows.at(-1)?.role === role) rows.at(-1).content += `\n\n${content}`;
    else rows.push({ role, content, reasoning, raw: null });
  }
  need(rows.find(({ role }) => role !== "system")?.role === "user", "A conversation begins with a question.");
  return rows;
}

// The recent conversation that begins with most of these rows: its transcript, and the rows with the answers as generated.
function known(rows) {
  const same = (a, b) => a?.role === b.role && a.content.trim() === b.content.trim();
  let found = { rows, transcript: new Transcript(), whole: false };
  let most = 0;
  for (const { messages, transcript } of recent) {
    let count = 0;
    while (count < rows.length && same(messages[count], rows[count])) count++;
    if (count <= most) continue;
    most = count;
    found = { rows: [...messages.slice(0, count), ...rows.slice(count)], transcript, whole: count === rows.length && count === messages.length };
  }
  return found;
}

const thinks = ({ chat_template_kwargs: { enable_thinking: think = null } = {} }) => think;

async function answer(body, tell, signal) {
  const model = await opened();
  const { rows, transcript } = known(rowsOf(body.messages));
  const begun = body.continue_final_message ? rows.pop() : null;
  const question = rows.pop();
  need(question?.role === "user", "Only a question can be answered.");
  const chat = new Chat(model, { conversation: { branches: [{ messages: rows, transcript, settings: body, think: thinks(body) }], current: 0 } });
  const [began, told] = [performance.now(), (delta) => tell({ choices: [{ delta }] })];
  let cached = null;
  const onPrompt = (processed, total) => {
    cached ??= processed;
    tell({ prompt_progress: { total, processed, cache: cached, time_ms: performance.now() - began } });
  };
  try {
    for await (const content of chat.send(question.content, { signal, begun, onPrompt, onReasoning: (text) => told({ reasoning_content: text }) })) told({ content });
  } finally {
    if (chat.messages.length > rows.length) remember(chat.branches[0]);
  }
  const { prompt, completion, finish } = chat.usage;
  tell({ choices: [{ delta: {}, finish_reason: finish }], usage: { prompt_tokens: prompt, completion_tokens: completion, prompt_tokens_details: { cached_tokens: cached ?? 0 } } });
}

// A chat with the branches of a request.
async function conversation({ branches, current }) {
  const model = await opened();
  const rows = branches.map(({ messages, settings, think = null }) => {
    const found = known(rowsOf(messages));
    return { messages: found.rows, transcript: found.whole ? found.transcript : new Transcript(), settings, think };
  });
  return new Chat(model, { conversation: { branches: rows, current } });
}

const COMMANDS = {
  async open({ address, manifest, shards }) {
    source = manifest ? { manifest, shard: async (index) => new Uint8Array(shards[index]) } : new URL("./", address);
    await opened();
  },
  answer,
  async read({ bytes }) {
    const chat = await (await opened()).openChat(new Uint8Array(bytes));
    for (const branch of [...chat.branches, chat.branches[chat.current]]) remember(branch);
    const branches = chat.branches.map(({ messages, settings, others, think }) => ({
      messages: messages.map(({ role, content, reasoning }) => ({ role, content, reasoning_content: reasoning })), settings: { ...others, ...settings }, think,
    }));
    return { branches, current: chat.current, state: false };
  },
  write: async ({ half, ...body }) => (await conversation(body)).save({ half }),
  link: async (body) => toLink(await (await conversation(body)).save({ state: false })),
  unpack: ({ letters }) => fromLink(letters),
};

addEventListener("message", async ({ data: { id, name, given } }) => {
  if (name === "stop") return signals.get(id)?.abort();
  const control = new AbortController();
  signals.set(id, control);
  try {
    postMessage({ id, value: await COMMANDS[name](given, (chunk) => postMessage({ id, chunk }), control.signal) });
  } catch (error) {
    postMessage({ id, error: sentenceOf(error) });
  }
  signals.delete(id);
});
