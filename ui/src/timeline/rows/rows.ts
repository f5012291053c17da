/**
 * The rows of a chat's timeline, from its state. `RowModel` remembers the rows of each message, so that
 * a change makes only the rows that differ: an unchanged row stays the same object, and is not rendered again.
 */
import type { OutboxItem } from "@/chat-state/outbox";
import { isBusy, isWorking } from "@/chat-state/reducer";
import type { ChatState, LiveParts, Message, Part, RequestedCall, Takeover as TakeoverPayload } from "@/chat-state/types";
import { isNotice, isStop, isSummary, messageRows, partRows } from "./message-rows";
import { isQuiet, isRead } from "./call-view";
import { type Activity, type Callout, type FileChip, type PendingSend, type ReadsRow, type Reference, type Row, type Takeover, type ToolRow } from "./row";
import { type CallContext, CallRecords } from "./tool-call";

interface RowOptions {
  readonly pendingSends?: readonly PendingSend[];
  readonly takeovers?: readonly Takeover[];
}

/** The committed messages and their rows. */
interface History {
  readonly messages: readonly Message[];
  readonly takeovers: readonly Takeover[];
  readonly records: CallRecords;
  /** The index of the last message that is no notice. */
  readonly lastSaid: number;
  /** The index of the last answer, if it has calls without a result; else the number of messages. */
  readonly openFrom: number;
}

type HistoryContext = CallContext & { readonly records: CallRecords };

const NONE: readonly never[] = [];
const IDLE: CallContext = { isBusy: false, requested: new Map<string, RequestedCall>() };

export function rows(state: ChatState, options: RowOptions = {}): readonly Row[] {
  return new RowModel().rows(state, options);
}

export class RowModel {
  private readonly keys = new LiveKeys();
  private readonly memory = new MessageMemory();
  private readonly joiner = new RowJoiner();
  private history: History | null = null;
  /** Rows of all messages before `openFrom`. Only a commit changes them. */
  private settled: readonly Row[] = NONE;
  /** Rows below those of messages: live parts, messages on their way, the row at the end. */
  private tail: readonly Row[] = NONE;

  rows(state: ChatState, { pendingSends = NONE, takeovers = NONE }: RowOptions = {}): readonly Row[] {
    const liveKey = this.keys.follow(state) ?? "live";
    const history = this.readHistory(state.messages, takeovers);
    const openId = state.messages[history.openFrom]?.id ?? null;
    const busy = isBusy(state.status);
    const { parts, isEarlier } = livePartsOf(state);
    const records = history.records.withLive(parts, openId);
    const requested = new Map(state.requestedCalls.map((call) => [call.tool_call_id, call]));
    const context = { isBusy: busy, requested, records };
    const open = this.messageRows(history, history.openFrom, state.messages.length, context);

    const fresh = parts.filter((part) => openId === null || records.get(openId, part) === undefined);
    const live = partRows(fresh, { ...context, key: liveKey, messageId: null, isLive: !isEarlier });
    const below: Row[] = isEarlier ? live.map((row) => ({ ...row, isEarlier })) : live;
    if (!busy) below.push(...pendingSends.map(pendingRow));
    const end = endRow(state, below.at(-1) ?? open.at(-1) ?? this.settled.at(-1));
    if (end !== null) below.push(end);
    this.tail = reuseRows(this.tail, below);

    const shown = this.joiner.join(this.settled, [...open, ...this.tail]);
    // The callout says why, and has the button.
    if (end?.kind === "callout") this.joiner.dropContinue(shown);
    if (!busy) this.joiner.markLastPlan(shown);
    return shown;
  }

  private readHistory(messages: readonly Message[], takeovers: readonly Takeover[]): History {
    const known = this.history;
    if (known?.messages === messages && known.takeovers === takeovers) return known;
    const records = CallRecords.of(messages);
    const lastSaid = messages.findLastIndex((message) => !isNotice(message));
    const history = { messages, takeovers, records, lastSaid, openFrom: findOpen(messages, records) };
    this.memory.forgetAllBut(messages);
    this.settled = this.joiner.join(NONE, this.messageRows(history, 0, history.openFrom, { ...IDLE, records }));
    this.history = history;
    return history;
  }

  private messageRows(history: History, from: number, to: number, context: HistoryContext): Row[] {
    const { messages, takeovers, lastSaid } = history;
    return messages.slice(from, to).flatMap((message, offset) => {
      const index = from + offset;
      const key = this.keys.of(message.id);
      const isLast = isNotice(message) ? index === messages.length - 1 : index === lastSaid;
      const isSteering = message.role === "user" && joinsTurn(messages, index, history.records);
      const next = messages[index + 1]?.id ?? Number.POSITIVE_INFINITY;
      const after = takeovers.filter((takeover) => takeover.messageId >= message.id && takeover.messageId < next);
      const calls = message.role === "assistant" ? context.records.partsOf(message) : NONE;
      const requests = calls.map((part) => part.type === "tool-call" && context.requested.get(part.tool_call_id));
      const sources = [message, key, isLast, isSteering, context.isBusy, ...after, ...calls, ...requests];
      return this.memory.rows(message.id, sources, () => messageRows(message, { ...context, key, isLast, isSteering, takeovers: after }));
    });
  }
}

/** What is written now; or what an attempt that has ended had said, whose calls never ran. */
function livePartsOf({ live, retry }: ChatState): { readonly parts: readonly Part[]; readonly isEarlier: boolean } {
  const ended = live?.earlier ?? (retry === null ? undefined : live?.parts);
  if (ended === undefined) return { parts: live?.parts ?? NONE, isEarlier: false };
  return { parts: ended.filter((part) => part.type === "text" || part.type === "reasoning"), isEarlier: true };
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
  if (before?.role !== "tool" || isSummary(before)) return false;
  return before.content.every((part) => records.get(before.id, part)?.state(IDLE) !== "interrupted");
}

