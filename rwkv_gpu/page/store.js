// Conversations in the browser's database. A conversation is a tree of messages; `leaf` ends the branch in view.
const DATABASE = "rwkv-gpu";
const CHANGES = "BroadcastChannel" in window ? new BroadcastChannel(DATABASE) : null;

const newId = () => [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
const asked = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

class Store {
  removed = new Set(); // ids

  // If a browser forbids its database, as in some private windows, conversations last until the page is closed.
  async open() {
    this.memory = new Map();
    try {
      const request = indexedDB.open(DATABASE, 1);
      request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
      this.database = await asked(request);
      this.database.onversionchange = () => this.database.close();
    } catch {
      this.database = null;
    }
    return this.database !== null;
  }

  #table(mode) {
    return this.database.transaction("conversations", mode).objectStore("conversations");
  }

  async all() {
    const found = this.database ? await asked(this.#table("readonly").getAll()) : [...this.memory.values()];
    return found.sort((a, b) => b.pinned - a.pinned || b.updated - a.updated);
  }

  async get(id) {
    return this.database ? asked(this.#table("readonly").get(id)) : this.memory.get(id);
  }

  async put(conversation) {
    if (this.removed.has(conversation.id)) return; // an answer that was still arriving
    if (this.database) await asked(this.#table("readwrite").put(conversation));
    else this.memory.set(conversation.id, conversation);
    CHANGES?.postMessage({ id: conversation.id });
  }

  async remove(id) {
    this.removed.add(id);
    if (this.database) await asked(this.#table("readwrite").delete(id));
    else this.memory.delete(id);
    CHANGES?.postMessage({ id, removed: true });
  }
}

function newConversation() {
  const now = Date.now();
  return { id: newId(), title: "New chat", named: false, pinned: false, created: now, updated: now, ...defaults(), nodes: {}, leaf: null };
}

function addNode(conversation, parent, role, content, more = {}) {
  const node = { id: newId(), parent, role, content, created: Date.now(), ...more };
  conversation.nodes[node.id] = node;
  conversation.leaf = node.id;
  return node;
}

function pathTo(conversation, id) {
  const path = [];
  for (let node = conversation.nodes[id]; node; node = conversation.nodes[node.parent]) path.unshift(node);
  return path;
}

const childrenOf = (conversation, parent) => Object.values(conversation.nodes).filter((node) => node.parent === parent).sort((a, b) => a.created - b.created);

// The end of the branch that continues a message by its newest answers.
function lastLeaf(conversation, id) {
  for (let next = childrenOf(conversation, id); next.length; next = childrenOf(conversation, id)) id = next.at(-1).id;
  return id;
}

function removeBranch(conversation, id) {
  const { parent } = conversation.nodes[id];
  const gone = [id];
  for (const one of gone) gone.push(...childrenOf(conversation, one).map((node) => node.id));
  for (const one of gone) delete conversation.nodes[one];
  const siblings = childrenOf(conversation, parent);
  if (gone.includes(conversation.leaf)) conversation.leaf = siblings.length ? lastLeaf(conversation, siblings.at(-1).id) : parent;
}

function asMarkdown(conversation) {
  const parts = [`# ${conversation.title}`];
  if (conversation.system) parts.push(`**System**\n\n${conversation.system}`);
  for (const node of pathTo(conversation, conversation.leaf)) parts.push(`**${node.role === "user" ? "You" : "Model"}**\n\n${fullText(node, conversation.settings.documents === "whole")}`);
  return `${parts.join("\n\n")}\n`;
}

// A message of the chat as messages for the model: tool calls that have results become separate messages.
function messagesOf(node, whole) {
  const text = fullText(node, whole);
  const calls = (node.tools ?? []).filter((one) => one.result !== undefined);
  if (!calls.length) return [{ role: node.role, content: node.images?.length ? [...imageParts(node), { type: "text", text }] : text }];
  const named = calls.map(({ id, name, arguments: given }, n) => ({ id: id || `call_${n}`, type: "function", function: { name, arguments: given } }));
  const answer = { role: "assistant", content: text, tool_calls: named, ...(node.thinking && { reasoning_content: node.thinking }) };
  return [answer, ...calls.map(({ result }, n) => ({ role: "tool", tool_call_id: named[n].id, content: result }))];
}

// The text of a message for the model: attachments, or passages of long ones, come first.
function fullText(node, whole) {
  const files = (node.attachments ?? []).filter((file) => whole || !file.inPassages).map((file) => inFence(file.name, file.text));
  const passages = (whole ? [] : (node.passages ?? [])).map((one) => inFence(`[${one.number}] ${placeOf(one)}`, one.text));
  if (passages.length) passages.unshift(`Passages of the attached documents. Cite the passages that you use by their numbers, such as [${node.passages[0].number}].\n\n`);
  return [...files, ...passages].join("") + node.content;
}

// A text in a code fence that is longer than any fence in the text.
function inFence(name, text) {
  const longest = (text.match(/`+/g) ?? []).reduce((most, ticks) => Math.max(most, ticks.length), 2);
  const fence = "`".repeat(longest + 1);
  return `${name}:\n${fence}\n${text}\n${fence}\n\n`;
}
