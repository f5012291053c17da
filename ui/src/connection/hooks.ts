/** An open chat for components. They show it; only events of the server change it. */
import { type QueryClient, useInfiniteQuery, useQuery, useQueryClient, type UseQueryResult } from "@tanstack/react-query";
import { useCallback, useEffect, useMemo, useSyncExternalStore } from "react";
import { api, type ApiError } from "@/api/client";
import { queryKeys } from "@/api/queries";
import type { components } from "@/api/schema";
import type { Draft, OutboxItem } from "@/chat-state/outbox";
import type { ChatState } from "@/chat-state/types";
import { type ChatFilters, type ChatListPages, type ChatPage, flattenPages, type ListedChat, type PublicChat } from "./chat-list";
import { type ChatReply } from "./chat-list-sync";
import type { ChatStore, ChatView, SettledView } from "./chat-store";
import type { Outbox } from "./outbox";
import { useChatListSync, useConnectionOwner } from "./provider";
import type { SocketStatus } from "./socket";

export interface OpenChat extends ChatView {
  loadOlder: () => Promise<void>;
  /** Null: too many messages are unsent already. */
  send: (draft: Draft) => OutboxItem | null;
}

interface SettledChat extends SettledView {
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
export function useChatSelector<T>(chatId: string, selector: (state: ChatState) => T, isEqual: (a: T, b: T) => boolean = Object.is): T {
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

// Chat lists and single chats for components, and the changes a user makes to them.

export interface ChatList {
  /** Pinned first, then newest. */
  readonly chats: readonly ListedChat[];
  readonly isLoading: boolean;
  readonly error: ApiError | null;
  readonly hasMore: boolean;
  /** Of a search: older chats are missing until the server has indexed them. */
  readonly isIndexing: boolean;
  readonly isLoadingMore: boolean;
  loadMore: () => void;
  refetch: () => void;
}

const NO_FILTERS: ChatFilters = {};
const NO_CHATS: readonly ListedChat[] = [];

export function useChatList(filters: ChatFilters = NO_FILTERS): ChatList {
  const sync = useChatListSync();
  const query = useInfiniteQuery<ChatPage, ApiError, ChatListPages, readonly unknown[], string | undefined>({
    queryKey: queryKeys.chatList(filters),
    queryFn: ({ pageParam, signal }) => sync.fetchPage(filters, pageParam, signal),
    initialPageParam: undefined,
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    staleTime: Infinity,
  });
  const { data, fetchNextPage, refetch } = query;
  const chats = useMemo(() => (data === undefined ? NO_CHATS : flattenPages(data, filters)), [data, filters]);
  return {
    chats,
    isLoading: query.isLoading,
    error: query.error,
    hasMore: query.hasNextPage,
    isIndexing: data?.pages[0]?.indexing === true,
    isLoadingMore: query.isFetchingNextPage,
    loadMore: () => void fetchNextPage({ cancelRefetch: false }),
    refetch: () => void refetch(),
  };
}

/** One chat beside its messages: title, model, workspace. Kept current like the lists. */
export function useChatDetails(chatId: string | null): UseQueryResult<ChatReply, ApiError> {
  return useQuery<ChatReply, ApiError>({
    queryKey: queryKeys.chat(chatId),
    queryFn: ({ signal }) => api.GET("/api/v1/chats/{chat_id}", { path: { chat_id: chatId ?? "" }, signal }),
    enabled: chatId !== null,
    staleTime: Infinity,
  });
}

export type ChatAmendment = components["schemas"]["UpdateChatBody"];

/** Changes title, archive, pin or labels, and shows it at once; a refusal is undone and thrown. */
export function useAmendChat(): (chat: PublicChat, change: ChatAmendment) => Promise<void> {
  const client = useQueryClient();
  const sync = useChatListSync();
  return async (chat, change) => {
    sync.apply({ chat: { ...chat, ...change }, isDeleted: false });
    try {
      await api.PATCH("/api/v1/chats/{chat_id}", { path: { chat_id: chat.id }, body: change });
    } catch (error) {
      sync.apply({ chat, isDeleted: false });
      refetchLists(client);
      throw error;
    }
    // A pin moves other pinned chats too.
    if (change.pin_order !== undefined) refetchLists(client);
  };
}

/** Shows a chat that this tab has just created, before its event comes. */
export function useCreatedChat(): (chat: PublicChat) => void {
  const sync = useChatListSync();
  return (chat) => sync.apply({ chat, isDeleted: false });
}

/** Hides the chat at once; a refusal brings it back. */
export function useDeleteChat(): (chat: PublicChat) => Promise<void> {
  const client = useQueryClient();
  const sync = useChatListSync();
  return async (chat) => {
    sync.apply({ chat, isDeleted: true });
    try {
      await api.DELETE("/api/v1/chats/{chat_id}", { path: { chat_id: chat.id } });
    } catch (error) {
      sync.apply({ chat, isDeleted: false });
      refetchLists(client);
      throw error;
    }
  };
}

function refetchLists(client: QueryClient): void {
  void client.invalidateQueries({ queryKey: queryKeys.chats });
}

// Whether the page is connected, for badges and banners.

export interface ConnectionStatus extends SocketStatus {
  retryNow: () => void;
}

export function useConnection(): ConnectionStatus {
  const connection = useConnectionOwner();
  const status = useSyncExternalStore(connection.onStatus, () => connection.status);
  return useMemo(() => ({ ...status, retryNow: connection.retryNow }), [status, connection]);
}
