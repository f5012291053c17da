/** What the row model takes, from what the connection gives. */
import type { ChatState, OutboxItem } from "@/chat-state";
import type { FileChip, PendingSend, Reference, Takeover } from "./row";

export function pendingSendOf(item: OutboxItem): PendingSend {
  const texts: string[] = [];
  const files: FileChip[] = [];
  const references: Reference[] = [];
  for (const part of item.draft.content) {
    if (part.type === "text") texts.push(part.text);
    if (part.type === "file") files.push({ type: "file", file_id: part.file_id, media_type: "application/octet-stream" });
    if (part.type === "file-reference") references.push(part);
  }
  return { id: item.id, text: texts.join("\n\n"), files, references, error: item.state === "refused" ? (item.error?.message ?? "It was refused.") : null };
}

const NONE: readonly Takeover[] = [];
const known = new WeakMap<object, readonly Takeover[]>();

/** The same list as long as the takeover is the same. */
export function takeoversOf(state: ChatState): readonly Takeover[] {
  const { takeover } = state;
  if (takeover === null) return NONE;
  const found = known.get(takeover) ?? [
    {
      messageId: takeover.message_id,
      worker: takeover.worker.name,
      afterMs: takeover.after_ms,
      resumedCalls: takeover.resumed_calls,
    },
  ];
  known.set(takeover, found);
  return found;
}
