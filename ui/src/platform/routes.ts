/** Addresses of the page. Everything that can be shared or reloaded is in them. */
import { useLocation, useSearch } from "wouter";
import type { PanelTab } from "./actions";

const PANEL_TABS: readonly PanelTab[] = ["changes", "runs", "terminal", "files", "preview", "desktop", "workspace", "debug"];

export const HOME_PATH = "/";
/** The empty composer as a screen of its own: on a phone the home is the list of chats. */
export const NEW_CHAT_PATH = "/new";
export const MEMORY_PATH = "/settings/memory";
export const SEARCH_PATH = "/search";
export const PROJECTS_PATH = "/projects";
export const SIGN_IN_PATH = "/sign-in";
/** The documentation, which is no part of the page: leave it by a plain link. */
export const HELP_PATH = "/help/";

export const chatPath = (chatId: string, messageId?: number | null): string =>
  messageId === undefined || messageId === null ? `/c/${chatId}` : `/c/${chatId}?m=${messageId}`;

/** The chat of a path, or null. */
export function chatOfPath(path: string): string | null {
  return /^(?:\/embed)?\/c\/([0-9a-f-]{36})$/.exec(path)?.[1] ?? null;
}

export const projectPath = (id: string): string => `${PROJECTS_PATH}/${id}`;

/** The project of a path, or null. */
export const projectOfPath = (path: string): string | null => /^\/projects\/([0-9a-f-]{36})$/.exec(path)?.[1] ?? null;

/** The page was loaded to show chats alone, in a frame of another page. It stays so while it moves between chats. */
export const isEmbedded = (): boolean => document.documentElement.dataset.embedded === "true";

export function noteEmbedded(path: string): void {
  if (path.startsWith("/embed/")) document.documentElement.dataset.embedded = "true";
}

/** Pages that show the empty composer. */
export const isKnownPath = (path: string): boolean => path === HOME_PATH || path === NEW_CHAT_PATH;

export const isSettingsPath = (path: string): boolean => /^\/(settings|admin)(\/|$)/.test(path);

/** Where to go after a sign-in: only a path of this server. */
export function safeNextPath(next: string | null): string {
  if (next === null || !/^\/(?![/\\])/.test(next) || next.startsWith(SIGN_IN_PATH)) return HOME_PATH;
  return next;
}

/** The path with some of its query changed; null takes a name away. */
export function withQuery(path: string, search: string, changes: Readonly<Record<string, string | null>>): string {
  const query = new URLSearchParams(search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  return text === "" ? path : `${path}?${text}`;
}

/** The open chat, by the address. */
export function useChatId(): string | null {
  const [path] = useLocation();
  return chatOfPath(path);
}

/** The tab of the panel that the address names, and how to change it. */
export function usePanelTab(): [PanelTab | null, (tab: PanelTab | null) => void] {
  const [path, navigate] = useLocation();
  const search = useSearch();
  const named = new URLSearchParams(search).get("panel");
  const tab = PANEL_TABS.find((one) => one === named) ?? null;
  const setTab = (next: PanelTab | null) => {
    if (next !== tab) navigate(withQuery(path, search, { panel: next }), { replace: tab !== null && next !== null });
  };
  return [tab, setTab];
}

let backAt = Number.NEGATIVE_INFINITY;
// This module is loaded before the router listens, which renders the page at once.
window.addEventListener("popstate", () => (backAt = performance.now()));

const BACK_MS = 1000;

/** Whether what is shown now was reached by Back or Forward. */
export const cameBack = (): boolean => performance.now() - backAt < BACK_MS;
