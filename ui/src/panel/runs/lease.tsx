import { Cpu } from "lucide-react";
import { durationText, Icon, useNow } from "@/components";
import type { ChatStatus } from "@/chat-state";
import { LanesChart } from "./lanes-chart";
import { isOpen, type RunPage, type Turn, turnMs } from "./record";

interface LeaseProps {
  readonly page: RunPage;
  readonly readAt: number;
  readonly turn: Turn;
  readonly isNewest: boolean;
  readonly status: ChatStatus;
}

/** Who has the chat, and the turn that is shown as lanes of time. */
export function Lease({ page, readAt, turn, isNewest, status }: LeaseProps) {
  const now = useNow();
  const { holder } = page;
  const open = isNewest && isOpen(turn);
  const renewed = holder?.renewed_ms_ago == null ? null : holder.renewed_ms_ago + Math.max(0, now - readAt);
  const nextAt = open && page.next_attempt_at !== null && turn.outcome !== "running" ? Date.parse(page.next_attempt_at) : null;
  return (
    <div className="runs-lease">
      <dl>
        <div>
          <dt>Worker</dt>
          <dd>
            {holder === null ? (
              <span className="tone-muted">{status === "pending" || status === "running" ? "Waiting for one" : "None needed"}</span>
            ) : (
              <>
                <Icon of={Cpu} size="sm" className="tone-accent" />
                <span className="ui-ellipsis" title={holder.worker.host}>
                  {holder.worker.name}
                </span>
              </>
            )}
          </dd>
        </div>
        <div>
          <dt>Lease renewed</dt>
          <dd>{renewed === null ? <span className="tone-muted">No lease</span> : `${durationText(renewed)} ago`}</dd>
        </div>
        <div>
          <dt>{open ? "This turn" : `Turn ${turn.turn}`}</dt>
          <dd>{durationText(turnMs(turn, now))}</dd>
        </div>
      </dl>
      <LanesChart turn={turn} workers={page.workers} nextAt={nextAt} />
    </div>
  );
}
