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

/** Everything seen of one call, in the order in which it came: the call, its output so far, its result. */
export class CallRecord {
  constructor(
    readonly id: string,
    readonly parts: Part[] = [],
  ) {}

  /** It has no result. */
  get isOpen(): boolean {
    return this.complete === undefined;
  }

  state(context: CallContext): CallState {
    const { call, complete } = this;
    if (complete !== undefined) return outcome(complete);
    if (call?.cut || !context.isBusy) return "interrupted";
    if (context.requested.has(this.id)) return "waiting";
    const isWritten = call !== undefined && (call.args !== undefined || typeof call.args_delta !== "string");
    return isWritten ? "running" : "streaming";
  }

  view(context: CallContext): ToolCall {
    const { call, complete } = this;
    const args = call?.args;
    const argsText = args === undefined ? this.writtenArgs() : "";
    return {
      id: this.id,
      name: call?.tool_name ?? complete?.tool_name ?? "",
      state: this.state(context),
      args: asObject(args === undefined ? parsePartialJson(argsText) : args),
      argsText,
      result: complete?.result,
      liveOutput: this.parts.map(outputPiece).join(""),
      isMedia: complete?.is_media ?? false,
      isCut: call?.cut ?? false,
      mcpServer: call?.mcp_server_config_id ?? complete?.mcp_server_config_id ?? null,
      request: complete === undefined ? (context.requested.get(this.id) ?? null) : null,
      startedAt: time(call?.created_at),
      endedAt: time(complete?.created_at),
    };
  }

  /** The whole call if it is known, else its beginning. */
  private get call(): PartOf<"tool-call"> | undefined {
    const calls = this.parts.filter((part) => part.type === "tool-call");
    return calls.findLast((part) => argsPiece(part) === null) ?? calls[0];
  }

  private get complete(): PartOf<"tool-result"> | undefined {
    return this.parts.filter((part) => part.type === "tool-result").findLast((part) => outputPiece(part) === null);
  }

  private writtenArgs(): string {
    return this.call?.args_text ?? this.parts.map(argsPiece).join("");
  }
}

/** What the part adds to the arguments while the model writes them; null for any other part. */
function argsPiece(part: Part): string | null {
  return part.type === "tool-call" && part.args === undefined ? (part.args_delta ?? null) : null;
}

/** What the part adds to the output while the tool runs; null for any other part. */
function outputPiece(part: Part): string | null {
  return part.type === "tool-result" && part.result === undefined ? (part.result_delta ?? null) : null;
}

/**
 * The calls of a chat, by message and id: two messages may use one id. A message of results leads to the calls that
 * it answers. A call of the live answer has no message yet.
 */
export class CallRecords {
  private readonly byMessage = new Map<number | null, Map<string, CallRecord>>();

  private constructor(private readonly committed: CallRecords | null) {}

  static of(messages: readonly Message[]): CallRecords {
    const records = new CallRecords(null);
    const latest = new Map<string, CallRecord>();
    for (const message of messages) {
      for (const part of message.content) {
        if (!isCallPart(part)) continue;
        const id = part.tool_call_id;
        const answered = part.type === "tool-result" ? latest.get(id) : undefined;
        const record = records.get(message.id, part) ?? answered ?? new CallRecord(id);
        record.parts.push(part);
        records.put(message.id, record);
        latest.set(id, record);
      }
    }
    return records;
  }

  get(messageId: number | null, part: Part): CallRecord | undefined {
    if (!isCallPart(part)) return undefined;
    return this.byMessage.get(messageId)?.get(part.tool_call_id) ?? this.committed?.get(messageId, part);
  }

  /** Everything seen of the calls of a message, there and in the messages that answer it. */
  partsOf(message: Message): readonly Part[] {
    return message.content.flatMap((part) => this.get(message.id, part)?.parts ?? []);
  }

  /** The calls with live parts. Parts that continue an open call of `openId`, the last answer, are added to it. */
  withLive(parts: readonly Part[], openId: number | null): CallRecords {
    const all = new CallRecords(this);
    for (const part of parts) {
      if (!isCallPart(part)) continue;
      const owner = this.get(openId, part) === undefined ? null : openId;
      const known = all.get(owner, part)?.parts ?? [];
      all.put(owner, new CallRecord(part.tool_call_id, [...known, part]));
    }
    return all;
  }

  private put(messageId: number | null, record: CallRecord): void {
    const records = this.byMessage.get(messageId);
    if (records === undefined) this.byMessage.set(messageId, new Map([[record.id, record]]));
    else records.set(record.id, record);
  }
}

export function isCallPart(part: Part): part is PartOf<"tool-call" | "tool-result"> {
  return part.type === "tool-call" || part.type === "tool-result";
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
