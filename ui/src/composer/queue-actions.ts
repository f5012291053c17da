/** What a user does to the queue. The chat's events show the result; a lost race is told. */
import { api, ApiError } from "@/api/client";
import type { InputPart } from "@/chat-state/outbox";
import type { QueuedMessage } from "@/chat-state/types";
import { insertText } from "@/platform/actions";
import { toast } from "@/platform/toasts";
import { contentOf, draftOf } from "./draft";

const SENT_MEANWHILE = "This message was sent a moment ago.";
const EDIT_CAME_TOO_LATE = "This message was sent a moment ago. Your new text is in the composer.";

const GONE = "queued_message_gone";

export function textOf(message: QueuedMessage): string {
  return draftOf(message.content).text;
}

export function fileCount(message: QueuedMessage): number {
  return message.content.filter((part) => part.type !== "text").length;
}

/** The message's parts with another text. */
function withText(message: QueuedMessage, text: string): InputPart[] {
  return contentOf({ ...draftOf(message.content), text });
}

/** The new text is not lost: it goes into the composer. */
export function keepLateEdit(text: string): void {
  insertText(text);
  toast(EDIT_CAME_TOO_LATE);
}

export class QueueActions {
  readonly #chatId: string;

  constructor(chatId: string) {
    this.#chatId = chatId;
  }

  async edit(message: QueuedMessage, text: string): Promise<void> {
    const path = this.#path(message.id);
    const body = { content: withText(message, text) };
    try {
      await api.PATCH("/api/v1/chats/{chat_id}/queue/{queue_id}", { path, body });
    } catch (error) {
      if (!isGone(error)) throw error;
      keepLateEdit(text);
    }
  }

  /** `before` is the message that comes next; null: it becomes the last. */
  move(id: number, before: number | null): Promise<void> {
    return this.#unlessGone(api.POST("/api/v1/chats/{chat_id}/queue/{queue_id}/move", { path: this.#path(id), body: { before } }));
  }

  promote(id: number): Promise<void> {
    return this.#unlessGone(api.POST("/api/v1/chats/{chat_id}/queue/{queue_id}/promote", { path: this.#path(id) }));
  }

  remove(id: number): Promise<void> {
    return this.#unlessGone(api.DELETE("/api/v1/chats/{chat_id}/queue/{queue_id}", { path: this.#path(id) }));
  }

  async clear(messages: readonly QueuedMessage[]): Promise<void> {
    for (const message of messages.toReversed()) await this.remove(message.id);
  }

  /** Stops the answer; the queue waits until it is resumed. */
  async hold(): Promise<void> {
    await api.POST("/api/v1/chats/{chat_id}/interrupt", { path: { chat_id: this.#chatId }, body: { queue: "hold" } });
  }

  async resume(): Promise<void> {
    await api.POST("/api/v1/chats/{chat_id}/resume", { path: { chat_id: this.#chatId } });
  }

  #path(id: number) {
    return { chat_id: this.#chatId, queue_id: id };
  }

  async #unlessGone(work: Promise<unknown>): Promise<void> {
    try {
      await work;
    } catch (error) {
      if (!isGone(error)) throw error;
      toast(SENT_MEANWHILE);
    }
  }
}

function isGone(error: unknown): boolean {
  return error instanceof ApiError && (error.code === GONE || error.status === 404);
}
