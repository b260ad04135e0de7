// Imports of chats: exports of this page, ChatGPT, llama-server and Open WebUI, also in a ZIP archive, and conversation files. All are checked: they may come from anywhere.
const LARGEST_IMPORT = 256 << 20; // bytes, also of the unpacked files of an archive
const MAX_CHATS = 20000;
const MAX_MESSAGES = 10000; // of a chat
const REASONING = /<details type="reasoning"[^>]*>\s*(?:<summary>[^<]*<\/summary>)?([^]*?)<\/details>/g;

const asText = (value) => (typeof value === "string" ? value : "");
const asList = (value) => (Array.isArray(value) ? value : []);
const asObject = (value) => (typeof value === "object" && value !== null ? value : {});
const listOf = (value, read) => asList(value).map(read);
const milliseconds = (seconds) => (Number.isFinite(seconds) ? 1000 * seconds : undefined);

// The conversations of a file.
async function readImport(file) {
  if (file.size > LARGEST_IMPORT) throw new Error(`it has ${bytes(file.size)}; at most ${bytes(LARGEST_IMPORT)} can be imported`);
  const head = await file.slice(0, 8).text();
  if (/^RWKVGPU\d$/.test(head)) return readConversationFile(file);
  const zipped = head.startsWith("PK\u0003\u0004");
  const texts = zipped ? await unzipped(file) : [await file.text()];
  const found = texts.flatMap((text) => imported(parsed(text)));
  if (!found.length) throw new Error("it has no chats");
  return found;
}

// A conversation file of `rwkv-gpu chat --session`, of an exported page or of this one. The server reads it. If the state in it
// is of the same model, it serves requests with this salt, so that no other conversation can use it.
async function readConversationFile(file) {
  const form = new FormData();
  const cacheSalt = newId();
  for (const [name, value] of Object.entries({ file, cache_salt: cacheSalt, model: byId("model").value })) if (value) form.append(name, value);
  const { branches, current, state } = await (await request("/v1/conversation-files/read", { method: "POST", body: form })).json();
  const nodes = [];
  const leaves = branches.map(({ messages }) => messages.reduce((parent, { role, content: given, reasoning_content: thinking = "" }) => {
    if (role === "system") return parent;
    const key = JSON.stringify([parent, role, given, thinking]);
    const same = (one) => one.key === key;
    if (!nodes.some(same)) nodes.push({ key, id: String(nodes.length), parent, role, ...unfolded(given), thinking, created: nodes.length + 1 });
    return nodes.find(same).id;
  }, null));
  const { messages, settings, think } = branches[current];
  if (typeof think === "boolean") settings.thinking = think ? "on" : "off";
  const title = asText(unfolded(messages.find(({ role }) => role === "user")?.content).content).split("\n")[0].slice(0, 60);
  const system = messages[0]?.role === "system" ? messages[0].content : "";
  const conversation = checked({ title, nodes, leaf: leaves[current], system, settings });
  return conversation.leaf ? [Object.assign(conversation, state ? { cacheSalt } : {})] : [];
}

// The text, the images and the sounds of a message that may have parts.
function unfolded(content) {
  if (!Array.isArray(content)) return { content };
  const media = content.map(({ image_url: image, audio_url: audio }) => (image ? { image: image.url } : audio && { audio: audio.url })).filter(Boolean);
  return { content: content.map(({ text = "" }) => text).join(""), images: media.map((one, n) => ({ name: `${one.audio ? "Audio" : "Image"} ${n + 1}`, ...one })) };
}

// JSON, or JSON by lines, as llama-server writes it: {type: "session"}, then {type: "message"} for each message.
function parsed(text) {
  const first = text.trimStart().split("\n", 1)[0];
  try {
    if (!/"type"\s*:\s*"session"/.test(first)) return JSON.parse(text);
    const found = [];
    for (const line of text.split("\n").filter((one) => one.trim())) {
      const record = asObject(JSON.parse(line));
      if (record.type === "session") found.push({ conv: record, messages: [] });
      else if (record.type === "message") found.at(-1).messages.push(record.message);
    }
    return found;
  } catch {
    throw new Error("it is not JSON");
  }
}

