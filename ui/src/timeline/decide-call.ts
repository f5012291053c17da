/** Answers to calls that wait for a person. */
import { api } from "@/api/client";
import { ApiError } from "@/api/errors";
import { toast } from "@/platform/toasts";
import type { CallAnswer } from "./actions";

/** Says what went wrong, and passes it on. */
export async function told<T>(request: Promise<T>): Promise<T> {
  try {
    return await request;
  } catch (error) {
    toast(error instanceof ApiError ? error.message : "That did not work. Try again.");
    throw error;
  }
}

/** Of this chat or of a subagent. A call is answered once: of a second answer the server says who was first. */
export async function decideCall(chatId: string, answer: CallAnswer): Promise<void> {
  const headers = { "Idempotency-Key": crypto.randomUUID() };
  await told(api.POST("/api/v1/chats/{chat_id}/answers", { path: { chat_id: chatId }, body: { answers: [answer] }, headers }));
}
