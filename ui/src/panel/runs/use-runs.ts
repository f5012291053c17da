/** The record of a chat, read again when the chat changes. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { api } from "@/api/client";
import { useChatSelector } from "@/connection";
import type { RunPage, Turn } from "./record";

const PAGE = 20;
/** While a worker has the chat: its lease is renewed about every second. */
const RENEWED_EVERY_MS = 4000;

export interface Runs {
  readonly turns: readonly Turn[];
  readonly newest: RunPage | null;
  /** The moment of this browser at which `newest` arrived. */
  readonly readAt: number;
  readonly isLoading: boolean;
  readonly error: Error | null;
  readonly hasMore: boolean;
  readonly isLoadingMore: boolean;
  readonly loadMore: () => void;
  readonly retry: () => void;
}

export function useRuns(chatId: string): Runs {
  const version = useChatSelector(chatId, (state) => state.version);
  const query = useInfiniteQuery({
    queryKey: ["panel", "runs", chatId],
    queryFn: ({ pageParam, signal }) =>
      api.GET("/api/v1/chats/{chat_id}/runs", { path: { chat_id: chatId }, query: { limit: PAGE, cursor: pageParam ?? undefined }, signal }),
    initialPageParam: null as string | null,
    getNextPageParam: (page) => page.next_cursor,
    refetchInterval: (found) => (found.state.data?.pages[0]?.holder == null ? false : RENEWED_EVERY_MS),
    staleTime: 0,
  });
  const { refetch } = query;
  useEffect(() => {
    if (version > 0) void refetch();
  }, [version, refetch]);
  const pages = query.data?.pages ?? [];
  return {
    turns: withoutRepeats(pages.flatMap((page) => page.items)),
    newest: pages[0] ?? null,
    readAt: query.dataUpdatedAt,
    isLoading: query.isPending,
    error: pages.length === 0 ? query.error : null,
    hasMore: query.hasNextPage,
    isLoadingMore: query.isFetchingNextPage,
    loadMore: () => void query.fetchNextPage(),
    retry: () => void query.refetch(),
  };
}

/** A turn that began between two pages would be in both. */
function withoutRepeats(turns: readonly Turn[]): readonly Turn[] {
  const seen = new Set<number>();
  return turns.filter((turn) => !seen.has(turn.turn) && seen.add(turn.turn));
}
