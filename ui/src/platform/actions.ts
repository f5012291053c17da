/**
 * What one area of the page asks of another. The sender does not know who answers: the composer takes
 * `focusComposer`, the layout takes `openPanel`. An action that nobody takes yet (its area is still
 * loading) is kept for two seconds and given to the first who listens.
 */
import { useEffect, useRef, useSyncExternalStore } from "react";
import type { Part } from "@/chat-state/types";

export type PanelTab = "changes" | "runs" | "terminal" | "files" | "preview" | "desktop" | "workspace" | "debug";

export interface PanelOptions {
  /** A file to open, by its path in the workspace. */
  path?: string | undefined;
  line?: number | undefined;
  /** A turn or run to show. */
  run?: string | undefined;
  messageId?: number | undefined;
}

export type ReferencePart = Extract<Part, { type: "file-reference" }>;

interface ActionArguments {
  focusComposer: [];
  openModelPicker: [];
  /** Puts a reference to lines of a file into the message that is being written. */
  insertReference: [part: ReferencePart];
  /** Puts text into the composer, in place of what is there only if that is empty. */
  insertText: [text: string];
  openPanel: [tab: PanelTab, options?: PanelOptions];
  closePanel: [];
  editMessage: [id: number];
  /** Takes a message that could not be sent back into the composer. */
  editUnsent: [id: string];
  openPalette: [];
  /** Shows the whole of the open chat to the printer. */
  printChat: [];
}

type ActionName = keyof ActionArguments;
type Taker<N extends ActionName> = (...args: ActionArguments[N]) => void;

const KEPT_MS = 2000;
const takers = new Map<ActionName, Set<Taker<ActionName>>>();
const kept = new Map<ActionName, { args: unknown[]; at: number }>();

function send<N extends ActionName>(name: N, ...args: ActionArguments[N]): void {
  const found = takers.get(name);
  if (found === undefined || found.size === 0) {
    kept.set(name, { args, at: Date.now() });
    return;
  }
  for (const taker of found) (taker as (...given: unknown[]) => void)(...args);
}

/** Takes an action until the returned function is called. */
export function onAction<N extends ActionName>(name: N, taker: Taker<N>): () => void {
  const entry = taker as unknown as Taker<ActionName>;
  const found = takers.get(name) ?? new Set();
  takers.set(name, found.add(entry));
  const waiting = kept.get(name);
  kept.delete(name);
  if (waiting !== undefined && Date.now() - waiting.at < KEPT_MS) {
    (taker as (...given: unknown[]) => void)(...waiting.args);
  }
  return () => {
    found.delete(entry);
  };
}

const askedOptions = new Map<PanelTab, PanelOptions>();
const optionListeners = new Set<() => void>();

/** Gives each `openPanel` of this tab to `take` once, also if the tab was loaded for it. */
export function usePanelRequest(tab: PanelTab, take: (options: PanelOptions) => void): void {
  const options = useSyncExternalStore(
    (listener) => {
      optionListeners.add(listener);
      return () => optionListeners.delete(listener);
    },
    () => askedOptions.get(tab) ?? null,
  );
  useEffect(() => {
    if (options === null || askedOptions.get(tab) !== options) return;
    askedOptions.delete(tab);
    take(options);
  }, [tab, options, take]);
}

/** `onAction` for a component: always calls the newest taker, and ends with the component. */
export function useAction<N extends ActionName>(name: N, taker: Taker<N>): void {
  const newest = useRef(taker);
  useEffect(() => {
    newest.current = taker;
  });
  useEffect(() => onAction(name, (...args: ActionArguments[N]) => newest.current(...args)), [name]);
}

export const focusComposer = (): void => send("focusComposer");
export const openModelPicker = (): void => send("openModelPicker");
export const insertReference = (part: ReferencePart): void => send("insertReference", part);
export const insertText = (text: string): void => send("insertText", text);
export function openPanel(tab: PanelTab, options: PanelOptions = {}): void {
  askedOptions.set(tab, options);
  for (const listener of optionListeners) listener();
  send("openPanel", tab, options);
}
export const closePanel = (): void => send("closePanel");
export const editMessage = (id: number): void => send("editMessage", id);
export const editUnsent = (id: string): void => send("editUnsent", id);
export const openPalette = (): void => send("openPalette");
export const printChat = (): void => send("printChat");
