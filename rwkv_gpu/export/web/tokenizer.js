// Tokenizers: RWKV's longest match, BPE over bytes or characters, and SentencePiece's BPE. Bytes are strings of letters U+0000 to U+00FF.
import { need } from "./manifest.js";

const encoder = new TextEncoder();

/** The UTF-8 bytes of a text, as letters. */
export function letters(text) {
  const bytes = encoder.encode(text);
  let found = "";
  for (let at = 0; at < bytes.length; at += 8192) found += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return found;
}

/** Letters as bytes. */
export const bytesOf = (text) => Uint8Array.from(text, (letter) => letter.charCodeAt(0));
/** The text whose UTF-8 bytes are these letters. */
export const textOf = (text) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytesOf(text));

/** A heap of entries [key, position, ...], the least first. */
class Heap {
  #rows = [];

  #less(a, b) {
    const [x, y] = [this.#rows[a], this.#rows[b]];
    return x[0] < y[0] || (x[0] === y[0] && x[1] < y[1]);
  }

  #swap(a, b) {
    [this.#rows[a], this.#rows[b]] = [this.#rows[b], this.#rows[a]];
  }

  get size() {
    return this.#rows.length;
  }

  push(row) {
    let at = this.#rows.push(row) - 1;
    for (let above = (at - 1) >> 1; at && this.#less(at, above); at = above, above = (at - 1) >> 1) this.#swap(at, above);
  }

  pop() {
    const [first, last] = [this.#rows[0], this.#rows.pop()];
    if (!this.#rows.length) return first;
    this.#rows[0] = last;
    for (let at = 0; ; ) {
      let least = at;
      for (const below of [2 * at + 1, 2 * at + 2]) if (below < this.#rows.length && this.#less(below, least)) least = below;
      if (least === at) return first;
      this.#swap(at, least);
      at = least;
    }
  }
}

// Merges neighbours by the least key of `join(left, right)`, [key, merged], then the leftmost; null: the two stay apart.
function merge(symbols, join) {
  const after = symbols.map((_, at) => at + 1);
  const before = symbols.map((_, at) => at - 1);
  const queue = new Heap();
  const offer = (left, right) => {
    if (left < 0 || right >= symbols.length) return;
    const found = join(symbols[left], symbols[right]);
    if (found) queue.push([found[0], left, right, symbols[left], symbols[right], found[1]]);
  };
  for (let at = 0; at + 1 < symbols.length; at++) offer(at, at + 1);
  while (queue.size) {
    const [, left, right, first, second, merged] = queue.pop();
    if (symbols[left] !== first || symbols[right] !== second) continue; // one was merged meanwhile
    if (after[left] !== right) continue;
    symbols[left] = merged;
    symbols[right] = null;
    after[left] = after[right];
    if (after[left] < symbols.length) before[after[left]] = left;
    offer(before[left], left);
    offer(left, after[left]);
  }
  return symbols.filter((symbol) => symbol !== null);
}

/** The letter that stands for each byte in tokens of byte-level BPE. */
function byteLetters() {
  const shown = (byte) => (byte >= 0x21 && byte < 0x7f) || (byte >= 0xa1 && byte < 0xad) || byte >= 0xae;
  let next = 0x100;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(shown(byte) ? byte : next++));
}

class Rwkv {
  #ids = new Map();
  #longest = new Map(); // length of the longest token by its first two bytes

  constructor(data) {
    data.tokens.forEach((token, id) => {
      this.#ids.set(token, id);
      const start = token.slice(0, 2);
      this.#longest.set(start, Math.max(token.length, this.#longest.get(start) ?? 0));
    });
  }

  encode(bytes) {
    const ids = [];
    for (let at = 0; at < bytes.length; ) {
      let length = Math.min(this.#longest.get(bytes.slice(at, at + 2)) ?? 1, bytes.length - at);
      while (length > 1 && !this.#ids.has(bytes.slice(at, at + length))) length--;
      ids.push(this.#ids.get(bytes.slice(at, at + length)));
      at += length;
    }
    return ids;
  }
}

// Byte-level BPE, and the BPE of Gemma 4 over characters, where a character without a token becomes tokens of its bytes.
class Bpe {
  #ids;
  #ranks = new Map(); // [rank, merged id] by pair of ids
  #patterns;
  #data;
  #letters = byteLetters();

  constructor(data) {
    this.#data = data;
    this.#ids = new Map(data.tokens.map((token, id) => [token, id]));
    const size = data.tokens.length;
    data.merges.forEach(([left, right], rank) => {
      this.#ranks.set(left * size + right, [rank, this.#ids.get(data.tokens[left] + data.tokens[right])]);
    });
    this.#patterns = data.patterns.map((pattern) => new RegExp(pattern, "gv"));
  }

  encode(bytes) {
    let words = [this.#data.spaces ? textOf(bytes).replaceAll(" ", "▁") : textOf(bytes)];
    for (const pattern of this.#patterns) words = words.flatMap((word) => split(word, pattern));
    return words.flatMap((word) => this.#word(word));
  }

  #word(word) {
    const { kind, whole } = this.#data;
    const symbols = kind === "bpe" ? Array.from(letters(word), (letter) => this.#letters[letter.charCodeAt(0)]) : Array.from(word);
    const known = whole && (kind === "bpe" || word[0] === "\n") ? this.#ids.get(symbols.join("")) : undefined;
    if (known !== undefined) return [known];
    const size = this.#data.tokens.length;
    return merge(symbols.flatMap((letter) => this.#ids.get(letter) ?? this.#unknown(letter)), (left, right) => this.#ranks.get(left * size + right))
      .filter((id) => id >= 0);
  }

  // The ids for a letter without a token: those of its bytes, or -1, which never merges.
  #unknown(letter) {
    if (this.#data.kind === "bpe") return [];
    return this.#data.bytes ? Array.from(letters(letter), (byte) => this.#data.bytes[byte.charCodeAt(0)]) : -1;
  }
}

// Cuts a text at every match of a pattern; returns the matches and the texts between them.
function split(text, pattern) {
  const words = [];
  let at = 0;
  for (const { 0: match, index } of text.matchAll(pattern)) {
    if (index > at) words.push(text.slice(at, index));
    if (match) words.push(match);
    at = index + match.length;
  }
  if (at < text.length) words.push(text.slice(at));
  return words;
}

class Spm {
  #scores;
  #bytes;
  #prefix;

  constructor(data) {
    this.#scores = new Map(data.tokens.map((token, id) => [token, [-data.scores[id], id]]));
    this.#bytes = data.bytes;
    this.#prefix = data.prefix;
  }

  encode(bytes, opening) {
    const text = textOf((opening && this.#prefix ? " " : "") + bytes).replaceAll(" ", "▁");
    const join = (left, right) => {
      const found = this.#scores.get(left + right);
      return found && [found[0], left + right];
    };
    return merge(Array.from(text), join).flatMap((symbol) => {
      const found = this.#scores.get(symbol);
      return found ? [found[1]] : Array.from(letters(symbol), (letter) => this.#bytes[letter.charCodeAt(0)]);
    });
  }
}

const KINDS = { rwkv: Rwkv, bpe: Bpe, "raw-bpe": Bpe, spm: Spm };

/** The tokenizer of an exported model. */
export class Tokenizer {
  #data;
  #plain;
  #special;
  #always;
  #shown;

  constructor(data) {
    need(Object.hasOwn(KINDS, data.kind), `This page cannot read the tokenizer '${data.kind}'; export the model again.`);
    this.#data = data;
    this.#plain = new KINDS[data.kind](data);
    this.#shown = new Map(data.special);
    const always = new Set(data.always);
    // Longer tokens go first, then lower ids.
    this.#special = data.special.filter(([, text]) => text).sort((a, b) => b[1].length - a[1].length || a[0] - b[0]);
    this.#always = this.#special.filter(([id]) => always.has(id));
  }

  /** The tokens that begin texts. */
  get before() {
    return this.#data.before;
  }

  /** Ids that end an answer. */
  get stops() {
    return this.#data.stops;
  }

  /** The ids of a text. `special` adds the tokens that begin and end texts; `parse` matches special tokens. */
  encode(text, options) {
    return this.encodeBytes(letters(text), options);
  }

  /** The ids of bytes, as letters. `after` is the id before them: after a text token, no leading space is added. */
  encodeBytes(bytes, { special = false, parse = false, after = null } = {}) {
    const ids = special ? [...this.#data.before] : [];
    let [before, opening] = [after, after === null || this.#shown.has(after)];
    const parts = this.#split(bytes, parse ? this.#special : this.#always);
    for (const [at, part] of parts.entries()) {
      if (typeof part === "number") {
        ids.push(part);
        before = part;
        opening = true;
        continue;
      }
      let plain = this.#data.absorb.includes(before) ? part.replace(/^[\t-\r ]+/, "") : part;
      if (this.#data.absorbBefore.includes(parts[at + 1])) plain = plain.replace(/[\t-\r ]+$/, "");
      if (plain) for (const id of this.#plain.encode(plain, opening)) ids.push(id);
      before = null;
      opening = false;
    }
    if (special) ids.push(...this.#data.after);
    return ids;
  }

  // Splits bytes into plain bytes and ids of special tokens, in order. Longer tokens take precedence anywhere in the text.
  #split(bytes, tokens) {
    const taken = new Uint8Array(bytes.length);
    const places = [];
    for (const [id, text] of tokens) {
      for (let at = bytes.indexOf(text); at >= 0; at = bytes.indexOf(text, at + 1)) {
        if (taken[at] || taken[at + text.length - 1]) continue;
        taken.fill(1, at, at + text.length);
        places.push([at, at + text.length, id]);
      }
    }
    const parts = [];
    let start = 0;
    for (const [at, end, id] of places.sort((a, b) => a[0] - b[0])) {
      if (at > start) parts.push(bytes.slice(start, at));
      parts.push(id);
      start = end;
    }
    if (start < bytes.length) parts.push(bytes.slice(start));
    return parts;
  }

  /** The bytes of a token, as letters; control tokens are empty unless `special`. */
  piece(id, special = false) {
    return (special && this.#shown.get(id)) || (this.#data.pieces[id] ?? "");
  }

  /** The bytes of some tokens, as letters. */
  decodeBytes(ids, { special = false } = {}) {
    let text = ids.map((id) => this.piece(id, special)).join("");
    if (this.#data.strip && text.startsWith(" ")) text = text.slice(1);
    return this.#data.clean ? clean(text) : text;
  }

  /** The text of some tokens. */
  decode(ids, options) {
    return textOf(this.decodeBytes(ids, options));
  }

  /** A decoder for ids that arrive one by one: `feed(id)` returns the text that is certain, `flush()` the rest. Control tokens in `shown` have a text. */
  stream(shown = new Set()) {
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    let held = "";
    const take = (text) => decoder.decode(bytesOf(text), { stream: true });
    return {
      feed: (id) => {
        const piece = this.piece(id, shown.has(id));
        if (!this.#data.clean) return take(piece);
        held += piece;
        const cut = settled(held);
        const text = clean(held.slice(0, cut));
        held = held.slice(cut);
        return take(text);
      },
      flush: () => take(clean(held)) + decoder.decode(),
    };
  }
}

// Without the spaces before detached punctuation and contractions, in three passes.
const clean = (text) => text.replace(/ (?=[?!.,])/g, "").replaceAll(" ' ", "'").replace(/ (?='[sm]|'re|'ve)/g, "");

// The number of leading letters whose cleaned form does not depend on what follows.
function settled(text) {
  const end = text.length - (/[rv]$/.test(text) ? 1 : 0);
  let run = end;
  while (run > 0 && " '".includes(text[run - 1])) run--;
  const space = text.slice(0, end).indexOf(" ", run);
  return space < 0 ? text.length : space;
}
