/** What the row model takes, from what the connection gives. */
import type { OutboxItem } from "@/chat-state";
import type { Takeover as TakeoverPayload } from "@/chat-state/types";
import type { FileChip, PendingSend, Reference, Takeover } from "./row";

/** What is on its way. The composer shows what was refused. */
export function pendingSendsOf(items: readonly OutboxItem[]): readonly PendingSend[] {
  return items.filter((item) => item.state !== "refused").map(pendingSendOf);
}

function pendingSendOf(item: OutboxItem): PendingSend {
  const texts: string[] = [];
  const files: FileChip[] = [];
  const references: Reference[] = [];
  for (const part of item.draft.content) {
    if (part.type === "text") texts.push(part.text);
    if (part.type === "file") files.push({ type: "file", file_id: part.file_id, media_type: "application/octet-stream" });
    if (part.type === "file-reference") references.push(part);
  }
  return { id: item.id, text: texts.join("\n\n"), files, references, isKept: item.error !== null && item.state !== "sent" };
}

export function takeoverOf(payload: TakeoverPayload): Takeover {
  return {
    messageId: payload.message_id,
    worker: payload.worker.name,
    afterMs: payload.after_ms,
    resumedCalls: payload.resumed_calls,
    version: payload.version,
  };
}
