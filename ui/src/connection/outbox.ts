/**
 * Messages on their way to the server. Each is kept until the server has answered, and sent again
 * with the same key: it is never lost and never runs twice. A chat's messages go one after the
 * other; one that was refused holds up those behind it until the user has decided.
 */
import { ApiError } from "@/api/client";
import { type Draft, newOutboxItem, type OutboxItem, type SendBody, sendBody } from "@/chat-state/outbox";
import { newUuid } from "@/platform/plain-http";
import { backoffDelay, type BackoffLimits } from "./socket";

export interface OutboxDeps {
  /** Returns the version of the chat that has the message. */
  readonly post: (chatId: string, body: SendBody, key: string) => Promise<number>;
  readonly storage: Storage;
}

const RETRY: BackoffLimits = { firstMs: 1000, maxMs: 30_000 };
const MAX_ITEMS = 50;
/** The server remembers a key for 24 hours; after that a repeat would be a second message. */
const MAX_AGE_MS = 23 * 60 * 60 * 1000;
const MAX_SERVER_FAULTS = 6;
/** The chat's events show a sent message long before. */
const SENT_KEPT_MS = 5 * 60 * 1000;
const TOO_OLD = {
  code: "too_old",
  message: "It is not known whether this message arrived a day ago. Look at the chat, then send or discard it.",
};

export class Outbox {
  readonly #deps: OutboxDeps;
  readonly #show: (chatId: string, items: readonly OutboxItem[]) => void;
  readonly #tab = newUuid();
  #items: readonly OutboxItem[] = [];
  #timers = new Map<string, ReturnType<typeof setTimeout>>();
  #storage: OutboxStorage | null = null;

  constructor(deps: OutboxDeps, show: (chatId: string, items: readonly OutboxItem[]) => void) {
    this.#deps = deps;
    this.#show = show;
  }

