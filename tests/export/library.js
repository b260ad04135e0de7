// What test_library.py runs in a browser: downloads, and a small model.
import { Shards } from "./shards.js";
import { checkManifest } from "./manifest.js";
import { load, Model } from "./rwkv-gpu.js";
import { readFile, writeFile } from "./conversation.js";

const sentence = async (work) => {
  try {
    await work();
    return "no error";
  } catch (error) {
    return `${error.constructor.name}: ${error.message}`;
  }
};
const sha = async (bytes) => Array.from(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)), (byte) => byte.toString(16).padStart(2, "0")).join("");

// Downloads with servers and stores that fail.
export async function downloads() {
  const data = Uint8Array.from({ length: 1000 }, (_, at) => at % 251);
  const row = { file: "a.bin", bytes: 1000, sha256: await sha(data) };
  const base = new URL("./nowhere/", location.href);
  const found = {};
  const requests = [];
  const original = { fetch: globalThis.fetch, put: Cache.prototype.put };
  const serve = (answer) => { globalThis.fetch = async (url, options = {}) => { requests.push(options.headers?.Range ?? "all"); return answer(options.headers?.Range); }; };
  const read = (options) => new Shards({ shards: [row] }, base, options).read(0);
  const tries = {
    cut: () => new Response(data.slice(0, 500)),
    long: () => new Response(new Uint8Array(2000)),
    changed: () => new Response(data.map((byte) => byte ^ 1)),
    missing: () => new Response("", { status: 404 }),
    offline: () => { throw new TypeError("network"); },
  };
  for (const [name, answer] of Object.entries(tries)) {
    serve(answer);
    found[name] = await sentence(() => read());
  }
  requests.length = 0;
  // Each connection breaks after 300 bytes, and the next goes on from there.
  serve((range) => {
    const start = Number(range?.match(/\d+/)[0] ?? 0);
    return { ok: true, status: range ? 206 : 200, body: pieces(data.slice(start, start + 300), start + 300 < 1000) };
  });
  const steps = [];
  found.resumed = await sentence(() => read({ progress: (done) => steps.push(done) }));
  found.ranges = [...requests];
  found.progress = steps;
  serve(() => { throw new TypeError("network"); });
  found.stored = await sentence(() => read());
  const store = await caches.open("rwkv-gpu shards");
  const url = new URL("a.bin", base).href;
  await store.put(url, new Response(new Uint8Array(1000)));
  await store.put(new URL("old.bin", base).href, new Response("old"));
  requests.length = 0;
  serve(() => new Response(data));
  found.repaired = [await sentence(() => read()), requests.length];
  await new Shards({ shards: [row] }, base).tidy();
  found.tidy = (await store.keys()).map((one) => one.url.split("/").at(-1));
  // Two tabs: one download.
  await store.delete(url);
  requests.length = 0;
  await Promise.all([read(), read()]);
  found.tabs = requests.length;
  await store.delete(url);
  Cache.prototype.put = () => Promise.reject(new DOMException("full", "QuotaExceededError"));
  const full = new Shards({ shards: [row] }, base);
  found.full = [(await full.read(0)).length, full.warning];
  Cache.prototype.put = original.put;
  const stopped = AbortSignal.abort();
  found.aborted = (await sentence(() => read({ signal: stopped }))).split(":")[0];
  globalThis.fetch = original.fetch;
  return found;

  function pieces(bytes, breaks) {
    let sent = false;
    return new ReadableStream({
      pull(controller) {
        if (!sent) controller.enqueue(bytes);
        else if (breaks) controller.error(new TypeError("network"));
        else controller.close();
        sent = true;
      },
    }, { highWaterMark: 0 });
  }
}

// Browsers without WebGPU, without a GPU, or with too little.
export async function adapters() {
  const { openDevice } = await import("./engine.js");
  const manifest = await (await fetch("model.json")).json();
  const plain = { features: new Set(), info: {}, limits: { maxBufferSize: 2 ** 28 }, requestDevice: async () => ({}) };
  const tries = {
    fine: plain,
    nothing: undefined,
    "no adapter": null,
    "small buffers": { ...plain, limits: { maxBufferSize: 1000 } },
    "no device": { ...plain, requestDevice: async () => { throw new Error("busy"); } },
    "no features": { ...plain, needs: true },
  };
  const found = {};
  for (const [name, adapter] of Object.entries(tries)) {
    const gpu = adapter === undefined ? undefined : { requestAdapter: async () => adapter, wgslLanguageFeatures: new Set() };
    Object.defineProperty(globalThis, "navigator", { value: { gpu }, configurable: true });
    const variants = manifest.variants.map((one) => (adapter?.needs ? { ...one, wgsl: ["an_extension"] } : one));
    found[name] = await sentence(() => openDevice({ ...manifest, variants }));
  }
  return found;
}

