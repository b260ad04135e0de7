// The library: loads an exported model in a page or a worker, generates text, and answers in conversations.
import { Engine, halved } from "./engine.js";
import { checkManifest, ExportError, need } from "./manifest.js";
import { Tokenizer } from "./tokenizer.js";
import { Shards } from "./shards.js";
import { fromLink, readConversation, readState, toLink, writeState } from "./conversation.js";
import { Reader } from "./reader.js";
import { Chat, settingsOf } from "./chat.js";

export { Chat, ExportError };

const MARKS = 4; // stored states of earlier prompts, which other questions continue
const MAX_MANIFEST = 256 << 20;

/**
 * @typedef {object} Settings
 * @property {number} [temperature] 0 is greedy; the default is 0.8 in a chat, and 0 in `generate`
 * @property {number} [topK]
 * @property {number} [topP]
 * @property {number} [minP]
 * @property {number} [seed] equal seeds give equal answers
 * @property {number} [maxTokens]
 * @property {string | string[]} [stop] texts that end the answer
 * @property {AbortSignal} [signal] ends the answer early
 * @property {(text: string) => void} [onReasoning] receives the reasoning before an answer of a chat
 * @property {(read: number, total: number) => void} [onPrompt] receives the tokens of the prompt of a chat that the model has read
 */

/**
 * Loads an exported model.
 * @param {string | URL | { manifest: object, shard: (index: number) => Promise<Uint8Array> }} source the folder of an export, or its parts
 * @param {object} [options]
 * @param {(done: number, total: number) => void} [options.progress] bytes so far
 * @param {boolean} [options.store] whether the browser stores the model for the next visit; true by default
 * @param {AbortSignal} [options.signal] stops the download
 * @returns {Promise<Model>}
 */
export async function load(source, { progress = () => {}, store = true, signal = null } = {}) {
  if (source.manifest) return new Model(source.manifest, source.shard).open(progress);
  const base = new URL(source, globalThis.document?.baseURI ?? globalThis.location?.href);
  if (!base.pathname.endsWith("/")) base.pathname += "/";
  const manifest = await readManifest(new URL("model.json", base), signal);
  checkManifest(manifest);
  const shards = new Shards(manifest, base, { signal, progress, store });
  const model = await new Model(manifest, (index) => shards.read(index)).open(() => {});
  await shards.tidy();
  model.warning = shards.warning;
  return model;
}

async function readManifest(url, signal) {
  const response = await fetch(url, { signal }).catch(() => null);
  signal?.throwIfAborted();
  need(response?.ok, "The file model.json of the export cannot be read; check the address and the connection.");
  need(Number(response.headers.get("Content-Length") ?? 0) <= MAX_MANIFEST, "The manifest is too large.");
  return response.json().catch(() => need(false, "The file model.json is damaged; export the model again."));
}

/** A loaded model. It computes one answer at a time. */
export class Model {
  #shard;
  #engine = null;
  #ids = null; // what the engine has read; null: unknown
  #last = []; // the tokens of the last text and its answer
  #marks = []; // states to go back to: ids and arrays
  #busy = Promise.resolve();
  warning = null;

  constructor(manifest, shard) {
    checkManifest(manifest);
    this.manifest = manifest;
    this.#shard = shard;
    this.tokenizer = new Tokenizer(manifest.tokenizer);
  }

  /** Loads the weights onto the GPU. After a loss of the GPU, the next answer does so again. */
  async open(progress = () => {}) {
    if (this.#engine && !this.#engine.gone) return this;
    this.#ids = null;
    this.#engine?.close();
    this.#engine = await Engine.open(this.manifest, this.#shard, { progress });
    return this;
  }

  /** Tokens of a conversation at most; null without a limit. */
  get context() {
    return this.manifest.caches.length ? this.manifest.model.context : null;
  }

  /** What identifies the model in files: its fingerprint, digest and vocabulary. */
  get identity() {
    return this.manifest.model;
  }

  /**
   * Continues a text, piece by piece.
   * @param {string | number[]} prompt a text, or token ids
   * @param {Settings} [settings]
   * @returns {AsyncGenerator<string>}
   */
  async *generate(prompt, { signal, ...given } = {}) {
    const ids = typeof prompt === "string" ? this.tokenizer.encode(prompt, { special: true }) : prompt;
    const settings = { temperature: 0, max_tokens: 128, ...settingsOf(given) };
    const reader = new Reader({ ends: [settings.stop ?? []].flat() });
    const parts = this.sample(ids, { ...settings, reader, stops: new Set(this.tokenizer.stops), signal });
    for await (const [text] of parts) yield text;
  }

  /**
   * Begins a conversation.
   * @param {{ system?: string, settings?: Settings }} [options]
   */
  chat(options) {
    return new Chat(this, options);
  }

  /** Continues the conversation of a file that this page, another page or Python wrote. If its state is of this model, it is used. */
  async openChat(bytes) {
    const conversation = await readConversation(bytes, this.identity);
    const { state } = conversation;
    if (state) await this.#alone(async () => this.#restore(state)).catch((error) => need(error instanceof ExportError, String(error)));
    return new Chat(this, { conversation });
  }

  /** A conversation as the letters after `#chat=` in a link; its state is left out. */
  async toLink(chat) {
    return toLink(await chat.save({ state: false }));
  }

  /** Continues the conversation of a link. */
  async fromLink(text) {
    return this.openChat(await fromLink(text));
  }

  /** The state after the last answer or prompt, as a file; in float16 with `half`, which is less exact. */
  async saveState({ half = false } = {}) {
    need(this.#last.length, "There is no state yet; generate first.");
    return writeState(this.identity, await this.stateOf(this.#last, half));
  }

  /** Restores a state: prompts that begin with its tokens are computed from there. Returns these tokens. */
  async loadState(bytes) {
    const state = await readState(bytes, this.identity);
    await this.#alone(async () => this.#restore(state));
    return state.ids;
  }

  #restore({ ids, arrays }) {
    this.#ids = null;
    this.#engine.loadState(ids.length, arrays);
    this.#ids = this.#last = ids;
    this.#mark({ ids, arrays });
  }

  #mark(state) {
    this.#marks = [state, ...this.#marks.filter(({ ids }) => ids.length !== state.ids.length || !begins(ids, state.ids))].slice(0, MARKS);
  }

  /** The state after some ids, computed if it is not stored. */
  async stateOf(ids, half = false) {
    return this.#alone(async () => {
      await this.#reach(ids);
      const arrays = await this.#engine.saveState();
      for (const { name } of half ? this.manifest.states : []) arrays[name] = halved(arrays[name]);
      return { ids, arrays };
    });
  }

