/**
 * The rows of a chat's timeline, from its state. Pure but for its memory: `RowModel` remembers keys
 * of live answers, and the rows of messages while they do not change.
 */
import type { ChatState, Message, RequestedCall } from "@/chat-state/types";
import { endRow } from "./end-row";
import { LiveKeys } from "./live-keys";
import { endNote, isNotice, isStop, isStopped, noticeRows, partRows, SUMMARY_TOOL, userRow, type PartsContext } from "./message-rows";
import { isQuiet, isRead } from "./quiet";
import type { PendingSend, Row, Takeover } from "./row";
import { CallRecords } from "./tool-call";

export interface RowOptions {
  readonly pendingSends?: readonly PendingSend[];
  readonly takeovers?: readonly Takeover[];
}

interface Settled {
  readonly messages: readonly Message[];
  readonly takeovers: readonly Takeover[];
  /** Rows of all messages before `openFrom`. */
  readonly rows: readonly Row[];
  readonly records: CallRecords;
  /** The last answer, if it has calls without a result; else the number of messages. */
  readonly openFrom: number;
}

const BUSY = new Set(["pending", "running", "interrupting", "requires_action"]);
const NONE: readonly never[] = [];
const NONE_REQUESTED: ReadonlyMap<string, RequestedCall> = new Map();
const ASKING_TOOLS = new Set(["propose_plan"]);

export function rows(state: ChatState, options: RowOptions = {}): readonly Row[] {
  return new RowModel().rows(state, options);
}

export class RowModel {
  private readonly keys = new LiveKeys();
  private settled: Settled | null = null;

  rows(state: ChatState, options: RowOptions = {}): readonly Row[] {
    const liveKey = this.keys.follow(state);
    const settled = this.settle(state.messages, options.takeovers ?? NONE);
    const list = new RowList(settled.rows);
    const isBusy = BUSY.has(state.status);
    // Calls of an attempt that has ended never ran.
    const ended = state.live?.earlier ?? (state.retry === null ? undefined : state.live?.parts);
    const earlier = ended?.filter((part) => part.type === "text" || part.type === "reasoning");
    const live = earlier ?? state.live?.parts ?? NONE;
    const openId = state.messages[settled.openFrom]?.id ?? null;
    const records = settled.records.withLive(live, openId);
    const context = {
      isBusy,
      requested: new Map(state.requestedCalls.map((call) => [call.tool_call_id, call])),
      records,
    };
    this.addMessages(list, state.messages, settled.openFrom, { ...context, takeovers: settled.takeovers });
    const fresh = live.filter((part) => openId === null || records.get(openId, part) === undefined);
    const liveContext: PartsContext = { ...context, key: liveKey ?? "live", messageId: null, isLive: earlier === undefined };
    list.addAll(partRows(fresh, liveContext).map((row) => (earlier === undefined ? row : { ...row, isEarlier: true })));
    if (!isBusy) list.addAll((options.pendingSends ?? NONE).map(pendingRow));
    const end = endRow(state, list.last);
    if (end !== null) list.add(end);
    // The callout says why, and has the button.
    if (end?.kind === "callout") list.dropContinue();
    return isBusy ? list.rows : withLastAsk(list.rows);
  }

  private settle(messages: readonly Message[], takeovers: readonly Takeover[]): Settled {
    const known = this.settled;
    if (known?.messages === messages && known.takeovers === takeovers) return known;
    const records = new CallRecords();
    for (const message of messages) records.add(message);
    const openFrom = findOpen(messages, records);
    const list = new RowList(NONE);
    const context = { isBusy: false, requested: NONE_REQUESTED, records, takeovers };
    this.addMessages(list, messages.slice(0, openFrom), 0, context);
    this.settled = { messages, takeovers, rows: list.rows, records, openFrom };
    return this.settled;
  }

