// A conversation with a model: messages, branches, and the token ids of what was read, which are never tokenised again.
import { need } from "./manifest.js";
import { letters, textOf } from "./tokenizer.js";
import { writeConversation } from "./conversation.js";
import { Reader } from "./reader.js";

const DEFAULTS = { temperature: 0.8, top_p: 0.9, max_tokens: 2048 };
const LIMITS = {
  temperature: [0, 1e6], top_k: [0, 2 ** 31], top_p: [0, 1], min_p: [0, 1], max_tokens: [1, 2 ** 31], seed: [0, 2 ** 53],
};

/** Settings under their names in conversation files (snake case), without those that only Python knows. Refuses wrong values. */
export function settingsOf(given, strict = true) {
  const settings = {};
  for (const [key, value] of Object.entries(given)) {
    const name = key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
    if (value === undefined || value === null || name === "signal") continue;
    const bounds = LIMITS[name];
    if (bounds) {
      const fits = typeof value === "number" && value >= bounds[0] && value <= bounds[1];
      need(fits, `${name} is ${JSON.stringify(value)}; it must be a number from ${bounds[0]} to ${bounds[1]}.`);
    } else if (name === "stop") {
      need([value].flat().every((text) => typeof text === "string"), "stop must be texts.");
    } else {
      need(!strict, `There is no setting ${name}; known: ${Object.keys(LIMITS).join(", ")}, stop.`);
      continue;
    }
    settings[name] = value;
  }
  return settings;
}

/** The prompt in two parts: the messages, and the text that opens the answer. */
export function promptOf(chat, messages) {
  need(messages[0]?.role !== "system" || chat.system !== null, "This model takes no system prompt.");
  const after = { system: chat.first, user: chat.answer, assistant: chat.question }; // the text after a message of a role
  const edited = (text, [pattern, left, right]) => text.replace(new RegExp(pattern, "gu"), (_, group = "") => left + group + right);
  let turns = messages.map(({ role, content, raw }) => [role, chat.edits[role].reduce(edited, raw ?? content)]);
  // The system text may be a part of the last question.
  if (chat.late && turns[0][0] === "system") turns = [...turns.slice(1, -1), ["user", turns[0][1] + chat.first + turns.at(-1)[1]]];
  let prompt = turns[0][0] === "system" ? chat.system : chat.start;
  turns.forEach(([, text], at) => { prompt += (at ? after[turns[at - 1][0]] : "") + text; });
  return [prompt + chat.ending, chat.opening];
}

// Without spaces at both ends, as Python strips them.
const SPACE = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]+";
const ENDS = new RegExp(`^${SPACE}|${SPACE}$`, "gu");
const trimmed = (text) => text.replace(ENDS, "");

