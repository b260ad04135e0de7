// Markdown to elements: GitHub's, without HTML, images and footnotes; with TeX between $, $$, \( and \[.
// Each pattern takes linear time: no two of its parts match the same characters.
const FENCE = /^( {0,3})(`{3,}(?!`)|~{3,}(?!~))([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+([^]*))?$/;
const RULE = /^ {0,3}(?:(?:- *){3,}|(?:\* *){3,}|(?:_ *){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)([^]*)$/;
const DELIMITER = /^:?-+:?$/;
const MATH_OPEN = /^ {0,3}(\$\$|\\\[|\\begin\{(?:equation|align|alignat|gather|multline|flalign)\*?\})(.*)$/;
const LARGEST_DRAWING = 200000; // characters
const NESTED = 12; // lists and quotations within each other

// Splits the text into pieces that are rendered separately: while text streams in, only the last one changes.
function pieces(text) {
  const found = [];
  let lines = [];
  let first = ""; // the first line that is not blank
  let fence = null;
  let blank = false;
  const startsNew = (line) => blank && /^\S/.test(line) && !(ITEM.test(first) && ITEM.test(line));
  for (const line of text.split("\n")) {
    if (!fence && lines.length && startsNew(line)) {
      found.push(lines.join("\n"));
      lines = [];
      first = "";
    }
    lines.push(line);
    if (!first.trim()) first = line;
    fence = fenceAfter(fence, line);
    blank = !line.trim() && !fence;
  }
  return lines.length ? [...found, lines.join("\n")] : found;
}

// What must close before a piece can end: a code fence, or TeX on separate lines.
function fenceAfter(open, line) {
  if (open) return closes(open, line) ? null : open;
  const code = line.match(FENCE);
  if (code) return code[2];
  const math = line.match(MATH_OPEN);
  return math && !math[2].includes(mathEnd(math[1])) ? math[1] : null;
}

const mathEnd = (open) => (open === "$$" ? "$$" : open === "\\[" ? "\\]" : open.replace("begin", "end"));

function closes(open, line) {
  if (open[0] === "$" || open[0] === "\\") return line.includes(mathEnd(open));
  const trimmed = line.trim();
  return trimmed.length >= open.length && [...trimmed].every((character) => character === open[0]);
}

const markdown = (text) => blocks(text.replace(/\t/g, "    ").split("\n"), 0);

function blocks(lines, depth) {
  const nodes = [];
  let at = 0;
  while (at < lines.length) {
    const [node, next] = block(lines, at, depth);
    if (node) nodes.push(node);
    at = next;
  }
  return nodes;
}

// The block that begins at a line, and the line after it.
function block(lines, at, depth) {
  const line = lines[at];
  if (!line.trim()) return [null, at + 1];
  if (FENCE.test(line)) return codeBlock(lines, at);
  if (MATH_OPEN.test(line)) return mathBlock(lines, at);
  const heading = line.match(HEADING);
  if (heading) return [el(`h${heading[1].length}`, { dir: "auto" }, inline(headingText(heading[2] ?? ""))), at + 1];
  if (RULE.test(line)) return [el("hr"), at + 1];
  if (depth < NESTED && QUOTE.test(line)) return quotation(lines, at, depth);
  if (depth < NESTED && ITEM.test(line)) return list(lines, at, depth);
  if (isTable(lines, at)) return table(lines, at);
  return paragraph(lines, at, depth);
}

// Removes the signs that may close a heading.
function headingText(text) {
  let end = text.trimEnd().length;
  while (text[end - 1] === "#") end--;
  return !end || text[end - 1] === " " ? text.slice(0, end).trim() : text.trim();
}

const isTable = (lines, at) => lines[at].includes("|") && at + 1 < lines.length && isDelimiters(lines[at + 1]);
const isDelimiters = (line) => line.includes("-") && line.trim().replace(/^\||\|$/g, "").split("|").every((cell) => DELIMITER.test(cell.trim()));

function paragraph(lines, at, depth) {
  let end = at + 1;
  const interrupted = (line) => {
    const item = depth < NESTED && line.match(ITEM);
    return !line.trim() || FENCE.test(line) || HEADING.test(line) || RULE.test(line) || MATH_OPEN.test(line) || (depth < NESTED && QUOTE.test(line)) || (item && item[4] && /^([-*+]|1[.)])$/.test(item[2]));
  };
  while (end < lines.length && !interrupted(lines[end]) && !isTable(lines, end)) end++;
  return [el("p", { dir: "auto" }, inline(lines.slice(at, end).map((line) => line.trimStart()).join("\n").trimEnd())), end];
}

function codeBlock(lines, at) {
  const [, indent, open, info] = lines[at].match(FENCE);
  const language = info.trim().split(/\s/, 1)[0];
  const indentation = new RegExp(`^ {0,${indent.length}}`);
  let end = at + 1;
  while (end < lines.length && !closes(open, lines[end])) end++;
  const code = lines.slice(at + 1, end).map((line) => line.replace(indentation, "")).join("\n");
  const drawing = end < lines.length && drawn(code, language);
  return [drawing ? el("div", {}, drawing, codeElement(code, language)) : codeElement(code, language), end + 1];
}

function codeElement(code, language) {
  const block = el("div", { class: "block" });
  const copy = el("button", { type: "button", class: "quiet", onclick: () => copied(copy, code) }, "Copy");
  const wrap = el("button", { type: "button", class: "quiet", "aria-pressed": "false", onclick: () => wrap.setAttribute("aria-pressed", block.classList.toggle("wrapped")) }, "Wrap");
  block.append(
    el("div", { class: "head" }, el("span", {}, language || "text"), wrap, copy),
    el("pre", { tabindex: "0", role: "region", "aria-label": `Code: ${language || "text"}` }, el("code", {}, highlighted(code, language))),
  );
  return block;
}

// An SVG or a diagram as an image: it runs no script, loads nothing, and cannot reach the page.
function drawn(code, language) {
  const source = language.toLowerCase() === "mermaid" ? diagram(code) : svgOf(code, language);
  if (!source) return null;
  const image = el("img", { class: "drawing", alt: "Drawing", src: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(source)}`, onerror: () => image.remove() });
  return image;
}

function svgOf(code, language) {
  if (!["svg", "xml", "html"].includes(language.toLowerCase()) || !/^\s*(<\?xml[^>]*>\s*)?<svg[\s>]/.test(code) || code.length > LARGEST_DRAWING) return null;
  return /<svg[^>]*\sxmlns=/.test(code) ? code : code.replace("<svg", `<svg xmlns="${SVG}"`);
}

async function copied(button, text) {
  const before = button.textContent;
  button.textContent = (await copyText(text)) ? "Copied" : "Not copied";
  setTimeout(() => (button.textContent = before), 1200);
}

// Outside a secure context, pages cannot use the clipboard, so a selection is copied.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = el("textarea", { class: "skip", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

function mathBlock(lines, at) {
  const [, open, rest] = lines[at].match(MATH_OPEN);
  const close = mathEnd(open);
  const parts = [rest];
  let end = at;
  while (!parts.at(-1).includes(close) && end + 1 < lines.length) parts.push(lines[++end]);
  const text = parts.join("\n");
  const cut = text.indexOf(close);
  const after = cut < 0 ? "" : text.slice(cut + close.length).trim();
  const inner = cut < 0 ? text : text.slice(0, cut);
  const node = el("div", { class: "math" }, mathml(open.startsWith("\\begin") ? open + inner + close : inner, true));
  return [after ? el("div", {}, node, el("p", { dir: "auto" }, inline(after))) : node, end + 1];
}

function quotation(lines, at, depth) {
  let end = at;
  while (end < lines.length && (QUOTE.test(lines[end]) || (lines[end].trim() && end > at && !ITEM.test(lines[end]) && !FENCE.test(lines[end])))) end++;
  return [el("blockquote", {}, blocks(lines.slice(at, end).map((line) => line.replace(QUOTE, "")), depth + 1)), end];
}

function list(lines, at, depth) {
  const [, indent, marker] = lines[at].match(ITEM);
  const numbered = /\d/.test(marker);
  const same = (found) => found && found[1].length < indent.length + 2 && /\d/.test(found[2]) === numbered && (numbered || found[2] === marker);
  const items = [];
  let loose = false;
  while (at < lines.length && same(lines[at].match(ITEM)) && !RULE.test(lines[at])) {
    const [, before, mark, gap, rest] = lines[at].match(ITEM);
    const content = before.length + mark.length + Math.min(gap.length || 1, 4);
    const inner = [rest];
    let blank = false;
    for (at++; at < lines.length; at++) {
      const line = lines[at];
      const indented = line.search(/\S/);
      if (indented < 0) blank = true;
      else if (indented >= Math.min(content, before.length + 2)) {
        loose ||= blank && !ITEM.test(line);
        blank = false;
      } else if (blank || ITEM.test(line) || FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || RULE.test(line)) break;
      inner.push(line.slice(Math.min(content, Math.max(indented, 0))));
    }
    while (inner.length && !inner.at(-1).trim()) inner.pop();
    items.push(inner);
  }
  const start = numbered ? parseInt(marker) : 1;
  return [el(numbered ? "ol" : "ul", { dir: "auto", start: start === 1 ? null : start }, items.map((inner) => listItem(inner, depth, loose))), at];
}

function listItem(inner, depth, loose) {
  const task = (inner[0] ?? "").match(/^\[([ xX])\] +(.*)$/);
  if (task) inner[0] = task[2];
  const nodes = blocks(inner, depth + 1).flatMap((node) => (!loose && node.localName === "p" ? [...node.childNodes] : [node]));
  const box = task && el("input", { type: "checkbox", disabled: true, checked: task[1] !== " ", "aria-label": task[1] === " " ? "to do" : "done" });
  // A list has the direction of its first letter. Parts with a direction of their own do not count.
  for (const node of nodes) if (node.localName === "p") node.removeAttribute("dir");
  return el("li", { class: task && "task" }, box, nodes);
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return (inner.match(/(?:`[^`]*`|\\\||[^|])*(?:\||$)/g) ?? []).slice(0, -1).map((cell) => cell.replace(/\|$/, "").replaceAll("\\|", "|").trim());
}

function table(lines, at) {
  const heads = cells(lines[at]);
  const sides = cells(lines[at + 1]).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : null));
  const line = (tag, values) => el("tr", {}, heads.map((_, n) => el(tag, { align: sides[n], dir: "auto" }, inline(values[n] ?? ""))));
  let end = at + 2;
  while (end < lines.length && lines[end].trim() && lines[end].includes("|")) end++;
  const body = lines.slice(at + 2, end).map((one) => line("td", cells(one)));
  return [el("div", { class: "table", tabindex: "0" }, el("table", {}, el("thead", {}, line("th", heads)), el("tbody", {}, body))), end];
}

