/** The events of one chat, as the server sends them. */
import type { components } from "@/api/schema";

type Schemas = components["schemas"];

export type ChatEvent =
  | Schemas["StatusEvent"]
  | Schemas["MessageEvent"]
  | Schemas["MessagesDeleted"]
  | Schemas["HistoryReset"]
  | Schemas["PreviewReset"]
  | Schemas["QueueUpdate"]
  | Schemas["RetryEvent"]
  | Schemas["ErrorEvent"]
  | Schemas["ActionRequired"]
  | Schemas["TakeoverEvent"]
  | Schemas["VersionReached"]
  | Schemas["MessagePart"];

export type MessagePartEvent = Schemas["MessagePart"];
export type VersionReached = Schemas["VersionReached"];

const TYPES: ReadonlySet<string> = new Set<ChatEvent["type"]>([
  "status",
  "message",
  "messages_deleted",
  "history_reset",
  "preview_reset",
  "queue_update",
  "retry",
  "error",
  "action_required",
  "takeover",
  "version",
  "message_part",
]);

/** Events that a later server may add are not for this page. */
export function isChatEvent(event: { type: string }): event is ChatEvent {
  return TYPES.has(event.type);
}
