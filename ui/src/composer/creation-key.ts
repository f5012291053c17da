/**
 * The Idempotency-Key of a chat that is being created. It is kept with the request until the server
 * has answered, so that a second try, also after a reload, does not make a second chat.
 */
const NAME = "chatd.creation";

interface Kept {
  readonly key: string;
  readonly body: string;
  readonly at: number;
}

/** The server remembers a key for 24 hours. */
const MAX_AGE_MS = 23 * 60 * 60 * 1000;

export function creationKey(body: unknown): string {
  const text = JSON.stringify(body);
  const kept = read();
  if (kept?.body === text && Date.now() - kept.at < MAX_AGE_MS) return kept.key;
  const key = crypto.randomUUID();
  try {
    localStorage.setItem(NAME, JSON.stringify({ key, body: text, at: Date.now() } satisfies Kept));
  } catch {
    // Without storage the key lasts for this try.
  }
  return key;
}

export function forgetCreation(): void {
  try {
    localStorage.removeItem(NAME);
  } catch {
    // Nothing was kept.
  }
}

function read(): Kept | null {
  try {
    return JSON.parse(localStorage.getItem(NAME) ?? "null") as Kept | null;
  } catch {
    return null;
  }
}
