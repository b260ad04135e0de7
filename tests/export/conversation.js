// What test_conversation.py runs in a browser.
import { Chat, promptOf, Transcript } from "./chat.js";
import { halved, widened } from "./engine.js";
import { fromLink, readConversation, readState, toLink, writeConversation, writeFile } from "./conversation.js";
import { Reader } from "./reader.js";
import { Tokenizer } from "./tokenizer.js";

const bytes = async (name) => new Uint8Array(await (await fetch(name)).arrayBuffer());
const base64 = (data) => btoa(Array.from(data, (byte) => String.fromCharCode(byte)).join(""));
const sentence = (promise) => promise.then(() => "no error", (error) => `${error.constructor.name}: ${error.message}`);
const given = await (await fetch("given.json")).json();

export async function prompts() {
  const wrong = [];
  for (const [data, chat, rows] of given) {
    const tokenizer = new Tokenizer(data);
    for (const [messages, think, ...expected] of rows) {
      const { text, ids, cuts } = new Transcript().prompt(tokenizer, promptOf({ ...chat, ...chat.think[think] }, messages));
      if (JSON.stringify([text, ids, cuts]) !== JSON.stringify(expected)) wrong.push([messages, think, expected, [text, ids, cuts]]);
    }
  }
  return wrong;
}

// What a reader finds in each text, read in pieces of several sizes.
export function answers() {
  return given.map(([options, text]) => [1, 2, 3, 7, 100].map((size) => {
    const [reader, found] = [new Reader(options), ["", ""]];
    const take = (parts) => { for (const [part, reasons] of parts) found[Number(reasons)] += part; };
    for (let at = 0; at < text.length; at += size) take(reader.feed(text.slice(at, at + size)));
    take(reader.flush());
    return [...found, reader.stopped];
  }));
}

export async function files() {
  const data = await bytes("talk.rwkvchat");
  const conversation = await readConversation(data, given);
  const written = await writeConversation(given, conversation);
  const other = [];
  for (const name of ["digest", "fingerprint"]) {
    const { state, branches } = await readConversation(data, { ...given, [name]: "0".repeat(64) });
    other.push([state, branches[0].transcript.ids.length > 0]);
  }
  const chat = new Chat({ manifest: { chat: { template: "" } } }, { conversation });
  const linked = base64(await fromLink(await toLink(written))) === base64(written);
  const messages = conversation.branches[0].messages.map(({ role, content }) => [role, content]);
  return { messages, written: base64(written), other, others: chat.branches[0].others, linked };
}

// Numbers in float16, and again in float32.
export async function halves() {
  const bytes = new Uint8Array(await (await fetch("numbers.bin")).arrayBuffer());
  const half = halved({ type: "float32", shape: [bytes.length / 4], bytes });
  const large = { type: "float32", shape: [1], bytes: new Uint8Array(new Float32Array([65520]).buffer) };
  const digest = async (data) => Array.from(new Uint8Array(await crypto.subtle.digest("SHA-256", data)));
  return [half.type, await digest(half.bytes), await digest(widened(half).bytes), halved(large).type];
}

export async function hostile() {
  const { model, links } = given;
  const found = {};
  for (const name of ["cut", "changed", "empty", "other", "long"]) found[name] = await sentence(readConversation(await bytes(name), model));
  for (const [at, link] of links.entries()) found[`link ${at}`] = await sentence(fromLink(link).then((data) => readConversation(data, model)));
  const array = (type, shape, ...numbers) => ({ type, shape, bytes: new Uint8Array(numbers) });
  const fine = {
    "0/text": array("uint8", [1], 65), "0/ids": array("uint32", [1], 5, 0, 0, 0), "0/cuts": array("uint64", [1, 2], ...Array(16).fill(0)),
  };
  const chat = { messages: [["user", "Hi", "", null]], settings: {}, template: "" };
  const notes = { kind: "rwkv-gpu chat 2", current: 0, length: 0, chats: [chat] };
  const tries = {
    fine: [notes, fine],
    id: [notes, { ...fine, "0/ids": array("uint32", [1], 255, 255, 255, 255) }],
    cuts: [notes, { ...fine, "0/cuts": array("uint64", [1, 2], ...Array(16).fill(9)) }],
    "no ids": [notes, {}],
    branch: [{ ...notes, current: 3 }, fine],
    role: [{ ...notes, chats: [{ ...chat, messages: [["tool", "x", "", null]] }] }, fine],
    text: [{ ...notes, chats: [{ ...chat, messages: [["user", { toString: 1 }, "", null]] }] }, fine],
    turns: [{ ...notes, chats: [{ ...chat, messages: [...chat.messages, ...chat.messages] }] }, fine],
    images: [{ ...notes, chats: [{ ...chat, messages: [["user", "Hi", "", null, [], null, ["x"]]] }] }, fine],
    kind: [{ ...notes, kind: "other" }, fine],
  };
  for (const [name, [notes, arrays]] of Object.entries(tries)) {
    found[name] = await sentence(writeFile(model, notes, arrays).then((data) => readConversation(data, model)));
  }
  const state = await writeFile({ ...model, digest: "f".repeat(64) }, { kind: "rwkv-gpu state 1" }, { ids: fine["0/ids"] });
  found.state = await sentence(readState(state, model));
  return found;
}
