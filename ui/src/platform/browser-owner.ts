/** What a browser keeps of a user between visits: drafts and notifications. Another user finds nothing of it. */
import { endSubscription } from "./push";

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
