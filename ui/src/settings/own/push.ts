/** Notifications of this browser: its permission, its service worker and its subscription. */
import { api } from "@/api/client";

export type PushState = "unsupported" | "insecure" | "denied" | "off" | "on";

const WORKER = "/push-worker.js";

/** Push needs a service worker, which browsers allow over https and on the same machine only. */
export async function readPushState(): Promise<PushState> {
  if (!window.isSecureContext) return "insecure";
  if (!("serviceWorker" in navigator) || !("PushManager" in window)) return "unsupported";
  if (Notification.permission === "denied") return "denied";
  const registration = await navigator.serviceWorker.getRegistration(WORKER);
  const subscription = await registration?.pushManager.getSubscription();
  return subscription === null || subscription === undefined ? "off" : "on";
}

/** Asks for the permission, subscribes, and tells the server. Returns the subscription's id. */
export async function switchPushOn(): Promise<string> {
  if ((await Notification.requestPermission()) !== "granted") {
    throw new Error("The browser does not allow notifications of this site. Allow them in its settings for the site.");
  }
  const { public_key } = await api.GET("/api/v1/push/key");
  const registration = await navigator.serviceWorker.register(WORKER, { scope: "/" });
  await navigator.serviceWorker.ready;
  const subscription = await registration.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: decodeKey(public_key) });
  const made = subscription.toJSON();
  const body = { endpoint: made.endpoint ?? "", keys: { p256dh: made.keys?.p256dh ?? "", auth: made.keys?.auth ?? "" } };
  const { id } = await api.POST("/api/v1/push/subscriptions", { body });
  return id;
}

/** Ends the subscription in the browser; the push service then tells the server. */
export async function switchPushOff(): Promise<void> {
  const registration = await navigator.serviceWorker.getRegistration(WORKER);
  const subscription = await registration?.pushManager.getSubscription();
  await subscription?.unsubscribe();
}

export function decodeKey(text: string): Uint8Array<ArrayBuffer> {
  const plain = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(plain, (char) => char.charCodeAt(0));
}
