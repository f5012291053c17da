/** Rows of the timeline: what one chat shows, from top to bottom. Plain data, made by `rows`. */
import type { ChatError, PartOf, RetryState } from "@/chat-state/types";
import type { ToolCall } from "./tool-call";

export type FileChip = PartOf<"file">;
export type Reference = PartOf<"file-reference">;
export type Source = PartOf<"source">;

interface RowBase {
  /** Stays the same when a live row becomes durable, and when older pages are put in front. */
  readonly key: string;
  /** The message that the row belongs to; null while it has none. */
  readonly messageId: number | null;
  /** Lines of finished calls stand close together. */
  readonly isTight: boolean;
  /** Of an attempt that has ended: shown until the next one has said as much. */
  readonly isEarlier?: boolean;
}

/** A message that was sent and is not in the chat yet. */
export interface PendingSend {
  readonly id: string;
  readonly text: string;
  readonly files: readonly FileChip[];
  readonly references: readonly Reference[];
  /** The server cannot be reached: it is sent when it answers. */
  readonly isKept: boolean;
}

export interface UserRow extends RowBase {
  readonly kind: "user";
  readonly text: string;
  readonly files: readonly FileChip[];
  readonly references: readonly Reference[];
  readonly at: number | null;
  readonly createdBy: string | null;
  readonly isSteering: boolean;
  readonly pending: PendingSend | null;
}
interface ProseRow extends RowBase {
  readonly kind: "prose";
  readonly text: string;
  readonly isLive: boolean;
}
export interface ReasoningRow extends RowBase {
  readonly kind: "reasoning";
  readonly text: string;
  readonly title: string | null;
  readonly durationMs: number | null;
  readonly startedAt: number | null;
  readonly isLive: boolean;
}
export interface ToolRow extends RowBase {
  readonly kind: "tool";
  readonly call: ToolCall;
  readonly isLast: boolean;
}
export interface ReadsRow extends RowBase {
  readonly kind: "reads";
  readonly calls: readonly ToolCall[];
}
export interface SourcesRow extends RowBase {
  readonly kind: "sources";
  readonly sources: readonly Source[];
}
interface FilesRow extends RowBase {
  readonly kind: "files";
  readonly files: readonly FileChip[];
}

export type Mark =
  | { readonly type: "compacted"; readonly summary: string; readonly tokens: number | null; readonly kept: number; readonly isLive: boolean }
  | { readonly type: "compaction_failed"; readonly reason: string }
  | { readonly type: "takeover"; readonly takeover: Takeover }
  /** `isBetween`: after one step and before the next. */
  | { readonly type: "stopped"; readonly isBetween: boolean }
  /** A notice of the server. `canContinue`: it tells why the turn ended early. */
  | { readonly type: "notice"; readonly text: string; readonly canContinue: boolean }
  | { readonly type: "context"; readonly files: readonly string[]; readonly skills: readonly string[] };

/** Another worker has the chat, because the one before it died. */
export interface Takeover {
  readonly messageId: number;
  readonly worker: string;
  readonly afterMs: number | null;
  readonly resumedCalls: number;
  /** The version of the chat since then. */
  readonly version: number;
}

export interface MarkRow extends RowBase {
  readonly kind: "mark";
  readonly mark: Mark;
}

export type Note = "length" | "content-filter" | "refusal" | "error";
export interface NoteRow extends RowBase {
  readonly kind: "note";
  readonly note: Note;
  readonly canContinue: boolean;
}

export type Callout =
  | { readonly type: "retrying"; readonly retry: RetryState; readonly canRetryNow: boolean; readonly hasSaid: boolean }
  | { readonly type: "waits"; readonly text: string }
  | { readonly type: "failed"; readonly error: ChatError }
  | { readonly type: "held"; readonly error: ChatError; readonly queued: number };
interface CalloutRow extends RowBase {
  readonly kind: "callout";
  readonly callout: Callout;
}

/** One quiet line at the end: what the chat does, when no other row says it. */
export type Activity = "working" | "pending" | "interrupting";
export interface ActivityRow extends RowBase {
  readonly kind: "activity";
  readonly activity: Activity;
}

export type Row = UserRow | ProseRow | ReasoningRow | ToolRow | ReadsRow | SourcesRow | FilesRow | MarkRow | NoteRow | CalloutRow | ActivityRow;
