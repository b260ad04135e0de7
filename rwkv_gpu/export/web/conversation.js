// Conversation files: a header, notes as JSON, arrays, and a checksum. Python reads and writes the same files.
import { ExportError, need, whole } from "./manifest.js";
import { bytesOf } from "./tokenizer.js";

const MAGIC = "RWKVGPU3";
const KIND = "rwkv-gpu chat 2";
const STATE_KIND = "rwkv-gpu state 1";
const DIGEST = 32; // bytes of the checksum
const MAX_TEXT = 1 << 29; // bytes of a header, and of notes
const MAX_LINK = 1 << 20; // bytes of a conversation in a link
const TYPES = { uint8: 1, uint16: 2, uint32: 4, uint64: 8, int8: 1, int16: 2, int32: 4, int64: 8, float16: 2, float32: 4, float64: 8 };
const DAMAGED = "The file is damaged or cut short; its parts or its checksum do not agree.";

const joined = async (parts) => new Uint8Array(await new Blob(parts).arrayBuffer());
const sha256 = async (bytes) => new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));

/** The bytes of a file of arrays `{ type, shape, bytes }` by name, and notes; `model` has its fingerprint and digest. */
export async function writeFile(model, notes, arrays) {
  const text = new TextEncoder().encode(JSON.stringify(notes));
  const rows = Object.entries(arrays).map(([name, { type, shape }]) => ({ name, dtype: type, shape }));
  const ids = { fingerprint: model.fingerprint, digest: model.digest };
  const header = new TextEncoder().encode(JSON.stringify({ model: ids, notes: text.length, arrays: rows }));
  const length = new Uint8Array(8);
  new DataView(length.buffer).setBigUint64(0, BigInt(header.length), true);
  const parts = [bytesOf(MAGIC), length, header, text, ...Object.values(arrays).map(({ bytes }) => bytes)];
  const data = await joined(parts);
  return joined([data, await sha256(data)]);
}

/** What `writeFile` wrote: model, notes and arrays. Every length is checked before it is used. */
export async function readFile(data) {
  const start = MAGIC.length + 8;
  need(data.length >= start + DIGEST && bytesOf(MAGIC).every((byte, at) => data[at] === byte), "The file is not a conversation of rwkv-gpu.");
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  const length = Number(view.getBigUint64(MAGIC.length, true));
  const end = data.length - DIGEST;
  need(length <= MAX_TEXT && start + length <= end, DAMAGED);
  const sum = await sha256(data.subarray(0, end));
  need(sum.every((byte, at) => byte === data[end + at]), DAMAGED);
  const header = parsed(data.subarray(start, start + length));
  let at = start + length;
  need(whole(header.notes, 0, Math.min(MAX_TEXT, end - at)) && Array.isArray(header.arrays), DAMAGED);
  const notes = parsed(data.subarray(at, (at += header.notes)));
  const arrays = Object.create(null);
  for (const { name, dtype, shape } of header.arrays) {
    need(typeof name === "string" && !(name in arrays) && Object.hasOwn(TYPES, dtype) && Array.isArray(shape), DAMAGED);
    need(shape.length <= 16 && shape.every((size) => whole(size, 0, 2 ** 31)), DAMAGED);
    const bytes = TYPES[dtype] * shape.reduce((a, b) => a * b, 1);
    need(whole(bytes, 0, end - at), DAMAGED);
    arrays[name] = { type: dtype, shape, bytes: data.slice(at, (at += bytes)) };
  }
  need(at === end, DAMAGED);
  return { model: header.model ?? {}, notes, arrays };
}

function parsed(bytes) {
  let value = null;
  try {
    value = JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    // reported below
  }
  need(value && typeof value === "object", DAMAGED);
  return value;
}

const prefixed = (prefix, arrays) => Object.fromEntries(Object.entries(arrays).map(([name, array]) => [prefix + name, array]));
const stripped = (prefix, arrays) =>
  Object.fromEntries(Object.entries(arrays).filter(([name]) => name.startsWith(prefix)).map(([name, array]) => [name.slice(prefix.length), array]));

/** The file of branches `{ messages, transcript, settings, template, think, truncate, first }`, and of the state after some ids. */
export function writeConversation(model, { branches, current, state }) {
  const chats = branches.map(({ messages, settings, others = {}, template, think = null, truncate = null, first = 0 }) => ({
    messages: messages.map(({ role, content, reasoning = "", raw = null }) => [role, content, reasoning, raw]),
    template, think, truncate, first, settings: { ...others, ...settings },
  }));
  const arrays = prefixed("state/", state?.arrays ?? {});
  branches.forEach(({ transcript: { text, ids, cuts } }, number) => {
    const pairs = BigUint64Array.from(cuts.flat(), BigInt);
    Object.assign(arrays, prefixed(`${number}/`, {
      text: { type: "uint8", shape: [text.length], bytes: bytesOf(text) },
      ids: { type: "uint32", shape: [ids.length], bytes: new Uint8Array(Uint32Array.from(ids).buffer) },
      cuts: { type: "uint64", shape: [cuts.length, 2], bytes: new Uint8Array(pairs.buffer) },
    }));
  });
  return writeFile(model, { kind: KIND, current, length: state?.ids.length ?? 0, chats }, arrays);
}

