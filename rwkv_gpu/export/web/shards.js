// The shards of an exported model: downloaded with checks, and stored by the browser, so that the next visit needs no network.
import { ExportError, need } from "./manifest.js";

const STORE = "rwkv-gpu shards";
const TRIES = 4; // to continue a download that stops

const hex = (bytes) => Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");
const matches = async (bytes, { sha256 }) => hex(await crypto.subtle.digest("SHA-256", bytes)) === sha256;

/** Reads the shards of a manifest at an address. An interrupted download continues, because complete shards are stored. */
export class Shards {
  #rows;
  #base;
  #signal;
  #progress;
  #store;
  warning = null; // why the next visit will download again

  constructor(manifest, base, { signal = null, progress = () => {}, store = true } = {}) {
    this.#rows = manifest.shards;
    this.#base = base;
    this.#signal = signal;
    this.#progress = progress;
    this.#store = store ? openStore() : Promise.resolve(null);
  }

  /** The checked bytes of a shard. Two tabs download it once: the second waits, and reads what the first stored. */
  async read(index) {
    const row = this.#rows[index];
    const url = new URL(row.file, this.#base).href;
    const store = await this.#store;
    if (!store || !navigator.locks) return this.#fetch(row, url, index);
    return navigator.locks.request(`${STORE} ${url}`, { signal: this.#signal ?? undefined }, async () => {
      const stored = await store.match(url);
      if (stored) {
        const bytes = new Uint8Array(await stored.arrayBuffer());
        if (bytes.length === row.bytes && (await matches(bytes, row))) {
          this.#report(index, row.bytes);
          return bytes;
        }
        await store.delete(url);
      }
      const bytes = await this.#fetch(row, url, index);
      await this.#keep(store, url, bytes);
      return bytes;
    });
  }

  async #keep(store, url, bytes) {
    try {
      await store.put(url, new Response(bytes, { headers: { "Content-Length": String(bytes.length) } }));
    } catch {
      this.warning = "The browser has no room to store the model, so the next visit downloads it again.";
    }
  }

  async #fetch(row, url, index) {
    const bytes = await this.#download(row, url, index);
    need(await matches(bytes, row), `${row.file} is not the file that the manifest names; export the model again.`);
    return bytes;
  }

  // The bytes of a file. If a connection breaks, the download continues from there.
  async #download({ file, bytes: size }, url, index) {
    const bytes = new Uint8Array(size);
    let at = 0;
    for (let tries = 1; ; tries++) {
      try {
        const response = await fetch(url, { signal: this.#signal, headers: at ? { Range: `bytes=${at}-` } : {} });
        need(response.ok, `The server answers ${response.status} for ${file}; upload all files of the export.`);
        if (response.status !== 206) at = 0;
        const reader = response.body.getReader();
        for (let { done, value } = await reader.read(); !done; { done, value } = await reader.read()) {
          if (at + value.length > size) await reader.cancel();
          need(at + value.length <= size, `${file} is longer than the manifest says; export the model again.`);
          bytes.set(value, at);
          at += value.length;
          this.#report(index, at);
        }
        need(at === size, `${file} is shorter than the manifest says; upload it again.`);
        return bytes;
      } catch (error) {
        this.#signal?.throwIfAborted();
        if (error instanceof ExportError) throw error;
        if (tries >= TRIES) throw new ExportError(`The download of ${file} stopped; load the page again to continue.`);
      }
    }
  }

  #report(index, bytes) {
    const sum = (rows) => rows.reduce((total, row) => total + row.bytes, 0);
    this.#progress(sum(this.#rows.slice(0, index)) + bytes, sum(this.#rows));
  }

  /** Removes shards of earlier exports at this address. */
  async tidy() {
    const store = await this.#store;
    const wanted = new Set(this.#rows.map(({ file }) => new URL(file, this.#base).href));
    for (const { url } of (await store?.keys()) ?? []) {
      if (new URL("./", url).href === new URL("./", this.#base).href && !wanted.has(url)) await store.delete(url);
    }
  }
}

// The browser's cache; null where there is none, as on pages opened from files.
async function openStore() {
  try {
    return await caches.open(STORE);
  } catch {
    return null;
  }
}
