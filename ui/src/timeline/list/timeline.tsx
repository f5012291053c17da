/** The timeline of a chat: its rows, where it opens, and what its rows can do. */
import { useEffect, useMemo, useRef, useState } from "react";
import { useSearch } from "wouter";
import { EmptyState, Skeleton } from "@/components";
import { useChat, useChatDetails, type OpenChat } from "@/connection";
import { ActionsProvider } from "../actions";
import { pendingSendsOf } from "../rows/from-chat";
import { RowModel } from "../rows/rows";
import { OpenRowsProvider } from "../tools/open-rows";
import { RowList, type ListPlace, type OlderPages } from "./row-list";
import { useAnnouncements } from "./use-announcements";
import { useChatActions } from "./use-chat-actions";
import { useReadMark } from "./use-read-mark";
import { useTakeovers } from "./use-takeovers";

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
        <LoadedTimeline chat={chat} />
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
  return <RowList chatId={state.chatId} rows={rows} older={older} promptAfter={promptAfter} markedMessageId={marked} placeRef={place} onSeen={onSeen} />;
}

const MAX_LINK_PAGES = 50;

/** Opens at the message that the address names, else at the first unread one, else at the end. */
function useOpening(chat: OpenChat, place: React.RefObject<ListPlace | null>): number | null {
  const linked = Number(new URLSearchParams(useSearch()).get("m") ?? Number.NaN);
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
    if (unread !== undefined && Number.isNaN(linked)) place.current?.toMessage(unread.id);
  }, [details.isPending, isUnread, read, state.messages, linked, place]);
  return Number.isInteger(linked) ? linked : null;
}

/** A prompt that is sent from here goes near the top of the window, and its answer below it. */
function usePrompt(chat: OpenChat, place: React.RefObject<ListPlace | null>): number | null {
  const [after, setAfter] = useState<number | null>(null);
  const newest = chat.pendingSends.at(-1)?.id ?? null;
  const [known, setKnown] = useState(newest);
  const isIdle = ["waiting", "error"].includes(chat.state.status);
  if (newest !== known) {
    setKnown(newest);
    if (newest !== null && isIdle) setAfter(chat.state.messages.at(-1)?.id ?? 0);
  }
  useEffect(() => {
    if (newest !== null) place.current?.toEnd();
  }, [newest, place]);
  return after;
}
