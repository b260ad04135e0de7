// The page: the list of conversations, the one in view, and running answers, which continue while another is in view.
const SAVE_EVERY = 1000; // milliseconds while an answer streams
const DOCUMENTS = [["\ufffd\ufffd\u0011", "an old office document"], ["PK\u0003\u0004", "an archive or an office document"], ["{\\rtf", "an RTF document"]]; // by their first characters
const LONG_PASTE = 3000; // characters that become an attachment
const LARGEST_FILE = 2 << 20;
const LARGEST_PDF = 10 * 1023 * 1024; // bytes; with the form around it, within the default limit of a request
const NAMES_CHATS = 3e8; // fewest parameters of a model that writes titles
const TITLE_READS = 2000; // characters of a message that a title is made from
const TITLE_REQUEST = "Write a title for this conversation in at most six words, in its language. Write only the title.";
const DECLINED = "The user has declined this call."; // the result of the call for the model
const NOT_RUNNING = { stream: undefined, progress: undefined, waiting: undefined }; // fields that a message has only while it is answered

const store = new Store();
const toolRuns = new Set(); // running calls: id of the message and number of the call
const running = new Map(); // by the id of a message: {controller, conversation, node}
const views = new Map(); // by the id of a message, of the conversation in view
const state = { current: newConversation(), list: [], models: [], props: {}, tools: [], attachments: [], follow: true, query: "" };
const panel = new Panel(byId("panel"), () => byId("model").value);

// --- the list ---

async function refreshList() {
  state.list = await store.all();
  drawList();
}

function matches(conversation, query) {
  if (!query) return true;
  const contains = (text) => (text ?? "").toLowerCase().includes(query);
  return contains(conversation.title) || Object.values(conversation.nodes).some((node) => contains(node.content));
}

function drawList() {
  const found = state.list.filter((conversation) => matches(conversation, state.query.toLowerCase()));
  const entries = found.map((conversation) => {
    const current = conversation.id === state.current.id;
    const busy = [...running.values()].some((one) => one.conversation.id === conversation.id);
    const title = (conversation.pinned ? "📌 " : "") + conversation.title;
    return el("div", { "data-id": conversation.id, class: ["entry", current && "current", busy && "running"].filter(Boolean).join(" ") },
      el("button", { type: "button", dir: "auto", title: conversation.title, "aria-current": current ? "page" : null, onclick: () => openConversation(conversation.id) }, title),
      el("button", { type: "button", class: "quiet", "aria-label": `Menu of ${conversation.title}`, onclick: () => entryMenu(conversation) }, "⋯"));
  });
  keepFocus(byId("list"), () => byId("list").replaceChildren(...(entries.length ? entries : [el("div", { class: "none" }, state.query ? "Nothing found." : "No conversations yet.")])));
}

function entryMenu(listed) {
  const change = async (act) => {
    const conversation = loaded(listed.id) ?? (await store.get(listed.id));
    if (!conversation) return;
    await act(conversation);
    await save(conversation);
  };
  menuDialog(listed.title, [
    ["Rename", async () => {
      const title = await askText("Name of the chat", listed.title);
      if (title) await change((conversation) => Object.assign(conversation, { title, named: true }));
    }],
    [listed.pinned ? "Unpin" : "Pin", () => change((conversation) => (conversation.pinned = !conversation.pinned))],
    ["Export as JSON", async () => download(`${listed.title}.json`, JSON.stringify(await store.get(listed.id), null, 1), "application/json")],
    ["Export as conversation file", () => exportConversation(listed)],
    supports("half") && ["Export with a state in float16", () => exportConversation(listed, true)],
    supports("link") && ["Show as a link", () => showLink(listed)],
    ["Export as Markdown", async () => download(`${listed.title}.md`, asMarkdown(await store.get(listed.id)), "text/markdown")],
    ["Delete", async () => {
      if (!(await confirmed(`Delete "${listed.title}"?`, "Delete"))) return;
      for (const one of running.values()) if (one.conversation.id === listed.id) stop(one.node.id);
      await store.remove(listed.id);
      if (state.current.id === listed.id) startNew();
      await refreshList();
    }],
  ].filter(Boolean));
}