// The texts of an archive's .json and .jsonl files.
async function unzipped(file) {
  const data = new DataView(await file.arrayBuffer());
  const bad = () => new Error("it is a damaged archive");
  let end = data.byteLength - 22;
  while (end >= 0 && data.getUint32(end, true) !== 0x06054b50) end--;
  if (end < 0) throw bad();
  const texts = [];
  let left = LARGEST_IMPORT;
  try {
    for (let at = data.getUint32(end + 16, true), n = data.getUint16(end + 10, true); n > 0; n--) {
      if (data.getUint32(at, true) !== 0x02014b50) throw bad();
      const [packed, name, extra, comment] = [data.getUint32(at + 20, true), data.getUint16(at + 28, true), data.getUint16(at + 30, true), data.getUint16(at + 32, true)];
      const local = data.getUint32(at + 42, true);
      const filename = new TextDecoder().decode(new Uint8Array(data.buffer, at + 46, name));
      if (/(^|\/)conversations[^/]*\.json$|\.jsonl$/i.test(filename)) {
        const start = local + 30 + data.getUint16(local + 26, true) + data.getUint16(local + 28, true);
        const text = await inflated(new Uint8Array(data.buffer, start, packed), data.getUint16(at + 10, true), left);
        left -= text.length;
        texts.push(text);
      }
      at += 46 + name + extra + comment;
    }
  } catch (error) {
    throw error instanceof RangeError || error instanceof TypeError ? bad() : error;
  }
  if (!texts.length) throw new Error("this archive has no conversations");
  return texts;
}

async function inflated(packed, method, most) {
  if (method !== 0 && method !== 8) throw new Error("this archive is packed in a way that this page cannot read");
  const stream = new Blob([packed]).stream();
  const parts = [];
  let left = most;
  for (const reader = (method ? stream.pipeThrough(new DecompressionStream("deflate-raw")) : stream).getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) return new Blob(parts).text();
    left -= value.length;
    if (left < 0) throw new Error(`its files have more than ${bytes(LARGEST_IMPORT)}`);
    parts.push(value);
  }
}

// Conversations of this page, from those of any export.
function imported(data) {
  const list = Array.isArray(data) ? data : Array.isArray(data?.conversations) ? data.conversations : [data];
  if (list.length > MAX_CHATS) throw new Error(`it has more than ${number(MAX_CHATS)} chats`);
  return list.map((one) => checked(converted(asObject(one)))).filter((one) => one.leaf);
}

function converted(one) {
  if (typeof one.nodes === "object" && one.nodes !== null) return { ...one, nodes: Object.values(one.nodes) };
  if (typeof one.mapping === "object" && one.mapping !== null) return fromChatGpt(one);
  if (one.conv && Array.isArray(one.messages)) return fromLlamaServer(one);
  const chat = asObject(one.chat ?? one);
  if (chat.history?.messages) return fromOpenWebUi(one, chat);
  throw new Error("it has no chats of this page, ChatGPT, llama-server or Open WebUI");
}

function fromChatGpt({ title, mapping, current_node: leaf }) {
  const nodes = Object.values(mapping).map((node) => {
    const { author, content, create_time: created, metadata } = asObject(node?.message);
    const { content_type: kind, parts, text } = asObject(content);
    const thoughts = mapping[node?.parent]?.message?.content?.thoughts;
    const hidden = metadata?.is_visually_hidden_from_conversation || !["text", "multimodal_text", "code"].includes(kind);
    const shown = kind === "code" ? `\`\`\`\n${asText(text)}\n\`\`\`` : asList(parts).map((part) => asText(part?.text ?? part)).filter(Boolean).join("\n\n");
    return { id: node?.id, parent: node?.parent, role: hidden || !shown ? null : author?.role, content: shown, thinking: listOf(thoughts, (one) => asText(one?.content)).join("\n\n"), created: milliseconds(created) };
  });
  return { title, nodes, leaf };
}

function fromLlamaServer({ conv, messages }) {
  const { name, currNode: leaf, pinned } = asObject(conv);
  const files = (extra) => asList(extra).filter((one) => ["TEXT", "context"].includes(one?.type) || asText(one?.content)).map((one) => ({ name: one?.name, text: one?.content }));
  const nodes = messages.map(asObject).map(({ id, parent, role, content, thinking, reasoningContent, timestamp, extra }) => ({ id, parent, role, content, thinking: reasoningContent || thinking, created: timestamp, attachments: files(extra) }));
  return { title: name, nodes, leaf, pinned, system: nodes.find((node) => node.role === "system" && node.content)?.content };
}

