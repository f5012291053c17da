/** The keyboard of a tree, by the ARIA practices: one row is in the tab order; arrows move, open and close. */
import { type KeyboardEvent, type RefObject, useRef, useState } from "react";

/** A row that can be seen. Its element has the key as `data-key`. */
export interface TreeItem {
  readonly key: string;
  readonly parentKey: string | null;
  readonly name: string;
  readonly hasChildren: boolean;
  readonly isOpen: boolean;
}

interface TreeFocus<E extends HTMLElement> {
  readonly ref: RefObject<E | null>;
  /** The key of the row in the tab order. */
  readonly stop: string | null;
  readonly setFocused: (key: string) => void;
  readonly focus: (key: string) => void;
  /** True if the key was for the tree. */
  readonly press: (event: KeyboardEvent) => boolean;
}

const MOVES = new Set(["ArrowDown", "ArrowUp", "ArrowLeft", "ArrowRight", "Home", "End"]);

/** `preferred` is in the tab order until another row has had the focus. */
export function useTreeFocus<E extends HTMLElement>(
  items: readonly TreeItem[],
  preferred: string | null,
  onFold: (key: string, isOpen: boolean) => void,
): TreeFocus<E> {
  const [focused, setFocused] = useState<string | null>(null);
  const ref = useRef<E>(null);
  const keys = new Set(items.map((item) => item.key));
  const stop = [focused, preferred].find((key) => key !== null && keys.has(key)) ?? items[0]?.key ?? null;
  const focus = (key: string) => ref.current?.querySelector<HTMLElement>(`[data-key="${CSS.escape(key)}"]`)?.focus();
  const press = (event: KeyboardEvent): boolean => {
    const key = (event.target as HTMLElement).closest<HTMLElement>("[data-key]")?.dataset.key;
    if (key === undefined || event.ctrlKey || event.metaKey || event.altKey) return false;
    const move = treeMove(items, key, event.key);
    if (move === null && !MOVES.has(event.key)) return false;
    event.preventDefault();
    if (move !== null && "focus" in move) focus(move.focus);
    else if (move !== null) onFold("open" in move ? move.open : move.close, "open" in move);
    return true;
  };
  return { ref, stop, setFocused, focus, press };
}

type TreeMove = { focus: string } | { open: string } | { close: string } | null;

/** What a key does to the tree. */
export function treeMove(items: readonly TreeItem[], currentKey: string, key: string): TreeMove {
  const index = items.findIndex((item) => item.key === currentKey);
  const item = items[index];
  if (item === undefined) return null;
  const to = (target: TreeItem | undefined): TreeMove => (target === undefined ? null : { focus: target.key });
  switch (key) {
    case "ArrowDown":
      return to(items[index + 1]);
    case "ArrowUp":
      return to(items[index - 1]);
    case "Home":
      return to(items[0]);
    case "End":
      return to(items.at(-1));
    case "ArrowRight":
      if (!item.hasChildren) return null;
      return item.isOpen ? to(items[index + 1]) : { open: item.key };
    case "ArrowLeft":
      if (item.hasChildren && item.isOpen) return { close: item.key };
      return item.parentKey === null ? null : { focus: item.parentKey };
    default:
      return findByLetter(items, index, key);
  }
}

function findByLetter(items: readonly TreeItem[], index: number, key: string): TreeMove {
  if (key.length !== 1 || key.trim() === "") return null;
  const after = [...items.slice(index + 1), ...items.slice(0, index)];
  const found = after.find((item) => item.name.toLowerCase().startsWith(key.toLowerCase()));
  return found === undefined ? null : { focus: found.key };
}
