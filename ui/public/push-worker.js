// Shows what the server sends when a turn of a chat has ended, and opens the chat on a click.
self.addEventListener("push", (event) => {
  const told = event.data ? event.data.json() : {};
  event.waitUntil(show(told));
});

async function show(told) {
  const pages = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
  // The user is looking at that very chat.
  if (told.tag && pages.some((page) => page.focused && new URL(page.url).pathname === told.url)) return;
  await self.registration.showNotification(told.title || "chatd", {
    body: told.body || "",
    tag: told.tag || undefined,
    icon: "/icon-192.png",
    data: { url: told.url || "/" },
    requireInteraction: told.event === "turn.needs_action",
  });
}

self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  event.waitUntil(open(event.notification.data.url));
});

async function open(url) {
  const pages = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
  const found = pages.find((page) => new URL(page.url).pathname === url);
  if (found) return found.focus();
  return self.clients.openWindow(url);
}
