/** Says to screen readers what happened, at the borders of a turn, never by the word. */
import { useEffect, useRef } from "react";
import { announce } from "@/shell";
import type { ChatState } from "@/chat-state/types";
import { callText } from "../rows/brief";
import { rows } from "../rows/rows";

export interface Spoken {
  readonly text: string;
  readonly isUrgent: boolean;
}

export function useAnnouncements(state: ChatState): void {
  const last = useRef<ChatState | null>(null);
  useEffect(() => {
    const before = last.current;
    last.current = state;
    const spoken = before === null ? null : announcement(before, state);
    if (spoken !== null) announce(spoken.text, spoken.isUrgent);
  }, [state]);
}

/** What has changed that is worth a sentence. Null: nothing. */
export function announcement(before: ChatState, after: ChatState): Spoken | null {
  if (!before.loaded || !after.loaded) return null;
  if (before.status !== after.status) return ofStatus(before, after);
  if (before.retry === null && after.retry !== null) return { text: `${after.retry.error} Retrying.`, isUrgent: false };
  return after.messages === before.messages ? null : ofFailedCall(before, after);
}

function ofStatus(before: ChatState, after: ChatState): Spoken | null {
  switch (after.status) {
    case "running":
      return before.status === "interrupting" ? null : { text: "Working", isUrgent: false };
    case "requires_action":
      return { text: "Needs you", isUrgent: true };
    case "error":
      return { text: after.error?.message ?? "Failed", isUrgent: after.error?.kind !== "queue_held" };
    case "waiting":
      if (before.status === "pending") return null;
      return { text: before.status === "interrupting" ? "Stopped" : replyText(after), isUrgent: false };
    default:
      return null;
  }
}

function replyText(state: ChatState): string {
  const last = state.messages.findLast((message) => message.role === "assistant");
  const text = last?.content.map((part) => (part.type === "text" ? part.text : "")).join("\n\n") ?? "";
  const count = text.split(/\n\s*\n/).filter((paragraph) => paragraph.trim() !== "").length;
  return count === 1 ? "Reply complete, 1 paragraph" : `Reply complete, ${count} paragraphs`;
}

function ofFailedCall(before: ChatState, after: ChatState): Spoken | null {
  const lastId = before.messages.at(-1)?.id ?? 0;
  const fresh = after.messages.filter((message) => message.id > lastId && message.role === "tool");
  if (fresh.length === 0) return null;
  const ids = new Set(fresh.flatMap((message) => message.content.map((part) => (part.type === "tool-result" ? part.tool_call_id : ""))));
  const recent = rows({ ...after, messages: after.messages.slice(-40), live: null });
  const failed = recent.flatMap((row) => (row.kind === "tool" && ids.has(row.call.id) && row.call.state === "failed" ? [row.call] : []));
  const [first] = failed;
  return first === undefined ? null : { text: `${callText(first)}, failed`, isUrgent: false };
}
