/** Notifications of this browser: its permission, its service worker and its subscription. */
import { api } from "@/api/client";

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
export async function endSubscription(): Promise<void> {
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

export function decodeKey(text: string): Uint8Array<ArrayBuffer> {
  const plain = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(plain, (char) => char.charCodeAt(0));
}
