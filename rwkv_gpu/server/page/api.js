// The server: plain requests, and answers that stream. A stream that is lost is resumed by its id.
class ApiError extends Error {
  constructor(message, status, retryAfter) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

const getKey = () => sessionStorage.getItem("key");

async function request(path, { method = "GET", body, signal } = {}) {
  const headers = { ...(getKey() && { Authorization: `Bearer ${getKey()}` }), ...(body && { "Content-Type": "application/json" }) };
  let response;
  try {
    response = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal, cache: "no-store" });
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
    // not JSON: the status says enough
  }
  throw new ApiError(message, response.status, Number(response.headers.get("Retry-After")) || null);
}

const getJson = async (path) => (await request(path)).json();

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

const RETRIES = [500, 1000, 2000, 4000, 8000, 8000, 8000, 8000]; // milliseconds before each try to resume
const pause = (milliseconds, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, milliseconds);
  signal.addEventListener("abort", () => (clearTimeout(timer), reject(new DOMException("stopped", "AbortError"))), { once: true });
});

// Streams an answer into `take(chunk)`. `stream` is {id, at}, kept with the message so that a reload can go on.
async function streamAnswer({ body, stream, take, opened, waiting, signal }) {
  let response = null;
  for (let busy = 0, lost = 0; ; ) {
    try {
      if (stream.id) response = await request(`/v1/streams/${stream.id}?after=${stream.at}`, { signal });
      else {
        response = await request("/v1/chat/completions", { method: "POST", body, signal });
        stream.id = response.headers.get("X-Stream-Id");
        opened();
      }
      for await (const [number, data] of events(response)) {
        if (number !== null) stream.at = number;
        lost = 0;
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new ApiError(chunk.error.message ?? "The answer failed.", 500);
        take(chunk);
      }
      throw new ApiError("The connection was lost.", 0);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      const offline = !error.status && !(error instanceof SyntaxError);
      if (error.status === 429 && busy++ < 5) {
        const seconds = error.retryAfter ?? 2;
        waiting(`The server is busy; trying again in ${seconds} s`);
        await pause(1000 * seconds, signal);
      } else if (offline && stream.id && lost < RETRIES.length) {
        waiting("The connection was lost; trying again");
        await pause(RETRIES[lost++], signal);
      } else throw offline && stream.id ? new ApiError("The connection was lost, and the answer with it.", 0) : error;
    }
  }
}

// Ends an answer on the server, even if the connection to it is gone.
function stopStream(stream) {
  if (stream?.id) request(`/v1/streams/${stream.id}`, { method: "DELETE" }).catch(() => {});
}
