// Runs the model of the page in a worker: the page sends commands and receives text, the conversation, or an error of one sentence.
import { ExportError, load } from "./rwkv-gpu.js";

const KEPT = "rwkv-gpu conversations"; // the browser's store of the page's conversation
let model = null;
let chat = null;
let base = "";
let stop = new AbortController();

const view = () => ({ messages: chat.messages, settings: chat.settings, think: chat.think, thinks: Object.keys(model.manifest.chat.think).length > 0, branch: chat.current, branches: chat.branches.length, warning: model.warning });

async function stored(work) {
  try {
    return await work(await caches.open(KEPT), new URL("conversation.rwkvchat", base).href);
  } catch {
    return null; // pages from files have no store
  }
}

async function answer(pieces, say) {
  for await (const piece of pieces) say(piece);
  const bytes = await chat.save({ state: false });
  await stored((store, url) => store.put(url, new Response(bytes)));
  return view();
}

// The page's settings are those of the branch.
function asked({ settings, think }, say) {
  chat.set({ stop: chat.settings.stop, ...settings });
  chat.think = think;
  return { signal: stop.signal, onReasoning: (piece) => say(piece, true) };
}

const COMMANDS = {
  async open({ address, manifest, shards, link }) {
    base = address;
    const progress = (done, total) => postMessage({ progress: [done, total] });
    const source = manifest ? { manifest, shard: async (index) => new Uint8Array(shards[index]) } : new URL("./", address);
    model = await load(source, { progress });
    chat = null;
    const kept = link ? null : await stored(async (store, url) => new Uint8Array(await (await store.match(url)).arrayBuffer()));
    if (kept) chat = await model.openChat(kept).catch(() => null);
    chat ??= model.chat();
    if (link) chat = await model.fromLink(link);
    return { ...view(), name: model.manifest.model.name };
  },
  send: (given, say) => answer(chat.send(given.text, asked(given, say)), say),
  regenerate: (given, say) => answer(chat.regenerate(asked(given, say)), say),
  edit: (given, say) => answer(chat.edit(given.number, given.text, asked(given, say)), say),
  select: ({ number }) => (chat.select(number), view()),
  begin(given) {
    chat = model.chat(given);
    return view();
  },
  async read({ bytes }) {
    chat = await model.openChat(new Uint8Array(bytes));
    return view();
  },
  save: ({ half }) => chat.save({ half }),
  link: () => model.toLink(chat),
};

addEventListener("message", async ({ data: { id, command, ...given } }) => {
  if (command === "stop") return stop.abort();
  stop = new AbortController();
  try {
    postMessage({ id, value: await COMMANDS[command](given, (piece, reasons = false) => postMessage({ id, piece, reasons })) });
  } catch (error) {
    const sentence = error instanceof ExportError ? error.message : `The page failed: ${error.message}`;
    postMessage({ id, error: sentence, value: chat && model ? view() : undefined });
  }
});
