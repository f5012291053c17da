/** A tool call with what is known of its result, wherever the parts of both come from. */
import type { Message, Part, PartOf, RequestedCall } from "@/chat-state/types";
import { asObject, numberOf, parsePartialJson, textOf, type JsonObject } from "./json";

/**
 * `streaming`: the model writes the arguments. `waiting`: somebody outside must answer.
 * `background`: the call has returned, what it started goes on.
 */
export type CallState = "streaming" | "running" | "waiting" | "background" | "done" | "failed" | "interrupted";

export interface ToolCall {
  readonly id: string;
  readonly name: string;
  readonly state: CallState;
  /** As far as they are known; null if they are no JSON object. */
  readonly args: JsonObject | null;
  /** The model's own text, if it is no valid JSON. */
  readonly argsText: string;
  readonly result: unknown;
  /** What a running tool has printed so far. */
  readonly liveOutput: string;
  readonly isMedia: boolean;
  /** The answer was cut off inside the call: it never ran. */
  readonly isCut: boolean;
  readonly mcpServer: string | null;
  /** What the call waits for, while it waits for somebody outside. */
  readonly request: RequestedCall | null;
  readonly startedAt: number | null;
  readonly endedAt: number | null;
}

/** How a chat stands, as far as its open calls are concerned. */
export interface CallContext {
  readonly isBusy: boolean;
  readonly requested: ReadonlyMap<string, RequestedCall>;
}

/** Everything seen of one call. Parts are added in the order in which they came. */
export class CallRecord {
  private call: PartOf<"tool-call"> | null = null;
  private complete: PartOf<"tool-result"> | null = null;
  private argsDelta = "";
  private output = "";
  private hasArgs = false;

  constructor(readonly id: string) {}

  add(part: Part): void {
    if (part.type === "tool-call") this.addCall(part);
    if (part.type === "tool-result") this.addResult(part);
  }

  get isOpen(): boolean {
    return this.complete === null;
  }

  copy(): CallRecord {
    return Object.assign(new CallRecord(this.id), this);
  }

  view(context: CallContext): ToolCall {
    const args = this.hasArgs ? this.call?.args : parsePartialJson(this.argsDelta);
    const name = this.call?.tool_name ?? this.complete?.tool_name ?? "";
    return {
      id: this.id,
      name,
      state: this.state(context),
      args: asObject(args),
      argsText: this.hasArgs ? "" : this.argsDelta,
      result: this.complete?.result,
      liveOutput: this.output,
      isMedia: this.complete?.is_media ?? false,
      isCut: this.call?.cut ?? false,
      mcpServer: this.call?.mcp_server_config_id ?? this.complete?.mcp_server_config_id ?? null,
      request: this.isOpen ? (context.requested.get(this.id) ?? null) : null,
      startedAt: time(this.call?.created_at),
      endedAt: time(this.complete?.created_at),
    };
  }

  private addCall(part: PartOf<"tool-call">): void {
    if (typeof part.args_delta === "string" && part.args === undefined) {
      if (!this.hasArgs) this.argsDelta += part.args_delta;
      this.call ??= part;
      return;
    }
    this.hasArgs = part.args !== undefined;
    if (typeof part.args_text === "string") this.argsDelta = part.args_text;
    this.call = part;
  }

  private addResult(part: PartOf<"tool-result">): void {
    if (typeof part.result_delta === "string" && part.result === undefined) this.output += part.result_delta;
    else this.complete = part;
  }

  private state(context: CallContext): CallState {
    if (this.complete !== null) return outcome(this.complete);
    if (this.call?.cut) return "interrupted";
    if (!context.isBusy) return "interrupted";
    if (context.requested.has(this.id)) return "waiting";
    const isWritten = this.hasArgs || (this.call !== null && typeof this.call.args_delta !== "string");
    return isWritten ? "running" : "streaming";
  }
}

/**
 * The calls of a chat, by message and id: two messages may use one id. A message of results leads to the calls that
 * it answers. A call of the live answer has no message yet.
 */
export class CallRecords {
  private readonly byMessage: Map<number | null, Map<string, CallRecord>>;
  private readonly latest: Map<string, CallRecord>;

  constructor(known?: CallRecords) {
    this.byMessage = new Map(known?.byMessage);
    this.latest = new Map(known?.latest);
  }

  get(messageId: number | null, part: Part): CallRecord | undefined {
    return this.byMessage.get(messageId)?.get(callIdOf(part));
  }

  /** Messages are added in their order. */
  add(message: Message): void {
    for (const part of message.content) {
      const id = callIdOf(part);
      if (id === "") continue;
      const answered = part.type === "tool-result" ? this.latest.get(id) : undefined;
      const record = this.get(message.id, part) ?? answered ?? new CallRecord(id);
      record.add(part);
      this.put(message.id, record);
    }
  }

  /** The calls with live parts. Parts that go on with an open call of `openId`, the last answer, are added to it. */
  withLive(parts: readonly Part[], openId: number | null): CallRecords {
    if (!parts.some((part) => callIdOf(part) !== "")) return this;
    const all = new CallRecords(this);
    const fresh = new Set<CallRecord>();
    for (const part of parts) {
      const id = callIdOf(part);
      if (id === "") continue;
      const owner = this.get(openId, part) === undefined ? null : openId;
      const known = all.get(owner, part);
      const record = known !== undefined && fresh.has(known) ? known : (known?.copy() ?? new CallRecord(id));
      record.add(part);
      fresh.add(record);
      all.put(owner, record);
    }
    return all;
  }

  private put(messageId: number | null, record: CallRecord): void {
    this.byMessage.set(messageId, new Map(this.byMessage.get(messageId)).set(record.id, record));
    this.latest.set(record.id, record);
  }
}

function callIdOf(part: Part): string {
  return part.type === "tool-call" || part.type === "tool-result" ? part.tool_call_id : "";
}

function outcome(part: PartOf<"tool-result">): CallState {
  const result = asObject(part.result);
  const error = textOf(result, "error");
  // The report of a command that was stopped says so itself. `wait_agent` has the same word and no process.
  if (part.interrupted === true || (result?.interrupted === true && result.running === true)) return "interrupted";
  if (part.is_error) return "failed";
  if (result === null) return "done";
  const code = numberOf(result, "exit_code");
  if (result.running === true) return "background";
  if (result.success === false || error !== "" || (code !== null && code !== 0)) return "failed";
  return "done";
}

export function time(value: string | null | undefined): number | null {
  const found = value ? Date.parse(value) : Number.NaN;
  return Number.isNaN(found) ? null : found;
}

/** How long it took, in milliseconds, by the tool's own word if it gives one. */
export function durationOf(call: ToolCall): number | null {
  const own = numberOf(asObject(call.result), "wall_duration_ms");
  if (own !== null) return own;
  if (call.startedAt === null || call.endedAt === null) return null;
  return Math.max(0, call.endedAt - call.startedAt);
}
