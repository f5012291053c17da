/** What goes over the WebSocket: objects from the client, arrays of events from the server. */
import type { components } from "@/api/schema";
import { isChatEvent } from "@/chat-state/types";

type Schemas = components["schemas"];

export type ClientFrame = Schemas["Subscribe"] | Schemas["Unsubscribe"] | Schemas["Ping"];
export type TopicEvent = Schemas["Subscribed"] | Schemas["Unsubscribed"] | Schemas["SubscribeRefused"];
export type ListEvent = Schemas["ChatListReady"] | Schemas["ChatListEvent"] | Schemas["ChatListRemoved"];
export type SpendWarning = Schemas["SpendWarningEvent"];
export type ProjectsChanged = Schemas["ProjectsChanged"];
export type Topic = "chats" | `chat:${string}`;

export const CHAT_LIST_TOPIC = "chats";
const LIST_EVENTS: ReadonlySet<string> = new Set(["ready", "chat", "removed", "spend_warning", "projects"]);

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
  return isChatEvent(event) ? chatTopic(event.chat_id) : null;
}

export function isTopicEvent(event: { type: string }): event is TopicEvent {
  return event.type === "subscribed" || event.type === "unsubscribed" || event.type === "refused";
}

/**
 * Runs a task with an animation frame, at most thirty times a second: that is smooth for text, and costs
 * half of sixty. By a timer while the page is hidden and has no frames.
 */
const HIDDEN_MS = 250;
const MIN_MS = 33;

export class FrameBatch {
  readonly #task: () => void;
  #frame: number | null = null;
  #pause: ReturnType<typeof setTimeout> | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #flushedAt = Number.NEGATIVE_INFINITY;

  constructor(task: () => void) {
    this.#task = task;
  }

  request(): void {
    if (this.#timer !== undefined) return;
    // The timer also serves a visible window that another one covers, which may get no frames.
    this.#timer = setTimeout(() => this.flush(), HIDDEN_MS);
    if (document.visibilityState !== "visible") return;
    const pauseMs = this.#flushedAt + MIN_MS - performance.now();
    // A frame that only waits for the next one would be drawn for nothing.
    if (pauseMs > 0) this.#pause = setTimeout(() => this.#requestFrame(), pauseMs);
    else this.#requestFrame();
  }

  flush(): void {
    if (this.#timer === undefined) return;
    this.cancel();
    this.#flushedAt = performance.now();
    this.#task();
  }

  cancel(): void {
    clearTimeout(this.#timer);
    clearTimeout(this.#pause);
    this.#timer = undefined;
    if (this.#frame !== null) cancelAnimationFrame(this.#frame);
    this.#frame = null;
  }

  #requestFrame(): void {
    this.#frame = requestAnimationFrame(() => this.flush());
  }
}