function fromOpenWebUi({ title, pinned }, { title: inner, system, params, history }) {
  const nodes = Object.values(asObject(history.messages)).map(asObject).map(({ id, parentId: parent, role, content, timestamp }) => ({
    id, parent, role, created: milliseconds(timestamp),
    content: asText(content).replace(REASONING, "").trim(),
    thinking: [...asText(content).matchAll(REASONING)].map((match) => match[1].trim().replace(/^(> ?|&gt; ?)/gm, "")).join("\n\n"),
  }));
  return { title: title ?? inner, pinned, system: system || params?.system, nodes, leaf: history.currentId };
}

// A conversation of this page. Messages of other roles are left out; the messages after them are attached to the message before them.
function checked(one) {
  if (one.nodes.length > MAX_MESSAGES) throw new Error(`one of its chats has more than ${number(MAX_MESSAGES)} messages`);
  const all = new Map(one.nodes.filter((node) => typeof node?.id === "string").map((node) => [node.id, node]));
  if (cyclic(all)) throw new Error("its messages go in a circle");
  const fresh = newConversation();
  const shown = (node) => ["user", "assistant"].includes(node.role);
  const ids = new Map([...all.values()].filter(shown).map((node) => [node.id, newId()]));
  const nearest = (id) => {
    while (all.has(id) && !ids.has(id)) id = all.get(id).parent;
    return ids.get(id) ?? null;
  };
  for (const [id, node] of all) if (ids.has(id)) fresh.nodes[ids.get(id)] = checkedNode(node, ids.get(id), nearest(node.parent));
  fresh.leaf = nearest(one.leaf) ?? lastLeaf(fresh, null);
  return Object.assign(fresh, { title: asText(one.title) || "Imported chat", named: true, pinned: one.pinned === true, system: asText(one.system), settings: checkedSettings(asObject(one.settings)) });
}

function checkedNode(node, id, parent) {
  return {
    id, parent, role: node.role, content: asText(node.content), thinking: asText(node.thinking),
    thinkingSeconds: Number(node.thinkingSeconds) || 0, created: Number(node.created) || Date.now(),
    attachments: listOf(node.attachments, importedFile),
    images: node.images && listOf(node.images, importedImage).filter(Boolean),
    passages: node.passages && listOf(node.passages, importedPassage),
    tools: node.tools && listOf(node.tools, importedCall),
  };
}

const importedFile = (file) => ({
  name: asText(file?.name), text: asText(file?.text), inPassages: file?.inPassages === true,
  starts: asList(file?.starts).every(Number.isSafeInteger) ? file?.starts : undefined,
});
const importedCall = (tool) => ({
  name: asText(tool?.name), arguments: asText(tool?.arguments), ...(asText(tool?.id) && { id: tool.id }),
  ...(typeof tool?.result === "string" && { result: tool.result, failed: tool.failed === true }),
});
const importedPassage = (one) => ({
  number: Number(one?.number) || 0, file: asText(one?.file), text: asText(one?.text), start: Number(one?.start) || 0,
  page: Number.isSafeInteger(one?.page) ? one.page : null,
});

// Known settings with values of the right type.
function checkedSettings(given) {
  const settings = {};
  for (const [name] of SETTINGS) if (Number.isFinite(given[name])) settings[name] = given[name];
  if (["on", "off"].includes(given.thinking)) settings.thinking = given.thinking;
  if (given.documents === "whole") settings.documents = "whole";
  if (given.tools === "off") settings.tools = "off";
  if (supports("schema") && asText(given.schema)) JSON.parse(settings.schema = given.schema);
  return settings;
}

function cyclic(nodes) {
  const fine = new Set();
  for (const start of nodes.values()) {
    const seen = new Set();
    for (let node = start; node && !fine.has(node.id); node = nodes.get(node.parent)) {
      if (seen.has(node.id)) return true;
      seen.add(node.id);
    }
    for (const id of seen) fine.add(id);
  }
  return false;
}
