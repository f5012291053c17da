import type { ChatState } from "@/chat-state";
import { Countdown, Elapsed, StatusState } from "@/components";
import { useChatSelector } from "@/connection";

const selectStatus = (state: ChatState) => (state.loaded ? state.status : null);
const selectRetryAt = (state: ChatState) => (state.retry === null ? null : (state.retry.retrying_at ?? ""));
/** The user stopped the turn and holds the queue: nothing failed. */
const selectHeld = (state: ChatState) => state.error?.kind === "queue_held";
/** A turn begins with the last message of a person. */
const selectSince = (state: ChatState) => state.messages.findLast((message) => message.role === "user")?.created_at ?? null;

/** What the open chat does now, in icon, word and time. Nothing while it waits for you. */
export function TopState({ chatId }: { chatId: string }) {
  const status = useChatSelector(chatId, selectStatus);
  const retryAt = useChatSelector(chatId, selectRetryAt);
  const since = useChatSelector(chatId, selectSince);
  const held = useChatSelector(chatId, selectHeld);
  if (status === null || status === "waiting" || status === "archived") return null;
  // Between two calls of a failing model no worker has the chat.
  if ((status === "running" || status === "pending") && retryAt !== null) {
    return <StatusState status="retrying" detail={retryAt === "" ? null : <>in <Countdown until={retryAt} /></>} />;
  }
  if (status === "error" && held) return <StatusState status="stopped" detail="queue held" />;
  return <StatusState status={status} detail={status === "running" && since !== null ? <Elapsed since={since} /> : null} />;
}