  /** Sends what this user left unsent in tabs that are gone. */
  start(userId: string): void {
    this.#storage = new OutboxStorage(this.#deps.storage, userId);
    holdTabLock(this.#tab);
    void this.#adopt(this.#storage);
  }

  stop(): void {
    for (const timer of this.#timers.values()) clearTimeout(timer);
    this.#timers.clear();
    this.#storage = null;
    const chats = new Set(this.#items.map((item) => item.chatId));
    this.#items = [];
    for (const chatId of chats) this.#show(chatId, []);
  }

  /** Null: too many messages are unsent already. */
  add(chatId: string, draft: Draft): OutboxItem | null {
    this.#items = this.#items.filter((one) => one.state !== "sent" || Date.now() - one.createdAt < SENT_KEPT_MS);
    if (this.#items.filter((item) => item.state !== "sent").length >= MAX_ITEMS) return null;
    const item = newOutboxItem(newUuid(), chatId, draft, Date.now());
    this.#items = [...this.#items, item];
    this.#store(item);
    this.#show(chatId, this.#of(chatId));
    this.#sendNext(chatId);
    return item;
  }

  /** A refused message, or one that waits, is not sent after all. Returns what it said. */
  discard(id: string): Draft | null {
    const item = this.#find(id);
    if (item === undefined || item.state === "sending" || item.state === "sent") return null;
    this.#remove(item);
    this.#sendNext(item.chatId);
    return item.draft;
  }

  /** Try a refused message again. It gets a new key, as the server has answered the old one. */
  retry(id: string): void {
    const item = this.#find(id);
    if (item?.state !== "refused") return;
    const again = { ...newOutboxItem(newUuid(), item.chatId, item.draft, Date.now()) };
    this.#storage?.remove(id);
    this.#items = this.#items.map((one) => (one.id === id ? again : one));
    this.#store(again);
    this.#show(item.chatId, this.#of(item.chatId));
    this.#sendNext(item.chatId);
  }

  /** The connection is there: do not wait for the timers. */
  retryNow(): void {
    for (const chatId of new Set(this.#items.map((item) => item.chatId))) {
      clearTimeout(this.#timers.get(chatId));
      this.#timers.delete(chatId);
      this.#sendNext(chatId);
    }
  }

  async #adopt(storage: OutboxStorage): Promise<void> {
    const alive = await livingTabs();
    if (this.#storage !== storage) return;
    const known = new Set(this.#items.map((item) => item.id));
    const orphans = storage.list().filter(({ tab, item }) => !known.has(item.id) && (tab === this.#tab || alive?.has(tab) !== true));
    const adopted = orphans.map(({ item }) => adoptedItem(item));
    this.#items = [...adopted, ...this.#items];
    for (const item of adopted) this.#store(item);
    for (const chatId of new Set(adopted.map((item) => item.chatId))) {
      this.#show(chatId, this.#of(chatId));
      this.#sendNext(chatId);
    }
  }

  #sendNext(chatId: string): void {
    if (this.#storage === null || this.#timers.has(chatId)) return;
    const next = this.#of(chatId).find((item) => item.state !== "sent");
    if (next?.state !== "waiting") return;
    if (next.failures > 0 && Date.now() - next.createdAt > MAX_AGE_MS) {
      this.#change(next, { state: "refused", error: TOO_OLD });
      return;
    }
    this.#change(next, { state: "sending" });
    void this.#send(next);
  }

  async #send(item: OutboxItem): Promise<void> {
    try {
      const version = await this.#deps.post(item.chatId, sendBody(item.draft), item.id);
      this.#storage?.remove(item.id);
      this.#change(item, { state: "sent", version, error: null });
      this.#sendNext(item.chatId);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.#onFailure(item, error);
    }
  }

  #onFailure(item: OutboxItem, error: ApiError): void {
    const failures = item.failures + 1;
    const isFault = error.code === "internal" && failures >= MAX_SERVER_FAULTS;
    if ((!error.isTemporary && error.status !== 401) || isFault) {
      this.#change(item, { state: "refused", failures, error: error.body });
      return;
    }
    this.#change(item, { state: "waiting", failures, error: error.body });
    if (this.#storage === null) return;
    const delay = Math.max(backoffDelay(item.failures, RETRY), error.retryAfterMs ?? 0);
    const again = () => {
      this.#timers.delete(item.chatId);
      this.#sendNext(item.chatId);
    };
    this.#timers.set(item.chatId, setTimeout(again, delay));
  }

  #of(chatId: string): readonly OutboxItem[] {
    return this.#items.filter((item) => item.chatId === chatId);
  }

  #find(id: string): OutboxItem | undefined {
    return this.#items.find((item) => item.id === id);
  }

  #change(item: OutboxItem, change: Partial<OutboxItem>): void {
    const known = this.#find(item.id);
    if (known === undefined) return;
    const changed = { ...known, ...change };
    this.#items = this.#items.map((one) => (one.id === item.id ? changed : one));
    if (changed.state !== "sent") this.#store(changed);
    this.#show(item.chatId, this.#of(item.chatId));
  }

  #remove(item: OutboxItem): void {
    this.#storage?.remove(item.id);
    this.#items = this.#items.filter((one) => one.id !== item.id);
    this.#show(item.chatId, this.#of(item.chatId));
  }

  #store(item: OutboxItem): void {
    this.#storage?.save({ tab: this.#tab, item });
  }
}

/** One that was on its way when its tab was closed may have arrived: that counts as a try. */
function adoptedItem(item: OutboxItem): OutboxItem {
  if (item.state === "refused") return item;
  return { ...item, state: "waiting", failures: item.state === "sending" ? Math.max(1, item.failures) : item.failures };
}

// Unsent messages in localStorage, one key each, so that tabs do not overwrite one another's.

interface StoredItem {
  readonly tab: string;
  readonly item: OutboxItem;
}

const PREFIX = "chatd.outbox.";

class OutboxStorage {
  readonly #storage: Storage;
  readonly #prefix: string;

  constructor(storage: Storage, userId: string) {
    this.#storage = storage;
    this.#prefix = `${PREFIX}${userId}.`;
  }

  /** False if the storage is full or forbidden: the message is then only in memory. */
  save(stored: StoredItem): boolean {
    try {
      this.#storage.setItem(this.#prefix + stored.item.id, JSON.stringify(stored));
      return true;
    } catch {
      return false;
    }
  }

  remove(id: string): void {
    try {
      this.#storage.removeItem(this.#prefix + id);
    } catch {
      // Forbidden: nothing was stored either.
    }
  }

  list(): readonly StoredItem[] {
    const found: StoredItem[] = [];
    for (const key of this.#keys()) {
      try {
        found.push(JSON.parse(this.#storage.getItem(key) ?? "") as StoredItem);
      } catch {
        this.#storage.removeItem(key);
      }
    }
    return found.sort((a, b) => a.item.createdAt - b.item.createdAt);
  }

  #keys(): readonly string[] {
    try {
      const keys = Array.from({ length: this.#storage.length }, (_, index) => this.#storage.key(index) ?? "");
      return keys.filter((key) => key.startsWith(this.#prefix));
    } catch {
      return [];
    }
  }
}

/** Hold a lock as long as this tab lives, so that others know whose messages are orphans. */
function holdTabLock(tab: string): void {
  void locks()
    ?.request(PREFIX + tab, () => new Promise<never>(() => undefined))
    .catch(() => undefined);
}

/** Null if it cannot be known: then every tab sends, and the server runs each key once. */
async function livingTabs(): Promise<ReadonlySet<string> | null> {
  const manager = locks();
  if (manager === null) return null;
  const { held } = await manager.query();
  return new Set((held ?? []).map((lock) => (lock.name ?? "").slice(PREFIX.length)));
}

/** Only over https and on this machine. */
function locks(): LockManager | null {
  return (navigator as { locks?: LockManager | null }).locks ?? null;
}
