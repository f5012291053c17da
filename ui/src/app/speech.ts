/** What is said to screen readers about the open chat: at the borders of a turn, never by the token. */
import { useEffect, useRef } from "react";
import type { ChatState, ChatStatus } from "@/chat-state";
import { useChatSelector } from "@/connection";
import { announce } from "@/platform/announcer";

export interface Speech {
  text: string;
  assertive: boolean;
}

const BUSY: ReadonlySet<ChatStatus> = new Set(["running", "pending"]);

/** The sentence for a change of status, or null. */
export function speechFor(before: ChatStatus, after: ChatStatus, error: string | null): Speech | null {
  if (before === after) return null;
  if (after === "requires_action") return { text: "Needs you", assertive: true };
  if (after === "error") return { text: `Failed: ${error ?? "see the chat"}`, assertive: true };
  if (after === "interrupting") return { text: "Stopping", assertive: false };
  if (BUSY.has(after)) return BUSY.has(before) ? null : { text: "Working", assertive: false };
  if (after === "waiting" && before === "interrupting") return { text: "Stopped", assertive: false };
  if (after === "waiting" && BUSY.has(before)) return { text: "Reply complete", assertive: false };
  return null;
}

const selectStatus = (state: ChatState) => (state.loaded ? state.status : null);
const selectError = (state: ChatState) => state.error?.message ?? null;

/** Speaks for one chat while it is open. Opening a chat says nothing. */
export function useSpeech(chatId: string): void {
  const status = useChatSelector(chatId, selectStatus);
  const error = useChatSelector(chatId, selectError);
  const before = useRef<{ chatId: string; status: ChatStatus } | null>(null);
  useEffect(() => {
    if (status === null) return;
    const known = before.current;
    before.current = { chatId, status };
    if (known?.chatId !== chatId) return;
    const speech = speechFor(known.status, status, error);
    if (speech !== null) announce(speech.text, speech.assertive);
  }, [chatId, status, error]);
}
