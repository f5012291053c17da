/** The rows of one message, without its tool results, which belong to the calls they answer. */
import type { Message, Part } from "@/chat-state/types";
import { asObject, numberOf, textOf } from "./json";
import type { FileChip, Mark, MarkRow, Note, Reference, Row, Source, Takeover, UserRow } from "./row";
import { type CallContext, type CallRecord, type CallRecords, isCallPart, time } from "./tool-call";

const SUMMARY_TOOL = "chat_summarized";
const NOTES = new Set<string>(["length", "content-filter", "refusal", "error"]);

interface MessageContext extends CallContext {
  readonly key: string;
  readonly records: CallRecords;
  /** No message follows but notices; after a notice, none at all. */
  readonly isLast: boolean;
  /** The message came while the turn was running, and the turn went on with it. */
  readonly isSteering: boolean;
  /** Takeovers between this message and the next. */
  readonly takeovers: readonly Takeover[];
}

export function messageRows(message: Message, context: MessageContext): Row[] {
  return [...contentRows(message, context), ...context.takeovers.map(takeoverRow)];
}

function contentRows(message: Message, context: MessageContext): Row[] {
  const { key, isLast } = context;
  if (message.role === "user") return [userRow(message, key, context.isSteering)];
  if (message.role === "assistant") {
    return [...partRows(message.content, { ...context, messageId: message.id, isLive: false }), ...endRows(message, key, isLast)];
  }
  if (isNotice(message)) return noticeRows(message, key, isLast);
  // Files of tools are on the cards of their calls; a recording is not the file of a call that has one.
  const files = message.content.filter((part) => part.type === "file");
  const hasVideo = files.some((file) => file.media_type === "video/mp4");
  return hasVideo ? [{ kind: "files", key: `${key}-f`, messageId: message.id, isTight: false, files }] : [];
}

interface PartsContext extends CallContext {
  readonly key: string;
  readonly messageId: number | null;
  readonly records: CallRecords;
  /** The parts are still being written: the last one has the caret. */
  readonly isLive: boolean;
}

/** Rows of what an assistant wrote. Keys count the parts of each kind, so that live and durable agree. */
export function partRows(parts: readonly Part[], context: PartsContext): Row[] {
  const rows: Row[] = [];
  const sources: Source[] = [];
  const files: FileChip[] = [];
  const seen = new Set<string>();
  let texts = 0;
  let thoughts = 0;
  const base = { messageId: context.messageId, isTight: false };
  parts.forEach((part, index) => {
    const isLive = context.isLive && index === parts.length - 1;
    switch (part.type) {
      case "text":
        if (part.text.trim() === "") break;
        rows.push({ ...base, kind: "prose", key: `${context.key}-t${texts++}`, text: part.text, isLive });
        break;
      case "reasoning": {
        if (part.text.trim() === "") break;
        const { title, body } = splitTitle(part.text);
        const startedAt = time(part.created_at);
        const endedAt = time(part.completed_at);
        const durationMs = startedAt === null || endedAt === null || isLive ? null : endedAt - startedAt;
        const key = `${context.key}-r${thoughts++}`;
        rows.push({ ...base, kind: "reasoning", key, text: body, title, durationMs, startedAt, isLive });
        break;
      }
      case "tool-call":
      case "tool-result": {
        const record = context.records.get(context.messageId, part);
        if (record === undefined || seen.has(part.tool_call_id)) break;
        seen.add(part.tool_call_id);
        rows.push(callRow(record, context));
        break;
      }
      case "source":
        sources.push(part);
        break;
      case "file":
        files.push(part);
        break;
      default:
        break;
    }
  });
  if (files.length > 0) rows.push({ ...base, kind: "files", key: `${context.key}-f`, files });
  if (sources.length > 0) rows.push({ ...base, kind: "sources", key: `${context.key}-s`, sources });
  return rows;
}

function callRow(record: CallRecord, context: PartsContext): Row {
  const call = record.view(context);
  const base = { key: `${context.key}-c-${record.id}`, messageId: context.messageId, isTight: false };
  if (call.name !== SUMMARY_TOOL) return { ...base, kind: "tool", call, isLast: false };
  const result = asObject(call.result);
  const mark: Mark =
    call.state === "failed"
      ? { type: "compaction_failed", reason: textOf(result, "error") }
      : {
          type: "compacted",
          summary: textOf(result, "summary"),
          tokens: numberOf(result, "context_tokens"),
          kept: numberOf(result, "kept_messages") ?? 0,
          isLive: call.state === "running" || call.state === "streaming",
        };
  return { ...base, kind: "mark", mark };
}

