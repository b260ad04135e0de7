// Management of models, with an admin key: load, unload, download, delete.
const MODELS_POLL = 700; // milliseconds
const MODEL_STATES = { loaded: "loaded", loading: "loading", unloaded: "not loaded", downloading: "downloading" };

const adminKey = () => sessionStorage.getItem("admin") ?? getKey();

class ModelsDialog {
  constructor(changed) {
    this.closed = new AbortController();
    this.list = el("div", { class: "models" });
    this.problem = el("div", { class: "failed", role: "alert", hidden: true });
    this.name = el("input", { type: "text", name: "pull", placeholder: "qwen3.5:4b", "aria-label": "Name of a model to download", required: true });
    const form = el("form", {}, this.name, el("button", { class: "primary" }, "Download"));
    form.addEventListener("submit", (event) => (event.preventDefault(), this.download()));
    this.dialog = openDialog("Models", this.list, this.problem, el("small", {}, "Use a name that rwkv-gpu pull accepts."), form,
      el("div", { class: "actions" }, el("button", { type: "button", onclick: () => this.dialog.close() }, "Close")));
    this.dialog.addEventListener("close", () => (clearTimeout(this.timer), this.closed.abort(), changed()));
    this.poll();
  }

  async poll() {
    clearTimeout(this.timer);
    try {
      this.draw((await getJson("/models")).data);
    } catch (error) {
      this.fail(error.message);
    }
    if (this.dialog.isConnected) this.timer = setTimeout(() => this.poll(), MODELS_POLL);
  }

  fail(message) {
    this.problem.hidden = !message;
    this.problem.textContent = message;
  }

  draw(models) {
    keepFocus(this.list, () => this.list.replaceChildren(...models.map((one) => this.row(one))));
  }

  row({ id, status, meta }) {
    const state = status?.value ?? "loaded";
    const button = (label, act) => el("button", { type: "button", class: "quiet", onclick: act, "aria-label": `${label} ${id}` }, label);
    const load = button("Load", () => this.act("/models/load", { body: { model: id } }));
    const stop = button(state === "downloading" ? "Cancel" : "Unload", () => this.act("/models/unload", { body: { model: id } }));
    const remove = button("Delete", async () => (await confirmed(`Delete ${id} from the disk?`, "Delete")) && this.act(`/models?model=${encodeURIComponent(id)}`, { method: "DELETE" }));
    return el("div", { class: "model", "data-id": id },
      el("span", { dir: "auto" }, id), el("small", {}, [meta?.size && bytes(meta.size), status?.failed ? "could not be loaded" : MODEL_STATES[state]].filter(Boolean).join(" · ")),
      this.progress(id, status), state === "unloaded" ? load : stop, state === "unloaded" && remove);
  }

  progress(id, status) {
    const parts = status?.progress && (Number.isFinite(status.progress.total) ? [status.progress] : Object.values(status.progress));
    if (!parts) return null;
    const sum = (key) => parts.reduce((all, part) => all + part[key], 0);
    return el("progress", { max: sum("total") || 1, value: sum("done"), "aria-label": `Progress of ${id}` });
  }

  // Begins a download that continues when the dialog is closed, and shows its progress and its errors.
  async download() {
    const model = this.name.value.trim();
    if (!(await this.act("/models", { body: { model } }))) return;
    this.name.value = "";
    try {
      const response = await request("/api/pull", { method: "POST", body: { model }, key: adminKey(), signal: this.closed.signal });
      const last = (await response.text()).trim().split("\n").at(-1);
      this.fail(JSON.parse(last).error ?? "");
    } catch (error) {
      if (error.name !== "AbortError") this.fail(error.message);
    }
  }

  // Sends a request with the admin key. At the first request, the page asks the user for the key.
  async act(path, { method = "POST", body } = {}) {
    this.fail("");
    try {
      await request(path, { method, body, key: adminKey() });
    } catch (error) {
      if (error.status === 401 && (await keyDialog("admin"))) return this.act(path, { method, body });
      this.fail(error.message);
      return false;
    }
    await this.poll();
    return true;
  }
}
