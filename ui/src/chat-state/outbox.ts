/** Messages of this tab on their way to the server: their order, their states, and what becomes of them. */
import type { components } from "@/api/schema";

export type SendBody = components["schemas"]["SendMessageBody"];

export type InputPart = SendBody["content"][number];
/** `reject` is for programs. */
export type BusyBehavior = Exclude<NonNullable<SendBody["busy_behavior"]>, "reject">;
export type Effort = NonNullable<SendBody["reasoning_effort"]>;

/** A message as the composer gives it to `send`. */
export interface Draft {
  readonly content: readonly InputPart[];
  readonly busyBehavior?: BusyBehavior;
  readonly modelConfigId?: string | null;
  readonly reasoningEffort?: Effort | null;
  /** The chat's mode from this message on; without it the mode stays. */
  readonly mode?: "off" | "plan";
}

/**
 * `waiting`: for its turn, for the connection or for the next try. `sent`: the server has it, and the
 * events of `version` have not arrived yet. `refused`: the user decides.
 */
type OutboxState = "waiting" | "sending" | "sent" | "refused";

export interface OutboxItem {
  /** Also the Idempotency-Key: the server runs it once, however often it is sent. */
  readonly id: string;
  readonly chatId: string;
  readonly draft: Draft;
  readonly createdAt: number;
  readonly state: OutboxState;
  readonly failures: number;
  readonly error: components["schemas"]["ErrorBody"] | null;
  /** Of a sent one: the version of the chat that has it. */
  readonly version: number | null;
}

export function newOutboxItem(id: string, chatId: string, draft: Draft, createdAt: number): OutboxItem {
  return { id, chatId, draft, createdAt, state: "waiting", failures: 0, error: null, version: null };
}

/** The body of `POST /chats/{id}/messages`. It must not change between tries: the key belongs to it. */
export function sendBody(draft: Draft): SendBody {
  return {
    content: [...draft.content],
    busy_behavior: draft.busyBehavior ?? "queue",
    ...(draft.modelConfigId == null ? {} : { model_config_id: draft.modelConfigId }),
    ...(draft.reasoningEffort == null ? {} : { reasoning_effort: draft.reasoningEffort }),
    ...(draft.mode === undefined ? {} : { mode: draft.mode }),
  };
}
