// Documents: the text of PDF files, passages that match a question, and citations. A long document goes to the model in passages.
const PASSAGE = 1000; // characters
const MAX_PASSAGES = 8; // for one question
const MAX_EMBEDDED = 512; // passages; of more, those whose words match best are embedded
const EMBEDDED_AT_ONCE = 32;
const MAX_VECTORS = 8192; // in memory
const WHOLE = 24000; // characters of documents that the model reads whole
const CITED = /\[(\d{1,4}(?:\s*,\s*\d{1,4})*)\]/g;
const TERM = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]|(?:(?![\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}])[\p{L}\p{N}])+/gu;
const vectors = new Map(); // by model and text

// Has the server extract the text of a PDF: {text, starts}, the offset at which each page begins.
async function readPdf(file) {
  const form = new FormData();
  form.append("file", file);
  const { pages, total_pages: total } = await (await request("/v1/documents/text", { method: "POST", body: form })).json();
  const starts = [];
  let text = "";
  for (const page of pages) {
    starts.push(text.length);
    text += `${page}\n\n`;
  }
  return { text, starts, rest: total - pages.length };
}

const attachmentsOf = (path) => path.flatMap((node) => node.attachments ?? []);
const passagesOf = (path) => path.flatMap((node) => node.passages ?? []);

// Decides which files of a new message go in passages, and chooses those for its question; they are stored with the message.
async function choosePassages(conversation, node, context, waiting, signal) {
  const path = pathTo(conversation, node.id);
  const total = attachmentsOf(path).reduce((sum, file) => sum + file.text.length, 0);
  if (total > Math.min(WHOLE, context ? 2 * context : WHOLE)) for (const file of node.attachments ?? []) file.inPassages = true;
  const files = attachmentsOf(path).filter((file) => file.inPassages);
  if (!files.length || node.passages) return;
  const before = passagesOf(path);
  const known = new Set(before.map(passageKey));
  const all = files.flatMap(split).filter((passage) => !known.has(passageKey(passage)));
  const scores = await scored(node.content, all, waiting, signal);
  const best = all.map((_, n) => n).sort((a, b) => scores[b] - scores[a] || a - b).slice(0, MAX_PASSAGES);
  node.passages = best.sort((a, b) => a - b).map((n, at) => ({ ...all[n], number: before.length + at + 1 }));
}

const passageKey = ({ file, start }) => `${start} ${file}`;

// A file as passages, each on one page, which end between words.
function split({ name, text, starts }) {
  const found = [];
  const begins = starts?.length ? starts : [0];
  begins.forEach((begin, n) => {
    const end = begins[n + 1] ?? text.length;
    for (let at = begin; at < end; ) {
      const next = end - at <= PASSAGE ? end : at + cutBefore(text.slice(at, at + PASSAGE));
      const part = text.slice(at, next).trim();
      if (part) found.push({ file: name, page: starts?.length ? n + 1 : null, start: at, text: part });
      at = next;
    }
  });
  return found;
}

function cutBefore(text) {
  for (const mark of ["\n\n", "\n", ". ", "。", " "]) {
    const at = text.lastIndexOf(mark);
    if (at > text.length / 2) return at + mark.length;
  }
  return text.length;
}

// How well passages match a question: by the vectors of a loaded encoder, else by their words.
async function scored(question, passages, waiting, signal) {
  const byWords = bm25(question, passages.map((one) => one.text));
  const model = question.trim() && (await loadedEncoder().catch(() => null));
  if (!model) return byWords;
  const likely = passages.map((_, n) => n).sort((a, b) => byWords[b] - byWords[a] || a - b).slice(0, MAX_EMBEDDED);
  try {
    const [asked, ...found] = await embedded(model, [question, ...likely.map((n) => passages[n].text)], waiting, signal);
    const scores = passages.map(() => -Infinity);
    likely.forEach((n, at) => (scores[n] = cosine(asked, found[at])));
    return scores;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return byWords; // for example an encoder that was unloaded meanwhile
  }
}

async function loadedEncoder() {
  const { data } = await getJson("/v1/models");
  return data.find((one) => one.architecture?.output_modalities.includes("embeddings"))?.id;
}

async function embedded(model, texts, waiting, signal) {
  const key = (text) => `${model}\n${text}`;
  const fresh = [...new Set(texts)].filter((text) => !vectors.has(key(text)));
  for (let at = 0; at < fresh.length; at += EMBEDDED_AT_ONCE) {
    waiting(`Searching the documents: ${number(at)} of ${number(fresh.length)} passages`);
    const input = fresh.slice(at, at + EMBEDDED_AT_ONCE);
    const { embeddings } = await (await request("/api/embed", { method: "POST", body: { model, input }, signal })).json(); // cuts long texts
    embeddings.forEach((vector, n) => vectors.set(key(input[n]), vector));
  }
  const found = texts.map((text) => vectors.get(key(text)));
  for (const oldest of vectors.keys()) if (vectors.size > MAX_VECTORS) vectors.delete(oldest);
  return found;
}

function cosine(a, b) {
  let [product, first, second] = [0, 0, 0];
  a.forEach((value, n) => ((product += value * b[n]), (first += value * value), (second += b[n] * b[n])));
  return product / (Math.sqrt(first * second) || 1);
}

const terms = (text) => text.normalize("NFKC").toLowerCase().match(TERM) ?? [];

// Okapi BM25 with its usual constants.
function bm25(question, texts) {
  const bags = texts.map((text) => {
    const counts = new Map();
    const all = terms(text);
    for (const term of all) counts.set(term, (counts.get(term) ?? 0) + 1);
    return { counts, length: all.length };
  });
  const mean = bags.reduce((sum, bag) => sum + bag.length, 0) / (bags.length || 1) || 1;
  const scores = texts.map(() => 0);
  for (const term of new Set(terms(question))) {
    const having = bags.filter((bag) => bag.counts.has(term)).length;
    const rarity = Math.log(1 + (bags.length - having + 0.5) / (having + 0.5));
    bags.forEach(({ counts, length }, n) => {
      const count = counts.get(term) ?? 0;
      scores[n] += (rarity * count * 2.2) / (count + 1.2 * (0.25 + (0.75 * length) / mean));
    });
  }
  return scores;
}

// --- citations ---

const placeOf = ({ file, page }) => (page ? `${file}, page ${page}` : file);

function passageDialog(passage) {
  const dialog = openDialog(placeOf(passage), el("blockquote", { class: "passage", dir: "auto", tabindex: "0" }, passage.text),
    el("div", { class: "actions" }, el("button", { type: "button", onclick: () => dialog.close() }, "Close")));
}

const citation = (passage, text) => el("button", { type: "button", class: "cite", title: placeOf(passage), "aria-label": `Passage ${passage.number}: ${placeOf(passage)}`, onclick: () => passageDialog(passage) }, text);

// In rendered text, turns numbers of passages, such as [2], into buttons that open them.
function linkCitations(root, passages) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) if (!walker.currentNode.parentElement.closest("code, pre, math, a, button")) found.push(walker.currentNode);
  for (const node of found) {
    const parts = [];
    let from = 0;
    for (const match of node.data.matchAll(CITED)) {
      const cited = match[1].split(",").map((one) => passages.find((passage) => passage.number === Number(one)));
      if (!cited.every(Boolean)) continue;
      parts.push(node.data.slice(from, match.index), ...cited.map((passage) => citation(passage, `[${passage.number}]`)));
      from = match.index + match[0].length;
    }
    if (from) node.replaceWith(...parts, node.data.slice(from));
  }
}