/** A user message; a mark if it only holds files of the workspace that the model got as context. */
function userRow(message: Message, key: string, isSteering: boolean): UserRow | MarkRow {
  const base = { key, messageId: message.id, isTight: false };
  const texts: string[] = [];
  const files: FileChip[] = [];
  const references: Reference[] = [];
  const context: string[] = [];
  const skills: string[] = [];
  for (const part of message.content) {
    if (part.type === "text") texts.push(part.text);
    if (part.type === "command") texts.push(`! ${part.command}`);
    if (part.type === "file") files.push(part);
    if (part.type === "file-reference") references.push(part);
    if (part.type === "context-file" && part.context_file_path !== "") context.push(part.context_file_path);
    if (part.type === "skill") skills.push(part.skill_name);
  }
  const text = texts.join("\n\n");
  if (text === "" && files.length === 0 && references.length === 0) {
    return { ...base, kind: "mark", mark: { type: "context", files: context, skills } };
  }
  return {
    ...base,
    kind: "user",
    text,
    files,
    references,
    at: time(message.created_at),
    createdBy: message.created_by ?? null,
    isSteering,
    pending: null,
  };
}

/** Codes of notices that tell why a turn ended early: the user may send the chat on. */
const CONTINUABLE = new Set(["step_limit", "empty_answer", "model_stream_cut"]);

/** The code of the notice that the turn was stopped between two steps. */
const STOPPED = "stopped";

/** Whether the turn was stopped after the message before it. */
export function isStop(message: Message): boolean {
  return message.content.some((part) => part.type === "notice" && part.code === STOPPED);
}

/** A message of the role `system` is a notice of the server to the people who read the chat. */
export function isNotice(message: Message): boolean {
  return message.role === "system";
}

function noticeRows(message: Message, key: string, isLast: boolean): MarkRow[] {
  return message.content.flatMap((part, index) => {
    if (part.type !== "notice") return [];
    const mark: Mark =
      part.code === STOPPED ? { type: "stopped", isBetween: true } : { type: "notice", text: part.text, canContinue: isLast && CONTINUABLE.has(part.code) };
    return [{ kind: "mark", key: `${key}-n${index}`, messageId: message.id, isTight: false, mark }];
  });
}

/** How the answer ended, if it did not end by itself. */
function endRows(message: Message, key: string, isLast: boolean): Row[] {
  const base = { key: `${key}-end`, messageId: message.id, isTight: false };
  const reason = message.finish_reason ?? "";
  if (NOTES.has(reason)) return [{ ...base, kind: "note", note: reason as Note, canContinue: isLast }];
  // A stopped answer has no reason why it ended. One that has calls shows it by them.
  const isStopped = reason === "" && message.content.length > 0 && !message.content.some(isCallPart);
  return isStopped ? [{ ...base, kind: "mark", mark: { type: "stopped", isBetween: false } }] : [];
}

function takeoverRow(takeover: Takeover): MarkRow {
  return { kind: "mark", key: `takeover-${takeover.version}`, messageId: null, isTight: false, mark: { type: "takeover", takeover } };
}

/** Whether the results are those of a summary, which is no step of the turn. */
export function isSummary(message: Message): boolean {
  return message.content.some((part) => part.type === "tool-result" && part.tool_name === SUMMARY_TOOL);
}

// Models begin a thought with its title, as a heading or as a bold line.

const HEADING = /^\s*(?:#{1,6}[ \t]+([^\n]{1,120}?)[ \t]*#*|\*\*([^*\n]{1,120})\*\*)[ \t]*(?:\n|$)/;

function splitTitle(text: string): { readonly title: string | null; readonly body: string } {
  const found = HEADING.exec(text);
  const title = (found?.[1] ?? found?.[2] ?? "").trim();
  if (found === null || title === "") return { title: null, body: text.trim() };
  return { title, body: text.slice(found[0].length).trim() };
}
