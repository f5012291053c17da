/** What this browser remembers about how the page looks and acts. Nothing here is of the account. */
import { useSyncExternalStore } from "react";

export type Theme = "system" | "light" | "dark" | "contrast";

interface Preferences {
  theme: Theme;
  /** Shortcuts of a single letter (J, K, D, …); they can be turned off. */
  singleKeys: boolean;
  /** Which key sends: Enter, or Ctrl/Cmd Enter. */
  sendKey: "enter" | "mod-enter";
  /** A sound when a chat has finished or needs you while the page is not in front. */
  chime: boolean;
  sidebarHidden: boolean;
  sidebarWidth: number;
  panelWidth: number;
  /** Sections and chats of the list that are folded, by their key. */
  folded: readonly string[];
  /** Diffs side by side, or one below the other; a narrow panel always shows the latter. */
  diffView: "split" | "unified";
  /** The tour of the demo was skipped or done. */
  tourEnded: boolean;
}

const DEFAULTS: Preferences = {
  theme: "system",
  singleKeys: true,
  sendKey: "enter",
  chime: false,
  sidebarHidden: false,
  sidebarWidth: 264,
  panelWidth: 480,
  folded: [],
  diffView: "split",
  tourEnded: false,
};

const PREFIX = "chatd.";
const listeners = new Set<() => void>();
const known = new Map<string, unknown>();

/** The theme is stored as plain text: theme.js reads it before the first paint. */
function parse<K extends keyof Preferences>(name: K, text: string | null): Preferences[K] {
  if (text === null) return DEFAULTS[name];
  if (name === "theme") return text as Preferences[K];
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === typeof DEFAULTS[name] ? (value as Preferences[K]) : DEFAULTS[name];
  } catch {
    return DEFAULTS[name];
  }
}

function storedText(name: string): string | null {
  try {
    return localStorage.getItem(PREFIX + name);
  } catch {
    return null;
  }
}

export function readPreference<K extends keyof Preferences>(name: K): Preferences[K] {
  if (!known.has(name)) known.set(name, parse(name, storedText(name)));
  return known.get(name) as Preferences[K];
}

export function setPreference<K extends keyof Preferences>(name: K, value: Preferences[K]): void {
  known.set(name, value);
  try {
    localStorage.setItem(PREFIX + name, name === "theme" ? String(value) : JSON.stringify(value));
  } catch {
    // Without storage the choice holds until the page is closed.
  }
  if (name === "theme") applyTheme(value as Theme);
  for (const listener of listeners) listener();
}

function applyTheme(theme: Theme): void {
  const root = document.documentElement;
  if (theme === "system") delete root.dataset.theme;
  else root.dataset.theme = theme;
}

/** Another tab changed something. */
function takeStored(event: StorageEvent): void {
  if (event.key !== null && !event.key.startsWith(PREFIX)) return;
  known.clear();
  applyTheme(readPreference("theme"));
  for (const listener of listeners) listener();
}

function subscribe(listener: () => void): () => void {
  if (listeners.size === 0) window.addEventListener("storage", takeStored);
  listeners.add(listener);
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0) window.removeEventListener("storage", takeStored);
  };
}

export function usePreference<K extends keyof Preferences>(name: K): [Preferences[K], (value: Preferences[K]) => void] {
  const value = useSyncExternalStore(subscribe, () => readPreference(name));
  return [value, (next) => setPreference(name, next)];
}
