// The installed page: it comes from the server, and where that cannot be reached, from the last visit. Nothing else is stored.
const CACHE = "rwkv-gpu";

addEventListener("install", () => skipWaiting());
addEventListener("activate", (event) => event.waitUntil(clients.claim()));
addEventListener("fetch", (event) => {
  const { mode, url } = event.request;
  const home = new URL(registration.scope);
  if (mode === "navigate" && new URL(url).pathname === home.pathname) event.respondWith(page(event.request, home.href));
});

async function page(request, key) {
  const cache = await caches.open(CACHE);
  try {
    const response = await fetch(request);
    if (response.ok) await cache.put(key, response.clone());
    return response;
  } catch (error) {
    const stored = await cache.match(key);
    if (stored) return stored;
    throw error;
  }
}