function findOpen(messages: readonly Message[], records: CallRecords): number {
  const last = messages.findLastIndex((message) => message.role === "assistant");
  const answer = messages[last];
  return answer?.content.some((part) => records.get(answer.id, part)?.isOpen) ? last : messages.length;
}

/** The rows of each message, with everything they were made from. */
class MessageMemory {
  private readonly known = new Map<number, { readonly sources: readonly unknown[]; readonly rows: readonly Row[] }>();

  rows(messageId: number, sources: readonly unknown[], make: () => Row[]): readonly Row[] {
    const known = this.known.get(messageId);
    if (known !== undefined && isSameList(known.sources, sources)) return known.rows;
    const rows = reuseRows(known?.rows ?? NONE, make());
    this.known.set(messageId, { sources, rows });
    return rows;
  }

  forgetAllBut(messages: readonly Message[]): void {
    const ids = new Set(messages.map((message) => message.id));
    for (const id of this.known.keys()) if (!ids.has(id)) this.known.delete(id);
  }
}

/** `fresh`, with the object of a known row for every row that is equal to it. */
function reuseRows(known: readonly Row[], fresh: readonly Row[]): readonly Row[] {
  const byKey = new Map(known.map((row) => [row.key, row]));
  return fresh.map((row) => {
    const before = byKey.get(row.key);
    return before !== undefined && isEqual(before, row, EQUAL_DEPTH) ? before : row;
  });
}

/** A row, its call, and the fields of the call. What is deeper comes unchanged from the message, or is new. */
const EQUAL_DEPTH = 2;

function isEqual(one: unknown, two: unknown, depth: number): boolean {
  if (Object.is(one, two)) return true;
  if (depth === 0 || typeof one !== "object" || typeof two !== "object" || one === null || two === null) return false;
  const before = Object.entries(one);
  const after = two as Readonly<Record<string, unknown>>;
  return before.length === Object.keys(after).length && before.every(([name, value]) => isEqual(value, after[name], depth - 1));
}

function isSameList(one: readonly unknown[], two: readonly unknown[]): boolean {
  return one.length === two.length && one.every((item, index) => item === two[index]);
}

/** Joins reads that follow each other, and sets lines of finished calls close together. The same rows give the same objects. */
class RowJoiner {
  private readonly reads = new WeakMap<Row, ReadsRow>();
  private readonly variants = new WeakMap<Row, Row>();

  join(before: readonly Row[], rows: readonly Row[]): Row[] {
    const joined = [...before];
    for (const row of rows) {
      const last = joined.at(-1);
      if (row.kind !== "tool" || !isRead(row.call)) joined.push(isLine(row) && isLine(last) ? this.variant(row, { isTight: true }) : row);
      else if (last?.kind === "reads") joined[joined.length - 1] = this.readsRow(row, { ...last, calls: [...last.calls, row.call] });
      else joined.push(this.readsRow(row, readsOf(row, isLine(last))));
    }
    return joined;
  }

  dropContinue(rows: Row[]): void {
    const at = rows.findLastIndex((row) => row.kind === "note");
    const row = rows[at];
    if (row?.kind === "note" && row.canContinue) rows[at] = this.variant(row, { canContinue: false });
  }

  /** The last plan waits for the user, unless a message came after it. */
  markLastPlan(rows: Row[]): void {
    const from = rows.findLastIndex((row) => row.kind === "user") + 1;
    rows.slice(from).forEach((row, offset) => {
      if (row.kind === "tool" && row.call.name === "propose_plan" && row.call.state === "done") rows[from + offset] = this.variant(row, { isLast: true });
    });
  }

  /** The row of all reads up to `last`. */
  private readsRow(last: ToolRow, row: ReadsRow): ReadsRow {
    const known = this.reads.get(last);
    if (known?.key === row.key && known.isTight === row.isTight && isSameList(known.calls, row.calls)) return known;
    this.reads.set(last, row);
    return row;
  }

  /** A row has at most one variant: lines are set close, notes lose their button, plans are no lines. */
  private variant<R extends Row>(row: R, change: Partial<R>): R {
    const known = this.variants.get(row) as R | undefined;
    if (known !== undefined) return known;
    const changed = { ...row, ...change };
    this.variants.set(row, changed);
    return changed;
  }
}

function readsOf(row: ToolRow, isTight: boolean): ReadsRow {
  const { key, messageId, call } = row;
  return { kind: "reads", key, messageId, isTight, calls: [call] };
}

function isLine(row: Row | undefined): boolean {
  return row?.kind === "reads" || (row?.kind === "tool" && isQuiet(row.call));
}

// The one row at the end that says what holds the chat up, or that it works.

function endRow(state: ChatState, last: Row | undefined): Row | null {
  const base = { key: "end", messageId: null, isTight: false };
  const callout = calloutOf(state);
  if (callout !== null) return { ...base, kind: "callout", callout };
  const activity = activityOf(state, last);
  return activity === null ? null : { ...base, kind: "activity", activity };
}

function calloutOf(state: ChatState): Callout | null {
  if (state.status === "error") {
    const error = state.error;
    if (error === null) return null;
    if (error.kind === "queue_held") return { type: "held", error, queued: state.queue.length };
    return { type: "failed", error };
  }
  const waiting = state.waitingCalls[0];
  if (waiting !== undefined && state.status === "running") return { type: "waits", text: waiting.waits_for };
  return isWorking(state.status) && state.retry !== null
    ? { type: "retrying", retry: state.retry, canRetryNow: isUnanswered(state), hasSaid: hasSaid(state) }
    : null;
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
    if (part.type === "command") texts.push(`! ${part.command}`);
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
