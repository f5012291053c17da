/** Chat lists and single chats for components, and the changes a user makes to them. */
import { type QueryClient, useInfiniteQuery, useQuery, useQueryClient, type UseQueryResult } from "@tanstack/react-query";
import { useMemo } from "react";
import { api } from "@/api/client";
import type { ApiError } from "@/api/errors";
import type { components } from "@/api/schema";
import { type ChatFilters, type ChatListPages, type ChatPage, flattenPages, type ListedChat, type PublicChat } from "./chat-list";
import { CHAT_KEY, type ChatReply, CHATS_KEY } from "./chat-list-sync";
import { useChatListSync } from "./provider";

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
    queryKey: [CHATS_KEY, filters],
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
    queryKey: [CHAT_KEY, chatId],
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
  void client.invalidateQueries({ queryKey: [CHATS_KEY] });
}
