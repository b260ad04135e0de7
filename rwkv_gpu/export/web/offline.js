// Keeps the page's own files, so that it opens without a network. With a network, it loads the newest files.
const STORE = "rwkv-gpu page";
const FILES = ["./", "index.html", "favicon.svg", "manifest.webmanifest", "icon-192.png", "icon-512.png", "worker.js", "rwkv-gpu.js", "manifest.js", "engine.js", "tokenizer.js", "shards.js", "conversation.js", "reader.js", "chat.js", "model.json"];
const known = new Set(FILES.map((file) => new URL(file, location.href).href));

self.addEventListener("install", (event) => {
  event.waitUntil(caches.open(STORE).then((store) => store.addAll(FILES)).then(() => self.skipWaiting()));
});
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
self.addEventListener("fetch", (event) => {
  const url = event.request.url.replace(/[?#].*$/, "");
  if (event.request.method === "GET" && known.has(url)) event.respondWith(answer(event.request, url));
});

async function answer(request, url) {
  const store = await caches.open(STORE);
  try {
    const response = await fetch(request);
    if (response.ok) await store.put(url, response.clone()).catch(() => {});
    return response;
  } catch (error) {
    const stored = await store.match(url);
    if (!stored) throw error;
    return stored;
  }
}