// A GPU that is lost while the engine waits for the n-th promise of a kind: the promise fails without a reason, or never settles.
export async function losses() {
  const { Engine } = await import("./engine.js");
  const manifest = await (await fetch("model.json")).json();
  Object.assign(globalThis, { GPUBufferUsage: {}, GPUShaderStage: {}, GPUMapMode: {} });
  Object.defineProperty(globalThis, "navigator", { value: { gpu: { wgslLanguageFeatures: new Set() } }, configurable: true });
  const nothing = () => ({});
  const found = {};
  for (const [stage, place] of [["compile", 1], ["compile", 5], ["errors", 1], ["errors", 2], ["map", 1], ["map", 3], ["map", 4]]) {
    for (const fails of [false, true]) {
      const counts = {};
      let lose;
      const promise = (name, value) => {
        counts[name] = (counts[name] ?? 0) + 1;
        if (name !== stage || counts[name] !== place) return Promise.resolve(value);
        setTimeout(lose, 20, { reason: "unknown", message: "It crashed." });
        return fails ? Promise.reject(new Error("dropped")) : new Promise(() => {});
      };
      const buffer = { mapAsync: () => promise("map"), getMappedRange: () => new ArrayBuffer(16), unmap() {}, destroy() {} };
      const pass = { setPipeline() {}, setBindGroup() {}, dispatchWorkgroups() {}, end() {} };
      const device = {
        lost: new Promise((done) => { lose = done; }), features: new Set(), adapterInfo: {}, queue: { writeBuffer() {}, submit() {} },
        createBuffer: () => buffer, createBindGroup: nothing, createBindGroupLayout: nothing, createPipelineLayout: nothing, createShaderModule: nothing,
        createComputePipelineAsync: () => promise("compile", {}), pushErrorScope() {}, popErrorScope: () => promise("errors", null),
        createCommandEncoder: () => ({ beginComputePass: () => pass, copyBufferToBuffer() {}, finish() {} }), addEventListener() {}, destroy() {},
      };
      found[`${stage} ${place} ${fails}`] = await sentence(async () => {
        const engine = await Engine.open(manifest, async (index) => new Uint8Array(manifest.shards[index].bytes), { device });
        let tokens = 0;
        for await (const token of engine.generate([1], { temperature: 0 }, 3)) tokens += 1 + token;
        if (tokens === 3) await engine.saveState();
      });
    }
  }
  return found;
}

// Manifests with false sizes.
export async function manifests() {
  const text = await (await fetch("model.json")).text();
  const found = {};
  const tries = {
    fine: () => {},
    kind: (m) => { m.kind = "x"; },
    version: (m) => { m.format = 99; },
    "huge buffer": (m) => { m.buffers[0].bytes = 2 ** 40; },
    "negative buffer": (m) => { m.buffers[0].bytes = -4; },
    "data gap": (m) => { m.buffers.find(({ data }) => data !== undefined).data = 4; },
    "long shard": (m) => { m.shards[0].bytes += 4; },
    "path in a name": (m) => { m.shards[0].file = "../../secret"; },
    "address in a name": (m) => { m.shards[0].file = "https://evil.example/x"; },
    "no digest": (m) => { delete m.shards[0].sha256; },
    "binding outside": (m) => { m.variants[0].plans[0].dispatches[0][2][0][3] = 2 ** 27; },
    "buffer outside": (m) => { m.variants[0].plans[0].dispatches[0][2][0][1] = 9999; },
    "shader outside": (m) => { m.variants[0].plans[0].dispatches[0][0] = 9999; },
    "grid": (m) => { m.variants[0].plans[0].dispatches[0][1] = [1e9, 1, 1]; },
    "input outside": (m) => { m.variants[0].plans[0].step.inputs.ids.offset = 1e6; },
    "no plans": (m) => { m.variants[1].plans = []; },
    "no variants": (m) => { m.variants = []; },
    "text outside": (m) => { m.shaders[0].source[0] = 1e6; },
    "wrong features": (m) => { m.variants[0].features = "subgroups"; },
    "no outputs": (m) => { delete m.variants[0].plans[0].outputs.chosen; },
    "state": (m) => { m.states[0].shape = [1e9]; },
    "binding of another kind": (m) => { m.shaders[0].bindings[0][1] = "x"; },
    "no tokenizer": (m) => { delete m.tokenizer; },
    "piece": (m) => { m.tokenizer.pieces[5] = null; },
    "special": (m) => { m.tokenizer.special = [5]; },
    "chat": (m) => { m.chat = {}; },
    "edits": (m) => { m.chat.edits.user = "("; },
    "think": (m) => { m.chat.think = null; },
    "think on": (m) => { m.chat.think = { true: { opening: 5 } }; },
    "ends": (m) => { m.chat.ends = null; },
    "null": (m) => { m.buffers = null; },
  };
  for (const [name, change] of Object.entries(tries)) {
    const manifest = JSON.parse(text);
    change(manifest);
    found[name] = await sentence(() => checkManifest(manifest));
  }
  found["no template"] = await sentence(() => new Model({ ...JSON.parse(text), chat: null }).chat());
  return found;
}

