/** The timeline of a chat: its rows, where it opens, and what its rows can do. */
import { useQuery } from "@tanstack/react-query";
import { lazy, Suspense, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { useSearch } from "wouter";
import { api } from "@/api/client";
import { queryKeys } from "@/api/queries";
import type { components } from "@/api/schema";
import { isBusy } from "@/chat-state/reducer";
import type { ChatState, Takeover as TakeoverPayload } from "@/chat-state/types";
import { EmptyState, Skeleton } from "@/components";
import { type OpenChat, useChat, useChatDetails } from "@/connection";
import { useAction } from "@/platform/actions";
import { announce } from "@/platform/toasts";
import { plural } from "@/platform/words";
import { WebImages } from "@/text/web-image";
import { ActionsProvider } from "../actions";
import { callName } from "../rows/call-view";
import type { Takeover } from "../rows/row";
import { pendingSendsOf, RowModel, rows, takeoverOf } from "../rows/rows";
import { OpenRowsProvider } from "../tools/frame";
import { VersionsProvider } from "../views/versions";
import { type ListPlace, type OlderPages, RowList } from "./row-list";
import { useChatActions } from "./use-chat-actions";

const PrintSheet = lazy(() => import("./print-sheet"));

export function Timeline({ chatId }: { readonly chatId: string }) {
  return <ChatTimeline key={chatId} chatId={chatId} />;
}

function ChatTimeline({ chatId }: { readonly chatId: string }) {
  const chat = useChat(chatId);
  const actions = useChatActions(chatId, chat);
  useAnnouncements(chat.state);
  if (chat.gone) {
    return (
      <div className="timeline-box">
        <EmptyState title="Nothing here">This chat does not exist, or is not shared with you.</EmptyState>
      </div>
    );
  }
  if (!chat.state.loaded) return <Loading />;
  return (
    <ActionsProvider value={actions}>
      <OpenRowsProvider>
        <VersionsProvider state={chat.state}>
          <WebImages chatId={chatId}>
            <LoadedTimeline chat={chat} />
          </WebImages>
        </VersionsProvider>
      </OpenRowsProvider>
    </ActionsProvider>
  );
}

/** Nothing for a moment: most chats are there before anybody could see a skeleton. */
function Loading() {
  return (
    <div className="timeline-box is-loading" aria-busy="true">
      <div className="timeline-skeletons">
        <Skeleton rows={6} />
      </div>
    </div>
  );
}

function LoadedTimeline({ chat }: { readonly chat: OpenChat }) {
  const { state, pendingSends } = chat;
  const [model] = useState(() => new RowModel());
  const sends = useMemo(() => pendingSendsOf(pendingSends), [pendingSends]);
  const takeovers = useTakeovers(state);
  const rows = useMemo(() => model.rows(state, { pendingSends: sends, takeovers }), [model, state, sends, takeovers]);
  const place = useRef<ListPlace>(null);
  const marked = useOpening(chat, place);
  const promptAfter = usePrompt(chat, place);
  const { loadOlder, loadingOlder, olderError } = chat;
  const older = useMemo<OlderPages>(
    () => ({ hasMore: state.hasOlder, isLoading: loadingOlder, error: olderError?.message ?? null, load: () => void loadOlder() }),
    [state.hasOlder, loadingOlder, olderError, loadOlder],
  );
  const onSeen = useReadMark(state.chatId);
  const [isPrinting, setPrinting] = useState(false);
  useAction("printChat", () => setPrinting(true));
  const title = useChatDetails(state.chatId).data?.title ?? "Chat";
  return (
    <>
      <RowList chatId={state.chatId} rows={rows} older={older} promptAfter={promptAfter} markedMessageId={marked} placeRef={place} onSeen={onSeen} />
      {isPrinting && (
        <Suspense>
          <PrintSheet chat={chat} rows={rows} title={title} onDone={() => setPrinting(false)} />
        </Suspense>
      )}
    </>
  );
}

const MAX_LINK_PAGES = 50;

/** Opens at the message that the address names, else at the first unread one, else at the end. */
function useOpening(chat: OpenChat, place: React.RefObject<ListPlace | null>): number | null {
  const query = new URLSearchParams(useSearch());
  const linked = Number(query.get("m") ?? Number.NaN);
  // The card of a call is at the end, and brings itself into view.
  const isElsewhere = !Number.isNaN(linked) || query.has("call");
  const details = useChatDetails(chat.state.chatId);
  const opened = useRef<string | null>(null);
  const pages = useRef(0);
  const { state, loadOlder, loadingOlder } = chat;
  const firstId = state.messages[0]?.id ?? 0;
  useEffect(() => {
    if (!Number.isInteger(linked) || opened.current === `m${linked}`) return;
    if (linked < firstId && state.hasOlder && pages.current < MAX_LINK_PAGES) {
      if (loadingOlder) return;
      pages.current += 1;
      void loadOlder();
      return;
    }
    if (place.current?.toMessage(linked) !== true) return;
    opened.current = `m${linked}`;
  }, [linked, firstId, state.hasOlder, loadingOlder, loadOlder, place]);
  const read = details.data?.last_read_message_id ?? null;
  const isUnread = details.data?.has_unread === true && read !== null;
  useEffect(() => {
    if (details.isPending || opened.current !== null) return;
    opened.current = "start";
    const unread = isUnread ? state.messages.find((message) => message.id > read) : undefined;
    if (unread !== undefined && !isElsewhere) place.current?.toMessage(unread.id);
  }, [details.isPending, isUnread, read, state.messages, isElsewhere, place]);
  return Number.isInteger(linked) ? linked : null;
}

/** A prompt that is sent from here goes near the top of the window, and its answer below it. */
function usePrompt(chat: OpenChat, place: React.RefObject<ListPlace | null>): number | null {
  const [after, setAfter] = useState<number | null>(null);
  const newest = chat.pendingSends.at(-1)?.id ?? null;
  const [known, setKnown] = useState(newest);
  const isIdle = !isBusy(chat.state.status);
  if (newest !== known) {
    setKnown(newest);
    if (newest !== null && isIdle) setAfter(chat.state.messages.at(-1)?.id ?? 0);
  }
  useEffect(() => {
    if (newest !== null) place.current?.toEnd();
  }, [newest, place]);
  return after;
}

// Says to screen readers which calls failed and that a call is retried. The shell speaks of the turn.

function useAnnouncements(state: ChatState): void {
  const last = useRef<ChatState | null>(null);
  useEffect(() => {
    const before = last.current;
    last.current = state;
    const text = before === null ? null : announcement(before, state);
    if (text !== null) announce(text);
  }, [state]);
}

const RECENT = 40;

/** What has changed that is worth a sentence. Null: nothing. */
function announcement(before: ChatState, after: ChatState): string | null {
  if (!before.loaded || !after.loaded) return null;
  if (before.retry === null && after.retry !== null) return `${after.retry.error} Retrying.`;
  const waits = after.waitingCalls[0]?.waits_for;
  if (waits !== undefined && before.waitingCalls.length === 0) return `${waits} The chat waits for it.`;
  if (after.messages === before.messages) return null;
  const lastId = before.messages.at(-1)?.id ?? 0;
  const newer = after.messages.filter((message) => message.id > lastId);
  const notices = newer.flatMap((message) => message.content.flatMap((part) => (part.type === "notice" ? [part.text] : [])));
  if (notices.length > 0) return notices.join(" ");
  const fresh = newer.filter((message) => message.role === "tool");
  const ids = new Set(fresh.flatMap((message) => message.content.map((part) => (part.type === "tool-result" ? part.tool_call_id : ""))));
  if (ids.size === 0) return null;
  const recent = rows({ ...after, messages: after.messages.slice(-RECENT), live: null });
  const failed = recent.flatMap((row) => (row.kind === "tool" && ids.has(row.call.id) && row.call.state === "failed" ? [row.call] : []));
  const [first] = failed;
  if (first === undefined) return null;
  const name = callName(first);
  return failed.length === 1 ? `${name}, failed` : `${name} and ${plural(failed.length - 1, "more call")} failed`;
}

// Tells the server how far the user has read, a moment after it was seen.

const DELAY_MS = 600;

function useReadMark(chatId: string): (messageId: number) => void {
  const seen = useRef(0);
  const sent = useRef(0);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const send = useCallback(() => {
    if (document.visibilityState !== "visible" || seen.current <= sent.current) return;
    const messageId = seen.current;
    sent.current = messageId;
    api.POST("/api/v1/chats/{chat_id}/read", { path: { chat_id: chatId }, body: { message_id: messageId } }).catch(() => {
      // The mark is sent again with the next message that is seen.
      if (sent.current === messageId) sent.current = 0;
    });
  }, [chatId]);
  useEffect(() => {
    document.addEventListener("visibilitychange", send);
    return () => {
      document.removeEventListener("visibilitychange", send);
      clearTimeout(timer.current);
    };
  }, [send]);
  return useCallback(
    (messageId: number) => {
      if (messageId <= seen.current) return;
      seen.current = messageId;
      clearTimeout(timer.current);
      timer.current = setTimeout(send, DELAY_MS);
    },
    [send],
  );
}

// Every time another worker took the chat over: the last one by its event, all by the record of runs.

type Turn = components["schemas"]["TurnItem"];

const PAGE = 200;
/** The server keeps a bounded number of runs for each chat. */
const MAX_PAGES = 10;
const NO_TURNS: readonly Turn[] = [];
const NONE: readonly Takeover[] = [];

function useTakeovers(state: ChatState): readonly Takeover[] {
  const { chatId, takeover } = state;
  const { data } = useQuery({
    queryKey: queryKeys.takeovers(chatId, takeover?.version),
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
