// Separates the text of an answer into reasoning and answer, and finds the texts that end it.

/** Reads generated text piece by piece. Parts are `[text, reasons]`, where `reasons` is true for reasoning. */
export class Reader {
  #marks; // the texts around reasoning: [opening, closing], or null
  #ends; // the texts that end an answer, and those that end reasoning
  #wraps; // texts around an answer that are not part of it
  #due; // the rest of a mark that the prompt has begun
  #held = ""; // text that may be the beginning of a mark or an end
  #blank; // only spaces were read since the last mark
  reasons; // whether the next text is reasoning
  stopped = null; // the text that ended the answer

  /** The options are named as in the manifest's part `chat`. */
  constructor({ ends, thoughtEnds = ends, thoughts = null, wraps = [], begun = "", due = "" }) {
    this.#ends = [ends, thoughtEnds];
    this.#marks = thoughts;
    this.#wraps = wraps;
    this.#due = due;
    this.#blank = thoughts !== null;
    this.reasons = begun !== "" && !(begun + due).trimEnd().endsWith(thoughts[1]);
  }

  /** The parts that are certain after `text`. */
  feed(text) {
    if (!text || this.stopped !== null) return [];
    const due = this.#due;
    this.#due = "";
    this.#held += text.startsWith(due) ? text.slice(due.length) : text;
    const parts = [];
    while (this.stopped === null) {
      const mark = this.#marks?.[this.reasons ? 1 : 0];
      const sought = [...this.#ends[this.reasons ? 1 : 0], ...(mark ? [mark] : []), ...(this.reasons ? [] : this.#wraps)];
      const found = sought.map((one) => [this.#held.indexOf(one), one]).filter(([at]) => at >= 0).sort((a, b) => a[0] - b[0])[0];
      this.#take(parts, found ? found[0] : certain(this.#held, sought));
      if (!found) break;
      this.#held = this.#held.slice(found[1].length);
      if (this.#wraps.includes(found[1])) this.#blank = true;
      else if (found[1] === mark) [this.reasons, this.#blank] = [!this.reasons, true];
      else this.stopped = found[1];
    }
    return parts;
  }

  /** The rest, after the last text. */
  flush() {
    const parts = [];
    if (this.stopped === null) this.#take(parts, this.#held.length);
    return parts;
  }

  #take(parts, length) {
    const text = this.#held.slice(0, length);
    this.#held = this.#held.slice(length);
    const shown = this.#blank ? text.trimStart() : text;
    this.#blank &&= !shown;
    if (shown) parts.push([shown, this.reasons]);
  }
}

// The number of leading letters of a text that are certain not to begin one of these texts.
function certain(text, sought) {
  const longest = Math.max(0, ...sought.map(({ length }) => length - 1));
  for (let at = Math.max(0, text.length - longest); at < text.length; at++) {
    if (sought.some((one) => one.startsWith(text.slice(at)))) return at;
  }
  return text.length;
}
