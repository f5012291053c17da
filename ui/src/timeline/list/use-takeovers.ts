/** Every time another worker took the chat over: the last one by its event, all by the record of runs. */
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { api } from "@/api/client";
import type { components } from "@/api/schema";
import type { ChatState, Takeover as TakeoverPayload } from "@/chat-state/types";
import { takeoverOf } from "../rows/from-chat";
import type { Takeover } from "../rows/row";

type Turn = components["schemas"]["TurnItem"];

const PAGE = 200;
/** The server keeps a bounded number of runs for each chat. */
const MAX_PAGES = 10;
const NO_TURNS: readonly Turn[] = [];
const NONE: readonly Takeover[] = [];

export function useTakeovers(state: ChatState): readonly Takeover[] {
  const { chatId, takeover } = state;
  const { data } = useQuery({
    queryKey: ["timeline", "takeovers", chatId, takeover?.version],
    queryFn: ({ signal }) => readTurns(chatId, signal),
    enabled: takeover !== null,
    placeholderData: (before) => before,
    staleTime: Number.POSITIVE_INFINITY,
  });
  return useMemo(() => joinTakeovers(data ?? NO_TURNS, takeover), [data, takeover]);
}

/** In the order of time. The last one may not be in the record yet. */
export function joinTakeovers(turns: readonly Turn[], last: TakeoverPayload | null): readonly Takeover[] {
  if (last === null) return NONE;
  const found = new Map([[last.version, takeoverOf(last)]]);
  for (const { takeover } of turns.flatMap((turn) => turn.attempts)) {
    if (takeover != null) found.set(takeover.version, takeoverOf(takeover));
  }
  return [...found.values()].sort((a, b) => a.version - b.version);
}

async function readTurns(chatId: string, signal: AbortSignal): Promise<readonly Turn[]> {
  const turns: Turn[] = [];
  let cursor: string | undefined;
  for (let pages = 0; pages < MAX_PAGES; pages += 1) {
    const page = await api.GET("/api/v1/chats/{chat_id}/runs", { path: { chat_id: chatId }, query: { limit: PAGE, cursor }, signal });
    turns.push(...page.items);
    if (page.next_cursor === null) break;
    cursor = page.next_cursor;
  }
  return turns;
}
