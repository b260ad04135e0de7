// Mermaid's flowcharts and sequence diagrams as SVG. Other diagrams, and those with unknown statements, give null and stay code.
const LARGEST_DIAGRAM = 20000; // characters
const LONGEST_LINE = 500; // characters of a statement
const MAX_BOXES = 200;
const MAX_EDGES = 400;
const MAX_BENDS = 600; // of edges that pass other boxes
const LINE = 18; // pixels of a line of text

function diagram(code) {
  const lines = code.length > LARGEST_DIAGRAM ? [] : code.split("\n").map((line) => line.trim()).filter((line) => line && !line.startsWith("%%"));
  const head = lines.shift()?.match(/^(?:(?:graph|flowchart)\s+(TB|TD|BT|LR|RL)|(sequenceDiagram));?$/);
  if (!head || lines.some((line) => line.length > LONGEST_LINE)) return null;
  return head[2] ? sequenceDiagram(lines) : flowchart(lines.flatMap((line) => line.split(/;(?=\s*$|\s+)/)), head[1]);
}

// ---- parts of both

const xmlText = (text) => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`).replace(/[\0-\x08\x0b\x0c\x0e-\x1f]|[\ud800-\udfff]/gu, "");
const labelLines = (text) => text.trim().replace(/^"([^"]*)"$/, "$1").split(/<br\s*\/?>|\\n/);
const widthOf = (lines) => Math.max(...lines.map((line) => [...line].reduce((width, sign) => width + (sign > "\u2e80" ? 14 : 7.6), 0)));

function textAt(x, y, lines, plate = false) {
  const [width, top] = [widthOf(lines) + 6, y - (lines.length * LINE) / 2];
  const rows = lines.map((line, n) => `<text x="${x}" y="${top + n * LINE + 13}">${xmlText(line)}</text>`).join("");
  return plate && width > 6 ? `<rect x="${x - width / 2}" y="${top}" width="${width}" height="${lines.length * LINE}" fill="#fff" stroke="none"/>${rows}` : rows;
}

function picture(width, height, content) {
  const arrow = (id, path, fill) => `<marker id="${id}" viewBox="0 0 10 10" refX="9" refY="5" markerUnits="userSpaceOnUse" markerWidth="11" markerHeight="11" orient="auto-start-reverse"><path d="${path}" fill="${fill}"/></marker>`;
  const style = 'font-family="sans-serif" font-size="13" text-anchor="middle" fill="#222" stroke-width="1.3"';
  const marks = arrow("arrow", "M0 0L10 5L0 10z", "#555") + arrow("cross", "M1 1L9 9M9 1L1 9", "none").replace("<path", '<path stroke="#555" stroke-width="2"');
  return `<svg xmlns="${SVG}" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" ${style}><defs>${marks}</defs>${content}</svg>`;
}

// ---- flowcharts

