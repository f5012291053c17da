/** Drafts by chat. They survive a change of the chat and a reload; uploads go on meanwhile. */
import { useCallback, useSyncExternalStore } from "react";
import { EMPTY_DRAFT, isEmpty, type MessageDraft } from "./draft";

const PREFIX = "chatd.draft.";
const MAX_STORED = 40;
const MAX_STORED_CHARS = 200_000;
const SAVE_AFTER_MS = 300;

type Change = (draft: MessageDraft) => MessageDraft;

const drafts = new Map<string, MessageDraft>();
const listeners = new Set<() => void>();
const unsaved = new Set<string>();
let timer: ReturnType<typeof setTimeout> | undefined;

export function readDraft(key: string): MessageDraft {
  let draft = drafts.get(key);
  if (draft === undefined) {
    draft = stored(key);
    drafts.set(key, draft);
  }
  return draft;
}

export function changeDraft(key: string, change: Change): void {
  const before = readDraft(key);
  const after = change(before);
  if (after === before) return;
  drafts.set(key, after);
  unsaved.add(key);
  timer ??= setTimeout(saveDrafts, SAVE_AFTER_MS);
  for (const listener of [...listeners]) listener();
}

/** The model stays chosen; what was said is gone. */
export function clearDraft(key: string): void {
  changeDraft(key, ({ modelConfigId, effort }) => ({ ...EMPTY_DRAFT, modelConfigId, effort }));
  saveDrafts();
}

/** Also when the page is hidden, which may be its last moment. */
export function saveDrafts(): void {
  clearTimeout(timer);
  timer = undefined;
  for (const key of unsaved) save(key, readDraft(key));
  unsaved.clear();
}

function subscribe(listener: () => void): () => void {
  if (listeners.size === 0) window.addEventListener("pagehide", saveDrafts);
  listeners.add(listener);
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0) window.removeEventListener("pagehide", saveDrafts);
  };
}

export function useDraft(key: string): [MessageDraft, (change: Change) => void] {
  const draft = useSyncExternalStore(subscribe, () => readDraft(key));
  const change = useCallback((next: Change) => changeDraft(key, next), [key]);
  return [draft, change];
}

function stored(key: string): MessageDraft {
  try {
    const text = localStorage.getItem(PREFIX + key);
    return text === null ? EMPTY_DRAFT : { ...EMPTY_DRAFT, ...(JSON.parse(text) as { draft: MessageDraft }).draft };
  } catch {
    return EMPTY_DRAFT;
  }
}

function save(key: string, draft: MessageDraft): void {
  try {
    if (isEmpty(draft) && draft.modelConfigId === null && draft.effort === null && !draft.isPlan && draft.mcpServerIds === null) {
      localStorage.removeItem(PREFIX + key);
      return;
    }
    const attachments = draft.attachments
      .filter((one) => one.state === "done")
      .map((one) => ({ ...one, previewUrl: null }));
    const text = JSON.stringify({ at: Date.now(), draft: { ...draft, attachments } });
    if (text.length > MAX_STORED_CHARS) return;
    localStorage.setItem(PREFIX + key, text);
    dropOldest();
  } catch {
    // Without storage the draft lasts as long as the page.
  }
}

function dropOldest(): void {
  const keys = Array.from({ length: localStorage.length }, (_, index) => localStorage.key(index) ?? "");
  const own = keys.filter((key) => key.startsWith(PREFIX));
  if (own.length <= MAX_STORED) return;
  const at = (key: string) => (JSON.parse(localStorage.getItem(key) ?? "{}") as { at?: number }).at ?? 0;
  const [oldest] = own.sort((a, b) => at(a) - at(b));
  if (oldest !== undefined) localStorage.removeItem(oldest);
}
