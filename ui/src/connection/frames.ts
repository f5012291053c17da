/** What goes over the WebSocket: objects from the client, arrays of events from the server. */
import type { components } from "@/api/schema";
import { isChatEvent } from "@/chat-state";

type Schemas = components["schemas"];

export type ClientFrame = Schemas["Subscribe"] | Schemas["Unsubscribe"] | Schemas["Ping"];
export type TopicEvent = Schemas["Subscribed"] | Schemas["Unsubscribed"] | Schemas["SubscribeRefused"];
export type ListEvent = Schemas["ChatListReady"] | Schemas["ChatListEvent"] | Schemas["ChatListRemoved"];
export type SpendWarning = Schemas["SpendWarningEvent"];
export type Topic = "chats" | `chat:${string}`;

export const CHAT_LIST_TOPIC = "chats";
const LIST_EVENTS: ReadonlySet<string> = new Set(["ready", "chat", "removed", "spend_warning"]);

export function chatTopic(chatId: string): Topic {
  return `chat:${chatId}`;
}

export type ServerEvent = { type: string } & Record<string, unknown>;

export function readFrame(data: unknown): readonly ServerEvent[] {
  if (typeof data !== "string") return [];
  const value: unknown = JSON.parse(data);
  return Array.isArray(value) ? value.filter(isEvent) : [];
}

function isEvent(value: unknown): value is ServerEvent {
  return typeof value === "object" && value !== null && typeof (value as ServerEvent).type === "string";
}

/** The topic of an event; null for `pong` and for events that this page does not know. */
export function topicOf(event: ServerEvent): Topic | null {
  if (LIST_EVENTS.has(event.type)) return CHAT_LIST_TOPIC;
  if (isTopicEvent(event)) return (event.topic ?? null) as Topic | null;
  return isChatEvent(event) ? chatTopic((event).chat_id) : null;
}

export function isTopicEvent(event: { type: string }): event is TopicEvent {
  return event.type === "subscribed" || event.type === "unsubscribed" || event.type === "refused";
}
