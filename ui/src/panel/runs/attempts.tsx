import { ArrowRightLeft, RotateCw, ShieldCheck } from "lucide-react";
import { type ReactNode, useState } from "react";
import { Button, Countdown, Elapsed, Icon, StatusIcon } from "@/components";
import { durationText } from "@/platform/words";
import { attemptText, type EarlierTurn, earlierTurn, takeoverFacts, takeoverText } from "./attempt-words";
import { type Attempt, endOf, type Outcome, type RunTakeover, startOf, type Turn } from "./runs";

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

const FIRST = 3;

function lookIcon(look: EarlierTurn["look"]): ReactNode {
  switch (look) {
    case "done":
      return <StatusIcon status="done" size="sm" decorative />;
    case "recovered":
      return <Icon of={ShieldCheck} size="sm" className="tone-ok" />;
    case "deploy":
      return <Icon of={ArrowRightLeft} size="sm" className="tone-info" />;
    case "failed":
      return <StatusIcon status="error" size="sm" decorative />;
    case "needs":
      return <StatusIcon status="requires_action" size="sm" decorative />;
    default:
      return <StatusIcon status="stopped" size="sm" decorative />;
  }
}

interface EarlierTurnsProps {
  readonly turns: readonly Turn[];
  readonly hasMore: boolean;
  readonly isLoadingMore: boolean;
  readonly onMore: () => void;
  readonly onChoose: (turn: number) => void;
}

/** One line a turn; a press shows its attempts above. */
export function EarlierTurns({ turns, hasMore, isLoadingMore, onMore, onChoose }: EarlierTurnsProps) {
  const [isOpen, setOpen] = useState(false);
  const shown = isOpen ? turns : turns.slice(0, FIRST);
  if (turns.length === 0) return null;
  return (
    <>
      <h3 className="panel-heading">
        Other turns
        {turns.length > FIRST && (
          <span className="ui-meta">
            <button type="button" className="ui-link" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
              {isOpen ? "Fewer" : hasMore ? "All" : `All ${turns.length}`}
            </button>
          </span>
        )}
      </h3>
      <div className="runs-turns">
        {shown.map((turn) => {
          const line = earlierTurn(turn);
          return (
            <button key={turn.turn} type="button" onClick={() => onChoose(turn.turn)}>
              {lookIcon(line.look)}
              <b>Turn {turn.turn}</b>
              <span className="ui-ellipsis">{line.text}</span>
              <span>{line.meta}</span>
            </button>
          );
        })}
      </div>
      {isOpen && hasMore && (
        <Button size="xs" variant="quiet" busy={isLoadingMore} onClick={onMore}>
          Earlier turns
        </Button>
      )}
    </>
  );
}
