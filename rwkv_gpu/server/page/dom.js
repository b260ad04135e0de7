// Elements. Text becomes text nodes: nothing that a model or a file says is ever parsed as HTML.
const SVG = "http://www.w3.org/2000/svg";
const MATHML = "http://www.w3.org/1998/Math/MathML";

function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function elementOf(space, tag, attributes = {}, ...children) {
  return filled(document.createElementNS(space, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child != null && child !== false));
  return node;
}

const byId = (id) => document.getElementById(id);

// http, https and mailto; whatever else a link says, it is no link.
function safeUrl(text) {
  try {
    const url = new URL(text);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}
