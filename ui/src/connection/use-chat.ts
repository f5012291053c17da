/** An open chat for components. They show it; only events of the server change it. */
import { useCallback, useEffect, useMemo, useSyncExternalStore } from "react";
import type { ChatState, Draft, OutboxItem } from "@/chat-state";
import type { ChatStore, ChatView, SettledView } from "./chat-store";
import type { Outbox } from "./outbox";
import { useConnectionOwner } from "./provider";

export interface OpenChat extends ChatView {
  loadOlder: () => Promise<void>;
  /** Null: too many messages are unsent already. */
  send: (draft: Draft) => OutboxItem | null;
}

export interface SettledChat extends SettledView {
  send: OpenChat["send"];
  /** All of the chat at this moment, for what a user does. */
  readNow: () => ChatState;
}

/** For components that do not show the answer while it is written: they do not render per token. */
export function useSettledChat(chatId: string): SettledChat {
  const store = useFollowedStore(chatId);
  const view = useSyncExternalStore(store.subscribe, () => store.settled);
  const send = useSend(chatId);
  return useMemo(() => ({ ...view, send, readNow: () => store.view.state }), [view, store, send]);
}

/** The chat, followed as long as a component shows it. */
export function useChat(chatId: string): OpenChat {
  const store = useFollowedStore(chatId);
  const view = useSyncExternalStore(store.subscribe, () => store.view);
  const send = useSend(chatId);
  return useMemo(() => ({ ...view, loadOlder: store.loadOlder, send }), [view, store, send]);
}

/** One value of a chat's state; the component renders again only when the value has changed. */
export function useChatSelector<T>(
  chatId: string,
  selector: (state: ChatState) => T,
  isEqual: (a: T, b: T) => boolean = Object.is,
): T {
  const store = useFollowedStore(chatId);
  const select = useMemo(() => memoize(store, selector, isEqual), [store, selector, isEqual]);
  return useSyncExternalStore(store.subscribe, select);
}

function useFollowedStore(chatId: string): ChatStore {
  const connection = useConnectionOwner();
  useEffect(() => connection.followChat(chatId), [connection, chatId]);
  return useMemo(() => connection.chat(chatId), [connection, chatId]);
}

/** What to do with pending messages of any chat. */
export function useOutbox(): Pick<Outbox, "discard" | "retry"> {
  return useConnectionOwner().outbox;
}

function useSend(chatId: string): (draft: Draft) => OutboxItem | null {
  const connection = useConnectionOwner();
  return useCallback((draft: Draft) => connection.outbox.add(chatId, draft), [connection, chatId]);
}

function memoize<T>(store: ChatStore, selector: (state: ChatState) => T, isEqual: (a: T, b: T) => boolean): () => T {
  let last: { readonly state: ChatState; readonly value: T } | null = null;
  return () => {
    const { state } = store.view;
    if (last?.state === state) return last.value;
    const value = selector(state);
    last = { state, value: last !== null && isEqual(last.value, value) ? last.value : value };
    return last.value;
  };
}
