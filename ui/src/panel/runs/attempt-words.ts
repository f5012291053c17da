/** What the page says about an attempt, a takeover and an earlier turn. Pure, so that it can be tested. */
import { durationText, plural } from "@/platform/words";
import { type Attempt, endOf, type RunTakeover, startOf, type Turn, turnMs } from "./runs";

function sentence(text: string): string {
  const trimmed = text.trim();
  return trimmed === "" || /[.!?]$/.test(trimmed) ? trimmed : `${trimmed}.`;
}

const clock = (moment: string): string => new Date(moment).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

const written = (attempt: Attempt): string => (attempt.messages === 0 ? "" : ` ${plural(attempt.messages, "message")} written.`);

function failure(attempt: Attempt): string {
  const status =
    attempt.status_code === null || (attempt.error ?? "").includes(String(attempt.status_code)) ? "" : ` The provider answered ${attempt.status_code}.`;
  return `${sentence(attempt.error ?? "The model call failed")}${status}`;
}

/** Why an attempt ended as it did, and what was kept. */
export function attemptText(attempt: Attempt): string {
  switch (attempt.outcome) {
    case "running":
      return runningText(attempt);
    case "finished":
      return `${attempt.error === null ? "Finished the turn." : `Ended early. ${sentence(attempt.error)}`}${written(attempt)}`;
    case "interrupted":
      return `Stopped by a person. ${keptText(attempt)}${attempt.queue_held ? " The queue is held." : ""}`;
    case "needs_action":
      return `Waits for an answer to a call.${written(attempt)}`;
    case "released":
      return `Worker ${attempt.worker.name} was stopped, as in a deploy. It gave the chat back, and the turn goes on elsewhere.${written(attempt)}`;
    case "suspended":
      return `Waits for subagents, and needs no worker meanwhile.${written(attempt)}`;
    case "lost":
      return lostText(attempt);
    case "retry":
      return `${failure(attempt)} The call is made again${attempt.retry_delay_ms === null ? "" : ` after ${durationText(attempt.retry_delay_ms)}`}.${written(attempt)}`;
    case "failed":
      return failure(attempt);
    case "replaced":
      return "A person edited the message, so this answer was dropped.";
    case "archived":
      return "A person archived the chat.";
    case "unknown":
      return "An earlier release of chatd ended it and kept no reason.";
  }
}

function runningText(attempt: Attempt): string {
  const calls = attempt.takeover?.resumed_calls ?? 0;
  const resumed = calls === 0 ? "" : ` Asked for ${plural(calls, "open call")} again, by id.`;
  return `In progress.${resumed}${written(attempt)}`;
}

function keptText(attempt: Attempt): string {
  return attempt.kept_chars === 0 ? "Nothing was being written." : `${plural(attempt.kept_chars, "character")} of the answer were kept.`;
}

function lostText(attempt: Attempt): string {
  const tools =
    attempt.open_calls.length === 0 ? "" : ` while ${attempt.open_calls.slice(0, 3).join(", ")} ${attempt.open_calls.length === 1 ? "was" : "were"} running`;
  const seen = attempt.last_seen_at === null ? "" : ` Last sign of life ${clock(attempt.last_seen_at)}.`;
  return `Lost${tools}.${seen}`;
}

export function takeoverText(takeover: RunTakeover): string {
  const lost = takeover.lost_worker.name;
  if (takeover.noticed_by === "runner_crashed") return `The task of this chat crashed on worker ${lost}; the worker itself lives. The turn goes on.`;
  return `Worker ${lost} died. This was not a stop by a person and not a deploy, so the turn goes on.`;
}

/** The facts of a takeover, as name and value. */
export function takeoverFacts(takeover: RunTakeover, lost: Attempt | null): readonly (readonly [string, string])[] {
  const missed = takeover.missed_renewals;
  const sign = { lock_gone: "lock gone", lease_stale: "lease expired", runner_crashed: "task ended" }[takeover.noticed_by];
  const calls = takeover.resumed_calls;
  return [
    ["Noticed by", `${sign}${missed > 0 ? `, ${plural(missed, "renewal")} missed` : ""}`],
    ["Kept", lost === null ? "every message written before" : lost.messages === 0 ? "all that was said before this turn" : plural(lost.messages, "message")],
    ["Commands", calls === 0 ? "none were running" : `${plural(calls, "call")} open, asked for again by id, run once`],
    ["Model calls", takeover.repeats_answer ? "1 made again: its answer was not committed" : "0 paid twice"],
  ];
}

export interface EarlierTurn {
  readonly look: "done" | "recovered" | "deploy" | "stopped" | "failed" | "needs" | "other";
  readonly text: string;
  readonly meta: string;
}

/** One line about a turn that is over: the most telling thing that happened in it. */
export function earlierTurn(turn: Turn): EarlierTurn {
  const last = turn.attempts.at(-1);
  const on = last === undefined ? "" : ` on ${last.worker.name}`;
  const meta = durationText(turnMs(turn, Date.parse(turn.ended_at ?? turn.started_at)));
  const taken = turn.attempts.findLast((attempt) => attempt.takeover !== null)?.takeover ?? null;
  if (turn.outcome === "interrupted") {
    const kept = last?.kept_chars ?? 0;
    return { look: "stopped", text: kept === 0 ? "Stopped by a person" : `Stopped by a person, ${plural(kept, "character")} kept`, meta };
  }
  if (turn.outcome === "failed") return { look: "failed", text: last === undefined ? "Failed" : failure(last), meta };
  if (taken !== null) return { look: "recovered", text: `Recovered on ${taken.worker.name} after ${taken.lost_worker.name} died`, meta };
  const handed = deployOf(turn);
  if (handed !== null) return handed;
  if (turn.outcome === "needs_action") return { look: "needs", text: `Asked for an answer${on}`, meta };
  if (turn.outcome === "finished" && last?.error != null) return { look: "other", text: `Ended early${on}. ${sentence(last.error)}`, meta };
  if (turn.outcome === "finished")
    return { look: "done", text: `Finished${on}${turn.attempts.length > 1 ? ` after ${turn.attempts.length} attempts` : ""}`, meta };
  const words: Partial<Record<Turn["outcome"], string>> = { replaced: "Replaced by an edit", archived: "Archived" };
  return { look: "other", text: words[turn.outcome] ?? `Ended${on}`, meta };
}

function deployOf(turn: Turn): EarlierTurn | null {
  const at = turn.attempts.findLastIndex((attempt) => attempt.outcome === "released");
  const [from, to] = [turn.attempts[at], turn.attempts[at + 1]];
  if (from === undefined || to === undefined) return null;
  const gap = Math.max(0, startOf(to) - (endOf(from) ?? startOf(to)));
  return { look: "deploy", text: `Deploy: ${from.worker.name} gave the chat back, ${to.worker.name} went on`, meta: `${durationText(gap)} gap` };
}
