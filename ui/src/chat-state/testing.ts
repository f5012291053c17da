/** A chat on an imaginary server, by the rules of `domain/chat_views/diff.py`, for tests of the reducer. */
import type { ChatEvent, ChatStatus, Message, Part, QueuedMessage, RequestedCall } from "./types";

export const CHAT_ID = "0193c5a0-7d1e-7b2f-9a64-2f4e9b7c6d12";

/** The chat at one version, with the live parts of its episode. */
export interface ServerState {
  readonly version: number;
  readonly messages: readonly (Message & { readonly revision: number })[];
  readonly deleted: readonly { readonly id: number; readonly revision: number }[];
  readonly queue: readonly QueuedMessage[];
  readonly queueVersion: number;
  readonly status: ChatStatus;
  readonly error: string | null;
  readonly retry: number | null;
  readonly retryVersion: number;
  readonly historyVersion: number;
  readonly attempt: number;
  readonly parts: readonly Part[];
  /** Of the last answer, which a new attempt begins anew. */
  readonly nextId: number;
  /** Calls that wait for somebody outside. */
  readonly requested?: readonly RequestedCall[];
}

export const START: ServerState = {
  version: 0,
  messages: [],
  deleted: [],
  queue: [],
  queueVersion: 0,
  status: "waiting",
  error: null,
  retry: null,
  retryVersion: 0,
  historyVersion: 0,
  attempt: 0,
  parts: [],
  nextId: 1,
};

export type Step =
  | { readonly do: "send"; readonly text: string }
  | { readonly do: "stream"; readonly text: string; readonly kind: "text" | "reasoning" }
  | { readonly do: "call"; readonly args: readonly string[] }
  | { readonly do: "commit" }
  | { readonly do: "enqueue"; readonly text: string }
  | { readonly do: "dequeue" }
  | { readonly do: "retry" }
  | { readonly do: "fail"; readonly message: string }
  | { readonly do: "edit"; readonly keep: number };

const AT = "2026-11-15T10:00:00Z";

function text(value: string): Part {
  return { type: "text", text: value };
}

function write(state: ServerState, change: Partial<ServerState>): ServerState {
  return { ...state, ...change, version: state.version + 1 };
}

function append(state: ServerState, role: Message["role"], content: Part[]): Partial<ServerState> {
  const revision = state.version + 1;
  const message = { id: state.nextId, chat_id: CHAT_ID, role, content, created_at: AT, revision };
  return {
    messages: [...state.messages, message],
    nextId: state.nextId + 1,
    historyVersion: revision,
    attempt: 1,
    parts: [],
  };
}

/** What the server holds after a step. A step that its state does not allow changes nothing. */
export function take(state: ServerState, step: Step): ServerState {
  const isRunning = state.status === "running";
  switch (step.do) {
    case "send":
      return isRunning ? state : write(state, { ...append(state, "user", [text(step.text)]), status: "running", error: null });
    case "stream":
      return isRunning ? { ...state, parts: [...state.parts, { type: step.kind, text: step.text }] } : state;
    case "call":
      return isRunning ? { ...state, parts: [...state.parts, ...callParts(state, step.args)] } : state;
    case "commit":
      return isRunning && state.parts.length > 0
        ? write(state, {
            ...append(state, "assistant", [text(`answer ${state.nextId}`)]),
            status: "waiting",
            retry: null,
            retryVersion: state.version + 1,
          })
        : state;
    case "enqueue":
      return write(state, { queue: [...state.queue, queued(state, step.text)], queueVersion: state.version + 1 });
    case "dequeue":
      return state.queue.length === 0 ? state : write(state, { queue: state.queue.slice(1), queueVersion: state.version + 1 });
    case "retry":
      return isRunning ? write(state, { attempt: state.attempt + 1, parts: [], retry: state.attempt, retryVersion: state.version + 1 }) : state;
    case "fail":
      return isRunning ? write(state, { status: "error", error: step.message, attempt: state.attempt + 1, parts: [] }) : state;
    case "edit":
      return edit(state, step.keep);
  }
}

function callParts(state: ServerState, args: readonly string[]): Part[] {
  const call = { type: "tool-call" as const, tool_call_id: `call-${state.parts.length}`, tool_name: "run" };
  return [...args.map((delta) => ({ ...call, args_delta: delta })), { ...call, args: args.join("") }];
}

function queued(state: ServerState, value: string): QueuedMessage {
  return {
    id: state.version + 1,
    chat_id: CHAT_ID,
    content: [text(value)],
    created_at: AT,
    created_by: CHAT_ID,
  };
}

function edit(state: ServerState, keep: number): ServerState {
  const kept = state.messages.slice(0, keep % (state.messages.length + 1));
  const revision = state.version + 1;
  const gone = state.messages.slice(kept.length).map(({ id }) => ({ id, revision }));
  if (gone.length === 0) return state;
  const shortened = { ...state, messages: kept, deleted: [...state.deleted, ...gone] };
  return write(shortened, { ...append(shortened, "user", [text("edited")]), status: "running", error: null });
}

const of = { chat_id: CHAT_ID };

/** The group from version `since` to the state; 0: the whole chat. */
export function groupSince(state: ServerState, since: number, reset = false): ChatEvent[] {
  const isFull = since === 0;
  const events: ChatEvent[] = [];
  if (reset) events.push({ ...of, type: "history_reset" });
  const gone = state.deleted.filter((one) => !isFull && one.revision > since).map((one) => one.id);
  if (gone.length > 0) events.push({ ...of, type: "messages_deleted", ids: gone });
  for (const { revision, ...message } of state.messages) {
    if (isFull || revision > since) events.push({ ...of, type: "message", message });
  }
  if (isFull || state.queueVersion > since) events.push({ ...of, type: "queue_update", queued_messages: [...state.queue] });
  if (isFull || state.version > since) events.push(...statusEvents(state));
  if (isFull || state.retryVersion > since) events.push({ ...of, type: "retry", retry: retryOf(state) });
  events.push({ ...of, type: "preview_reset", history_version: state.historyVersion, attempt: state.attempt });
  events.push({ ...of, type: "version", version: state.version, cursor: cursorOf(state) });
  return events;
}

export function cursorOf(state: ServerState): string {
  return `${state.version}-abc`;
}

function statusEvents(state: ServerState): ChatEvent[] {
  const status: ChatEvent = { ...of, type: "status", status: { status: state.status } };
  const { requested } = state;
  if (requested !== undefined) return [status, { ...of, type: "action_required", action_required: { tool_calls: [...requested] } }];
  if (state.error === null) return [status];
  return [status, { ...of, type: "error", error: { message: state.error, kind: "generic", retryable: false } }];
}

function retryOf(state: ServerState) {
  if (state.retry === null) return null;
  return { attempt: state.retry, delay_ms: 1, error: "busy", retrying_at: AT } as never;
}

/** The live parts with numbers above `after`. */
export function partsSince(state: ServerState, after: number): ChatEvent[] {
  if (state.status !== "running") return [];
  return state.parts.slice(after).map((part, index) => ({
    ...of,
    type: "message_part",
    message_part: {
      role: "assistant",
      part,
      history_version: state.historyVersion,
      attempt: state.attempt,
      seq: after + index + 1,
    },
  }));
}
