import { ArrowRightLeft, RotateCw, ShieldCheck } from "lucide-react";
import type { ReactNode } from "react";
import { Countdown, durationText, Elapsed, Icon, StatusIcon } from "@/components";
import { attemptText, takeoverFacts, takeoverText } from "./attempt-words";
import { type Attempt, endOf, type Outcome, type RunTakeover, startOf, type Turn } from "./record";

const MAX_SHOWN = 40;

function outcomeIcon(outcome: Outcome): ReactNode {
  switch (outcome) {
    case "running":
      return <StatusIcon status="running" decorative />;
    case "finished":
      return <StatusIcon status="done" decorative />;
    case "needs_action":
      return <StatusIcon status="requires_action" decorative />;
    case "lost":
    case "failed":
      return <StatusIcon status="error" decorative />;
    case "retry":
      return <Icon of={RotateCw} className="tone-muted" />;
    case "released":
    case "suspended":
      return <Icon of={ArrowRightLeft} className="tone-info" />;
    default:
      return <StatusIcon status="stopped" decorative />;
  }
}

/** The attempts of a turn, newest first, with the takeovers between them. */
export function AttemptList({ turn, nextAt, nextIsDue }: { turn: Turn; nextAt: string | null; nextIsDue: boolean }) {
  const numbered = turn.attempts.map((attempt, index) => ({ attempt, number: index + 1, before: turn.attempts[index - 1] ?? null }));
  const shown = numbered.toReversed().slice(0, MAX_SHOWN);
  const last = turn.attempts.at(-1);
  return (
    <ol className="runs-attempts">
      {nextIsDue && last !== undefined && (
        <li>
          <StatusIcon status="retrying" decorative />
          <h4>
            Attempt {turn.attempts.length + 1}
            {nextAt !== null && (
              <span className="runs-when">
                starts in <Countdown until={nextAt} />
              </span>
            )}
          </h4>
          <p>{nextText(last)}</p>
        </li>
      )}
      {shown.map(({ attempt, number, before }) => (
        <AttemptRows key={attempt.number} attempt={attempt} number={number} before={before} />
      ))}
      {numbered.length > shown.length && (
        <li>
          <StatusIcon status="stopped" decorative />
          <p>{numbered.length - shown.length} earlier attempts are in the export.</p>
        </li>
      )}
    </ol>
  );
}

function nextText(last: Attempt): string {
  if (last.outcome === "retry") return "It starts by itself. Nothing is lost.";
  return "The next free worker takes the chat. Nothing is lost.";
}

function AttemptRows({ attempt, number, before }: { attempt: Attempt; number: number; before: Attempt | null }) {
  const end = endOf(attempt);
  return (
    <>
      <li>
        {outcomeIcon(attempt.outcome)}
        <h4>
          Attempt {number} on {attempt.worker.name}
          <span className="runs-when">{end === null ? <Elapsed since={attempt.started_at} /> : durationText(end - startOf(attempt))}</span>
        </h4>
        <p>{attemptText(attempt)}</p>
      </li>
      {attempt.takeover !== null && <TakeoverRow takeover={attempt.takeover} lost={before} />}
    </>
  );
}

function TakeoverRow({ takeover, lost }: { takeover: RunTakeover; lost: Attempt | null }) {
  return (
    <li>
      <Icon of={ShieldCheck} className="tone-ok" />
      <h4>
        {takeover.worker.name} took over
        {takeover.after_ms !== null && <span className="runs-when">after {durationText(takeover.after_ms)}</span>}
      </h4>
      <p>{takeoverText(takeover)}</p>
      <dl className="runs-facts">
        {takeoverFacts(takeover, lost).map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </li>
  );
}
