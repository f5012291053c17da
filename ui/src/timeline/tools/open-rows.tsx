/** Which rows are open. Kept outside the rows, which come and go as the list scrolls. */
import { createContext, useCallback, useContext, useState, useSyncExternalStore, type ReactNode } from "react";

class OpenRows {
  private readonly chosen = new Map<string, boolean>();
  private readonly listeners = new Set<() => void>();

  get(key: string): boolean | undefined {
    return this.chosen.get(key);
  }

  set(key: string, isOpen: boolean): void {
    this.chosen.set(key, isOpen);
    for (const listener of this.listeners) listener();
  }

  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => {
      this.listeners.delete(listener);
    };
  };
}

const Context = createContext(new OpenRows());

export function OpenRowsProvider({ children }: { readonly children: ReactNode }) {
  const [rows] = useState(() => new OpenRows());
  return <Context value={rows}>{children}</Context>;
}

/** Whether a row is open, by choice or by default, and how to change it. */
export function useOpen(key: string, byDefault: boolean): readonly [boolean, (isOpen: boolean) => void] {
  const rows = useContext(Context);
  const chosen = useSyncExternalStore(rows.subscribe, () => rows.get(key));
  const set = useCallback((isOpen: boolean) => rows.set(key, isOpen), [rows, key]);
  return [chosen ?? byDefault, set];
}
