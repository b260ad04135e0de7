// Answers the page's requests without a server, in place of the server's api.js: the model runs in a worker.
const SERVICE_WORKER = byId("manifest") ? null : "offline.js";
const INTERRUPTED = "This answer was interrupted: its page was closed.";
const SUPPORTED = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "half", "link"];
const STOPPING = 2000; // milliseconds in which a stopped answer may still end, so that its last text is shown
const supports = (name) => SUPPORTED.includes(name);

class ApiError extends Error {}
class StreamGone extends ApiError {}

const commands = new Map(); // commands without an answer yet, by number
const model = { loaded: null, bytes: [0, 0], failure: null };
let sent = 0;

// A page in one file contains the worker's script, the manifest and the weights.
function openWorker() {
  const inside = byId("worker");
  if (!inside) return new Worker("worker.js", { type: "module" });
  return new Worker(URL.createObjectURL(new Blob([inside.textContent], { type: "text/javascript" })));
}

function partsInside() {
  if (!byId("manifest")) return {};
  const shards = [...document.querySelectorAll("script.shard")].map((part) => Uint8Array.from(atob(part.textContent), (letter) => letter.charCodeAt(0)).buffer);
  return { manifest: JSON.parse(byId("manifest").textContent), shards };
}

// The worker's answer to a command; `take` receives what comes before it.
function command(name, given, { take = () => {}, signal = null } = {}) {
  return new Promise((done, failed) => {
    const id = ++sent;
    commands.set(id, { done, failed, take });
    worker.postMessage({ id, name, given }, given.shards ?? []);
    signal?.addEventListener("abort", () => {
      worker.postMessage({ id, name: "stop" });
      setTimeout(failed, STOPPING, signal.reason);
    }, { once: true });
  });
}

function received({ data: { id, value, chunk, error, loading, loaded, failure } }) {
  if (failure) model.failure = new ApiError(failure);
  if (loaded) model.loaded = loaded;
  if (loading) {
    const again = model.failure;
    Object.assign(model, { bytes: loading, failure: null });
    if (again) connect(); // a question after a failure loads the model again
  }
  const one = commands.get(id);
  if (chunk) one.take(chunk);
  else if (one) {
    commands.delete(id);
    if (error === undefined) one.done(value);
    else one.failed(new ApiError(error));
  }
}

const worker = openWorker();
worker.addEventListener("message", received);
worker.addEventListener("error", () => {
  model.failure = new ApiError("This browser cannot run the page; use a current Chrome, Edge, Safari or Firefox.");
  for (const { failed } of commands.values()) failed(model.failure);
});
command("open", { address: location.href, ...partsInside() }).catch(() => {}); // `connect` shows why

const ROUTES = named({
  "/v1/models"() {
    if (model.failure) throw Object.assign(model.failure, { final: true });
    return { data: model.loaded ? [{ id: model.loaded.name }] : [] };
  },
  "/props": () => ({ model: model.loaded ?? {}, warning: model.loaded?.warning }),
  "/v1/conversation-files/read": async (form) => command("read", { bytes: await form.get("file").arrayBuffer() }),
  "/v1/conversation-files/write": (body) => command("write", body),
  "/v1/conversation-files/link": (body) => command("link", body),
  "/v1/conversation-files/unpack": (body) => command("unpack", body),
});

async function request(path, { body } = {}) {
  const route = ROUTES[path.replace(/\?.*/, "")];
  if (!route) throw new ApiError("This needs a server, and this page has none.");
  const value = await route(body);
  return value instanceof Uint8Array ? new Response(value) : new Response(JSON.stringify(value));
}

const getJson = async (path) => (await request(path)).json();

// What the model waits for, while it is loaded.
async function loadingText() {
  const [done, total] = model.bytes;
  if (model.loaded || model.failure) return null;
  return total && done === total ? "Compiling the model" : `Loading the model: ${Math.floor((100 * done) / (total || 1))}%${total ? ` of ${bytes(total)}` : ""}`;
}

// An answer is lost with its page; then the page asks the model for the rest.
async function streamAnswer({ body, stream, take, begun, signal }) {
  if (!body) throw new StreamGone(INTERRUPTED);
  stream.id = newId();
  begun();
  await command("answer", body, { take, signal });
  signal.throwIfAborted();
}

function stopStream() {} // not needed: the signal of the answer stops it
