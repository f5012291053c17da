/** What a browser keeps of a user between visits: drafts and notifications. Another user finds nothing of it. */
import { api } from "@/api/client";
import { safeNextPath } from "./routes";

const OWNER = "chatd.user";
/** Unsent messages stay: they are kept by user, and sent when that user is back. */
const OF_THE_USER = ["chatd.draft.", "chatd.creation"];

export function forgetUser(storage: Storage): void {
  try {
    const keys = Array.from({ length: storage.length }, (_, index) => storage.key(index) ?? "");
    for (const key of keys.filter((one) => OF_THE_USER.some((prefix) => one.startsWith(prefix)))) storage.removeItem(key);
  } catch {
    // Without storage nothing was kept.
  }
}

/** Whether the browser was another user's until now. What that user left is gone then. */
export function claimBrowser(storage: Storage, userId: string): boolean {
  let former: string | null;
  try {
    former = storage.getItem(OWNER);
    storage.setItem(OWNER, userId);
  } catch {
    return false;
  }
  if (former === null || former === userId) return false;
  forgetUser(storage);
  void endSubscription().catch(() => undefined);
  return true;
}

// Notifications of this browser: its permission, its service worker and its subscription.

export type PushState = "unsupported" | "insecure" | "denied" | "off" | "on";

const WORKER = "/push-worker.js";

/** Push needs a service worker, which browsers allow over https and on the same machine only. */
export async function readPushState(): Promise<PushState> {
  if (!window.isSecureContext) return "insecure";
  if (!("serviceWorker" in navigator) || !("PushManager" in window)) return "unsupported";
  if (Notification.permission === "denied") return "denied";
  return (await findSubscription()) === null ? "off" : "on";
}

/** Asks for the permission, subscribes, and tells the server. Returns the subscription's id. */
export async function switchPushOn(): Promise<string> {
  if ((await Notification.requestPermission()) !== "granted") {
    throw new Error("The browser does not allow notifications of this site. Allow them in its settings for the site.");
  }
  const { public_key } = await api.GET("/api/v1/push/key");
  const registration = await navigator.serviceWorker.register(WORKER, { scope: "/" });
  await navigator.serviceWorker.ready;
  return tellServer(await registration.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: decodeKey(public_key) }));
}

/** A pressed notification goes to its place in a page that is open. Returns how to stop listening. */
export function onNotificationPress(go: (path: string) => void): () => void {
  if (!("serviceWorker" in navigator)) return () => undefined;
  const listen = (event: MessageEvent<{ open?: unknown } | null>) => {
    const path = event.data?.open;
    if (typeof path === "string") go(safeNextPath(path));
  };
  navigator.serviceWorker.addEventListener("message", listen);
  return () => navigator.serviceWorker.removeEventListener("message", listen);
}

/** Ends the subscription, on the server too. */
export async function switchPushOff(): Promise<void> {
  const subscription = await findSubscription();
  if (subscription === null) return;
  try {
    await api.DELETE("/api/v1/push/subscriptions/{subscription_id}", { path: { subscription_id: await tellServer(subscription) } });
  } finally {
    await subscription.unsubscribe();
  }
}

/** Ends it in the browser alone, if it was another user's; the push service then tells the server. */
async function endSubscription(): Promise<void> {
  if ("serviceWorker" in navigator) await (await findSubscription())?.unsubscribe();
}

async function findSubscription(): Promise<PushSubscription | null> {
  const registration = await navigator.serviceWorker.getRegistration(WORKER);
  return (await registration?.pushManager.getSubscription()) ?? null;
}

/** The same subscription always has the same id. */
async function tellServer(subscription: PushSubscription): Promise<string> {
  const made = subscription.toJSON();
  const body = { endpoint: made.endpoint ?? "", keys: { p256dh: made.keys?.p256dh ?? "", auth: made.keys?.auth ?? "" } };
  const { id } = await api.POST("/api/v1/push/subscriptions", { body });
  return id;
}

function decodeKey(text: string): Uint8Array<ArrayBuffer> {
  const plain = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(plain, (char) => char.charCodeAt(0));
}

// What keeps the page whole: a newer build of the server, a file that is dropped beside its target.

/**
 * After an upgrade of the server, a tab may need a part of the page that is gone with the old build.
 * Then it loads the new page. Once a minute at most, so that a part that never comes makes no loop.
 */
const KEY = "chatd.reloaded-at";
const PAUSE_MS = 60_000;

let reloading = false;

/** The page is on its way to the new build: what fails meanwhile is not worth a word. */
export const isReloading = (): boolean => reloading;

export function reloadWhenStale(reload: () => void = () => window.location.reload()): void {
  reloading = false;
  window.addEventListener("vite:preloadError", () => {
    const last = Number(sessionStorage.getItem(KEY) ?? 0);
    if (Date.now() - last < PAUSE_MS) return;
    sessionStorage.setItem(KEY, String(Date.now()));
    reloading = true;
    reload();
  });
}

/** A file that is dropped where nothing takes it would be opened by the browser in place of the page. */
export function keepPageOnDrop(): void {
  for (const name of ["dragover", "drop"] as const) {
    window.addEventListener(name, (event) => {
      if (event.defaultPrevented || event.dataTransfer?.types.includes("Files") !== true) return;
      event.preventDefault();
      event.dataTransfer.dropEffect = "none";
    });
  }
}
