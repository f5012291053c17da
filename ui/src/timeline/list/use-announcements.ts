/** Says to screen readers which calls failed and that a call is retried. The shell speaks of the turn. */
import { useEffect, useRef } from "react";
import type { ChatState } from "@/chat-state/types";
import { announce } from "@/platform/announcer";
import { callText } from "../rows/brief";
import { rows } from "../rows/rows";

export function useAnnouncements(state: ChatState): void {
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
export function announcement(before: ChatState, after: ChatState): string | null {
  if (!before.loaded || !after.loaded) return null;
  if (before.retry === null && after.retry !== null) return `${after.retry.error} Retrying.`;
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
  return failed.length === 1 ? `${callText(first)}, failed` : `${callText(first)} and ${failed.length - 1} more calls failed`;
}
