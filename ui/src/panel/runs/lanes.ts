/** Where the attempts of a turn are drawn: one lane a worker, time from left to right. */
import { durationText } from "@/platform/words";
import { type Attempt, endOf, isOpen, type Lane, type Outcome, startOf, type Turn } from "./runs";

export interface LanesInput {
  readonly turn: Turn;
  /** Workers that are alive. */
  readonly workers: readonly Lane[];
  readonly now: number;
  /** When the next attempt may begin, if the turn waits for it. */
  readonly nextAt: number | null;
  readonly width: number;
}

export interface Bar {
  readonly key: string;
  readonly x: number;
  readonly width: number;
  readonly lane: number;
  readonly look: "danger" | "muted" | "accent" | "ok" | "warn" | "info" | "next";
  /** As much of the label as fits. */
  readonly label: string;
  readonly title: string;
}

interface Handover {
  readonly key: string;
  readonly from: { readonly x: number; readonly lane: number };
  readonly to: { readonly x: number; readonly lane: number };
  readonly tone: "ok" | "info";
  readonly label: { readonly x: number; readonly lane: number; readonly anchor: "start" | "end"; readonly text: string } | null;
}

interface LanesLayout {
  readonly names: readonly string[];
  readonly bars: readonly Bar[];
  readonly handovers: readonly Handover[];
  readonly ticks: readonly { readonly x: number; readonly text: string }[];
  /** Lanes of workers that had no part in the turn. */
  readonly idle: readonly { readonly lane: number; readonly toX: number; readonly text: string }[];
  readonly nowX: number | null;
  readonly description: string;
}

const SECOND = 1000;
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400].map((s) => s * SECOND);
const MAX_LANES = 5;
const MAX_IDLE = 2;
const MAX_BARS = 60;
const CHAR_PX = 5.7;
export const LABEL_PX = 46;
const END_PX = 10;
const MIN_BAR_PX = 5;
const NEXT_PX = 62;

const OUTCOME_WORDS: Readonly<Record<Outcome, string>> = {
  running: "working",
  finished: "finished",
  interrupted: "stopped",
  needs_action: "needs you",
  released: "gave it back",
  suspended: "waits for agents",
  lost: "lost",
  retry: "retried",
  failed: "failed",
  replaced: "replaced",
  archived: "archived",
  unknown: "ended",
};

const LOOKS: Readonly<Record<Outcome, Bar["look"]>> = {
  running: "accent",
  finished: "ok",
  interrupted: "muted",
  needs_action: "warn",
  released: "info",
  suspended: "info",
  lost: "danger",
  retry: "muted",
  failed: "danger",
  replaced: "muted",
  archived: "muted",
  unknown: "muted",
};

const RETRY_WORDS: Readonly<Record<string, string>> = {
  rate_limit: "rate limited",
  overloaded: "overloaded",
  timeout: "timed out",
};

function outcomeWord(attempt: Attempt): string {
  const known = attempt.outcome === "retry" ? RETRY_WORDS[attempt.error_kind ?? ""] : undefined;
  return known ?? OUTCOME_WORDS[attempt.outcome];
}

export function layOutLanes(input: LanesInput): LanesLayout {
  const { turn, now, nextAt, width } = input;
  const attempts = turn.attempts.slice(-MAX_BARS);
  const first = attempts.length === 0 ? startOf(turn) : Math.min(...attempts.map(startOf));
  const open = isOpen(turn);
  const ends = attempts.map((attempt) => endOf(attempt) ?? now);
  const last = Math.max(first + SECOND, ...ends, ...(open ? [now] : []), ...(nextAt === null ? [] : [nextAt]));
  const left = LABEL_PX;
  const right = width - END_PX - (nextAt === null ? 0 : NEXT_PX);
  const x = (moment: number) => left + ((moment - first) / (last - first)) * Math.max(1, right - left);

  const workers = laneOrder(attempts, input.workers);
  const laneOf = (id: string) =>
    Math.max(
      0,
      workers.findIndex((worker) => worker.id === id),
    );
  const offset = turn.attempts.length - attempts.length;
  const bars = attempts.map((attempt, index): Bar => {
    const from = x(startOf(attempt));
    const to = x(endOf(attempt) ?? now);
    const next = attempts.findIndex((other, at) => at > index && other.worker.id === attempt.worker.id);
    const room = (next === -1 ? right : x(startOf(attempts[next] ?? attempt)) - 2) - from;
    const barWidth = Math.max(Math.min(MIN_BAR_PX, Math.max(2, room)), to - from);
    const number = offset + index + 1;
    return {
      key: String(attempt.number),
      x: from,
      width: barWidth,
      lane: laneOf(attempt.worker.id),
      look: LOOKS[attempt.outcome],
      label: fitLabel([`${number} · ${outcomeWord(attempt)}`, String(number)], barWidth - 12),
      title: `Attempt ${number} on ${attempt.worker.name}: ${outcomeWord(attempt)}, ${durationText((endOf(attempt) ?? now) - startOf(attempt))}`,
    };
  });
  const lastAttempt = attempts.at(-1);
  if (nextAt !== null && lastAttempt !== undefined) {
    const number = turn.attempts.length + 1;
    const from = x(Math.max(nextAt, ends.at(-1) ?? nextAt));
    bars.push({
      key: "next",
      x: from,
      width: NEXT_PX - 8,
      lane: laneOf(lastAttempt.worker.id),
      look: "next",
      label: `${number} · next`,
      title: `Attempt ${number} comes next`,
    });
  }
  const handovers = findHandovers(attempts, bars, right);
  const idleEnd = x(open ? now : last);
  return {
    names: workers.map((worker) => worker.name),
    bars,
    handovers,
    ticks: ticksOf(first, last, x, right),
    idle: workers.flatMap((worker, lane) =>
      attempts.some((attempt) => attempt.worker.id === worker.id)
        ? []
        : [{ lane, toX: idleEnd, text: worker.draining ? "is being stopped" : "idle, ready to take over" }],
    ),
    nowX: open ? x(now) : null,
    description: `${bars.map((bar) => bar.title).join(". ")}.`,
  };
}