// The body of a request for a conversation file, with all branches.
async function branchesOf(id) {
  const conversation = loaded(id) ?? (await store.get(id));
  const nodes = Object.values(conversation.nodes);
  const leaves = nodes.filter((node) => !nodes.some((one) => one.parent === node.id)).map((node) => node.id);
  if (!leaves.includes(conversation.leaf)) leaves.push(conversation.leaf);
  const { model, cache_salt } = bodyFor(conversation, conversation.leaf);
  const settings = Object.fromEntries(SETTINGS.map(([name]) => [name, conversation.settings[name]]));
  const branches = leaves.map((leaf) => {
    const messages = pathTo(conversation, leaf).flatMap((node) => {
      const [first, ...results] = messagesOf(node, conversation.settings.documents === "whole");
      return [{ ...first, ...(node.thinking && { reasoning_content: node.thinking }) }, ...results];
    });
    if (conversation.system.trim()) messages.unshift({ role: "system", content: conversation.system });
    return { messages, settings, think: { on: true, off: false }[conversation.settings.thinking] ?? null };
  });
  return { branches, current: leaves.indexOf(conversation.leaf), model, cache_salt };
}

// Downloads a file for `rwkv-gpu chat --session` and other pages, with the state that the server has stored.
async function exportConversation({ id, title }, half = false) {
  try {
    const body = { ...(await branchesOf(id)), ...(half && { half }) };
    download(`${title}.rwkvchat`, await (await request("/v1/conversation-files/write", { method: "POST", body })).blob(), "application/octet-stream");
  } catch (error) {
    notice(`${title} cannot be exported: ${error.message}`);
  }
}

// Shows a link that contains the conversation.
async function showLink({ id, title }) {
  try {
    const letters = await (await request("/v1/conversation-files/link", { method: "POST", body: await branchesOf(id) })).json();
    const link = `${location.href.replace(/#.*/, "")}#chat=${letters}`;
    const copy = el("button", { type: "button", class: "primary", onclick: () => copied(copy, link) }, "Copy");
    const dialog = openDialog(`Link to ${title}`, el("p", {}, el("input", { type: "text", readonly: true, value: link, "aria-label": "Link" })),
      el("div", { class: "actions" }, el("button", { type: "button", onclick: () => dialog.close() }, "Close"), copy));
  } catch (error) {
    notice(`${title} cannot be a link: ${error.message}`);
  }
}

