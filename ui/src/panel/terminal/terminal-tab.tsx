/** The terminals of a chat, one tab each. Shells stay when the panel is closed. */
import "@/styles/terminal.css";
import { Plus, SquareTerminal, X } from "lucide-react";
import { useCallback, useRef, useState } from "react";
import { Button, classes, EmptyState, IconButton } from "@/components";
import { newUuid } from "@/platform/plain-http";
import { TerminalView } from "./terminal-view";

export function TerminalTab({ chatId }: { readonly chatId: string }) {
  const [entries, setEntries] = useState<readonly TerminalEntry[]>(() => readTerminals(chatId));
  const [shown, setShown] = useState(entries[0]?.id ?? null);
  const closers = useRef(new Map<string, () => void>());

  const register = useCallback((id: string, close: () => void) => {
    closers.current.set(id, close);
    return () => {
      closers.current.delete(id);
    };
  }, []);

  const change = (next: readonly TerminalEntry[], wanted: string | null) => {
    writeTerminals(chatId, next);
    setEntries(next);
    setShown(wanted);
  };
  const add = () => {
    const made = newTerminal(entries);
    change([...entries, made], made.id);
  };
  const remove = (id: string) => {
    closers.current.get(id)?.();
    const next = entries.filter((one) => one.id !== id);
    change(next, shown === id ? (next.at(-1)?.id ?? null) : shown);
  };
  const restart = (id: string) => {
    const made = { ...newTerminal(entries), number: entries.find((one) => one.id === id)?.number ?? 1 };
    change(
      entries.map((one) => (one.id === id ? made : one)),
      made.id,
    );
  };

  if (entries.length === 0) {
    return (
      <EmptyState
        icon={SquareTerminal}
        title="No terminal is open"
        actions={
          <Button variant="primary" onClick={add}>
            Open a terminal
          </Button>
        }
      >
        A shell in the workspace of this chat, with the rights of its commands. Only you can open it.
      </EmptyState>
    );
  }
  return (
    <div className="terminal-tab">
      <div className="panel-bar terminal-bar" role="group" aria-label="Terminals">
        {entries.map((one) => (
          <span key={one.id} className={classes("terminal-pick", one.id === shown && "is-on")}>
            <button type="button" aria-pressed={one.id === shown} onClick={() => setShown(one.id)}>
              Shell {one.number}
            </button>
            <IconButton icon={X} size="sm" label={`End shell ${one.number}`} onClick={() => remove(one.id)} />
          </span>
        ))}
        {canAdd(entries) && <IconButton icon={Plus} label="New terminal" onClick={add} />}
      </div>
      {entries.map((one) => (
        <TerminalView
          key={one.id}
          chatId={chatId}
          id={one.id}
          label={`Terminal, shell ${one.number}`}
          isShown={one.id === shown}
          register={register}
          onGone={() => remove(one.id)}
          onRestart={() => restart(one.id)}
        />
      ))}
    </div>
  );
}

/** Which terminals a chat has in this browser. Their shells live in the workspace. */
const PREFIX = "chatd.terminals.";
const MAX_TERMINALS = 8;

interface TerminalEntry {
  readonly id: string;
  /** From 1; the name of the tab. */
  readonly number: number;
}

function newTerminal(known: readonly TerminalEntry[]): TerminalEntry {
  return { id: newUuid(), number: Math.max(0, ...known.map((one) => one.number)) + 1 };
}

function canAdd(known: readonly TerminalEntry[]): boolean {
  return known.length < MAX_TERMINALS;
}

function readTerminals(chatId: string): readonly TerminalEntry[] {
  try {
    const found: unknown = JSON.parse(localStorage.getItem(PREFIX + chatId) ?? "[]");
    return Array.isArray(found) ? found.filter(isEntry).slice(0, MAX_TERMINALS) : [];
  } catch {
    return [];
  }
}

function writeTerminals(chatId: string, entries: readonly TerminalEntry[]): void {
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