// What may begin an inline element; everything else is text.
const SPECIAL = /\\[\s\S]|`+|\$|!?\[|<(?=[a-z]+:)|https?:\/\/|\*\*|__|~~|\*|_|(?<! ) {2,}\n/g;
const DEEP = 16; // spans within each other
const FARTHEST = 4000; // characters to the end of a span
const MAX_TRIED = 100; // marks that may end a span of emphasis

// Position of the next mark, or -1. The search has a limit: many unclosed marks would take quadratic time.
function find(text, mark, from) {
  const at = text.slice(from, from + FARTHEST).indexOf(mark);
  return at < 0 ? -1 : from + at;
}

function inline(text, depth = 0) {
  const nodes = [];
  let from = 0;
  SPECIAL.lastIndex = 0;
  for (let found; (found = SPECIAL.exec(text)); ) {
    const [node, end] = depth < DEEP ? span(text, found.index, found[0], depth) : [];
    SPECIAL.lastIndex = end ?? found.index + found[0].length;
    if (end === undefined) continue;
    nodes.push(text.slice(from, found.index), ...[node].flat());
    from = end;
  }
  nodes.push(text.slice(from));
  return nodes.filter((node) => node !== "");
}

// The node that begins here and the position of its end; nothing if this is plain text.
function span(text, at, mark, depth) {
  const after = at + mark.length;
  if (mark[0] === "\\") return escaped(text, at, mark);
  if (mark[0] === "`") return codeSpan(text, after, mark);
  if (mark[0] === " ") return [el("br"), after];
  if (mark === "$") return dollars(text, after);
  if (mark.endsWith("[")) return link(text, at, after, depth);
  if (mark === "<") return angled(text, after);
  if (mark.startsWith("http")) return bareLink(text, at);
  return emphasis(text, at, mark, depth);
}