const SHAPES = [["(((", ")))", "circle"], ["((", "))", "circle"], ["([", "])", "stadium"], ["[[", "]]", "box"], ["[(", ")]", "stadium"], ["{{", "}}", "hexagon"], ["[/", "/]", "box"], ["[", "]", "box"], ["(", ")", "round"], ["{", "}", "rhombus"], [">", "]", "box"]];
const IGNORED = /^(style|classDef|class|linkStyle|click)\b/;
const NAME = /\s*([\p{L}\p{N}_]+(?:[-.][\p{L}\p{N}_]+)*)/uy;
const LINK = /\s*(<)?(-{2,}[->xo]|-\.+->?|={2,}[=>])(?:\s*\|([^|]*)\|)?/y;
const LABELLED = /\s*(<)?(--|==|-\.)(?=[\s"\p{L}\p{N}])/uy; // -- text -->
const LINK_END = /-{2,}[->xo]|\.+->?|={2,}[=>]/g;

// Reads a part of a statement at `place.at`, and moves behind it.
function readPart(pattern, text, place) {
  pattern.lastIndex = place.at;
  const found = pattern.exec(text);
  if (found) place.at = pattern.lastIndex;
  return found;
}

function nodeAt(text, place, nodes) {
  const name = readPart(NAME, text, place)?.[1];
  if (!name) return null;
  if (!nodes.has(name)) nodes.set(name, { lines: [name], shape: "box" });
  const shape = SHAPES.find(([open]) => text.startsWith(open, place.at));
  if (shape) {
    const [open, close, kind] = shape;
    const quoted = text[place.at + open.length] === '"' ? text.indexOf('"', place.at + open.length + 1) : place.at;
    const end = quoted < 0 ? -1 : text.indexOf(close, quoted + 1);
    if (end < 0) return null;
    Object.assign(nodes.get(name), { lines: labelLines(text.slice(place.at + open.length, end)), shape: kind });
    place.at = end + close.length;
  }
  readPart(/:::[\w-]+/y, text, place);
  return nodes.get(name);
}

function nodesAt(text, place, nodes) {
  const found = [];
  do {
    const node = nodeAt(text, place, nodes);
    if (!node) return null;
    found.push(node);
  } while (readPart(/\s*&/y, text, place));
  return found;
}

function linkAt(text, place) {
  const plain = readPart(LINK, text, place);
  if (plain) return { both: plain[1], sign: plain[2], lines: labelLines(plain[3] ?? "") };
  const begun = readPart(LABELLED, text, place);
  const from = place.at;
  const end = begun && readPart(LINK_END, text, place);
  return end ? { both: begun[1], sign: begun[2] + end[0], lines: labelLines(text.slice(from, end.index)) } : null;
}

function flowchart(statements, direction) {
  const [nodes, edges] = [new Map(), []];
  for (const statement of statements.map((one) => one.trim()).filter((one) => one && !IGNORED.test(one))) {
    const place = { at: 0 };
    let from = nodesAt(statement, place, nodes);
    while (from && place.at < statement.length) {
      const link = linkAt(statement, place);
      const to = link && nodesAt(statement, place, nodes);
      if (nodes.size > MAX_BOXES || edges.length + from.length * (to?.length ?? 0) > MAX_EDGES) return null;
      for (const [a, b] of to ? from.flatMap((a) => to.map((b) => [a, b])) : []) edges.push({ a, b, ...link });
      from = to;
    }
    if (!from || nodes.size > MAX_BOXES) return null;
  }
  return nodes.size ? laidOut([...nodes.values()], edges, direction) : null;
}

// Layers by the longest path from a first node. An edge that would close a circle is turned round; `turned` swaps its ends when it is drawn.
function layered(nodes, edges, backwards) {
  const reached = new Set(), open = new Set();
  const follow = (node) => {
    reached.add(node), open.add(node);
    for (const edge of edges.filter((one) => one.a === node && one.a !== one.b)) {
      if (open.has(edge.b)) edge.turned = true;
      else if (!reached.has(edge.b)) follow(edge.b);
    }
    open.delete(node);
  };
  nodes.forEach((node) => reached.has(node) || follow(node));
  for (const edge of edges) {
    edge.turned = Boolean(edge.turned) !== backwards;
    if (edge.turned) [edge.a, edge.b] = [edge.b, edge.a];
  }
  nodes.forEach((node) => (node.rank = 0));
  for (let changed = true; changed; ) {
    changed = false;
    for (const { a, b } of edges) if (a !== b && b.rank <= a.rank) [b.rank, changed] = [a.rank + 1, true];
  }
}

function laidOut(nodes, edges, direction) {
  const across = direction === "LR" || direction === "RL"; // layers stand next to each other
  layered(nodes, edges, direction === "BT" || direction === "RL");
  for (const node of nodes) {
    const wide = { rhombus: 1.5, circle: 1.3 }[node.shape] ?? 1;
    Object.assign(node, { w: wide * widthOf(node.lines) + 28, h: (wide > 1 ? 1.6 : 1) * LINE * node.lines.length + 18 });
  }
  const between = ({ a, b }) => Math.max(0, b.rank - a.rank - 1);
  if (edges.reduce((sum, edge) => sum + between(edge), 0) > MAX_BENDS) return null;
  const layers = [];
  const place = (node) => (layers[node.rank] ??= []).push(node);
  nodes.forEach(place);
  for (const edge of edges) { // bends keep a long edge away from the boxes that it passes
    edge.bends = Array.from({ length: between(edge) }, (_, n) => ({ rank: edge.a.rank + n + 1, w: 16, h: 16 }));
    edge.bends.forEach(place);
  }
  const before = new Map(layers.flat().map((node) => [node, []]));
  for (const { a, b, bends } of edges) [a, ...bends, b].reduce((one, next) => (before.get(next).push(one), next));
  const [long, short, size, thick] = across ? ["x", "y", "h", "w"] : ["y", "x", "w", "h"];
  const lengths = layers.map((layer) => layer.reduce((sum, node) => sum + node[size] + 30, -30));
  const most = Math.max(...lengths);
  const labels = Math.max(0, ...edges.map(({ lines }) => (across ? widthOf(lines) : LINE * (lines.length - 1))));
  let depth = 10;
  layers.forEach((layer, rank) => {
    const wanted = new Map(layer.map((node, n) => [node, before.get(node).reduce((sum, one) => sum + one[short], 0) / before.get(node).length || n]));
    layer.sort((one, other) => wanted.get(one) - wanted.get(other));
    const deepest = Math.max(...layer.map((node) => node[thick]));
    let at = 10 + (most - lengths[rank]) / 2;
    for (const node of layer) {
      node[long] = depth + deepest / 2;
      node[short] = at + node[size] / 2;
      at += node[size] + 30;
    }
    depth += deepest + 50 + labels;
  });
  const [width, height] = across ? [depth - 40 - labels, most + 20] : [most + 20, depth - 40 - labels];
  const seen = new Map();
  const drawnEdges = edges.map((edge) => edgeOf(edge, across, seen)).join("");
  return picture(Math.ceil(width + 30), Math.ceil(height), `${drawnEdges}${nodes.map(boxOf).join("")}`);
}

function boxOf({ x, y, w, h, shape, lines }) {
  const style = 'fill="#eef2fb" stroke="#5b6b95"';
  const [left, right, top, end] = [x - w / 2, x + w / 2, y - h / 2, y + h / 2];
  const polygon = (...points) => `<polygon points="${points.join(" ")}" ${style}/>`;
  const outline = {
    circle: () => `<ellipse cx="${x}" cy="${y}" rx="${w / 2}" ry="${h / 2}" ${style}/>`,
    rhombus: () => polygon(x, top, right, y, x, end, left, y),
    hexagon: () => polygon(left + 10, top, right - 10, top, right, y, right - 10, end, left + 10, end, left, y),
  }[shape];
  const radius = { round: 8, stadium: h / 2 }[shape] ?? 2;
  return (outline?.() ?? `<rect x="${left}" y="${top}" width="${w}" height="${h}" rx="${radius}" ${style}/>`) + textAt(x, y, lines);
}

function edgeOf({ a, b, bends, turned, both, sign, lines }, across, seen) {
  const key = [a, b].map(({ x, y }) => `${x},${y}`).join(" ");
  const shift = 14 * (seen.get(key) ?? 0); // next to other edges of the same boxes
  seen.set(key, (seen.get(key) ?? 0) + 1);
  const point = ({ x, y, w, h }, way) => (across ? [x + (way * w) / 2, y + shift] : [x + shift, y + (way * h) / 2]);
  const loop = a === b;
  const points = loop ? [[a.x + a.w / 2, a.y - 6], [a.x + a.w / 2, a.y + 6]] : [point(a, 1), ...bends.flatMap((one) => [point(one, -1), point(one, 1)]), point(b, -1)];
  const curve = ([x, y], [u, v]) => (loop ? `C${x + 30} ${y - 12} ${u + 30} ${v + 12} ${u} ${v}` : across ? `C${(x + u) / 2} ${y} ${(x + u) / 2} ${v} ${u} ${v}` : `C${x} ${(y + v) / 2} ${u} ${(y + v) / 2} ${u} ${v}`);
  const path = points.slice(1).reduce((found, next, n) => found + curve(points[n], next), `M${points[0].join(" ")}`);
  const end = sign.endsWith("x") ? "cross" : /[>o]$/.test(sign) ? "arrow" : null;
  const marks = [[turned ? "start" : "end", end], [turned ? "end" : "start", both && "arrow"]].map(([where, mark]) => (mark ? ` marker-${where}="url(#${mark})"` : "")).join("");
  const style = (sign.includes(".") ? ' stroke-dasharray="4 4"' : "") + (sign.includes("==") ? ' stroke-width="3"' : "");
  const middle = Math.floor((points.length - 2) / 2);
  const [[x, y], [u, v]] = [points[middle], points[middle + 1]];
  return `<path d="${path}" fill="none" stroke="#555"${style}${marks}/>${textAt((x + u) / 2 + (loop ? 24 : 0), (y + v) / 2, lines, true)}`;
}

// ---- sequence diagrams

const MESSAGE = /^([^:<>+-]+?)\s*(--?(?:>>|>|x|\)))\s*[+-]?\s*([^:]+?)\s*:\s*(.*)$/;
const NOTE = /^note\s+(?:right of|left of|over)\s+([^:]+?)\s*:\s*(.*)$/i;
const FRAME = /^(loop|alt|opt|par|critical|break)\b\s*(.*)$/;
const NEXT_FRAME = /^(?:else|and|option)\b\s*(.*)$/;

function sequenceDiagram(lines) {
  const [people, rows, open] = [new Map(), [], []];
  const person = (name) => people.get(name) ?? people.set(name, { lines: labelLines(name) }).get(name);
  for (const line of lines) {
    let found;
    if ((found = line.match(/^(?:participant|actor)\s+(\S+)(?:\s+as\s+(.*))?$/))) person(found[1]).lines = labelLines(found[2] ?? found[1]);
    else if ((found = line.match(NOTE))) rows.push({ note: true, ends: found[1].split(",").map((name) => person(name.trim())), lines: labelLines(found[2]) });
    else if ((found = line.match(FRAME))) open.push(rows[rows.push({ frame: true, lines: [`${found[1]} ${found[2]}`] }) - 1]);
    else if (open.length && (found = line.match(NEXT_FRAME))) rows.push({ next: true, depth: open.length, lines: [found[1]] });
    else if (open.length && line === "end") rows.push({ end: open.pop() });
    else if ((found = line.match(MESSAGE))) rows.push({ ends: [person(found[1]), person(found[3])], sign: found[2], lines: labelLines(found[4]) });
    else if (!/^(activate|deactivate|autonumber)\b/.test(line)) return null;
  }
  if (!people.size || people.size > 30 || rows.length > MAX_BOXES || open.length) return null;
  return conversation([...people.values()], rows);
}

function conversation(people, rows) {
  const step = Math.max(110, ...people.map(({ lines }) => widthOf(lines) + 40), ...rows.filter(({ ends }) => ends).map(({ ends, lines }) => (widthOf(lines) + 30) / Math.max(1, Math.abs(people.indexOf(ends[0]) - people.indexOf(ends.at(-1))))));
  const head = LINE * Math.max(...people.map(({ lines }) => lines.length)) + 18;
  const width = step * people.length + 20;
  people.forEach((one, n) => Object.assign(one, { x: 10 + step * (n + 0.5), y: 10 + head / 2, w: widthOf(one.lines) + 28, h: head, shape: "box" }));
  let [y, inside, content] = [head + 24, 0, ""];
  for (const row of rows) {
    const { note, frame, next, end, depth, ends, sign, lines } = row;
    const high = LINE * (lines?.length ?? 0);
    const [from, to] = [ends?.[0].x, ends?.at(-1).x];
    if (end) content += `<rect x="${4 * --inside + 4}" y="${end.top}" width="${width - 8 * inside - 8}" height="${y - end.top}" fill="none" stroke="#999"/>`;
    else if (frame) (row.top = y), inside++;
    else if (next) content += `<path d="M${4 * depth} ${y}H${width - 4 * depth}" stroke="#999" stroke-dasharray="4 4"/>`;
    if (frame || next) content += textAt(16 + 4 * inside + widthOf(lines) / 2, y + 12, lines, true);
    if (note) content += `<rect x="${(from + to) / 2 - widthOf(lines) / 2 - 8}" y="${y}" width="${widthOf(lines) + 16}" height="${high + 6}" fill="#fff8d6" stroke="#b9a44c"/>${textAt((from + to) / 2, y + high / 2 + 3, lines)}`;
    else if (ends) {
      const path = from === to ? `M${from} ${y + high + 4}h34v14h-34` : `M${from} ${y + high + 6}H${to}`;
      const mark = sign.endsWith("x") ? "cross" : sign.endsWith(">>") || sign.endsWith(")") ? "arrow" : null;
      content += `<path d="${path}" fill="none" stroke="#555"${sign.startsWith("--") ? ' stroke-dasharray="4 4"' : ""}${mark ? ` marker-end="url(#${mark})"` : ""}/>`;
      content += textAt(from === to ? from + widthOf(lines) / 2 + 6 : (from + to) / 2, y + high / 2, lines, true);
    }
    y += end ? 12 : high + (frame || next ? 14 : 26);
  }
  const lives = people.map(({ x }) => `<path d="M${x} ${head + 10}V${y}" stroke="#bbb"/>`).join("");
  return picture(Math.ceil(width), Math.ceil(y + 14), lives + people.map(boxOf).join("") + content);
}
