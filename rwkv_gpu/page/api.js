// The server API: plain requests, and streamed answers. A lost stream is resumed by its id. Pages of `export web` have another file here.
const SERVICE_WORKER = "sw.js";
const INTERRUPTED = "This answer was interrupted: the server was restarted, or could not be reached for too long.";
const ONLY_EXPORTED = ["half", "link"];
const supports = (feature) => !ONLY_EXPORTED.includes(feature);
const GONE = ["shutting_down", "engine_lost"]; // error codes in a stream after which the request may be sent again

class ApiError extends Error {
  constructor(message, status, retryAfter) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

const local = (path) => path.slice(1); // below the page, wherever a proxy has put it
const getKey = () => sessionStorage.getItem("key");

async function request(path, { method = "GET", body, signal, key = getKey() } = {}) {
  const form = body instanceof FormData;
  const headers = { ...(key && { Authorization: `Bearer ${key}` }), ...(body && !form && { "Content-Type": "application/json" }) };
  let response;
  try {
    response = await fetch(local(path), { method, headers, body: form ? body : body && JSON.stringify(body), signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.", 0);
  }
  if (response.ok) return response;
  let message = `The server answered ${response.status}.`;
  try {
    const { error } = await response.json();
    message = typeof error === "string" ? error : (error?.message ?? message);
  } catch {
    // not JSON: the status is enough
  }
  throw new ApiError(message, response.status, Number(response.headers.get("Retry-After")) || null);
}

const getJson = async (path) => (await request(path)).json();

// The progress of a model that the server is loading: this one, or any; null if none is.
async function loadingText(model) {
  const { models = [] } = await fetch(local("/health")).then((response) => response.json());
  const { id, loaded_bytes: done, total_bytes: total } = models.find((one) => one.state === "loading" && (!model || one.id === model)) ?? {};
  return id ? `Loading ${total ? `${id}: ${Math.floor((100 * done) / total)}%` : id}` : null;
}

// The events of a response: [number or null, data].
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      let number = null;
      const data = [];
      for (const line of part.split("\n")) {
        if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
        else if (line.startsWith("id:")) number = Number(line.slice(3));
      }
      if (data.length) yield [number, data.join("\n")];
    }
  }
}

const LATE = 3000; // milliseconds in which the server may name a stream that was stopped meanwhile

// Milliseconds before each attempt to resume: five minutes in total, in which a server can be restarted.
const RETRIES = [500, 1000, 2000, 4000, ...Array(37).fill(8000)];
const pause = (milliseconds, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, milliseconds);
  signal.addEventListener("abort", () => (clearTimeout(timer), reject(new DOMException("stopped", "AbortError"))), { once: true });
});

// The server no longer has a stream: it was restarted, or the connection was lost for too long.
class StreamGone extends ApiError {}

// Streams an answer into `take(chunk)`. `stream` is {id, at}, stored with the message so that a reload can resume.
// `again` requests the rest of an answer, with the same retries as a lost connection.
async function streamAnswer({ body, stream, take, begun, waiting, signal }) {
  let response = null;
  for (let busy = 0, lost = 0; ; ) {
    try {
      if (stream.id) response = await request(`/v1/streams/${stream.id}?after=${stream.at}`, { signal });
      else {
        response = await opened(body, signal);
        stream.id = response.headers.get("X-Stream-Id");
        begun();
      }
      for await (const [number, data] of events(response)) {
        if (number !== null) stream.at = number;
        lost = 0;
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data);
        if (GONE.includes(chunk.error?.code)) throw new StreamGone(chunk.error.message, 503);
        if (chunk.error) throw new ApiError(chunk.error.message ?? "The answer failed.", 500);
        take(chunk);
      }
      throw new ApiError("The connection was lost.", 0);
    } catch (error) {
      if (error.name === "AbortError" || error instanceof StreamGone) throw error;
      if (stream.id && [404, 410].includes(error.status)) throw new StreamGone(error.message, error.status);
      const offline = !error.status && !(error instanceof SyntaxError);
      if ([429, 503].includes(error.status) && busy++ < 5) {
        const seconds = error.retryAfter ?? 2;
        waiting(`The server is busy; trying again in ${seconds} s`);
        await pause(1000 * seconds, signal);
      } else if (offline && (stream.id || stream.again) && lost < RETRIES.length) {
        waiting("The connection was lost; trying again");
        await pause(RETRIES[lost++], signal);
      } else throw offline && stream.id ? new ApiError("The connection was lost, and the answer with it.", 0) : error;
    }
  }
}

// The response to a request for an answer. If it is stopped before the server has named the stream, the stream is stopped
// as soon as it has a name: closing the connection alone would leave it running for a while.
async function opened(body, signal) {
  const connection = new AbortController();
  const response = request("/v1/chat/completions", { method: "POST", body, signal: connection.signal });
  const stopped = new Promise((_, reject) => {
    const stop = () => {
      reject(new DOMException("stopped", "AbortError"));
      setTimeout(() => connection.abort(), LATE);
      response.then(({ headers }) => (stopStream({ id: headers.get("X-Stream-Id") }), connection.abort())).catch(() => {});
    };
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop, { once: true });
  });
  stopped.catch(() => {}); // ignored after the response
  return Promise.race([response, stopped]);
}

// Stops an answer on the server, even without a connection to it.
function stopStream(stream) {
  if (stream?.id) request(`/v1/streams/${stream.id}`, { method: "DELETE" }).catch(() => {});
}
