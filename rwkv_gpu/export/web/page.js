// The chat page of an exported model. All text is shown as text; nothing leaves the page.
const NUMBERS = ["temperature", "top_k", "top_p", "min_p", "max_tokens", "seed"];
const byId = (id) => document.getElementById(id);
const [log, status, text, send, settings] = ["log", "status", "text", "send", "settings"].map(byId);
const waiting = new Map(); // commands without an answer yet, by number
let count = 0;
let busy = true;
let shown = null; // the conversation as the worker last described it

// A page of one file has the worker's script, the manifest and the weights inside.
function openWorker() {
  const inside = byId("worker");
  if (!inside) return new Worker("worker.js", { type: "module" });
  return new Worker(URL.createObjectURL(new Blob([inside.textContent], { type: "text/javascript" })));
}

function inside() {
  if (!byId("manifest")) return {};
  const shards = [...document.querySelectorAll("script.shard")].map((part) => Uint8Array.from(atob(part.textContent), (letter) => letter.charCodeAt(0)).buffer);
  return { manifest: JSON.parse(byId("manifest").textContent), shards };
}

const worker = openWorker();
worker.addEventListener("message", ({ data: { id, value, piece, reasons, error, progress } }) => {
  if (progress) return say(`Loading: ${Math.floor((100 * progress[0]) / progress[1])} % of ${(progress[1] / 1e6).toFixed(1)} MB`);
  const one = waiting.get(id);
  if (piece !== undefined) return one.piece(piece, reasons);
  waiting.delete(id);
  if (error === undefined) one.done(value);
  else one.failed(Object.assign(new Error(error), { value }));
});
worker.addEventListener("error", () => say("This browser cannot run the page; use a current Chrome, Edge, Safari or Firefox."));

function ask(command, given = {}, piece = () => {}, moved = []) {
  return new Promise((done, failed) => {
    waiting.set(++count, { done, failed, piece });
    worker.postMessage({ id: count, command, ...given }, moved);
  });
}

const say = (sentence) => { status.textContent = sentence; };

function element(name, content, className = "") {
  const made = document.createElement(name);
  made.textContent = content;
  made.className = className;
  return made;
}

function button(label, action) {
  const made = element("button", label);
  made.type = "button";
  made.disabled = busy;
  made.addEventListener("click", action);
  return made;
}

function render({ messages, branch, branches }) {
  log.replaceChildren(...messages.map(({ role, content, reasoning }, at) => {
    const article = element("article", "", role);
    article.append(element("h2", { user: "You", assistant: "Model", system: "System" }[role]));
    if (reasoning) article.append(element("pre", reasoning, "reasoning"));
    article.append(element("pre", content));
    if (role === "user") article.append(button("Edit", () => edit(article, at, content)));
    if (role === "assistant" && at === messages.length - 1) article.append(button("Regenerate", () => answer("regenerate")));
    return article;
  }));
  if (branches > 1) {
    const row = element("nav", "");
    row.append(button("Previous branch", () => run("select", { number: (branch + branches - 1) % branches })));
    row.append(element("span", ` ${branch + 1} of ${branches} `));
    row.append(button("Next branch", () => run("select", { number: (branch + 1) % branches })));
    log.append(row);
  }
  log.scrollTop = log.scrollHeight;
}

function show(value) {
  shown = value;
  render(value);
  for (const name of NUMBERS) settings.elements[name].value = value.settings[name] ?? "";
  settings.elements.think.value = String(value.think);
  byId("think").hidden = !value.thinks;
}

function edit(article, number, content) {
  const field = element("textarea", content);
  field.setAttribute("aria-label", "Question");
  article.replaceChildren(field, button("Ask", () => answer("edit", { number, text: field.value })), button("Cancel", () => render(shown)));
  field.focus();
}

function chosen() {
  const given = NUMBERS.map((name) => [name, settings.elements[name].value]).filter(([, value]) => value !== "");
  return { settings: Object.fromEntries(given.map(([name, value]) => [name, Number(value)])), think: JSON.parse(settings.elements.think.value) };
}

function working(yes) {
  busy = yes;
  send.textContent = yes ? "Stop" : "Send";
  for (const one of document.querySelectorAll("header button, #log button")) one.disabled = yes;
}

// Runs a command, and shows the conversation after it.
async function run(command, given = {}, piece = undefined, moved = []) {
  working(true);
  try {
    show(await ask(command, given, piece, moved));
    say(shown.warning ?? "Ready.");
  } catch (error) {
    if (error.value) show(error.value);
    say(error.message);
    return false;
  } finally {
    working(false);
    if (shown) render(shown);
  }
  return true;
}

function answer(command, given = {}) {
  const [reasoning, part] = [element("pre", "", "reasoning"), element("pre", "")];
  const article = element("article", "", "assistant");
  article.append(element("h2", "Model"), reasoning, part);
  reasoning.hidden = true;
  if (command === "send") log.append(element("article", given.text, "user"));
  log.append(article);
  say("The model answers.");
  return run(command, { ...given, ...chosen() }, (piece, reasons) => {
    (reasons ? reasoning : part).textContent += piece;
    reasoning.hidden = !reasoning.textContent;
    log.scrollTop = log.scrollHeight;
  });
}

byId("composer").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (busy) return shown && worker.postMessage({ command: "stop" });
  const question = text.value;
  if (!question.trim()) return;
  text.value = "";
  if (!(await answer("send", { text: question })) && !text.value) text.value = question;
  text.focus();
});
text.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!busy) byId("composer").requestSubmit();
});
byId("new").addEventListener("click", () => run("begin", { system: settings.elements.system.value, ...chosen() }));
byId("open").addEventListener("click", () => byId("file").click());
byId("file").addEventListener("change", async ({ target }) => {
  const bytes = await target.files[0].arrayBuffer();
  target.value = "";
  await run("read", { bytes }, undefined, [bytes]);
});
byId("save").addEventListener("click", async () => {
  const bytes = await ask("save", { half: settings.elements.half.checked }).catch((error) => say(error.message));
  if (!bytes) return;
  const link = element("a", "");
  link.href = URL.createObjectURL(new Blob([bytes]));
  link.download = "conversation.rwkvchat";
  link.click();
  URL.revokeObjectURL(link.href);
});
byId("link").addEventListener("click", async () => {
  const letters = await ask("link").catch((error) => say(error.message));
  if (!letters) return;
  location.hash = `chat=${letters}`;
  say("The address of this page now holds the conversation.");
});
byId("settings-button").addEventListener("click", () => { settings.hidden = !settings.hidden; });
settings.addEventListener("submit", (event) => event.preventDefault());

const link = new URLSearchParams(location.hash.slice(1)).get("chat");
const parts = inside();
if (await run("open", { address: location.href, link, ...parts }, undefined, parts.shards ?? [])) document.title = byId("name").textContent = shown.name;
else if (shown === null) send.disabled = true;
if (!parts.manifest) await navigator.serviceWorker?.register("offline.js").catch(() => {});
