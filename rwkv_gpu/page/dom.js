// Elements. Text becomes text nodes: output of a model or file is never parsed as HTML.
const SVG = "http://www.w3.org/2000/svg";
const MATHML = "http://www.w3.org/1998/Math/MathML";

function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function elementOf(space, tag, attributes = {}, ...children) {
  return filled(document.createElementNS(space, tag), attributes, children);
}

// Children are added as one fragment, before the attributes: in a node with dir="auto", each child would set the direction anew.
function filled(node, attributes, children) {
  const fragment = document.createDocumentFragment();
  for (const child of children.flat()) if (child != null && child !== false) fragment.append(child);
  node.append(fragment);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  return node;
}

// Makes these the children of a box. Unchanged ones are not moved: a moved one would flicker and lose the focus.
function setChildren(box, wanted) {
  const kept = new Set(wanted);
  for (const child of [...box.children]) if (!kept.has(child)) child.remove();
  wanted.forEach((node, n) => box.children[n] !== node && box.insertBefore(node, box.children[n] ?? null));
}

const labelOf = (node) => node.getAttribute("aria-label") ?? node.textContent;

// Redraws the items of a box. The focus stays on its control, or moves to the nearest remaining one.
function keepFocus(box, draw) {
  const before = box.contains(document.activeElement) ? document.activeElement : null;
  const item = before?.closest("[data-id]");
  const place = [...box.children].indexOf(item);
  draw();
  if (!before || document.activeElement === before) return;
  const now = [...box.children].find((one) => one.dataset.id === item?.dataset.id) ?? box.children[place];
  const controls = [...(now?.querySelectorAll("button:enabled, summary") ?? [])];
  const next = before.isConnected ? before : (controls.find((one) => labelOf(one) === labelOf(before)) ?? controls[0] ?? byId("text"));
  next.focus({ preventScroll: true });
}

// A table without a prototype: in other objects "constructor" is a key, too.
const named = (entries) => Object.assign(Object.create(null), entries);

const byId = (id) => document.getElementById(id);

// http, https and mailto; anything else does not become a link.
function safeUrl(text) {
  try {
    const url = new URL(text);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}