  private addMessages(
    list: RowList,
    messages: readonly Message[],
    from: number,
    context: Omit<PartsContext, "key" | "messageId" | "isLive"> & { readonly takeovers: readonly Takeover[] },
  ): void {
    const lastSaid = messages.findLastIndex((message) => !isNotice(message));
    for (let index = from; index < messages.length; index += 1) {
      const message = messages[index];
      if (message === undefined) break;
      const key = this.keys.of(message.id);
      if (message.role === "user") {
        list.add(userRow(message, key, joinsTurn(messages, index, context.records)));
      } else if (message.role === "assistant") {
        list.addAll(partRows(message.content, { ...context, key, messageId: message.id, isLive: false }));
        list.addAll(endRows(message, key, index === lastSaid, context.records));
      } else if (isNotice(message)) {
        list.addAll(noticeRows(message, key, index === messages.length - 1));
      }
      for (const takeover of context.takeovers) {
        const next = messages[index + 1]?.id ?? Number.POSITIVE_INFINITY;
        if (takeover.messageId < message.id || takeover.messageId >= next) continue;
        list.add({
          kind: "mark",
          key: `takeover-${takeover.version}`,
          messageId: null,
          isTight: false,
          mark: { type: "takeover", takeover },
        });
      }
    }
  }
}

/** Joins reads that follow each other, and sets lines of finished calls close together. */
class RowList {
  readonly rows: Row[];

  constructor(start: readonly Row[]) {
    this.rows = [...start];
  }

  get last(): Row | undefined {
    return this.rows.at(-1);
  }

  dropContinue(): void {
    const at = this.rows.findLastIndex((row) => row.kind === "note");
    const row = this.rows[at];
    if (row?.kind === "note" && row.canContinue) this.rows[at] = { ...row, canContinue: false };
  }

  addAll(rows: readonly Row[]): void {
    for (const row of rows) this.add(row);
  }

  add(row: Row): void {
    const last = this.last;
    if (row.kind === "tool" && isRead(row.call)) {
      if (last?.kind === "reads") this.rows[this.rows.length - 1] = { ...last, calls: [...last.calls, row.call] };
      else this.rows.push({ ...row, kind: "reads", calls: [row.call], isTight: isLine(last) });
      return;
    }
    this.rows.push(isLine(row) && isLine(last) ? { ...row, isTight: true } : row);
  }
}

function isLine(row: Row | undefined): boolean {
  return row?.kind === "reads" || (row?.kind === "tool" && isQuiet(row.call));
}

function endRows(
  message: Message,
  key: string,
  isLast: boolean,
  records: CallRecords,
): Row[] {
  const base = { messageId: message.id, isTight: false };
  const note = endNote(message);
  if (note !== null) return [{ ...base, kind: "note", key: `${key}-end`, note, canContinue: isLast }];
  const hasCalls = message.content.some((part) => records.get(message.id, part) !== undefined);
  if (!isStopped(message) || hasCalls || message.content.length === 0) return [];
  return [{ ...base, kind: "mark", key: `${key}-end`, mark: { type: "stopped", isBetween: false } }];
}

function pendingRow(pending: PendingSend): Row {
  const { text, files, references } = pending;
  const base = { key: `send-${pending.id}`, messageId: null, isTight: false };
  return { ...base, kind: "user", text, files, references, at: null, createdBy: null, isSteering: false, pending };
}

/** True if the message came while the turn was running, and the turn went on with it. */
function joinsTurn(messages: readonly Message[], index: number, records: CallRecords): boolean {
  let at = index - 1;
  for (let notice = messages[at]; notice?.role === "system"; notice = messages[at]) {
    if (isStop(notice)) return false;
    at -= 1;
  }
  const before = messages[at];
  if (before?.role !== "tool") return false;
  if (before.content.some((part) => part.type === "tool-result" && part.tool_name === SUMMARY_TOOL)) return false;
  const context = { isBusy: false, requested: NONE_REQUESTED };
  return before.content.every((part) => records.get(before.id, part)?.view(context).state !== "interrupted");
}

function findOpen(messages: readonly Message[], records: CallRecords): number {
  const last = messages.findLastIndex((message) => message.role === "assistant");
  const answer = messages[last];
  return answer?.content.some((part) => records.get(answer.id, part)?.isOpen) ? last : messages.length;
}

/** The last plan waits for the user, unless a message came after it. */
function withLastAsk(rows: Row[]): readonly Row[] {
  for (let index = rows.length - 1; index >= 0; index -= 1) {
    const row = rows[index];
    if (row?.kind === "user") break;
    if (row?.kind !== "tool" || !ASKING_TOOLS.has(row.call.name) || row.call.state !== "done") continue;
    rows[index] = { ...row, isLast: true };
  }
  return rows;
}