// Whole characters in UTF-8, and bytes that are part of none. Python keeps such a byte as U+DC80 to U+DCFF.
const CHARACTERS = /[\0-\x7f]+|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|\xed[\x80-\x9f][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xf0[\x90-\xbf][\x80-\xbf]{2}|\xf4[\x80-\x8f][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|[\x80-\xff]/g;
const asText = (bytes) => bytes.replace(CHARACTERS, (one) => (one.length > 1 || one < "\x80" ? textOf(one) : String.fromCharCode(0xdc00 + one.charCodeAt(0))));
const asLetters = (text) =>
  text.split(/(?<![\ud800-\udbff])([\udc80-\udcff])/).map((part, at) => (at % 2 ? String.fromCharCode(part.charCodeAt(0) & 0xff) : letters(part))).join("");

/** A text as letters, and its ids. `cuts` are pairs of lengths of text and ids that correspond to each other. */
export class Transcript {
  constructor({ text = "", ids = [], cuts = [[0, 0]] } = {}) {
    Object.assign(this, { text, ids, cuts });
  }

  /** The transcript of a prompt in parts. Ids stay as far as the texts agree; only the rest is tokenised. */
  prompt(tokenizer, parts) {
    const ends = [];
    let text = "";
    for (const part of parts) ends.push((text += asLetters(part)).length);
    let size = 0;
    while (size < text.length && size < this.text.length && text[size] === this.text[size]) size++;
    const cuts = this.cuts.filter(([bytes]) => bytes <= size);
    const [bytes, count] = cuts.at(-1);
    const next = new Transcript({ text: text.slice(0, bytes), ids: this.ids.slice(0, count), cuts });
    for (const end of ends) if (end > next.text.length) next.#grow(tokenizer, text.slice(next.text.length, end));
    return next;
  }

  #grow(tokenizer, text) {
    const after = this.ids.at(-1) ?? null;
    const ids = tokenizer.encodeBytes(text, { parse: true, after });
    if (after === null) ids.unshift(...tokenizer.before.filter((id) => ids[0] !== id));
    this.text += text;
    this.ids.push(...ids);
    this.cuts.push([this.text.length, this.ids.length]);
  }

  /** This transcript and tokens after it. */
  append(tokenizer, tokens) {
    const next = new Transcript({ text: this.text, ids: [...this.ids], cuts: [...this.cuts] });
    for (const id of tokens) {
      next.text += tokenizer.piece(id, true);
      next.ids.push(id);
      next.cuts.push([next.text.length, next.ids.length]);
    }
    return next;
  }
}

/** A conversation. Answers come from `send`, `regenerate` and `edit`, piece by piece; the latter two begin a branch. */
export class Chat {
  #model;
  branches;
  current;
  usage = null; // of the last answer: tokens of the prompt and of the answer, and whether it ended or reached its limit

  constructor(model, { system = null, settings = {}, think = null, conversation = null } = {}) {
    need(model.manifest.chat, "The model's chat template could not be exported; use generate.");
    this.#model = model;
    const messages = system ? [{ role: "system", content: system }] : [];
    this.branches = conversation?.branches ?? [{ messages, transcript: new Transcript(), settings: { ...DEFAULTS, ...settingsOf(settings) } }];
    this.current = conversation?.current ?? 0;
    for (const branch of this.branches) {
      const known = settingsOf(branch.settings, false);
      branch.others = Object.fromEntries(Object.entries(branch.settings).filter(([name]) => !(name in known)));
      branch.settings = { ...DEFAULTS, ...known };
      branch.transcript = new Transcript(branch.transcript);
      branch.template ||= model.manifest.chat.template;
    }
    if (!conversation) this.think = think;
  }

  get #branch() {
    return this.branches[this.current];
  }

  /** The messages of the current branch: `{ role, content, reasoning }`. */
  get messages() {
    return this.#branch.messages;
  }

  /** The settings of the current branch. */
  get settings() {
    return this.#branch.settings;
  }

  /** Replaces the settings of the current branch; those left out get their defaults. */
  set(settings) {
    this.#branch.settings = { ...DEFAULTS, ...settingsOf(settings) };
  }

  /** Whether the model reasons before it answers, if its template can switch that; null is the template's default. */
  get think() {
    return this.#branch.think;
  }

  set think(think) {
    need([true, false, null].includes(think), "think must be true, false or null.");
    this.#branch.think = think;
  }

  /** Goes to another branch. */
  select(number) {
    need(Boolean(this.branches[number]), "There is no such branch.");
    this.current = number;
  }

  /** Answers a question. The text of a stopped answer stays. */
  send(text, settings = {}) {
    need(typeof text === "string" && text.trim(), "The question is empty.");
    return this.#answer([...this.messages, { role: "user", content: text }], settings);
  }

  /** Answers the last question again, in a new branch. */
  regenerate(settings = {}) {
    const last = this.messages.findLastIndex(({ role }) => role === "user");
    need(last >= 0, "There is no question yet.");
    return this.#answer(this.messages.slice(0, last + 1), settings, true);
  }

  /** Asks another question in place of the message `number`, in a new branch. */
  edit(number, text, settings = {}) {
    need(this.messages[number]?.role === "user" && text.trim(), "Only a question can be edited.");
    return this.#answer([...this.messages.slice(0, number), { role: "user", content: text }], settings, true);
  }

  // `begun` is the message of an answer that is continued.
  async *#answer(messages, { signal, onReasoning = () => {}, onPrompt, begun = null, ...given }, fork = false) {
    const { manifest, tokenizer } = this.#model;
    const chat = { ...manifest.chat, ...manifest.chat.think[begun && !begun.raw ? false : this.think] };
    const settings = { ...this.settings, ...settingsOf(given) };
    const stop = [settings.stop ?? []].flat();
    const begin = messages[0].role === "system" ? 1 : 0;
    const { first = 0 } = this.#branch; // Python leaves out earlier messages if the context has no room for them
    const read = first > begin && first < messages.length ? [...messages.slice(0, begin), ...messages.slice(first)] : messages;
    const start = begun ? (begun.raw?.slice(chat.begun.length) ?? begun.content) : "";
    const asked = this.#branch.transcript.prompt(tokenizer, [...promptOf(chat, read), start]);
    const room = this.#model.context === null ? Infinity : this.#model.context - asked.ids.length;
    need(room > 0, `The conversation is longer than the context of ${this.#model.context} tokens; begin a new one.`);
    if (fork) this.current = this.branches.push({ ...this.#branch, settings: { ...this.settings } }) - 1;
    const branch = this.#branch;
    const reader = new Reader({ ...chat, ends: [...chat.ends, ...stop], thoughtEnds: [...chat.thoughtEnds, ...stop] });
    reader.feed(start);
    reader.flush();
    const answer = { tokens: [], finish: "length" };
    const { tokens } = answer;
    const said = { true: begun?.reasoning ?? "", false: begun?.content ?? "" };
    const stops = new Set([...chat.stops, ...tokenizer.stops]);
    try {
      for await (const [text, reasons] of this.#model.sample(asked.ids, { ...settings, stops, reader, shown: chat.shown, signal, onPrompt }, answer)) {
        said[reasons] += text;
        if (!reasons) yield text;
        else onReasoning(text);
      }
    } finally {
      this.usage = { prompt: asked.ids.length, completion: tokens.length, finish: answer.finish };
      if (tokens.length) {
        let raw = chat.begun + start + asText(tokens.map((id) => tokenizer.piece(id, true)).join(""));
        if (reader.stopped && raw.includes(reader.stopped)) raw = raw.slice(0, raw.lastIndexOf(reader.stopped));
        const [content, reasoning] = [trimmed(said.false), trimmed(said.true)];
        branch.messages = [...messages, { role: "assistant", content, reasoning, raw }];
        branch.transcript = asked.append(tokenizer, tokens);
      } else if (fork) {
        this.branches.pop();
        this.current = Math.max(0, this.branches.length - 1);
      }
    }
  }

  /** The conversation as a file, which Python and other pages read; with the model's state unless `state` is false, in float16 with `half`. */
  async save({ state = true, half = false } = {}) {
    const { text, ids } = this.#branch.transcript;
    const kept = state && ids.length && text ? await this.#model.stateOf(ids, half) : null;
    return writeConversation(this.#model.identity, { branches: this.branches, current: this.current, state: kept });
  }
}
