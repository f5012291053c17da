/** Turns as the server records them. */
import type { Attempt, Turn } from "./runs";

const START = Date.parse("2026-11-17T12:00:00Z");

export const at = (second: number): string => new Date(START + second * 1000).toISOString();
export const ms = (second: number): number => START + second * 1000;

const worker = (name: string) => ({ id: `00000000-0000-4000-8000-0000000000${name}`, name, host: "web" });

export function attempt(number: number, name: string, from: number, to: number | null, given: Partial<Attempt> = {}): Attempt {
  return {
    number,
    worker: worker(name),
    epoch: number,
    started_at: at(from),
    ended_at: to === null ? null : at(to),
    outcome: to === null ? "running" : "finished",
    messages: 0,
    takeover: null,
    error: null,
    error_kind: null,
    provider: null,
    status_code: null,
    retry_delay_ms: null,
    queue_held: false,
    kept_chars: 0,
    noticed_by: null,
    missed_renewals: 0,
    last_seen_at: null,
    noticed_by_worker: null,
    open_calls: [],
    ...given,
  };
}

export function turnOf(attempts: Attempt[], number = 7): Turn {
  const last = attempts[attempts.length - 1];
  return {
    turn: number,
    message_id: 12,
    started_at: attempts[0]?.started_at ?? at(0),
    ended_at: last?.ended_at ?? null,
    outcome: last?.outcome ?? "running",
    attempts,
  };
}

/** The turn of the design: lost on a1, taken over by b2, rate limited. */
export function takenOverTurn(): Turn {
  const taken = {
    worker: worker("b2"),
    lost_worker: worker("a1"),
    after_ms: 2100,
    noticed_by: "lock_gone" as const,
    missed_renewals: 2,
    message_id: 12,
    resumed_calls: 1,
    repeats_answer: false,
    version: 40,
  };
  return turnOf([
    attempt(9, "a1", 0, 43, { outcome: "lost", last_seen_at: at(41), messages: 3, noticed_by: "lock_gone", missed_renewals: 2, open_calls: ["execute"] }),
    attempt(10, "b2", 43.1, 74, {
      outcome: "retry",
      takeover: taken,
      messages: 2,
      error: "The provider limits the rate.",
      error_kind: "rate_limit",
      status_code: 429,
      retry_delay_ms: 8000,
    }),
  ]);
}
