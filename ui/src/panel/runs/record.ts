/** The record of a chat's turns as the server gives it. */
import type { components } from "@/api/schema";

type Schemas = components["schemas"];

export type RunPage = Schemas["RunPage"];
export type Turn = Schemas["TurnItem"];
export type Attempt = Schemas["AttemptItem"];
export type Outcome = Attempt["outcome"];
export type Lane = Schemas["LaneItem"];
export type RunTakeover = Schemas["TakeoverPayload"];

/** Outcomes after which the turn goes on with another attempt. */
const GOES_ON: ReadonlySet<Outcome> = new Set(["running", "retry", "lost", "released", "suspended"]);

/** Whether the turn is not over: it runs, or waits for its next attempt. */
export function isOpen(turn: Turn): boolean {
  return GOES_ON.has(turn.outcome);
}

/** When an attempt ended; of a lost one the last sign of life of its worker. Null: it runs. */
export function endOf(attempt: Attempt): number | null {
  const end = attempt.outcome === "lost" ? (attempt.last_seen_at ?? attempt.ended_at) : attempt.ended_at;
  return end === null ? null : Math.max(Date.parse(end), Date.parse(attempt.started_at));
}

/** The turn to which a message belongs: the last that began with it or before it. Null: not known yet. */
export function turnOfMessage(turns: readonly Turn[], messageId: number, hasMore: boolean): number | null {
  const found = turns.find((turn) => turn.message_id !== null && turn.message_id <= messageId);
  return found?.turn ?? (hasMore ? null : (turns.at(-1)?.turn ?? null));
}

export const startOf = (item: Attempt | Turn): number => Date.parse(item.started_at);

/** How long a turn took, or has been going on. */
export function turnMs(turn: Turn, now: number): number {
  const end = isOpen(turn) || turn.ended_at === null ? now : Date.parse(turn.ended_at);
  return Math.max(0, end - startOf(turn));
}
