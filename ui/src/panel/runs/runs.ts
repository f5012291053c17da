/** The record of a chat's turns as the server gives it. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { api } from "@/api/client";
import { queryKeys } from "@/api/queries";
import type { components } from "@/api/schema";
import { useChatSelector } from "@/connection";

type Schemas = components["schemas"];

export type RunPage = Schemas["RunPage"];
export type Turn = Schemas["TurnItem"];
export type Attempt = Schemas["AttemptItem"];
export type Outcome = Attempt["outcome"];
export type Lane = Schemas["LaneItem"];
export type RunTakeover = Schemas["TakeoverPayload"];

/** Outcomes after which the turn goes on with another attempt. */
const GOES_ON: ReadonlySet<Outcome> = new Set(["running", "retry", "lost", "released", "suspended"]);

/** Whether the turn is not over: it runs, or waits for its next attempt. */
export function isOpen(turn: Turn): boolean {
  return GOES_ON.has(turn.outcome);
}

/** When an attempt ended; of a lost one the last sign of life of its worker. Null: it runs. */
export function endOf(attempt: Attempt): number | null {
  const end = attempt.outcome === "lost" ? (attempt.last_seen_at ?? attempt.ended_at) : attempt.ended_at;
  return end === null ? null : Math.max(Date.parse(end), Date.parse(attempt.started_at));
}

/** The turn to which a message belongs: the last that began with it or before it. Null: not known yet. */
export function turnOfMessage(turns: readonly Turn[], messageId: number, hasMore: boolean): number | null {
  const found = turns.find((turn) => turn.message_id !== null && turn.message_id <= messageId);
  return found?.turn ?? (hasMore ? null : (turns.at(-1)?.turn ?? null));
}

export const startOf = (item: Attempt | Turn): number => Date.parse(item.started_at);

/** How long a turn took, or has been going on. */
export function turnMs(turn: Turn, now: number): number {
  const end = isOpen(turn) || turn.ended_at === null ? now : Date.parse(turn.ended_at);
  return Math.max(0, end - startOf(turn));
}

// The record of a chat, read again when the chat changes.

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
    queryKey: queryKeys.runs(chatId),
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
