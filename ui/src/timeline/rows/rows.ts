/**
 * The rows of a chat's timeline, from its state. Pure but for its memory: `RowModel` remembers keys
 * of live answers, and the rows of messages while they do not change.
 */
import type { OutboxItem } from "@/chat-state/outbox";
import { isBusy } from "@/chat-state/reducer";
import type { ChatState, LiveParts, Message, RequestedCall, Takeover as TakeoverPayload } from "@/chat-state/types";
import { endNote, isNotice, isStop, isStopped, noticeRows, partRows, type PartsContext, SUMMARY_TOOL, userRow } from "./message-rows";
import { type Activity, type Callout, type FileChip, isQuiet, isRead, type PendingSend, type Reference, type Row, type Takeover } from "./row";
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
    const list = new RowBuilder(settled.rows);
    const busy = isBusy(state.status);
    // Calls of an attempt that has ended never ran.
    const ended = state.live?.earlier ?? (state.retry === null ? undefined : state.live?.parts);
    const earlier = ended?.filter((part) => part.type === "text" || part.type === "reasoning");
    const live = earlier ?? state.live?.parts ?? NONE;
    const openId = state.messages[settled.openFrom]?.id ?? null;
    const records = settled.records.withLive(live, openId);
    const context = {
      isBusy: busy,
      requested: new Map(state.requestedCalls.map((call) => [call.tool_call_id, call])),
      records,
    };
    this.addMessages(list, state.messages, settled.openFrom, { ...context, takeovers: settled.takeovers });
    const fresh = live.filter((part) => openId === null || records.get(openId, part) === undefined);
    const liveContext: PartsContext = { ...context, key: liveKey ?? "live", messageId: null, isLive: earlier === undefined };
    list.addAll(partRows(fresh, liveContext).map((row) => (earlier === undefined ? row : { ...row, isEarlier: true })));
    if (!busy) list.addAll((options.pendingSends ?? NONE).map(pendingRow));
    const end = endRow(state, list.last);
    if (end !== null) list.add(end);
    // The callout says why, and has the button.
    if (end?.kind === "callout") list.dropContinue();
    return busy ? list.rows : withLastAsk(list.rows);
  }

  private settle(messages: readonly Message[], takeovers: readonly Takeover[]): Settled {
    const known = this.settled;
    if (known?.messages === messages && known.takeovers === takeovers) return known;
    const records = new CallRecords();
    for (const message of messages) records.add(message);
    const openFrom = findOpen(messages, records);
    const list = new RowBuilder(NONE);
    const context = { isBusy: false, requested: NONE_REQUESTED, records, takeovers };
    this.addMessages(list, messages.slice(0, openFrom), 0, context);
    this.settled = { messages, takeovers, rows: list.rows, records, openFrom };
    return this.settled;
  }

  private addMessages(
    list: RowBuilder,
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
class RowBuilder {
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

function endRows(message: Message, key: string, isLast: boolean, records: CallRecords): Row[] {
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

// The one row at the end that says what holds the chat up, or that it works.

function endRow(state: ChatState, last: Row | undefined): Row | null {
  const base = { key: "end", messageId: null, isTight: false };
  const callout = calloutOf(state);
  if (callout !== null) return { ...base, kind: "callout", callout };
  const activity = activityOf(state, last);
  return activity === null ? null : { ...base, kind: "activity", activity };
}

export function calloutOf(state: ChatState): Callout | null {
  if (state.status === "error") {
    const error = state.error;
    if (error === null) return null;
    if (error.kind === "queue_held") return { type: "held", error, queued: state.queue.length };
    return { type: "failed", error };
  }
  const isRetrying = state.status === "running" || state.status === "pending";
  return isRetrying && state.retry !== null ? { type: "retrying", retry: state.retry, canRetryNow: isUnanswered(state), hasSaid: hasSaid(state) } : null;
}

/** The failed call has said something, which is still shown. */
function hasSaid(state: ChatState): boolean {
  return (state.live?.earlier ?? state.live?.parts ?? []).some((part) => part.type === "text" && part.text.trim() !== "");
}

/** The turn has done nothing yet: its message can be sent again without losing work. */
export function isUnanswered(state: ChatState): boolean {
  return lastSaid(state)?.role === "user" && state.queue.length === 0;
}

/** The newest message that is no notice. */
export function lastSaid(state: ChatState): Message | undefined {
  return state.messages.findLast((message) => !isNotice(message));
}

function activityOf(state: ChatState, last: Row | undefined): Activity | null {
  if (state.status === "interrupting") return "interrupting";
  if (state.status === "pending") return "pending";
  return state.status === "running" && !isMoving(last) ? "working" : null;
}

/** The row shows by itself that something goes on. */
function isMoving(row: Row | undefined): boolean {
  if (row?.kind === "prose" || row?.kind === "reasoning") return row.isLive;
  if (row?.kind === "mark") return row.mark.type === "compacted" && row.mark.isLive;
  return row?.kind === "tool" && ["streaming", "running", "waiting"].includes(row.call.state);
}

// Keys of messages. The message that an answer becomes when it is committed keeps the key that its
// live parts had, so that its rows stay where they are. So does the next attempt at the answer if it
// goes on with the same text.

interface LiveAnswer {
  readonly episode: string;
  readonly key: string;
  readonly afterId: number;
  readonly live: LiveParts;
}

class LiveKeys {
  private readonly aliases = new Map<number, string>();
  private readonly used = new Set<string>();
  private answer: LiveAnswer | null = null;

  /** The key of the live answer, if there is one. */
  follow(state: ChatState): string | null {
    const lastId = state.messages.at(-1)?.id ?? 0;
    this.adopt(state);
    if (state.live === null) return null;
    const episode = `live-${state.live.historyVersion}-${state.live.attempt}`;
    if (this.answer !== null && (this.answer.episode === episode || continues(state.live, this.answer.live))) {
      this.answer = { ...this.answer, episode, live: state.live };
    } else {
      const key = this.used.has(episode) ? `${episode}-${lastId}` : episode;
      this.used.add(key);
      this.answer = { episode, key, afterId: lastId, live: state.live };
    }
    return this.answer.key;
  }

  of(messageId: number): string {
    return this.aliases.get(messageId) ?? `m${messageId}`;
  }

  /** The first answer after the live one began is what it became. */
  private adopt(state: ChatState): void {
    const answer = this.answer;
    if (answer === null) return;
    let first: Message | null = null;
    for (let index = state.messages.length - 1; index >= 0; index -= 1) {
      const message = state.messages[index];
      if (message === undefined || message.id <= answer.afterId) break;
      this.answer = null;
      // A notice may stand before the answer.
      if (!isNotice(message)) first = message;
    }
    if (first?.role === "assistant") this.aliases.set(first.id, answer.key);
  }
}

function continues(live: LiveParts, before: LiveParts): boolean {
  const [first, second] = before.parts;
  const now = live.parts[0];
  if (live.historyVersion !== before.historyVersion || second !== undefined) return false;
  // Another worker leaves out white space at the end, until the model says it again.
  return first?.type === "text" && now?.type === "text" && now.text.startsWith(first.text.trimEnd());
}

// What the row model takes, from what the connection gives.

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
