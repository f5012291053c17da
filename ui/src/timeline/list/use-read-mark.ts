/** Tells the server how far the user has read, a moment after it was seen. */
import { useCallback, useEffect, useRef } from "react";
import { api } from "@/api/client";

const DELAY_MS = 600;

export function useReadMark(chatId: string): (messageId: number) => void {
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
