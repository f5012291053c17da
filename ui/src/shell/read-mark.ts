/** Tells the server how far the open chat was read, while the page is in front. */
import { useEffect } from "react";
import { api } from "@/api/client";
import type { ChatState } from "@/chat-state";
import { useChatSelector } from "@/connection";
import { useInFront } from "./layout/use-in-front";

const SETTLE_MS = 400;
const selectLastId = (state: ChatState) => state.messages.at(-1)?.id ?? 0;

export function useReadMark(chatId: string): void {
  const lastId = useChatSelector(chatId, selectLastId);
  const inFront = useInFront();
  useEffect(() => {
    if (lastId === 0 || !inFront) return;
    const timer = setTimeout(() => {
      // A mark that was not taken is sent again with the next message.
      api.POST("/api/v1/chats/{chat_id}/read", { path: { chat_id: chatId }, body: { message_id: lastId } }).catch(() => undefined);
    }, SETTLE_MS);
    return () => clearTimeout(timer);
  }, [chatId, lastId, inFront]);
}
