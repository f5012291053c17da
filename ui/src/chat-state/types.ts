/**
 * The state of one chat as a viewer has it: committed messages, and beside them the live parts of
 * the answer that is being written. Events of the server change it (`reduce`), nothing else does.
 */
import type { components } from "@/api/schema";

type Schemas = components["schemas"];

export type Message = Schemas["PublicMessage"];
export type QueuedMessage = Schemas["PublicQueuedMessage"];
export type Part = Message["content"][number];
export type PartOf<T extends Part["type"]> = Extract<Part, { type: T }>;
export type ChatStatus = Schemas["StatusEvent"]["status"]["status"];
export type RetryState = NonNullable<Schemas["RetryEvent"]["retry"]>;
export type ChatError = Schemas["ErrorEvent"]["error"];
export type WaitingCall = NonNullable<Schemas["StatusEvent"]["status"]["waiting_calls"]>[number];
export type RequestedCall = Schemas["ActionRequired"]["action_required"]["tool_calls"][number];
export type Takeover = Schemas["TakeoverPayload"];

/** Parts of an answer before its commit. `seq` is the number of the last part that was applied. */
export interface LiveParts {
  readonly historyVersion: number;
  readonly attempt: number;
  readonly seq: number;
  readonly parts: readonly Part[];
  /** What an attempt before this one had said, until this one has said as much: the reader keeps it. */
  readonly earlier?: readonly Part[];
}

/** All but the answer that is being written. */
export type SettledState = Omit<ChatState, "live">;

export interface ChatState {
  readonly chatId: string;
  /** False until the first whole group of events has arrived. */
  readonly loaded: boolean;
  readonly version: number;
  /** Resume the stream with it. */
  readonly cursor: string | null;
  readonly status: ChatStatus;
  /** By id, ascending; ids are the order. */
  readonly messages: readonly Message[];
  readonly hasOlder: boolean;
  readonly queue: readonly QueuedMessage[];
  readonly retry: RetryState | null;
  readonly error: ChatError | null;
  readonly requestedCalls: readonly RequestedCall[];
  /** Calls that run and cannot go on now, such as because their machine is not connected. */
  readonly waitingCalls: readonly WaitingCall[];
  /** The last time another worker took the chat over from one that died. */
  readonly takeover: Takeover | null;
  /** Null while no answer is being written. Never there together with its committed message. */
  readonly live: LiveParts | null;
}

// The events of one chat, as the server sends them.

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
