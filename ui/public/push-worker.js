// Shows what the server sends when a turn of a chat has ended, and opens the chat on a click.
self.addEventListener("push", (event) => {
  const told = event.data ? event.data.json() : {};
  event.waitUntil(show(told));
});

async function show(told) {
  const pages = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
  // The user is looking at that very chat.
  if (told.tag && pages.some((page) => page.focused && pathOf(page.url) === pathOf(told.url))) return;
  await self.registration.showNotification(told.title || "chatd", {
    body: told.body || "",
    tag: told.tag || undefined,
    icon: "/icon-192.png",
    data: { url: told.url || "/", answer: told.answer },
    actions: told.answer ? [{ action: "answer", title: "Approve or deny" }] : [],
    requireInteraction: told.event === "turn.needs_action",
  });
}

self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  const { url, answer } = event.notification.data;
  // A browser without buttons in notifications opens the small page, which leads to the chat too.
  const isAnswer = answer && (event.action === "answer" || !(Notification.maxActions > 0));
  event.waitUntil(isAnswer ? self.clients.openWindow(answer) : open(url));
});

const pathOf = (url) => new URL(url, self.location.origin).pathname;

async function open(url) {
  const pages = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
  const found = pages.find((page) => pathOf(page.url) === pathOf(url));
  if (!found) return self.clients.openWindow(url);
  // The page goes to the call itself: it is not loaded again.
  found.postMessage({ open: url });
  return found.focus();
}
