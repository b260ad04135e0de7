// The panel with the server's state, from /props, /slots and /metrics.
const POLL = 1000; // milliseconds
const POINTS = 60;
const STATES = { queued: "waits", prompt: "reads its prompt", generating: "generates" };

class Panel {
  constructor(node, getModel) {
    Object.assign(this, { node, getModel, speeds: [], last: null, timer: null });
  }

  toggle() {
    this.node.hidden = !this.node.hidden;
    clearTimeout(this.timer);
    this.speeds = [];
    this.last = null;
    if (!this.node.hidden) this.poll();
  }

  async poll() {
    const model = this.getModel();
    const query = model ? `?model=${encodeURIComponent(model)}` : "";
    try {
      const [props, slots, metrics] = await Promise.all([getJson(`/props${query}`), getJson("/slots").catch(() => []), request("/metrics").then((one) => one.text()).catch(() => "")]);
      if (!this.node.hidden) this.draw(props, slots, this.read(metrics));
    } catch (error) {
      this.node.replaceChildren(error.message);
    }
    if (!this.node.hidden) this.timer = setTimeout(() => this.poll(), POLL);
  }

  // Sums of Prometheus' text by name, and by name and kind.
  read(text) {
    const sums = {};
    for (const line of text.split("\n")) {
      const found = line.match(/^([a-zA-Z_:][\w:]*)(?:\{([^}]*)\})? ([-+\d.eE]+|NaN|[+-]?Inf)/);
      if (!found) continue;
      const kind = (found[2] ?? "").match(/kind="(\w+)"/);
      for (const name of kind ? [found[1], `${found[1]} ${kind[1]}`] : [found[1]]) sums[name] = (sums[name] ?? 0) + Number(found[3]);
    }
    return sums;
  }

  draw(props, slots, metrics) {
    const tokens = slots.reduce((sum, slot) => sum + (slot.n_decoded ?? 0), metrics["rwkv_gpu_tokens_total generated"] ?? 0);
    const now = performance.now();
    if (this.last) this.speeds.push(Math.max(0, (1000 * (tokens - this.last.tokens)) / (now - this.last.now)));
    this.last = { tokens, now };
    this.speeds = this.speeds.slice(-POINTS);
    const model = props.model ?? {};
    const rows = [
      ["Model", model.name ?? props.model_alias ?? "not loaded"],
      ["Weights", [model.format, model.bytes && bytes(model.bytes)].filter(Boolean).join(", ")],
      ["Device", model.device],
      ["Matrix units", model.matrix_units === undefined ? undefined : model.matrix_units ? "in use" : "not in use"],
      ["Context", model.context ? `${number(model.context)} tokens` : model.device && "no limit"],
      ["Running", slots.filter((slot) => slot.is_processing).length],
      ["Waiting", metrics.rwkv_gpu_requests_waiting],
      ["Stored prefixes", metrics.rwkv_gpu_prefix_entries && `${number(metrics.rwkv_gpu_prefix_entries)}, ${bytes(metrics.rwkv_gpu_prefix_bytes)}`],
      ["Free cache memory", ["pages", "states"].filter((kind) => metrics[`rwkv_gpu_cache_free_${kind}`]).map((kind) => `${number(metrics[`rwkv_gpu_cache_free_${kind}`])} ${kind}`).join(", ")],
      ["Speed", this.speeds.length ? `${this.speeds.at(-1).toFixed(1)} tokens/s` : undefined],
    ].filter(([, text]) => text !== undefined && text !== "" && text !== null);
    const facts = rows.map(([name, text]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(text))));
    this.node.replaceChildren(...[el("dl", {}, facts), this.requests(slots), this.line()].filter(Boolean));
  }

  // Running and waiting requests, one line each.
  requests(slots) {
    const lines = slots.filter((slot) => slot.state !== "idle").map(({ state, model, n_prompt_tokens: prompt, n_decoded: decoded, seconds }) =>
      [STATES[state] ?? state, model, prompt && `prompt of ${number(prompt)} tokens`, decoded && `${number(decoded)} tokens generated`, `${Math.round(seconds)} s`].filter(Boolean).join(" · "));
    return lines.length && el("ul", { "aria-label": "Requests" }, lines.map((line) => el("li", {}, line)));
  }

  line() {
    const most = Math.max(1, ...this.speeds);
    const points = this.speeds.map((speed, n) => `${((POINTS - this.speeds.length + n) * 100) / (POINTS - 1)},${38 - (36 * speed) / most}`).join(" ");
    return elementOf(SVG, "svg", { viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img", "aria-label": `Tokens a second in the last minute, at most ${Math.round(most)}` }, elementOf(SVG, "polyline", { points }));
  }
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let n = 0;
  for (; count >= 1024 && n < units.length - 1; n++) count /= 1024;
  return `${count.toFixed(count < 10 && n ? 1 : 0)} ${units[n]}`;
}
