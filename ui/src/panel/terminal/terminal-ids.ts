/** Which terminals a chat has in this browser. Their shells live in the workspace. */
const PREFIX = "chatd.terminals.";
const MAX_TERMINALS = 8;

export interface TerminalEntry {
  readonly id: string;
  /** From 1; the name of the tab. */
  readonly number: number;
}

export function newTerminal(known: readonly TerminalEntry[]): TerminalEntry {
  return { id: crypto.randomUUID(), number: Math.max(0, ...known.map((one) => one.number)) + 1 };
}

export function canAdd(known: readonly TerminalEntry[]): boolean {
  return known.length < MAX_TERMINALS;
}

export function readTerminals(chatId: string): readonly TerminalEntry[] {
  try {
    const found: unknown = JSON.parse(localStorage.getItem(PREFIX + chatId) ?? "[]");
    return Array.isArray(found) ? found.filter(isEntry).slice(0, MAX_TERMINALS) : [];
  } catch {
    return [];
  }
}

export function writeTerminals(chatId: string, entries: readonly TerminalEntry[]): void {
  try {
    if (entries.length === 0) localStorage.removeItem(PREFIX + chatId);
    else localStorage.setItem(PREFIX + chatId, JSON.stringify(entries));
  } catch {
    // Without storage the terminals are found again only until the page is closed.
  }
}

function isEntry(value: unknown): value is TerminalEntry {
  if (typeof value !== "object" || value === null) return false;
  const { id, number } = value as Partial<TerminalEntry>;
  return typeof id === "string" && /^[0-9a-f-]{36}$/.test(id) && typeof number === "number";
}