  // Runs work that needs the engine, after all earlier work has ended.
  async #alone(work) {
    const release = await this.#turn();
    try {
      await this.open();
      return await work();
    } finally {
      release();
    }
  }

  #turn() {
    const before = this.#busy;
    let release;
    this.#busy = new Promise((done) => { release = done; });
    return before.then(() => release);
  }

  // Brings the engine to the state after some ids, from the nearest state that it has.
  async #reach(ids, signal = null, onPrompt = () => {}) {
    const engine = this.#engine;
    const known = this.#ids ?? [];
    this.#ids = null;
    let start = 0;
    if (known.length && begins(ids, known)) {
      start = known.length;
    } else if (engine.rewinds) {
      while (start < known.length && start < ids.length && known[start] === ids[start]) start++;
      engine.rewind(start);
    } else {
      const nearest = this.#marks.filter((mark) => begins(ids, mark.ids)).sort((a, b) => b.ids.length - a.ids.length)[0];
      engine.reset();
      if (nearest) engine.loadState(nearest.ids.length, nearest.arrays);
      start = nearest?.ids.length ?? 0;
    }
    if (start < ids.length) await engine.feed(ids.slice(start), null, 0, signal, (read) => onPrompt(start + read, ids.length));
    else onPrompt(start, ids.length);
    this.#ids = [...ids];
  }

  /** Yields the parts of the text after some ids, and puts its tokens into `answer`, whose `finish` becomes "stop" if it ends by itself. Control tokens in `shown` have a text. */
  async *sample(ids, { stops, reader, shown = [], signal, onPrompt, ...settings }, answer = { tokens: [] }) {
    need(ids.length > 0, "There are no tokens to read; give a text.");
    const release = await this.#turn();
    const text = this.tokenizer.stream(new Set(shown));
    const params = {
      temperature: settings.temperature, topK: settings.top_k, topP: settings.top_p, minP: settings.min_p,
      seed: BigInt(settings.seed ?? crypto.getRandomValues(new Uint32Array(1))[0]),
    };
    try {
      await this.open();
      signal?.throwIfAborted();
      await this.#reach(ids.slice(0, -1), signal, onPrompt);
      // A recurrent state cannot go back, so the state before the answer is kept for the next question.
      if (!this.#engine.rewinds && ids.length > 1) this.#mark({ ids: ids.slice(0, -1), arrays: await this.#engine.saveState() });
      this.#ids = null;
      for await (const id of this.#engine.generate(ids.slice(-1), params, settings.max_tokens)) {
        if (stops.has(id)) answer.finish = "stop";
        if (stops.has(id) || signal?.aborted) break;
        answer.tokens.push(id);
        yield* reader.feed(text.feed(id));
        if (reader.stopped === null) continue;
        answer.finish = "stop";
        break;
      }
      yield* reader.feed(text.flush());
      yield* reader.flush();
    } finally {
      this.#last = [...ids, ...answer.tokens];
      this.#settle(this.#last);
      release();
    }
  }

  // Cleans up after an answer: steps that ran ahead have read tokens that are not part of it.
  #settle(ids) {
    const engine = this.#engine;
    if (!engine || engine.gone || this.#ids) return;
    if (engine.rewinds) engine.rewind(Math.min(engine.length, ids.length));
    if (engine.length <= ids.length) this.#ids = ids.slice(0, engine.length);
  }

  /** Frees the memory of the GPU. */
  close() {
    this.#engine?.close();
    this.#engine = null;
  }
}

const begins = (ids, start) => start.length <= ids.length && start.every((id, at) => ids[at] === id);