const all = async (pieces) => {
  let text = "";
  for await (const piece of pieces) text += piece;
  return text;
};

const bytes = async (name) => new Uint8Array(await (await fetch(name)).arrayBuffer());
const base64 = (data) => btoa(Array.from(data, (byte) => String.fromCharCode(byte)).join(""));

// A conversation that the command began, with its settings: one more answer, and one with reasoning.
export async function continued() {
  const model = await load(".", { store: false });
  const talk = await model.openChat(await bytes("talk.rwkvchat"));
  const thought = talk.think;
  await all(talk.send("So?"));
  const saved = base64(await talk.save());
  talk.think = true;
  await all(talk.send("And then?"));
  return { thought, saved, last: base64(await talk.save()) };
}

// A small model: text, conversations, states, and a lost GPU.
export async function model() {
  const found = {};
  let device = null;
  const request = GPUAdapter.prototype.requestDevice;
  GPUAdapter.prototype.requestDevice = async function (...options) { return (device = await request.apply(this, options)); };
  const model = await load(".", { store: false });
  const greedy = { temperature: 0, maxTokens: 12 };

  found.text = await all(model.generate("Hello there", greedy));
  found.limited = await sentence(() => all(model.generate("Hi", { temperature: -1 })));
  found.unknown = await sentence(() => all(model.generate("Hi", { temprature: 1 })));
  found.empty = await sentence(() => all(model.generate("")));

  // A state goes to another sequence and back.
  const state = await model.saveState();
  await all(model.generate("Something else", greedy));
  const ids = await model.loadState(state);
  const { notes, arrays, model: identity } = await readFile(state);
  found.foreign = await sentence(async () => model.loadState(await writeFile({ ...identity, digest: "0".repeat(64) }, notes, arrays)));
  const wrong = { ...arrays, [Object.keys(arrays)[1]]: { type: "float32", shape: [1], bytes: new Uint8Array(4) } };
  found.misshapen = await sentence(async () => model.loadState(await writeFile(identity, notes, wrong)));
  found.state = [ids.length, (await all(model.generate([...ids, 5], greedy))) === (await all(model.generate([...ids, 5], greedy)))];

  const small = await model.saveState({ half: true });
  found.half = [small.length / state.length, (await model.loadState(small)).length];

  // A conversation that Python began.
  const talk = await model.openChat(await bytes("talk.rwkvchat"));
  await all(talk.send("So?", greedy));
  found.continued = [...talk.messages.map(({ content }) => content)];
  found.tokens = talk.branches[0].transcript.ids;
  found.savedHalf = base64(await talk.save({ half: true }));
  found.saved = base64(await talk.save());

  // Stop, regenerate, edit.
  const chat = model.chat({ settings: greedy });
  const control = new AbortController();
  let count = 0;
  for await (const piece of chat.send("Tell me", { signal: control.signal, maxTokens: 200 })) if (piece && ++count === 3) control.abort();
  found.stopped = [chat.messages.length, chat.messages[1].content.length > 0, chat.branches[0].transcript.ids.length < 60];
  await all(chat.send("And?"));
  const [first, second] = [chat.messages[1].content, chat.messages[3].content];
  await all(chat.regenerate());
  found.regenerated = [chat.branches.length, chat.current, chat.messages[1].content === first, chat.messages[3].content === second];
  await all(chat.edit(0, "Another question"));
  found.edited = [chat.branches.length, chat.messages.length, chat.messages[0].content];
  chat.select(0);
  found.selected = chat.messages.length;
  found.notThere = await sentence(() => chat.select(9));
  found.linked = (await model.fromLink(await model.toLink(chat))).branches.length;

  // Two answers at once wait for each other.
  const [one, two] = await Promise.all([all(model.generate("Hello there", greedy)), all(model.generate("Hello there", greedy))]);
  found.together = one === found.text && two === found.text;

  // A lost GPU.
  found.lost = await sentence(async () => {
    for await (const piece of model.generate("Hello there", { ...greedy, maxTokens: 500 })) if (piece) device.destroy();
  });
  found.again = (await all(model.generate("Hello there", greedy))) === found.text;
  model.close();
  return found;
}