function escaped(text, at, mark) {
  const close = { "\\(": "\\)", "\\[": "\\]" }[mark];
  const end = close ? find(text, close, at + 2) : -1;
  if (end > 0) return [mathml(text.slice(at + 2, end), mark === "\\["), end + 2];
  if (mark === "\\\n") return [el("br"), at + 2];
  return /[!-/:-@[-`{-~]/.test(mark[1]) ? [mark[1], at + 2] : [];
}

function codeSpan(text, after, ticks) {
  for (let end = find(text, ticks, after); end >= 0 && end < after + FARTHEST; end = find(text, ticks, end)) {
    let length = 0;
    while (text[end + length] === "`") length++;
    if (length === ticks.length) {
      const code = text.slice(after, end).replaceAll("\n", " ");
      return [el("code", {}, /^ .* $/.test(code) && code.trim() ? code.slice(1, -1) : code), end + length];
    }
    end += length;
  }
  return [];
}

// $x$, but not "$5 and $6": no space inside the signs, and no digit after them.
function dollars(text, after) {
  if (text[after] === "$") {
    const end = find(text, "$$", after + 1);
    return end < 0 ? [] : [mathml(text.slice(after + 1, end), false), end + 2];
  }
  const end = find(text, "$", after);
  const inner = text.slice(after, end);
  if (end <= after || /^\s|\s$|\n\n/.test(inner) || inner.endsWith("\\") || /\d/.test(text[end + 1] ?? "")) return [];
  return [mathml(inner, false), end + 1];
}

function link(text, at, after, depth) {
  let open = 1;
  let end = after;
  for (; end < text.length && open && end - after < 2000; end++) {
    if (text[end] === "\\") end++;
    else if (text[end] === "[") open++;
    else if (text[end] === "]") open--;
  }
  const target = open ? null : text.slice(end, end + 4000).match(/^\(\s*<?((?:[^\s()<>]|\([^\s()]*\))*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/);
  if (!target) return [];
  const label = inline(text.slice(after, end - 1), depth + 1);
  const shown = text[at] === "!" ? ["image: ", ...(label.length ? label : [target[1]])] : label;
  return [anchor(target[1], shown), end + target[0].length];
}

function anchor(target, shown) {
  const url = safeUrl(target);
  return url ? el("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, shown) : el("span", { title: target }, shown);
}

function angled(text, after) {
  const found = text.slice(after, after + 2000).match(/^([a-z]+:[^\s<>]*)>/);
  return found && safeUrl(found[1]) ? [anchor(found[1], [found[1]]), after + found[0].length] : [];
}

function bareLink(text, at) {
  if (/\w/.test(text[at - 1] ?? "")) return [];
  let url = text.slice(at, at + 2000).match(/^https?:\/\/[^\s<>"'`|]*/)[0].replace(/[.,:;!?*_~]+$/, "");
  while (url.endsWith(")") && url.split(")").length > url.split("(").length) url = url.slice(0, -1);
  return safeUrl(url) ? [anchor(url, [url]), at + url.length] : [];
}

function emphasis(text, at, mark, depth) {
  const after = at + mark.length;
  const word = (character) => /[\p{L}\p{N}]/u.test(character ?? "");
  if (!text[after] || /\s/.test(text[after]) || (mark[0] === "_" && word(text[at - 1]))) return [];
  let tried = 0;
  for (let end = find(text, mark, after); end >= 0 && end < after + FARTHEST && tried++ < MAX_TRIED; end = find(text, mark, end + 1)) {
    if (mark.length === 1 && (text[end + 1] === mark || text[end - 1] === mark) && !(text[end + 1] === mark && text[end + 2] === mark && text[end + 3] !== mark)) {
      end += text[end + 1] === mark ? 1 : 0;
      continue;
    }
    if (mark.length === 2 && text[end + 2] === mark[0]) end++;
    if (end === after || /\s/.test(text[end - 1]) || (mark[0] === "_" && word(text[end + mark.length]))) continue;
    const tag = mark === "~~" ? "del" : mark.length === 2 ? "strong" : "em";
    return [el(tag, {}, inline(text.slice(after, end), depth + 1)), end + mark.length];
  }
  return [];
}
