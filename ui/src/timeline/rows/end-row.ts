/** The one row at the end that says what holds the chat up, or that it works. */
import type { ChatState, Message } from "@/chat-state/types";
import { isNotice } from "./message-rows";
import type { Activity, Callout, Row } from "./row";

export function endRow(state: ChatState, last: Row | undefined): Row | null {
  const base = { key: "end", messageId: null, isTight: false };
  const callout = calloutOf(state);
  if (callout !== null) return { ...base, kind: "callout", callout };
  const activity = activityOf(state, last);
  return activity === null ? null : { ...base, kind: "activity", activity };
}

export function calloutOf(state: ChatState): Callout | null {
  if (state.status === "error") {
    const error = state.error;
    if (error === null) return null;
    if (error.kind === "queue_held") return { type: "held", error, queued: state.queue.length };
    return { type: "failed", error };
  }
  const isRetrying = state.status === "running" || state.status === "pending";
  return isRetrying && state.retry !== null ? { type: "retrying", retry: state.retry, canHurry: isUnanswered(state), hasSaid: hasSaid(state) } : null;
}

/** The failed call has said something, which is still shown. */
function hasSaid(state: ChatState): boolean {
  return (state.live?.earlier ?? state.live?.parts ?? []).some((part) => part.type === "text" && part.text.trim() !== "");
}

/** The turn has done nothing yet: its message can be sent again without losing work. */
export function isUnanswered(state: ChatState): boolean {
  return lastSaid(state)?.role === "user" && state.queue.length === 0;
}

/** The newest message that is no notice. */
export function lastSaid(state: ChatState): Message | undefined {
  return state.messages.findLast((message) => !isNotice(message));
}

function activityOf(state: ChatState, last: Row | undefined): Activity | null {
  if (state.status === "interrupting") return "interrupting";
  if (state.status === "pending") return "pending";
  return state.status === "running" && !isMoving(last) ? "working" : null;
}

/** The row shows by itself that something goes on. */
function isMoving(row: Row | undefined): boolean {
  if (row?.kind === "prose" || row?.kind === "reasoning") return row.isLive;
  if (row?.kind === "mark") return row.mark.type === "compacted" && row.mark.isLive;
  return row?.kind === "tool" && ["streaming", "running", "waiting"].includes(row.call.state);
}
