/** Who ran the chat, attempt by attempt, and why it went on. */
import "@/styles/runs.css";
import { Waypoints } from "lucide-react";
import { useCallback, useEffect, useState } from "react";
import { Button, EmptyState, ErrorNote, Skeleton, type Status, STATUS_LOOKS, StatusIcon } from "@/components";
import { useChatSelector } from "@/connection";
import { type PanelOptions, usePanelRequest } from "@/platform/actions";
import { plural } from "@/platform/words";
import { AttemptList, EarlierTurns } from "./attempts";
import { Lease } from "./lanes-chart";
import { ReplayBar } from "./replay-bar";
import { isOpen, type Turn, turnOfMessage, useRuns } from "./runs";

export function RunsTab({ chatId }: { chatId: string }) {
  const runs = useRuns(chatId);
  const status = useChatSelector(chatId, (state) => state.status);
  const version = useChatSelector(chatId, (state) => state.version);
  const [chosen, setChosen] = useState<number | null>(null);
  const [wanted, setWanted] = useState<number | null>(null);
  usePanelRequest(
    "runs",
    useCallback(({ messageId }: PanelOptions) => setWanted(messageId ?? null), []),
  );
  const newest = runs.turns[0];
  const asked = wanted === null ? null : turnOfMessage(runs.turns, wanted, runs.hasMore);
  if (asked !== null) {
    setWanted(null);
    setChosen(asked === newest?.turn ? null : asked);
  }
  const isSought = wanted !== null && asked === null && runs.hasMore && !runs.isLoadingMore;
  const { loadMore } = runs;
  useEffect(() => {
    if (isSought) loadMore();
  }, [isSought, loadMore]);
  const turn = runs.turns.find((one) => one.turn === chosen) ?? newest;
  if (runs.error !== null) {
    return (
      <div className="panel-scroll is-top">
        <ErrorNote
          error={runs.error}
          action={
            <Button size="xs" onClick={runs.retry}>
              Try again
            </Button>
          }
        />
      </div>
    );
  }
  if (runs.isLoading || runs.newest === null)
    return (
      <div className="panel-scroll">
        <Skeleton rows={5} />
      </div>
    );
  if (turn === undefined || newest === undefined) return <EmptyState icon={Waypoints}>No turn yet. The first message starts one.</EmptyState>;
  const isNewest = turn.turn === newest.turn;
  const waits = isNewest && isOpen(turn) && turn.outcome !== "running";
  const choose = (number: number) => setChosen(number === newest.turn ? null : number);
  return (
    <>
      <div className="panel-scroll is-top" tabIndex={0} role="region" aria-label="Runs">
        <Lease page={runs.newest} readAt={runs.readAt} turn={turn} isNewest={isNewest} status={status} />
        <TurnHeading turn={turn} isNewest={isNewest} onLatest={() => setChosen(null)} />
        <AttemptList turn={turn} nextIsDue={waits} nextAt={waits ? runs.newest.next_attempt_at : null} />
        <EarlierTurns
          turns={runs.turns.filter((one) => one.turn !== turn.turn)}
          hasMore={runs.hasMore}
          isLoadingMore={runs.isLoadingMore}
          onMore={runs.loadMore}
          onChoose={choose}
        />
      </div>
      <ReplayBar chatId={chatId} turns={runs.turns} shown={turn.turn} version={version} onChoose={choose} />
    </>
  );
}

const TURN_STATUS: Readonly<Record<Turn["outcome"], Status>> = {
  running: "running",
  retry: "retrying",
  lost: "pending",
  released: "pending",
  suspended: "running",
  needs_action: "requires_action",
  failed: "error",
  finished: "done",
  interrupted: "stopped",
  replaced: "stopped",
  archived: "stopped",
  unknown: "stopped",
};
const TAG_TONES: Readonly<Record<string, string>> = { accent: "tone-accent", warn: "tone-warn", danger: "tone-danger", ok: "tone-ok" };

function TurnHeading({ turn, isNewest, onLatest }: { turn: Turn; isNewest: boolean; onLatest: () => void }) {
  const status = TURN_STATUS[turn.outcome];
  const look = STATUS_LOOKS[status];
  const attempts = turn.attempts.length;
  return (
    <h3 className="panel-heading">
      Turn {turn.turn}
      <span className={`ui-tag ${TAG_TONES[look.tone] ?? ""}`}>
        <StatusIcon status={status} decorative />
        {look.word}
      </span>
      <span className="ui-meta">
        {isNewest ? (
          plural(attempts, "attempt")
        ) : (
          <button type="button" className="ui-link" onClick={onLatest}>
            Show the latest
          </button>
        )}
      </span>
    </h3>
  );
}