/** Reads what `writeConversation` or Python wrote. The ids of another model, and the state of another file, are left out and computed again. */
export async function readConversation(data, model) {
  const { model: { fingerprint, digest }, notes, arrays } = await readFile(data);
  need(notes.kind === KIND, "The file has no conversation that this version can read.");
  const wrong = "The file is not a conversation as this version writes it.";
  const { chats, current, length } = notes;
  need(Array.isArray(chats) && chats.length && whole(current, 0, chats.length - 1), wrong);
  const same = fingerprint === model.fingerprint;
  const branches = chats.map((chat, number) => ({
    ...branchOf(chat, wrong),
    transcript: same ? transcriptOf(stripped(`${number}/`, arrays), model.vocabulary, wrong) : { text: "", ids: [], cuts: [[0, 0]] },
  }));
  const ids = branches[current].transcript.ids;
  const state = same && digest === model.digest && whole(length, 1, ids.length) ? { ids: ids.slice(0, length), arrays: stripped("state/", arrays) } : null;
  return { branches, current, state };
}

function branchOf(chat, wrong) {
  need(Array.isArray(chat?.messages) && chat.settings && typeof chat.settings === "object", wrong);
  const messages = chat.messages.map((row) => {
    need(Array.isArray(row) && row.length >= 4, wrong);
    need(row.length === 4, "The conversation has images or tool calls, which this page cannot show; open it in rwkv-gpu.");
    const [role, content, reasoning, raw] = row;
    need([role, content, reasoning, raw ?? ""].every((text) => typeof text === "string"), wrong);
    need(["system", "user", "assistant"].includes(role), wrong);
    return { role, content, reasoning, raw };
  });
  const system = messages[0]?.role === "system" ? 1 : 0;
  const turns = messages.slice(system).every(({ role }, at) => role === (at % 2 ? "assistant" : "user"));
  need(turns, "The page needs a conversation in which questions and answers alternate; open this one in rwkv-gpu.");
  const { settings, template, think = null, truncate, first } = chat;
  need([true, false, null].includes(think), wrong);
  return { messages, settings, template: String(template ?? ""), think, truncate: truncate ?? null, first: whole(first, 0, messages.length) ? first : 0 };
}

function transcriptOf({ text, ids, cuts }, vocabulary, wrong) {
  need(text?.type === "uint8" && ids?.type === "uint32" && cuts?.type === "uint64", wrong);
  const numbers = [...new Uint32Array(ids.bytes.buffer)];
  need(numbers.every((id) => id < vocabulary), wrong);
  const flat = Array.from(new BigUint64Array(cuts.bytes.buffer), Number);
  const pairs = Array.from({ length: flat.length / 2 }, (_, at) => [flat[2 * at], flat[2 * at + 1]]);
  const ends = [...pairs.slice(1), [text.bytes.length, numbers.length]];
  need(pairs[0]?.[0] === 0 && pairs[0][1] === 0 && pairs.every(([a, b], at) => a <= ends[at][0] && b <= ends[at][1]), wrong);
  let letters = "";
  for (let at = 0; at < text.bytes.length; at += 8192) letters += String.fromCharCode(...text.bytes.subarray(at, at + 8192));
  return { text: letters, ids: numbers, cuts: pairs };
}

/** The file of a state alone: the ids that it has seen, and its arrays. */
export function writeState(model, { ids, arrays }) {
  const row = { type: "uint32", shape: [ids.length], bytes: new Uint8Array(Uint32Array.from(ids).buffer) };
  return writeFile(model, { kind: STATE_KIND }, { ids: row, ...prefixed("state/", arrays) });
}

/** Reads what `writeState` wrote, if it is of this model. */
export async function readState(data, model) {
  const { model: { digest }, notes, arrays } = await readFile(data);
  need(notes.kind === STATE_KIND && arrays.ids?.type === "uint32", "The file has no state that this version can read.");
  need(digest === model.digest, "The state belongs to another model.");
  const ids = [...new Uint32Array(arrays.ids.bytes.buffer)];
  need(ids.length && ids.every((id) => id < model.vocabulary), DAMAGED);
  return { ids, arrays: stripped("state/", arrays) };
}

/** A conversation file as the letters of a link. */
export async function toLink(data) {
  const packed = new Uint8Array(await new Response(new Blob([data]).stream().pipeThrough(new CompressionStream("deflate-raw"))).arrayBuffer());
  let text = "";
  for (const byte of packed) text += String.fromCharCode(byte);
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** The conversation file of a link. A link that expands beyond a limit is refused. */
export async function fromLink(text) {
  const wrong = "The link contains no conversation of rwkv-gpu.";
  need(text.length <= MAX_LINK && /^[\w-]+$/.test(text), wrong);
  const parts = [];
  let size = 0;
  try {
    const packed = bytesOf(atob(text.replaceAll("-", "+").replaceAll("_", "/")));
    const reader = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
    for (let { done, value } = await reader.read(); !done; { done, value } = await reader.read()) {
      size += value.length;
      if (size > MAX_LINK) await reader.cancel();
      need(size <= MAX_LINK, "The conversation in the link is too long.");
      parts.push(value);
    }
  } catch (error) {
    throw error instanceof ExportError ? error : new ExportError(wrong);
  }
  return joined(parts);
}
