/** Unsent messages in localStorage, one key each, so that tabs do not overwrite one another's. */
import type { OutboxItem } from "@/chat-state";

export interface StoredItem {
  readonly tab: string;
  readonly item: OutboxItem;
}

const PREFIX = "chatd.outbox.";

export class OutboxStorage {
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
export function holdTabLock(tab: string): void {
  void locks()
    ?.request(PREFIX + tab, () => new Promise<never>(() => undefined))
    .catch(() => undefined);
}

/** Null if it cannot be known: then every tab sends, and the server runs each key once. */
export async function livingTabs(): Promise<ReadonlySet<string> | null> {
  const manager = locks();
  if (manager === null) return null;
  const { held } = await manager.query();
  return new Set((held ?? []).map((lock) => (lock.name ?? "").slice(PREFIX.length)));
}

/** Only over https and on this machine. */
function locks(): LockManager | null {
  return (navigator as { locks?: LockManager | null }).locks ?? null;
}