function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name.replace(/[\\/:*?"<>|\u0000-\u001f]/g, "_") }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// The copy of a conversation that this page works on: in view, or with a running answer.
function loaded(id) {
  if (state.current.id === id) return state.current;
  return [...running.values()].find((one) => one.conversation.id === id)?.conversation;
}

async function save(conversation) {
  try {
    await store.put(structuredClone(conversation));
  } catch (error) {
    notice(`This chat could not be stored: ${error.message}. Export it to keep it.`);
  }
  if (conversation.id === state.current.id) byId("title").textContent = conversation.title;
  await refreshList();
}

// --- the conversation in view ---

async function openConversation(id) {
  const conversation = loaded(id) ?? (await store.get(id));
  if (!conversation) return refreshList();
  state.current = conversation;
  location.hash = id;
  closeSidebar();
  drawConversation();
  for (const node of Object.values(conversation.nodes)) if (node.stream && !running.has(node.id)) resume(conversation, node);
}

// Opens the conversation that the address names or contains.
async function openAddress() {
  const letters = location.hash.match(/^#chat=(.*)/)?.[1];
  if (!supports("link") || letters === undefined) return openConversation(location.hash.slice(1));
  try {
    const bytes = await (await request("/v1/conversation-files/unpack", { method: "POST", body: { letters } })).arrayBuffer();
    await importFile(new File([bytes], "The link"));
  } catch (error) {
    notice(error.message);
  }
}

function startNew() {
  state.current = newConversation();
  history.replaceState(null, "", location.pathname);
  closeSidebar();
  drawConversation();
  byId("text").focus();
}

function drawConversation() {
  const { current } = state;
  byId("title").textContent = current.title;
  document.title = `${current.title} · rwkv-gpu`;
  views.clear();
  byId("messages").replaceChildren();
  drawMessages();
  drawList();
  drawMeter();
  state.follow = true;
  toEnd();
}

// Shows the branch in view; keeps the views of unchanged messages.
function drawMessages() {
  const path = pathTo(state.current, state.current.leaf);
  const wanted = path.map((node) => {
    if (views.has(node.id)) views.get(node.id).update(node, running.has(node.id));
    else views.set(node.id, new MessageView(node, actions, running.has(node.id)));
    return views.get(node.id).node;
  });
  const kept = new Set(path.map((node) => node.id));
  for (const id of views.keys()) if (!kept.has(id)) views.delete(id);
  const empty = el("p", { class: "empty" }, "Ask something. Conversations stay in this browser.");
  keepFocus(byId("messages"), () => setChildren(byId("messages"), wanted.length ? wanted : [empty]));
  drawSend();
}

const runningHere = () => [...running.values()].filter((one) => one.conversation.id === state.current.id);

function drawSend() {
  const busy = runningHere().length > 0;
  byId("send").textContent = busy ? "Stop" : "Send";
  byId("send").classList.toggle("stop", busy);
}

function drawMeter() {
  const last = pathTo(state.current, state.current.leaf).findLast((node) => node.stats);
  const limit = state.props.model?.context;
  const used = last ? last.stats.prompt + last.stats.completion : 0;
  byId("context").textContent = used ? `${number(used)}${limit ? ` of ${number(limit)}` : ""} tokens of context` : "";
}

const say = (text) => (byId("status").textContent = text);

function notice(text, ...buttons) {
  const box = byId("notice");
  const close = el("button", { type: "button", "aria-label": "Close this notice", onclick: () => (box.hidden = true) }, "✕");
  box.replaceChildren(el("span", {}, text), ...buttons, close);
  box.hidden = false;
}

const nearEnd = () => byId("scroll").scrollHeight - byId("scroll").scrollTop - byId("scroll").clientHeight < 60;
const toEnd = () => (byId("scroll").scrollTop = byId("scroll").scrollHeight);

const actions = {
  versions(node) {
    const siblings = childrenOf(state.current, node.parent).filter((one) => one.role === node.role);
    return { siblings, place: siblings.findIndex((one) => one.id === node.id) };
  },
  show(node) {
    state.current.leaf = lastLeaf(state.current, node.id);
    drawMessages();
    save(state.current);
  },
  regenerate(node) {
    answer(state.current, node.parent);
  },
  goOn(node) {
    answer(state.current, node.parent, node);
  },
  async remove(node) {
    const many = childrenOf(state.current, node.id).length > 0;
    if (many && !(await confirmed("Delete this message and all after it?", "Delete"))) return;
    for (const one of runningHere()) stop(one.node.id);
    removeBranch(state.current, node.id);
    drawMessages();
    save(state.current);
  },
  edited(node, text) {
    if (node.role === "user") {
      const fresh = addNode(state.current, node.parent, "user", text, { attachments: node.attachments, images: node.images });
      answer(state.current, fresh.id);
    } else {
      addNode(state.current, node.parent, "assistant", text, { thinking: node.thinking, thinkingSeconds: node.thinkingSeconds });
      drawMessages();
      save(state.current);
    }
  },
  passages: (node) => passagesOf(pathTo(state.current, node.id)),
  serverOf: ({ name }) => state.tools.find((one) => one.function.name === name)?.server,
  toolRuns: (node, n) => toolRuns.has(`${node.id} ${n}`),
  runTool: (node, n, agreed) => runTool(state.current, node, n, agreed),
  sources: (node) => state.current.nodes[node.parent]?.passages ?? [],
  drawn() {
    if (state.follow) toEnd();
  },
};

// --- answers ---

function bodyFor(conversation, parent, continued) {
  const { settings } = conversation;
  const messages = pathTo(conversation, parent).flatMap((node) => messagesOf(node, settings.documents === "whole"));
  if (conversation.system.trim()) messages.unshift({ role: "system", content: conversation.system });
  const body = { messages, stream: true, stream_options: { include_usage: true }, resumable: true, return_progress: true };
  if (continued) {
    messages.push({ role: "assistant", content: continued.content });
    body.continue_final_message = true;
  }
  const model = conversation.model ?? byId("model").value;
  if (model) body.model = model;
  if (conversation.cacheSalt) body.cache_salt = conversation.cacheSalt; // the server stored the state of a conversation file with it
  for (const [name] of SETTINGS) if (settings[name] !== undefined) body[name] = settings[name];
  if (settings.schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(settings.schema) } };
  if (state.tools.length && settings.tools !== "off") body.tools = state.tools.map((one) => ({ type: one.type, function: one.function }));
  if (settings.thinking) body.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  return body;
}

// Requests an answer to a message: a new one next to existing answers, or the rest of one.
function answer(conversation, parent, continued = null) {
  const node = continued ?? addNode(conversation, parent, "assistant", "", { thinking: "" });
  Object.assign(node, { error: undefined, finish: undefined, stats: undefined, stream: { id: null, at: 0 } });
  save(conversation);
  follow(conversation, node, async (waiting, signal) => {
    const cited = conversation.settings.documents !== "whole" && attachmentsOf(pathTo(conversation, parent)).length;
    if (cited) await choosePassages(conversation, conversation.nodes[parent], state.props.model?.context, waiting, signal);
    return bodyFor(conversation, parent, continued);
  });
}

// Runs a call that the user has confirmed, or records that it was refused. After the last one, the model continues.
async function runTool(conversation, node, n, agreed) {
  const done = (more) => (node.tools = node.tools.map((one, at) => (at === n ? { ...one, ...more } : one)));
  const shown = () => conversation.id === state.current.id && drawMessages();
  if (!agreed) done({ result: DECLINED });
  else {
    toolRuns.add(`${node.id} ${n}`);
    done({}); // redraws it
    shown();
    try {
      const { name, arguments: given } = node.tools[n];
      const { content, is_error: failed } = await (await request("/v1/mcp/call", { method: "POST", body: { name, arguments: given || "{}" } })).json();
      done({ result: content, failed });
    } catch (error) {
      done({});
      notice(error.message);
    }
    toolRuns.delete(`${node.id} ${n}`);
  }
  shown();
  await save(conversation);
  const waits = node.tools.some((one) => one.result === undefined);
  if (!waits && !childrenOf(conversation, node.id).length && conversation.nodes[node.id]) answer(conversation, node.id);
}

// Continues an answer whose page was closed. Only one tab does; another takes over when that one is closed.
async function resume(conversation, node) {
  if (!node.stream.id) return interrupted(conversation, node, "The page was closed before the answer began.");
  if (!navigator.locks) return follow(conversation, node, null);
  await navigator.locks.request(`stream-${node.stream.id}`, async () => {
    const stored = await store.get(conversation.id);
    if (!stored?.nodes[node.id]?.stream || running.has(node.id)) return;
    const current = loaded(stored.id) ?? stored;
    await follow(current, (current.nodes[node.id] = stored.nodes[node.id]), null);
  });
}

function interrupted(conversation, node, why) {
  node.stream = undefined;
  node.error = why;
  if (conversation.id === state.current.id) drawMessages();
  save(conversation);
}

// Streams an answer into its message. `wanted` is the body, or a function that prepares it; null resumes a stream.
async function follow(conversation, node, wanted) {
  let body = wanted;
  const controller = new AbortController();
  running.set(node.id, { controller, conversation, node });
  const view = () => (conversation.id === state.current.id ? views.get(node.id) : null);
  const timing = { began: performance.now(), first: null, thinking: null, tokens: 0 };
  if (conversation.id === state.current.id) {
    state.follow = true;
    drawMessages();
    toEnd();
  }
  say("The model answers.");
  let saved = performance.now();
  const changed = () => {
    view()?.stream(node);
    if (performance.now() - saved > SAVE_EVERY) {
      saved = performance.now();
      store.put(structuredClone(conversation)).catch(() => {});
    }
  };
  const begun = () => {
    node.waiting = undefined;
    save(conversation);
    if (node.stream.id && navigator.locks) navigator.locks.request(`stream-${node.stream.id}`, () => new Promise((free) => (running.get(node.id) ? (running.get(node.id).free = free) : free())));
  };
  const waiting = (text) => ((node.waiting = text), changed());
  const loading = showLoading(conversation.model, () => !node.progress && !timing.first, waiting);
  try {
    if (typeof wanted === "function") body = await wanted(waiting, controller.signal);
    controller.signal.throwIfAborted();
    await streamAnswer({
      body, stream: node.stream, signal: controller.signal, begun, waiting,
      take: (chunk) => (taken(node, chunk, timing), changed()),
    });
    node.finish ??= "stop";
  } catch (error) {
    if (error.name === "AbortError") node.finish = "stopped";
    else if (error.status === 401 && (await keyDialog())) return retry(conversation, node, body);
    else if (error instanceof StreamGone) return goOnAnew(conversation, node);
    else node.error = error.message;
  } finally {
    clearInterval(loading);
  }
  await ended(conversation, node, timing);
}

function retry(conversation, node, body) {
  running.get(node.id)?.free?.();
  running.delete(node.id);
  return follow(conversation, node, body);
}

// The server has lost an answer, for example by a restart. The received part stays, and the rest is requested. Reasoning
// and tool calls cannot be continued: then the received part stays as a version, and a new answer begins.
function goOnAnew(conversation, node) {
  let next = node;
  if (node.thinking || node.tools) {
    Object.assign(node, { ...NOT_RUNNING, error: INTERRUPTED });
    next = addNode(conversation, node.parent, "assistant", "", { thinking: "" });
    running.get(node.id)?.free?.();
    running.delete(node.id);
  }
  Object.assign(next, { ...NOT_RUNNING, stream: { id: null, at: 0, again: true }, waiting: "The answer was interrupted; asking for the rest" });
  return retry(conversation, next, bodyFor(conversation, next.parent, next.content ? next : null));
}

// Shows the progress of loading an answer's model, until the answer begins.
function showLoading(model, isWaiting, show) {
  return setInterval(async () => {
    const loading = isWaiting() && (await loadingText(model).catch(() => null));
    if (loading && isWaiting()) show(loading);
  }, 700);
}

// Handles a chunk of an answer.
function taken(node, chunk, timing) {
  node.waiting = undefined;
  const progress = chunk.prompt_progress;
  if (progress) {
    node.progress = { total: progress.total, done: progress.processed, processed: progress.processed - (progress.cache ?? 0), seconds: (progress.time_ms ?? 0) / 1000 };
    if (progress.total > progress.processed) return;
  }
  if (chunk.usage) {
    const { prompt_tokens: prompt, completion_tokens: completion, prompt_tokens_details: details } = chunk.usage;
    const seconds = (performance.now() - (timing.first ?? timing.began)) / 1000;
    node.stats = { prompt, completion, cached: details?.cached_tokens ?? 0, speed: timing.tokens > 1 && seconds > 0 ? (timing.tokens - 1) / seconds : 0 };
  }
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const { content, reasoning_content: thought, tool_calls: tools } = choice.delta ?? {};
  if (content || thought || tools) {
    timing.first ??= performance.now();
    timing.tokens++;
  }
  if (thought) {
    timing.thinking ??= performance.now();
    node.thinking += thought;
    node.thinkingSeconds = (performance.now() - timing.thinking) / 1000;
  }
  if (content) node.content += content;
  for (const part of tools ?? []) addToolCall(node, part);
  if (choice.finish_reason) node.finish = choice.finish_reason;
}

function addToolCall(node, part) {
  const calls = [...(node.tools ?? [])];
  const call = calls[part.index ?? 0] ?? { id: part.id, name: "", arguments: "" };
  calls[part.index ?? 0] = { id: call.id, name: call.name + (part.function?.name ?? ""), arguments: call.arguments + (part.function?.arguments ?? "") };
  node.tools = calls;
}

// The end is stored before it is shown, so that an immediate reload finds it.
async function ended(conversation, node, timing) {
  Object.assign(node, NOT_RUNNING);
  conversation.updated = Date.now();
  await save(conversation);
  running.get(node.id)?.free?.();
  running.delete(node.id);
  if (conversation.id === state.current.id) {
    drawMessages();
    drawMeter();
  }
  drawList();
  if (!node.error && node.finish === "stop") writeTitle(conversation);
  say(node.error ? "The answer failed." : node.finish === "stopped" ? "Stopped." : `Answered in ${((performance.now() - timing.began) / 1000).toFixed(1)} s.`);
}

// Asks the model for a title after the first answer. With small models the question stays the title, because it is better.
async function writeTitle(conversation) {
  const messages = pathTo(conversation, conversation.leaf).map((node) => ({ role: node.role, content: node.content.slice(0, TITLE_READS) }));
  if (conversation.named || !modelTitles() || messages.length !== 2 || !(state.props.model?.parameters >= NAMES_CHATS)) return;
  messages.push({ role: "user", content: TITLE_REQUEST });
  const body = { messages, model: conversation.model, max_tokens: 40, reasoning_effort: "none" };
  try {
    const { choices } = await (await request("/v1/chat/completions", { method: "POST", body })).json();
    const title = asText(choices[0].message.content).trim().split("\n")[0].replace(/^(title: *)?["'“*#\s]*|["'”*.\s]*$/gi, "");
    const now = loaded(conversation.id) ?? (await store.get(conversation.id));
    if (!title || title.length > 80 || !now || now.named) return;
    now.title = title;
    await save(now);
  } catch {
    return; // the title stays the question
  }
}

// Stops an answer, here and on the server.
function stop(id) {
  const one = running.get(id);
  if (!one) return;
  stopStream(one.node.stream);
  one.controller.abort();
}

// --- the composer ---

function send() {
  const here = runningHere();
  if (here.length) return here.forEach((one) => stop(one.node.id));
  const text = byId("text").value;
  if (!text.trim() && !state.attachments.length) return;
  if (state.attachments.some((file) => file.reading)) return say("A document is still being read.");
  const conversation = state.current;
  if (!Object.keys(conversation.nodes).length) {
    const title = (text.trim() || state.attachments[0].name).split("\n")[0].slice(0, 60);
    if (!conversation.named) conversation.title = title;
    conversation.model = byId("model").value || undefined;
    location.hash = conversation.id;
  }
  const [images, attachments] = [true, false].map((wanted) => state.attachments.filter((file) => Boolean(file.image || file.audio) === wanted));
  const node = addNode(conversation, conversation.leaf, "user", text, images.length ? { attachments, images } : { attachments });
  state.attachments = [];
  byId("text").value = "";
  drawAttached();
  resizeText();
  answer(conversation, node.id);
}

function resizeText() {
  const text = byId("text");
  text.style.height = "auto";
  text.style.height = `${text.scrollHeight + 2}px`;
}

function drawAttached() {
  byId("attached").replaceChildren(...state.attachments.map((file, n) => el("span", { class: file.image ? "chip image" : "chip" }, file.image ? el("img", { src: file.image, alt: file.name, title: `${file.name} · ${file.width} × ${file.height}` }) : `${file.name} · ${file.reading ? "reading …" : file.audio ? "audio" : `${number(file.text.length)} characters`}`,
    el("button", { type: "button", class: "quiet", "aria-label": `Remove ${file.name}`, onclick: () => (state.attachments.splice(n, 1), drawAttached()) }, "✕"))));
}

async function attach(files) {
  for (const file of files) {
    const sound = file.type.startsWith("audio/");
    if (sound || IMAGE_TYPES.test(file.type)) {
      await attachMedium(file.name || "Image", file, sound);
      continue;
    }
    const head = (await file.slice(0, 1024).text()).trimStart();
    const kind = DOCUMENTS.find(([beginning]) => head.startsWith(beginning));
    if (kind) {
      notice(`${file.name} is ${kind[1]}, which this page cannot read. Save it as text, and attach that.`);
      continue;
    }
    const isPdf = head.startsWith("%PDF-");
    const most = isPdf ? LARGEST_PDF : LARGEST_FILE;
    if (file.size > most) {
      notice(`${file.name} has ${bytes(file.size)}; at most ${bytes(most)} can be attached.`);
      continue;
    }
    if (isPdf) {
      await attachPdf(file);
      continue;
    }
    const text = await file.text();
    if (text.includes("\u0000")) notice(`${file.name} is not a text file, and this model reads text only.`);
    else state.attachments.push({ name: file.name, text });
  }
  drawAttached();
}

// Attaches an image or a sound for a model that takes it.
async function attachMedium(name, source, sound) {
  const { vision, audio } = state.props.modalities ?? {};
  if (!(sound ? audio : vision)) return notice(`${name} is ${sound ? "audio" : "an image"}, and this model ${vision || audio ? `takes no ${sound ? "audio" : "images"}` : "reads text only"}.`);
  const most = sound ? LARGEST_SOUND : LARGEST_IMAGE;
  if (source.size > most) return notice(`${name} has ${bytes(source.size)}; at most ${bytes(most)} can be attached.`);
  const waiting = { name, text: "", reading: true };
  state.attachments.push(waiting);
  drawAttached();
  await attachWhenRead(waiting, (sound ? readSound : readImage)(name, source));
}

async function attachPicture() {
  if (!navigator.mediaDevices?.getUserMedia) return byId("camera-file").click(); // as on phones without HTTPS
  try {
    const picture = await takePicture();
    if (picture) state.attachments.push(picture);
  } catch (error) {
    notice(error.message);
  }
  drawAttached();
}

// Replaces an attachment that is being read, unless it was removed meanwhile.
async function attachWhenRead(waiting, reading) {
  try {
    const read = await reading;
    const at = state.attachments.indexOf(waiting);
    if (at < 0) return;
    state.attachments[at] = read;
  } catch (error) {
    state.attachments = state.attachments.filter((one) => one !== waiting);
    notice(error.message);
  }
  drawAttached();
}

async function attachPdf(file) {
  const waiting = { name: file.name, text: "", reading: true };
  state.attachments.push(waiting);
  drawAttached();
  await attachWhenRead(waiting, readPdf(file).then(({ text, starts, rest }) => {
    if (rest) notice(`${file.name} is long: its last ${number(rest)} pages were not read.`);
    return { name: file.name, text, starts };
  }));
}

// --- the sidebar, keys, and the start ---

const closeSidebar = () => (byId("sidebar").classList.remove("open"), (byId("shade").hidden = true));
const openSidebar = () => (byId("sidebar").classList.add("open"), (byId("shade").hidden = false));

const THEMES = ["system", "light", "dark"];

function setTheme(theme) {
  localStorage.setItem("theme", theme);
  const dark = theme === "dark" || (theme === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").textContent = `Theme: ${theme}`;
}

const modelTitles = () => localStorage.getItem("titles") !== "off";

function setTitles(byModel) {
  localStorage.setItem("titles", byModel ? "on" : "off");
  byId("titles").textContent = `Titles: ${byModel ? "model" : "question"}`;
}

async function importFile(file) {
  try {
    const found = await readImport(file);
    for (const conversation of found) await store.put(conversation);
    await refreshList();
    say(`Imported ${number(found.length)} chats.`);
    if (found.length === 1) openConversation(found[0].id);
  } catch (error) {
    notice(`${file.name} cannot be imported: ${error.message}`);
  }
}

function listen() {
  byId("composer").addEventListener("submit", (event) => (event.preventDefault(), send()));
  byId("text").addEventListener("input", resizeText);
  byId("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!runningHere().length) send();
    } else if (event.key === "ArrowUp" && !byId("text").value) editLast(event);
  });
  byId("text").addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    const text = event.clipboardData?.getData("text/plain") ?? "";
    if (!files.length && text.length < LONG_PASTE) return;
    event.preventDefault();
    if (files.length) attach(files);
    else state.attachments.push({ name: "Pasted text", text });
    drawAttached();
  });
  byId("attach").addEventListener("click", () => byId("files").click());
  byId("files").addEventListener("change", () => (attach([...byId("files").files]), (byId("files").value = "")));
  byId("camera").addEventListener("click", attachPicture);
  byId("camera-file").addEventListener("change", () => (attach([...byId("camera-file").files]), (byId("camera-file").value = "")));
  byId("new").addEventListener("click", startNew);
  byId("search").addEventListener("input", () => ((state.query = byId("search").value), drawList()));
  byId("import").addEventListener("click", () => byId("import-file").click());
  byId("import-file").addEventListener("change", () => (importFile(byId("import-file").files[0]), (byId("import-file").value = "")));
  byId("export-all").addEventListener("click", async () => download("rwkv-gpu-chats.json", JSON.stringify({ conversations: await store.all() }, null, 1), "application/json"));
  byId("models").addEventListener("click", () => new ModelsDialog(loadModels));
  byId("titles").addEventListener("click", () => setTitles(!modelTitles()));
  byId("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(localStorage.getItem("theme") ?? "system") + 1) % 3]));
  byId("settings-button").addEventListener("click", () => settingsDialog(state.current, state.props.model?.can_think, () => Object.keys(state.current.nodes).length && save(state.current)));
  byId("panel-button").addEventListener("click", () => panel.toggle());
  byId("open-sidebar").addEventListener("click", openSidebar);
  byId("close-sidebar").addEventListener("click", closeSidebar);
  byId("shade").addEventListener("click", closeSidebar);
  byId("to-end").addEventListener("click", () => ((state.follow = true), toEnd()));
  byId("model").addEventListener("change", () => {
    if (state.current.model) state.current.model = byId("model").value;
    loadProps();
  });
  let before = 0;
  byId("scroll").addEventListener("scroll", () => {
    const { scrollTop } = byId("scroll");
    if (nearEnd()) state.follow = true;
    else if (scrollTop < before) state.follow = false; // otherwise the chat has grown
    before = scrollTop;
    byId("to-end").hidden = state.follow;
  });
  new ResizeObserver(() => state.follow && toEnd()).observe(byId("scroll")); // for example when the panel opens
  for (const type of ["wheel", "touchmove"]) byId("scroll").addEventListener(type, () => (state.follow = nearEnd()), { passive: true });
  addEventListener("dragover", (event) => (event.preventDefault(), document.body.classList.add("dropping")));
  addEventListener("dragleave", () => document.body.classList.remove("dropping"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    attach([...event.dataTransfer.files]);
  });
  addEventListener("keydown", keys);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(localStorage.getItem("theme") ?? "system"));
  addEventListener("hashchange", () => location.hash.slice(1) !== state.current.id && location.hash && openAddress());
  CHANGES?.addEventListener("message", changedElsewhere);
}

function keys(event) {
  const { key } = event;
  if ((event.ctrlKey || event.metaKey) && key.toLowerCase() === "k") {
    event.preventDefault();
    openSidebar();
    byId("search").focus();
    byId("search").select();
  } else if (key === "Escape" && !document.querySelector("dialog[open]")) {
    if (byId("sidebar").classList.contains("open")) closeSidebar();
    else runningHere().forEach((one) => stop(one.node.id));
    byId("text").focus();
  } else if ((key === "ArrowDown" || key === "ArrowUp") && byId("sidebar").contains(document.activeElement)) {
    const entries = [byId("search"), ...document.querySelectorAll("#list .entry > button:first-child")];
    const next = entries[entries.indexOf(document.activeElement) + (key === "ArrowDown" ? 1 : -1)];
    if (next) event.preventDefault();
    next?.focus();
  }
}

function editLast(event) {
  const last = pathTo(state.current, state.current.leaf).findLast((node) => node.role === "user");
  if (!last || runningHere().length) return;
  event.preventDefault();
  views.get(last.id)?.edit();
}

// Another tab has stored a conversation: updates the list, and the one in view unless it is being answered here.
async function changedElsewhere({ data }) {
  if (data.removed) {
    store.removed.add(data.id);
    for (const one of running.values()) if (one.conversation.id === data.id) stop(one.node.id);
  }
  await refreshList();
  if (data.id !== state.current.id || runningHere().length) return;
  const stored = await store.get(data.id);
  if (!stored) return startNew();
  state.current = stored;
  drawMessages();
  drawMeter();
  if (state.follow) toEnd();
}

async function loadModels() {
  const before = byId("model").value;
  state.models = (await getJson("/v1/models")).data.map((model) => model.id);
  byId("model").replaceChildren(...state.models.map((name) => el("option", { value: name }, name)));
  byId("model").value = state.models.includes(before) ? before : (state.models[0] ?? "");
}

async function loadProps() {
  const model = byId("model").value;
  state.props = await getJson(`/props${model ? `?model=${encodeURIComponent(model)}` : ""}`).catch(() => ({}));
  byId("camera").hidden = !state.props.modalities?.vision;
  drawMeter();
}

// Waits until the server can answer, and shows the progress of loading a model.
async function connect() {
  for (;;) {
    try {
      await loadModels();
      const loading = await loadingText();
      if (!loading) break;
      say(loading);
    } catch (error) {
      if (error.final) return notice(error.message);
      if (error.status === 401) {
        await keyDialog();
        continue;
      }
      notice("The server cannot be reached; this page tries again.");
    }
    await new Promise((resolve) => setTimeout(resolve, 700));
  }
  await loadProps();
  state.tools = await getJson("/v1/mcp/tools").then(({ data }) => data).catch(() => []);
  for (const view of views.values()) view.toolsShown = null; // their calls can run now
  drawMessages();
  byId("notice").hidden = true;
  if (state.props.warning) notice(state.props.warning);
  say("Ready.");
}

async function start() {
  setTheme(localStorage.getItem("theme") ?? "system");
  setTitles(modelTitles());
  for (const id of ["models", "titles", "panel-button"]) byId(id).hidden = !supports(id);
  listen();
  drawConversation();
  if (!(await store.open())) notice("This browser stores nothing here: chats last until the page is closed. Export what you want to keep.");
  await refreshList();
  const connected = connect();
  if (location.hash) await openAddress();
  byId("text").focus();
  if (SERVICE_WORKER) navigator.serviceWorker?.register(SERVICE_WORKER).catch(() => {}); // the page also works without it
  await connected;
}

start();