interface ShownWorker {
  readonly id: string;
  readonly name: string;
  readonly draining: boolean;
}

/** Workers of the turn in the order in which they had it, the newest if there are many; then idle ones. */
function laneOrder(attempts: readonly Attempt[], alive: readonly Lane[]): readonly ShownWorker[] {
  const used = new Map<string, ShownWorker>();
  for (const { worker } of attempts) used.set(worker.id, { id: worker.id, name: worker.name, draining: false });
  const mine = [...used.values()].slice(-MAX_LANES);
  const idle = alive.filter((worker) => !used.has(worker.id)).slice(0, Math.min(MAX_IDLE, MAX_LANES - mine.length));
  return [...mine, ...idle];
}

function fitLabel(candidates: readonly string[], room: number): string {
  return candidates.find((text) => text.length * CHAR_PX <= room) ?? "";
}

function findHandovers(attempts: readonly Attempt[], bars: readonly Bar[], right: number): readonly Handover[] {
  return attempts.flatMap((attempt, index): Handover[] => {
    const before = attempts[index - 1];
    const [from, to] = [bars[index - 1], bars[index]];
    if (before === undefined || from === undefined || to === undefined) return [];
    const taken = attempt.takeover !== null && before.outcome === "lost";
    if (!taken && (before.outcome !== "released" || from.lane === to.lane)) return [];
    const gap = taken ? (attempt.takeover?.after_ms ?? null) : startOf(attempt) - (endOf(before) ?? startOf(attempt));
    const text = gap === null ? "taken over" : `taken over in ${durationText(gap)}`;
    const start = { x: from.x + from.width, lane: from.lane };
    const end = { x: to.x, lane: to.lane };
    return [{ key: to.key, from: start, to: end, tone: taken ? "ok" : "info", label: placeLabel(text, start, end, bars, right) }];
  });
}

/** After the lost bar in its lane, or before the new bar in its own, or nowhere. */
function placeLabel(text: string, from: Handover["from"], to: Handover["to"], bars: readonly Bar[], right: number): Handover["label"] {
  const room = text.length * CHAR_PX;
  if (from.lane === to.lane) {
    return to.x - from.x > room + 8 ? { x: (from.x + to.x) / 2 - room / 2, lane: from.lane, anchor: "start", text } : null;
  }
  const isFree = (lane: number, start: number, end: number) =>
    start >= LABEL_PX && end <= right + END_PX && !bars.some((bar) => bar.lane === lane && bar.x < end && bar.x + bar.width > start);
  const after = Math.max(from.x, to.x) + 8;
  if (isFree(from.lane, from.x + 1, after + room)) return { x: after, lane: from.lane, anchor: "start", text };
  if (isFree(to.lane, to.x - 8 - room, to.x - 1)) return { x: to.x - 8, lane: to.lane, anchor: "end", text };
  return null;
}

function ticksOf(first: number, last: number, x: (moment: number) => number, right: number): LanesLayout["ticks"] {
  const span = last - first;
  const step = STEPS.find((one) => span / one <= 4.5) ?? Math.ceil(span / 4 / 86_400_000) * 86_400_000;
  const ticks: { x: number; text: string }[] = [];
  for (let at = 0; at <= span && x(first + at) <= right + 1; at += step) ticks.push({ x: x(first + at), text: tickText(at) });
  return ticks;
}

function tickText(ms: number): string {
  if (ms < 120 * SECOND) return `${ms / SECOND} s`;
  return ms < 7_200_000 ? `${ms / 60_000} m` : `${ms / 3_600_000} h`;
}
